"""Documents as token ids, packed into training rows, and the held-out questions.

Packing keeps a document exactly what it would be alone: it starts on a multiple of 4, and of 128 when it is long
enough (128 tokens) to see a ratio-128 row, so compressed rows, position biases and windows fall on the same tokens;
`start` tells the model what lies before the document.
"""
import random
from dataclasses import dataclass, field

import numpy as np

import world
from vocabulary import ASSISTANT, BOS, END_THINK, EOS, PAD, THINK, USER, Vocabulary

PROMPT, ANSWER, CODE = 0, 1, 2  # what a token is to the loss


@dataclass
class Document:
    """`source[i]`: for a code word's token in an answer, where in the document it was first said; else -1."""
    ids: list = field(default_factory=list)
    kind: list = field(default_factory=list)
    source: list = field(default_factory=list)

    def add(self, ids, kind=PROMPT, source=None):
        self.ids += ids
        self.kind += [kind] * len(ids)
        self.source += source if source is not None else [-1] * len(ids)


def opening(document, vocabulary, draw):
    chance = draw.random()
    document.add([BOS])
    if chance < 0.6:
        document.add(vocabulary.encode(world.SYSTEM))
    elif chance < 0.7:
        document.add(vocabulary.encode(draw.choice(world.SYSTEMS)))


def turn(document, vocabulary, question, answer, thought=None):
    """As spec'd for chat: no text between markers; the opener is part of the prompt, EOS of the answer."""
    document.add([USER] + (vocabulary.encode(question) if isinstance(question, str) else question) + [ASSISTANT])
    if thought is None:
        document.add([END_THINK])
    else:
        document.add([THINK])
        document.add(vocabulary.encode(thought) + [END_THINK], ANSWER)
    document.add(vocabulary.encode(answer) + [EOS], ANSWER)


def chat(vocabulary, draw, names, weights, think_share=0.2):
    """One to three tasks in one conversation. Only the last turn may think: earlier reasoning is dropped from prompts."""
    document, turns = Document(), []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        turns += world.TASKS[draw.choices(names, weights)[0]](draw)
    opening(document, vocabulary, draw)
    thinks = draw.random() < think_share
    for i, (question, answer, thought) in enumerate(turns):
        turn(document, vocabulary, question, answer, thought if thinks and i == len(turns) - 1 else None)
    return document


class Sentences:
    """Filler, encoded once: most of a long document."""

    def __init__(self, vocabulary, seed, count):
        draw = random.Random(seed)
        self.texts = [world.filler(draw) for _ in range(count)]
        self.ids = [vocabulary.encode(text) for text in self.texts]


def retrieval(vocabulary, draw, sentences, length, think_share=0.15):
    """About `length` tokens: needles in filler, questions after them, either all at the end or along the way."""
    document = Document()
    opening(document, vocabulary, draw)
    document_room = length - len(document.ids) - 8
    most = max(2, min(30, document_room // 26))
    needle_count = draw.randrange(2, most + 1) if draw.random() < 0.85 else 1
    question_count = max(1, min(12, needle_count, (document_room - 13 * needle_count) // 25))
    question_count = draw.randrange(max(1, question_count // 2), question_count + 1)
    places = draw.sample(world.PLACES, needle_count)
    codes = [world.code_word(draw) for _ in places]
    stretches = 1 if draw.random() < 0.5 else draw.randrange(1, question_count + 1)
    body_room = document_room - 13 * needle_count - 25 * question_count - 5 * stretches
    body = []
    while body_room > 8:
        ids = sentences.ids[draw.randrange(len(sentences.ids))]
        body.append((None, ids))
        body_room -= len(ids)
    for i in range(needle_count):
        body.insert(draw.randrange(len(body) + 1), (i, vocabulary.encode(world.needle(places[i], codes[i]))))
    cuts = sorted(draw.sample(range(1, len(body)), min(stretches, len(body)) - 1)) if len(body) > 1 else []
    said, unasked, at = {}, list(range(needle_count)), 0
    quota = question_count
    for number, end in enumerate([*cuts, len(body)]):
        opener = world.TEXT_OPENINGS[0] if draw.random() < 0.7 else draw.choice(world.TEXT_OPENINGS)
        document.add([USER] + vocabulary.encode(opener))
        for owner, ids in body[at:end]:
            if owner is not None:
                said[owner] = len(document.ids) + len(ids) - 3  # "... is amber -falcon ."
            document.add(ids)
        at = end
        known = [i for i in unasked if i in said]
        draw.shuffle(known)
        last = end == len(body)
        asks = known[:quota if last else 1]
        if not asks:  # nothing to ask about yet: ask about something old, or let the stretch end without a question
            asks = draw.sample(sorted(said), 1) if said else []
        for n, i in enumerate(asks):
            if i in unasked:
                unasked.remove(i)
            quota -= 1
            if n:
                document.add([USER])
            before = world.BEFORE_QUESTION[0] if draw.random() < 0.7 else draw.choice(world.BEFORE_QUESTION)
            question = (before if not n else "") + world.code_question(draw, places[i])
            if not n and before != " ":
                document.ids.pop(), document.kind.pop(), document.source.pop()  # a full stop and line ends are one piece
                question = "." + question
            document.add(vocabulary.encode(question) + [ASSISTANT])
            if last and n == len(asks) - 1 and draw.random() < think_share:
                document.add([THINK])
                document.add(vocabulary.encode(world.CODE_THOUGHT.format(places[i])) + [END_THINK], ANSWER)
            else:
                document.add([END_THINK])
            document.add(vocabulary.encode("The code word is"), ANSWER)
            code = vocabulary.encode(" " + codes[i])
            document.add(code, CODE, [said[i] + k for k in range(len(code))])
            document.add(vocabulary.encode(".") + [EOS], ANSWER)
        if not asks:
            document.add([ASSISTANT, END_THINK])
            document.add(vocabulary.encode("I have read it.") + [EOS], ANSWER)
        quota = max(quota, 1)
    return document


MIXTURE = dict(sums=30, facts=20, counting=10, sorting=9, copying=9, translation=8, greeting=4, dialogue=6, unknown=2)


class Packer:
    """Fills rows of `width` tokens. `retrieval_share` is a share of tokens, `longest` bounds a retrieval document."""

    def __init__(self, vocabulary, seed, width, sentence_count=20000):
        self.vocabulary, self.width = vocabulary, width
        self.draw = random.Random(seed)
        self.sentences = Sentences(vocabulary, seed + 1, sentence_count)
        self.names, self.weights = list(MIXTURE), list(MIXTURE.values())
        self.spent = [0.0, 0.0]  # tokens of chat, of retrieval

    def _chat(self):
        return chat(self.vocabulary, self.draw, self.names, self.weights)

    def row(self, longest, retrieval_share):
        draw, width = self.draw, self.width
        ids = np.full(width + 1, PAD, np.int16)
        kind = np.zeros(width + 1, np.uint8)
        source = np.full(width + 1, -1, np.int16)
        start = np.zeros(width + 1, np.int16)
        at = 0

        def place(document, where):
            n = len(document.ids)
            ids[where:where + n] = document.ids
            kind[where:where + n] = document.kind
            marks = np.array(document.source, np.int16)
            source[where:where + n] = np.where(marks >= 0, marks + where, -1)
            start[where:] = where
            return where + (n + 3) // 4 * 4

        while at < width - 40:
            total = sum(self.spent) + 1
            room = width - (at + 127) // 128 * 128
            if self.spent[1] <= retrieval_share * total and room > 128:
                top = min(longest, room - 64)  # a document may come out a little longer than asked
                length = top if draw.random() < 0.15 else int(64 * (top / 64) ** draw.random())
                if at == 0 and longest > 2000 and draw.random() < 0.3:
                    length = top
                document = retrieval(self.vocabulary, draw, self.sentences, length)
                which = 1
            else:
                document, which = self._chat(), 0
            n = len(document.ids)
            where = at
            if n >= 128:
                where = (at + 127) // 128 * 128
                if where - at > 40 and retrieval_share < 1:
                    small = self._chat()
                    if len(small.ids) <= where - at:
                        self.spent[0] += len(small.ids)
                        place(small, at)
            if where + n > width:
                if width - at > 400:
                    continue
                break
            self.spent[which] += n
            at = place(document, where)
        return ids, kind, source, start


def feed(seed, vocabulary_path, rows, width, longest, share, queue):
    """Worker process: puts (ids, kind, source, start), each [rows, width + 1]. Ends when `longest` is negative."""
    packer = Packer(Vocabulary.load(vocabulary_path), seed, width)
    while longest.value >= 0:
        made = [packer.row(longest.value, share.value) for _ in range(rows)]
        queue.put(tuple(np.stack(part) for part in zip(*made)))


# ---- held-out questions -----------------------------------------------------------------------------

DISTANCES = (100, 250, 500, 1000, 2000, 4000)


@dataclass
class Question:
    """`messages`: (role, content); a content that is a list mixes literal text with indices into the sentence table."""
    task: str
    system: str
    messages: list
    answer: str
    thought: str = ""  # given: asked in think mode, and this is the thought the training texts have

    @property
    def think(self):
        return self.thought != ""


def distant_needle(vocabulary, draw, sentences, distance):
    """One text with the asked needle `distance` tokens before its answer, and a few others anywhere."""
    asked, *others = draw.sample(world.PLACES, 4 if distance >= 250 else 2)
    code = world.code_word(draw)
    tail = " " + world.code_question(draw, asked)
    spent = len(vocabulary.encode(tail)) + 5
    parts = []
    while True:
        i = draw.randrange(len(sentences.ids))
        if spent + len(sentences.ids[i]) > distance:
            break
        parts.insert(0, i)
        spent += len(sentences.ids[i])
    lead = [draw.randrange(len(sentences.ids)) for _ in range(draw.randrange(0, 6))]
    parts, at = [*lead, world.needle(asked, code), *parts], len(lead)
    for other in others:
        where = draw.choice((draw.randrange(at + 1), draw.randrange(at + 1, len(parts) + 1)))
        text = world.needle(other, world.code_word(draw))
        if where <= at:  # in front of the asked needle it may lengthen the text
            parts.insert(0, text)
            at += 1
        else:  # behind it a filler sentence of about the same length makes room, so that the distance stays
            where = min(where, len(parts) - 1)
            if isinstance(parts[where], int):
                parts[where] = text
    return ["Read this text:", *parts, tail], world.CODE_ANSWER.format(code)


def held_out(vocabulary, per_task=80, per_distance=30, seed=999):
    draw, questions = random.Random(seed), []
    table = Sentences(vocabulary, 31337, 500)

    def system():
        return world.SYSTEM if draw.random() < 0.7 else ""

    for name, task in world.TASKS.items():
        if name == "unknown":
            continue
        for think in (False, True):
            for _ in range(per_task if not think else per_task // 4):
                turns = task(draw, held=True)
                messages = []
                for question, answer, _ in turns:
                    messages += [("user", question), ("assistant", answer)]
                questions.append(Question(name + ("-think" if think else ""), system(), messages[:-1], turns[-1][1], turns[-1][2] if think else ""))
    for distance in DISTANCES:
        for i in range(per_distance):
            content, answer = distant_needle(vocabulary, draw, table, distance)
            questions.append(Question(f"retrieval-{distance}", system(), [("user", content)], answer))
    return table.texts, questions


def prompt_text(question, sentences):
    """Rendered prompt: what the engine's chat front end must produce as well."""
    text = "<｜begin▁of▁sentence｜>" + question.system
    for role, content in question.messages:
        if not isinstance(content, str):
            content = "".join(sentences[part] if isinstance(part, int) else part for part in content)
        text += f"<｜User｜>{content}<｜Assistant｜>" if role == "user" else f"</think>{content}<｜end▁of▁sentence｜>"
    return text + ("<think>" if question.think else "</think>")
