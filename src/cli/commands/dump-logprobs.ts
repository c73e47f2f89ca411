import { topLogprobs } from '../../sampling/index.js';
import { jsonNumber, jsonToken, OutputFile } from '../json.js';
import type { Run } from '../run.js';
import type { PromptSource } from '../settings.js';
import { withEvaluatedPrompt } from './evaluated-prompt.js';

/** Generates greedily and writes the best tokens of each step; docs/json-output.md describes the file. */
export async function dumpLogprobs(run: Run, source: PromptSource, file: string): Promise<number> {
  const { logprobsTopK, maxTokens } = run.settings;
  const output = new OutputFile(file);
  try {
    return await withEvaluatedPrompt(
      run,
      source,
      async ({ tokenizer, session, tokens, stopTokens }) => {
        const most = Math.min(maxTokens, session.context - tokens.length - 1);
        const steps: string[] = [];
        while (steps.length < most) {
          const best = topLogprobs(await session.allLogits(), logprobsTopK);
          const entries = best.map(
            ({ id, logit, logprob }) =>
              `      {"token":${jsonToken(tokenizer, id)},"logit":${jsonNumber(logit)},"logprob":${jsonNumber(logprob)}}`,
          );
          const selected = best[0]?.id;
          steps.push(
            [
              `    {"step":${steps.length},`,
              `     "selected":${selected === undefined ? 'null' : jsonToken(tokenizer, selected)},`,
              '     "top_logprobs":[',
              entries.join(',\n'),
              '     ]}',
            ].join('\n'),
          );
          if (selected === undefined || stopTokens.has(selected) || steps.length === most) {
            break;
          }
          await session.advance(selected, { allLogits: true });
        }
        output.finish(
          [
            '{',
            '  "source":"ds4",',
            '  "version":1,',
            `  "prompt_tokens":${tokens.length},`,
            `  "ctx":${session.context},`,
            `  "top_k":${logprobsTopK},`,
            '  "steps":[',
            steps.join(',\n'),
            '  ]',
            '}',
            '',
          ].join('\n'),
        );
        return 0;
      },
    );
  } finally {
    output.discard();
  }
}
