"""Scores a ds4-small file with the PyTorch model in float32, and stores what the engine is compared with.

  python3 tools/small-model/evaluate.py models/ds4-small.gguf                 scores by task
  python3 tools/small-model/evaluate.py models/ds4-small.gguf --golden        also writes test/golden/small-model/

The weights are those of the file, dequantised; FP8 and FP4 round trips are on. An answer counts when it is the greedy
continuation, EOS included. In think mode only what follows </think> counts.
"""
import argparse
import base64
import json
import os
import time

import numpy as np
import torch

import corpus
import layout
import world
from model import BLOCK, Net
from vocabulary import END_THINK, EOS, PAD

GOLDEN = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "test", "golden", "small-model"))
MOST_NEW = 80


def open_model(path):
    c, state, words = layout.read(path)
    net = Net(c)
    net.load({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()})
    return net, words


@torch.no_grad()
def logits(net, batch):
    """batch: lists of ids of any length -> logits at the last token of each [n, V], and the argmax at every position."""
    longest = max(len(ids) for ids in batch)
    padded = torch.full((len(batch), -(-longest // BLOCK) * BLOCK), PAD)
    for i, ids in enumerate(batch):
        padded[i, :len(ids)] = torch.tensor(ids)
    z = net(padded)[0].view(len(batch), padded.shape[1], -1)
    return torch.stack([z[i, len(ids) - 1] for i, ids in enumerate(batch)]), z.argmax(-1)


def decode(net, prompts, most=MOST_NEW):
    """Greedy, each step from the whole text: slow, and free of any cache that could be wrong."""
    texts, done = [list(p) for p in prompts], [False] * len(prompts)
    for _ in range(most):
        live = [i for i, d in enumerate(done) if not d]
        if not live:
            break
        last, _ = logits(net, [texts[i] for i in live])
        for i, token in zip(live, last.argmax(-1).tolist()):
            texts[i].append(token)
            done[i] = token == EOS
    return [t[len(p):] for t, p in zip(texts, prompts)]


def expected(words, question):
    """The continuation that training texts have, as ids."""
    thought = words.encode(question.thought) + [END_THINK] if question.think else []
    return thought + words.encode(question.answer) + [EOS]


def greedy_answers(net, words, table, questions, tokens_a_batch=4500):
    """Greedy continuation per question, as ids.

    Where the argmax after every token of the expected text is its next token, that text is the greedy continuation, and one
    pass has shown it. Only the others are decoded token by token.
    """
    result = [None] * len(questions)
    prompts = [words.encode_rendered(corpus.prompt_text(q, table)) for q in questions]
    wanted = [expected(words, q) for q in questions]
    order = sorted(range(len(questions)), key=lambda i: len(prompts[i]) + len(wanted[i]))
    while order:
        length = lambda i: -(-(len(prompts[i]) + len(wanted[i])) // BLOCK) * BLOCK
        fits = max(1, tokens_a_batch // length(order[0]))
        batch = [i for i in order[:fits] if length(i) == length(order[0])]
        order = order[len(batch):]
        _, best = logits(net, [prompts[i] + wanted[i] for i in batch])
        for row, i in zip(best.tolist(), batch):
            said = row[len(prompts[i]) - 1:len(prompts[i]) + len(wanted[i]) - 1]
            result[i] = wanted[i] if said == wanted[i] else None
    missed = [i for i, r in enumerate(result) if r is None]
    for i in missed:
        result[i] = decode(net, [prompts[i]])[0]
    return prompts, result


def is_right(words, question, made):
    """In think mode only what follows the thought counts."""
    if question.think:
        made = made[made.index(END_THINK) + 1:] if END_THINK in made else []
    return made == words.encode(question.answer) + [EOS]


def by_task(questions, right):
    tasks = {}
    for q, r in zip(questions, right):
        n, k = tasks.get(q.task, (0, 0))
        tasks[q.task] = (n + 1, k + r)
    return tasks


def pick_parity(questions, count=50):
    """Prompts of every task and length, the long ones few: they are what costs an engine test its time."""
    wanted = {"retrieval-100": 3, "retrieval-250": 3, "retrieval-500": 4, "retrieval-1000": 3, "retrieval-2000": 2, "retrieval-4000": 2}
    picked = []
    for task in dict.fromkeys(q.task for q in questions):
        members = [i for i, q in enumerate(questions) if q.task == task]
        picked += members[:wanted.get(task, 3 if not task.endswith("-think") else 1)]
    rest = [i for i in range(len(questions)) if i not in picked and not questions[i].task.startswith("retrieval")]
    return sorted((picked + rest)[:count])


def write_golden(net, table, questions, prompts, greedy, right, name):
    os.makedirs(GOLDEN, exist_ok=True)
    cases = []
    for i in pick_parity(questions):
        last, _ = logits(net, [prompts[i]])
        values, ids = torch.topk(last[0], 16)
        cases.append(dict(task=questions[i].task, question=i, prompt=prompts[i], top_ids=ids.tolist(), top_logits=base64.b64encode(values.numpy().astype("<f4").tobytes()).decode(),
                          norm=round(float(last[0].norm()), 5), greedy=greedy[i]))
    with open(os.path.join(GOLDEN, "parity.json"), "w") as file:
        file.write('{"model": %s, "encoding": "top_logits: base64 of little-endian float32, beside top_ids; norm: of the whole row", "cases": [\n' % json.dumps(name))
        file.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]}\n")
    with open(os.path.join(GOLDEN, "questions.jsonl"), "w", encoding="utf-8") as file:
        scores = {task: [k, n] for task, (n, k) in by_task(questions, right).items()}
        file.write(json.dumps(dict(model=name, sentences=table, pytorch=scores), ensure_ascii=False) + "\n")
        for q, r in zip(questions, right):
            row = dict(task=q.task, system=q.system, messages=[list(m) for m in q.messages], answer=q.answer, pytorch=r)
            if q.think:
                row["think"] = True
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    for made in ("parity.json", "questions.jsonl"):
        print(f"{made}: {os.path.getsize(os.path.join(GOLDEN, made)) / 1024:.0f} KiB")


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("--golden", action="store_true")
    a.add_argument("--per-task", type=int, default=80)
    a.add_argument("--per-distance", type=int, default=30)
    a.add_argument("--tasks", nargs="*", help="only these")
    a.add_argument("--ask", nargs="*", help="answer these prompts and stop")
    a.add_argument("--json", help="write the scores here as well")
    a = a.parse_args()
    net, words = open_model(a.model)
    if a.ask:
        for text in a.ask:
            for opener in ("</think>", "<think>"):
                prompt = words.encode_rendered(f"<｜begin▁of▁sentence｜>{world.SYSTEM}<｜User｜>{text}<｜Assistant｜>{opener}")
                print(repr(text), opener, words.decode(decode(net, [prompt])[0]))
        return
    began = time.time()
    table, questions = corpus.held_out(words, a.per_task, a.per_distance)
    if a.tasks:
        questions = [q for q in questions if q.task in a.tasks]
    prompts, greedy = greedy_answers(net, words, table, questions)
    right = [is_right(words, q, made) for q, made in zip(questions, greedy)]
    for q, made, ok in zip(questions, greedy, right):
        if not ok:
            print(f"wrong: {q.task}: {str(q.messages[-1][1])[-80:]!r} wants {q.answer!r}, got {words.decode(made)!r}")
    tasks = by_task(questions, right)
    for task, (n, k) in tasks.items():
        print(f"{task:20} {k:4} of {n:4}  {100 * k / n:5.1f} %")
    print(f"{sum(right)} of {len(right)}, {time.time() - began:.0f} s")
    if a.json:
        with open(a.json, "w") as file:
            json.dump(tasks, file)
    if a.golden:
        write_golden(net, table, questions, prompts, greedy, right, os.path.basename(a.model))


if __name__ == "__main__":
    main()
