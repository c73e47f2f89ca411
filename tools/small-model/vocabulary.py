"""Byte-level BPE in DeepSeek's manner: the pre-tokeniser, a trainer and an encoder, without any tokenizer library.

Token ids must equal the engine's, so the splitting rules are the shipped ones (`joyai-llm`). Only training differs:
digits are split singly there, so that no merge ever joins two digits and a sum is seen digit by digit. Encoding with
the shipped rule (up to three digits a piece) then gives the same single digits, because no merge applies inside.
"""
from collections import Counter, defaultdict

import regex

SPECIALS = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>",
    "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜",
]
BOS, EOS, PAD, USER, ASSISTANT, THINK, END_THINK, DSML = range(8)
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
DIGITS = regex.compile(r"\p{N}{1,3}")
CJK = regex.compile(r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+")
WORDS = regex.compile(
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|[{SPACE}]*[\r\n]+|[{SPACE}]+(?![^{SPACE}])|[{SPACE}]+")
SPECIAL = regex.compile("|".join(regex.escape(s) for s in sorted(SPECIALS, key=len, reverse=True)))


def _byte_letters():
    """GPT-2's alphabet: each byte as one printable character."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, other = {}, 0
    for byte in range(256):
        if byte in plain:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + other)
            other += 1
    return letters


LETTER = _byte_letters()
BYTE = {letter: byte for byte, letter in LETTER.items()}


def _split(rule, pieces):
    for piece in pieces:
        at = 0
        for match in rule.finditer(piece):
            if match.start() > at:
                yield piece[at:match.start()]
            if match.end() > match.start():
                yield match.group()
            at = match.end()
        if at < len(piece):
            yield piece[at:]


def pieces(text):
    """The three rules one after the other, each on what the one before left."""
    return _split(WORDS, _split(CJK, _split(DIGITS, [text])))


class Vocabulary:
    def __init__(self, tokens, merges):
        self.tokens, self.merges = tokens, merges
        self.id = {token: i for i, token in enumerate(tokens)}
        self.rank = {tuple(merge.split(" ")): i for i, merge in enumerate(merges)}
        self._cache = {}

    @property
    def types(self):
        return [CONTROL if t.startswith("<｜") else USER_DEFINED if i < len(SPECIALS) else NORMAL for i, t in enumerate(self.tokens)]

    def save(self, path):
        """One token a line in order of ids, an empty line, one merge a line in order of rank."""
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([*self.tokens, "", *self.merges]) + "\n")

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
        gap = lines.index("")
        return Vocabulary(lines[:gap], lines[gap + 1:-1])

    def _encode_piece(self, piece):
        found = self._cache.get(piece)
        if found is not None:
            return found
        symbols = [LETTER[byte] for byte in piece.encode("utf-8")]
        while len(symbols) > 1:
            best = min(range(len(symbols) - 1), key=lambda i: self.rank.get((symbols[i], symbols[i + 1]), 1 << 30))
            if (symbols[best], symbols[best + 1]) not in self.rank:
                break
            symbols[best:best + 2] = [symbols[best] + symbols[best + 1]]
        ids = [self.id[symbol] for symbol in symbols]
        if len(self._cache) < 200000:
            self._cache[piece] = ids
        return ids

    def encode(self, text):
        """Plain text, no specials."""
        ids = []
        for piece in pieces(text):
            ids += self._encode_piece(piece)
        return ids

    def encode_rendered(self, text):
        """Text in which special tokens are written out."""
        ids, at = [], 0
        for match in SPECIAL.finditer(text):
            ids += self.encode(text[at:match.start()]) + [self.id[match.group()]]
            at = match.end()
        return ids + self.encode(text[at:])

    def decode(self, ids):
        out = bytearray()
        for i in ids:
            token = self.tokens[i]
            out += token.encode("utf-8") if i < len(SPECIALS) or token.startswith("<｜") else bytes(BYTE[c] for c in token)
        return out.decode("utf-8", "replace")


def train(texts, size, least_count):
    """Most frequent pair first; ties go to the pair that sorts first, so a run can be repeated."""
    counts = Counter()
    for text in texts:
        for piece in pieces(text):
            if not piece.isdigit():
                counts["".join(LETTER[b] for b in piece.encode("utf-8"))] += 1
    words = [list(word) for word in sorted(counts)]
    weight = [counts[word] for word in sorted(counts)]
    pairs, where = Counter(), defaultdict(set)
    for w, symbols in enumerate(words):
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] += weight[w]
            where[pair].add(w)
    tokens = SPECIALS + [LETTER[b] for b in range(256)]
    known, merges = set(tokens), []
    while len(tokens) < size and pairs:
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        if pairs[pair] < least_count:
            break
        merges.append(" ".join(pair))
        joined = pair[0] + pair[1]
        if joined not in known:
            known.add(joined)
            tokens.append(joined)
        for w in list(where[pair]):
            symbols = words[w]
            for old in zip(symbols, symbols[1:]):
                pairs[old] -= weight[w]
                where[old].discard(w)
            i = 0
            while i < len(symbols) - 1:
                if (symbols[i], symbols[i + 1]) == pair:
                    symbols[i:i + 2] = [joined]
                i += 1
            for new in zip(symbols, symbols[1:]):
                pairs[new] += weight[w]
                where[new].add(w)
        del pairs[pair]
    learned = len(tokens)
    # The output matrix wants a round size; like DeepSeek's own list, the rest are named placeholders.
    tokens = tokens + [f"<｜place▁holder▁no▁{i}｜>" for i in range(size - learned)]
    return Vocabulary(tokens, merges), learned
