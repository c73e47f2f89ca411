/** A small seeded generator, so that a failing text can be made again. */
function randomFrom(seed: number): (below: number) => number {
  let state = seed >>> 0;
  return (below) => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) % below;
  };
}

/** Bits of text that meet the rules of the pre-tokenizer at their edges. */
const bits: readonly string[] = [
  ..."hello World the quick brown Fox don't I'll naïve café Straße GROẞ façade".split(' '),
  ...'0 7 12 123 1234 3.14159 1,000,000 ٣٤٥ ४२ ½ Ⅷ ㊷ 𝟘𝟙 1st 0x7f'.split(' '),
  ...'你好 世界 中文字符 龥 龦 㐀 𠀀 々 〇 ひらがな カタカナ ー ・ ゛ ゠ ｶﾞ 、 。 ，！ 「引用」 한국어'.split(
    ' ',
  ),
  ...'Привет мир Ελλάδα שלום مرحبا עברית־ हिन्दी ไทย ქართული ᏣᎳᎩ \u{10400}\u{10428}'.split(' '),
  ...'😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ 1️⃣ 🧑🏿‍🚀 ☃ ✓ → ∑ √2 € £ ₿ © ™ ° § ¶'.split(' '),
  ...'e\u0301 n\u0303o a\u0308\u0323 \u0301 \u20dd \u0940 \ufe0f \u200d \u200b \u00ad \u2060 \u061c'.split(
    ' ',
  ),
  ...'. , ; : ! ? ... !!! ?! -- --- —— … “x” ‘y’ «z» #tag @user $x %d ^ & * _a __init__ (.foo ~ ~/x'.split(
    ' ',
  ),
  ...'{} [] () <> </div> => -> == != && || ++ // /* */ #include std::vector<int> a+b=c x[i] `code` \\n'.split(
    ' ',
  ),
  ...'<think> </think> <|EOT| <｜User <｜ ｜> ▁ Ġ Ċ Ã© \u0000 \u0007 \u007f \u0080 \u009f \ue000 \uffff \ufffd'.split(
    ' ',
  ),
  ' ',
  ' ',
  ' ',
  '  ',
  '    ',
  '\t',
  '\t\t',
  '\n',
  '\n\n',
  '\r\n',
  '\r',
  '\v',
  '\f',
  '\u00a0',
  '\u0085',
  '\ufeff',
  '\u1680',
  '\u2003',
  '\u2028',
  '\u2029',
  '\u202f',
  '\u3000',
  ' \n ',
  '\n    ',
  ';\n',
  '.\n\n',
  '})\r\n',
];

/** A text of up to `most` bits; equal seeds give equal texts. */
export function sampleText(seed: number, most = 24): string {
  const random = randomFrom(seed);
  return Array.from({ length: 1 + random(most) }, () => bits[random(bits.length)]).join('');
}
