import { jsonNumber, jsonToken, OutputFile } from '../json.js';
import type { Run } from '../run.js';
import type { PromptSource } from '../settings.js';
import { withEvaluatedPrompt } from './evaluated-prompt.js';
import { quantBits } from './quant-bits.js';

const logitsPerLine = 8;

function logitLines(logits: Float32Array): string {
  const lines: string[] = [];
  for (let start = 0; start < logits.length; start += logitsPerLine) {
    lines.push(
      `    ${Array.from(logits.subarray(start, start + logitsPerLine), jsonNumber).join(',')}`,
    );
  }
  return lines.join(',\n');
}

/** Writes all logits after the prompt; docs/json-output.md describes the file. */
export async function dumpLogits(run: Run, source: PromptSource, file: string): Promise<number> {
  const output = new OutputFile(file);
  try {
    return await withEvaluatedPrompt(run, source, async ({ model, tokenizer, session, tokens }) => {
      const best = session.candidates.ids[0] ?? 0;
      const logits = await session.allLogits();
      const { description, path, plan } = model;
      output.finish(
        [
          '{',
          '  "source":"ds4",',
          '  "version":1,',
          `  "model":${JSON.stringify(path)},`,
          `  "backend":${JSON.stringify(plan.backend)},`,
          `  "quant_bits":${quantBits(description)},`,
          `  "prompt_tokens":${tokens.length},`,
          `  "ctx":${session.context},`,
          `  "vocab":${description.shape.vocab},`,
          `  "argmax_token":${jsonToken(tokenizer, best)},`,
          `  "argmax_logit":${jsonNumber(logits[best] ?? NaN)},`,
          '  "logits":[',
          logitLines(logits),
          '  ]',
          '}',
          '',
        ].join('\n'),
      );
      return 0;
    });
  } finally {
    output.discard();
  }
}
