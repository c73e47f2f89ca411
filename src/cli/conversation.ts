import type { Chat, Message, ThinkMode } from '../chat/index.js';
import { Ds4Error } from '../error/index.js';
import { PromptTooLongError, Session } from '../session/index.js';
import type { Timeline } from '../session/index.js';
import type { EngineSession, TelemetrySnapshot } from '../engine/index.js';
import type { Text, Tokenizer } from '../tokenizer/index.js';
import type { LoadedModel } from './load.js';
import { renderOptions } from './prompt.js';
import type { Run } from './run.js';
import { cacheText, hitRateText } from './stats.js';
import { OutputClosedError } from './terminal.js';
import { runTurn } from './turn.js';

const nearlyFull = 0.9;

/** A chat: its messages, and the session whose KV cache holds them. */
export class Conversation {
  readonly #run: Run;
  readonly #model: LoadedModel;
  readonly #tokenizer: Tokenizer;
  readonly #chat: Chat;
  readonly #opening: readonly Message[];
  readonly #timeline: (session: EngineSession) => Timeline;
  #messages: Message[];
  #engineSession: EngineSession;
  #session: Session;
  #hasWarned = false;
  think: ThinkMode;

  constructor(
    run: Run,
    parts: {
      readonly model: LoadedModel;
      readonly session: EngineSession;
      readonly tokenizer: Tokenizer;
      readonly chat: Chat;
      readonly opening: readonly Message[];
      /** What each session is used through. */
      readonly timeline: (session: EngineSession) => Timeline;
    },
  ) {
    this.#run = run;
    this.#model = parts.model;
    this.#tokenizer = parts.tokenizer;
    this.#chat = parts.chat;
    this.#opening = parts.opening;
    this.#messages = [...parts.opening];
    this.#timeline = parts.timeline;
    this.#engineSession = parts.session;
    this.#session = this.#newSession(parts.session);
    this.think = renderOptions(
      run,
      parts.model.description,
      run.settings.think,
      parts.session.context,
    ).think;
  }

  #newSession(session: EngineSession): Session {
    return new Session(this.#timeline(session), this.#model.description.shape.vocab);
  }

  get context(): number {
    return this.#session.context;
  }

  get usedTokens(): number {
    return this.#session.evaluated.length;
  }

  get turns(): number {
    return this.#messages.filter(({ role }) => role === 'assistant').length;
  }

  /** Starts over; the system text and the prefix file stay. */
  reset(): void {
    this.#messages = [...this.#opening];
    this.#hasWarned = false;
  }

  /**
   * Sets how the model thinks from now on.
   *
   * @returns what it is now, which is less than asked for when `max` is not possible
   */
  setThink(think: ThinkMode): ThinkMode {
    this.think = renderOptions(this.#run, this.#model.description, think, this.context).think;
    return this.think;
  }

  /**
   * Changes the context; the conversation is processed again at the next turn.
   *
   * @throws PlanError and what opening a session throws: then the context is what it was. NoSessionError: nothing is left.
   */
  async resize(context: number): Promise<void> {
    const { session, failure } = await this.#model.replaceSession(this.#engineSession, context);
    this.#engineSession = session;
    this.#session = this.#newSession(session);
    if (failure !== undefined) {
      throw failure;
    }
    this.#hasWarned = false;
  }

  /**
   * Sends a message and streams the answer. Ctrl+C ends the turn; what was said stays. A turn that fails is taken
   * back.
   *
   * @returns false when it failed
   */
  async turn(content: Text): Promise<boolean> {
    const { stop, terminal } = this.#run;
    const { engine } = this.#model;
    try {
      return await stop.whileInterruptible(
        () => {
          engine.cancel();
        },
        () => this.#turn(content),
      );
    } catch (thrown) {
      if (!(thrown instanceof Ds4Error) || thrown instanceof OutputClosedError) {
        throw thrown;
      }
      const what =
        thrown instanceof PromptTooLongError ? 'prompt processing failed' : 'the turn failed';
      terminal.error(`${what}: ${thrown.message}`);
      terminal.error('the turn is taken back; /ctx TOKENS gives more room, /reset starts over');
      return false;
    } finally {
      if (stop.status === undefined) {
        engine.clearCancel();
      }
    }
  }

  async #turn(content: Text): Promise<boolean> {
    const options = renderOptions(this.#run, this.#model.description, this.think, this.context);
    const messages: Message[] = [...this.#messages, { role: 'user', content }];
    const prompt = this.#chat.render(messages, options);
    const before = this.#model.engine.telemetry().experts;
    const experts = (): TelemetrySnapshot['experts'] => this.#model.engine.telemetry().experts;
    const turn = await runTurn(
      this.#run,
      {
        engine: this.#model.engine,
        tokenizer: this.#tokenizer,
        prefillChunk: this.#engineSession.prefillChunk,
      },
      this.#session,
      {
        prompt,
        think: options.think,
        stopTokens: this.#chat.stopTokens(options.think),
        moreRoom: '/ctx TOKENS gives more, /reset starts over',
        liveText: () => {
          const rate = hitRateText(experts(), before);
          return rate === undefined ? undefined : `${rate} of the experts in memory`;
        },
        interruptedNote: 'interrupted while processing the prompt; the turn is taken back',
        // The next prompt leaves out this turn's thinking, so it parts from this one at the opening mark.
        ...(options.think === 'none' ? {} : { checkpointAt: prompt.length - 1 }),
      },
    );
    this.#sayCache(cacheText(experts(), before));
    if (turn.stoppedInPrompt) {
      return true;
    }
    this.#messages = [
      ...messages,
      this.#chat.parseReply(Int32Array.from(turn.tokens), options.think),
    ];
    this.#warnWhenNearlyFull(prompt.length + turn.tokens.length, turn.end.reason === 'context');
    return true;
  }

  #sayCache(text: string | undefined): void {
    const { terminal } = this.#run;
    if (terminal.stderrIsTerminal && text !== undefined) {
      terminal.note(`experts: ${text}`);
    }
  }

  #warnWhenNearlyFull(usedTokens: number, isFull: boolean): void {
    const share = usedTokens / this.context;
    if (share >= nearlyFull && !isFull && !this.#hasWarned) {
      this.#hasWarned = true;
      this.#run.terminal.warning(
        `the context is ${Math.floor(100 * share)} % full (${usedTokens} of ${this.context} tokens); ` +
          '/ctx TOKENS gives more room, /reset starts over',
      );
    }
  }
}
