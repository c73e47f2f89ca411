import type { Text, Tokenizer } from '../tokenizer/index.js';

/** A prompt under construction. All text between two markers is encoded as one, so that it is cut as in training. */
export class PromptTokens {
  private readonly tokenizer: Tokenizer;
  private readonly spans: Int32Array[] = [];
  private texts: Text[] = [];

  constructor(tokenizer: Tokenizer) {
    this.tokenizer = tokenizer;
  }

  marker(id: number): void {
    this.tokens(Int32Array.of(id));
  }

  text(text: Text): void {
    this.texts.push(text);
  }

  tokens(ids: Int32Array): void {
    this.encodeTexts();
    this.spans.push(ids);
  }

  finish(): Int32Array {
    this.encodeTexts();
    const all = new Int32Array(this.spans.reduce((sum, span) => sum + span.length, 0));
    let end = 0;
    for (const span of this.spans) {
      all.set(span, end);
      end += span.length;
    }
    return all;
  }

  private encodeTexts(): void {
    if (this.texts.length > 0) {
      this.spans.push(this.tokenizer.encode(joined(this.texts)));
      this.texts = [];
    }
  }
}

function joined(texts: readonly Text[]): Text {
  return texts.every((text) => typeof text === 'string')
    ? texts.join('')
    : Buffer.concat(texts.map((text) => (typeof text === 'string' ? Buffer.from(text) : text)));
}
