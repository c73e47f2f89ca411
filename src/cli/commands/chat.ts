import { readFileSync } from 'node:fs';
import { Chat } from '../../chat/index.js';
import type { EngineInfo } from '../../engine/index.js';
import { Ds4Error } from '../../error/index.js';
import { chatCommands } from '../chat-commands.js';
import { Conversation } from '../conversation.js';
import { InvalidValue, systemReason } from '../errors.js';
import { openExpertTrace, tracedTimeline } from '../expert-trace.js';
import { openLineSource } from '../line-source.js';
import type { LineSource } from '../line-source.js';
import { loadModel, NoSessionError } from '../load.js';
import type { LoadedModel } from '../load.js';
import { openingMessages } from '../prompt.js';
import type { Run } from '../run.js';
import { cacheText, sayStats } from '../stats.js';
import { openTokenizer } from '../tokens.js';
import { positiveInteger } from '../values.js';

const prompt = 'ds4> ';
const usageColumns = 14;

const commandList = [
  'Commands:',
  ...chatCommands.map(({ usage, description }) => `  ${usage.padEnd(usageColumns)} ${description}`),
  '',
].join('\n');

/** What a command does to the loop: the exit status of the last turn, or the wish to leave. */
type Outcome = 'stay' | 'leave' | 'failed' | 'answered';

class ChatLoop {
  readonly #run: Run;
  readonly #model: LoadedModel;
  readonly #conversation: Conversation;

  constructor(run: Run, model: LoadedModel, conversation: Conversation) {
    this.#run = run;
    this.#model = model;
    this.#conversation = conversation;
  }

  /** @returns the exit status: that of the last turn, or of the signal that ended the chat */
  async run(lines: LineSource): Promise<number> {
    let status = 0;
    if (lines.isTerminal) {
      await this.#run.terminal.answer(commandList);
    }
    for (let outcome: Outcome = 'stay'; outcome !== 'leave';) {
      const line = await lines.next(prompt);
      outcome = line.kind === 'end' ? 'leave' : await this.#receive(line.text, lines);
      if (outcome === 'failed' || outcome === 'answered') {
        status = outcome === 'failed' ? 1 : 0;
      }
    }
    return this.#run.stop.status ?? status;
  }

  async #receive(line: string, lines: LineSource): Promise<Outcome> {
    const text = line.trim();
    if (text === '') {
      return 'stay';
    }
    lines.remember(text);
    const outcome = await this.#enter(text);
    return this.#run.stop.status === undefined ? outcome : 'leave';
  }

  async #enter(text: string): Promise<Outcome> {
    if (!text.startsWith('/')) {
      return this.#answer(text);
    }
    const space = text.search(/\s/);
    const name = space < 0 ? text : text.slice(0, space);
    const argument = space < 0 ? '' : text.slice(space).trim();
    const takesArgument = name === '/ctx' || name === '/read';
    const command = chatCommands.find((candidate) => candidate.name === name)?.name;
    if (command === undefined || (argument !== '' && !takesArgument)) {
      this.#run.terminal.error(`unknown command: ${text}`);
      this.#run.terminal.error('/help lists the commands');
      return 'stay';
    }
    switch (command) {
      case '/help':
        return this.#say(commandList.trimEnd());
      case '/think':
        return this.#think('normal');
      case '/think-max':
        return this.#think('max');
      case '/nothink':
        return this.#think('none');
      case '/ctx':
        return this.#resize(argument);
      case '/reset':
        this.#conversation.reset();
        return this.#say('Chat reset.');
      case '/read':
        return this.#read(argument);
      case '/status':
        return this.#status();
      case '/quit':
      case '/exit':
        return 'leave';
    }
  }

  async #say(text: string): Promise<Outcome> {
    await this.#run.terminal.answer(`${text}\n`);
    return 'stay';
  }

  async #answer(text: string | Uint8Array): Promise<Outcome> {
    return (await this.#conversation.turn(text)) ? 'answered' : 'failed';
  }

  #think(wanted: 'none' | 'normal' | 'max'): Promise<Outcome> {
    const mode = this.#conversation.setThink(wanted);
    const name = { none: 'none', normal: 'high', max: 'max' }[mode];
    return this.#say(
      mode === wanted
        ? `Thinking mode: ${name}.`
        : `Thinking mode: ${name} (${this.#conversation.context < 393_216 ? 'ctx below 393216' : 'no instruction in the model'}).`,
    );
  }

  async #resize(argument: string): Promise<Outcome> {
    const { terminal } = this.#run;
    if (argument === '') {
      terminal.error('/ctx needs a number of tokens');
      return 'stay';
    }
    try {
      await this.#conversation.resize(positiveInteger(argument));
      return await this.#say(`Context: ${this.#conversation.context} tokens.`);
    } catch (thrown) {
      if (thrown instanceof InvalidValue) {
        terminal.error(`invalid value for /ctx: ${thrown.text}`);
      } else if (thrown instanceof Ds4Error && !(thrown instanceof NoSessionError)) {
        terminal.error(
          `/ctx: ${thrown.message}; the context of ${this.#conversation.context} stays`,
        );
      } else {
        throw thrown;
      }
      return 'stay';
    }
  }

  async #read(path: string): Promise<Outcome> {
    const { terminal } = this.#run;
    if (path === '') {
      terminal.error('/read needs the name of a file');
      return 'stay';
    }
    let content: Uint8Array;
    try {
      content = readFileSync(path);
    } catch (thrown) {
      terminal.error(`failed to open prompt file: ${path} (${systemReason(thrown)})`);
      return 'stay';
    }
    return this.#answer(content);
  }

  #status(): Promise<Outcome> {
    const { settings } = this.#run;
    const { engine, path } = this.#model;
    const conversation = this.#conversation;
    const thinking = { none: 'none', normal: 'high', max: 'max' }[conversation.think];
    const cache = cacheText(engine.telemetry().experts);
    return this.#say(
      [
        `model:     ${path}`,
        `backend:   ${backendText(this.#model, engine.info)}`,
        ...(cache === undefined ? [] : [`experts:   ${cache}`]),
        `context:   ${conversation.usedTokens} of ${conversation.context} tokens used, ${conversation.turns} turns`,
        `thinking:  ${thinking}`,
        `sampling:  temp ${settings.temperature}, top-p ${settings.topP}, min-p ${settings.minP}, top-k ${settings.topK}, ` +
          `seed ${settings.seed ?? 'from the clock'}, at most ${settings.maxTokens} tokens`,
      ].join('\n'),
    );
  }
}

const expertPlaces = {
  device: 'in GPU memory',
  mappedExperts: 'in main memory',
  streamExperts: 'read from the file',
} as const;

function backendText(
  { plan, split }: Pick<LoadedModel, 'plan' | 'split'>,
  { threads, instructionSet }: EngineInfo,
): string {
  if (split !== undefined) {
    const parts = split.parts.map(({ plan: part, layers: { first, last } }) => {
      const where = part.backend === 'cpu' ? 'the processor' : `device ${part.device.index}`;
      return `layers ${first} to ${last} on ${where}`;
    });
    return `${plan.backend}, ${parts.join(', ')}`;
  }
  if (plan.backend === 'cpu') {
    const experts = plan.weights.place === 'host' ? '' : `, experts ${expertPlaces.streamExperts}`;
    return `cpu, ${threads} threads, ${instructionSet}${experts}`;
  }
  return `${plan.backend}, device ${plan.device.index} (${plan.device.name}), experts ${expertPlaces[plan.weights.place]}`;
}

/** Chats until the input ends. The exit status is that of the last turn. */
export async function chat(run: Run): Promise<number> {
  const opening = openingMessages(run);
  using trace = openExpertTrace(run.settings.expertTrace);
  const { model, session } = await loadModel(run);
  try {
    const { gguf, shape } = model.description;
    const tokenizer = openTokenizer(gguf, shape.vocab);
    const conversation = new Conversation(run, {
      model,
      session,
      tokenizer,
      chat: new Chat(tokenizer),
      opening,
      timeline: (opened) => tracedTimeline(trace, opened, shape),
    });
    const lines = openLineSource(run.environment);
    const forget = run.stop.onStop(() => {
      lines.abort();
    });
    try {
      const status = await new ChatLoop(run, model, conversation).run(lines);
      trace?.finish();
      await model.saveExpertProfile();
      return status;
    } finally {
      forget();
      lines.abort();
    }
  } finally {
    sayStats(run, model);
    await model.close();
  }
}
