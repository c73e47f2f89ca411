"""Trains ds4-small by the clock. Two phases, one after the other (README.md has the commands):

  --phase retrieval   code words only, from documents that grow as soon as they are mastered, with a window that starts at 16
                      tokens. With the real window of 128 a short document is solved inside it and compressed rows learn nothing.
  --phase mixture     everything; the rate falls to zero at the end.
"""
import argparse
import json
import multiprocessing as mp
import os
import random
import time

import numpy as np
import torch

import corpus
import world
from config import Config
from model import Net
from optimiser import Adam, Muon, split
from vocabulary import BOS, EOS, PAD, Vocabulary, train

GROWTH = (72, 96, 128, 192, 256, 384, 512, 768, 1088, 1536, 2200, 3000, 4352)


def arguments():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--phase", choices=("retrieval", "mixture"), default="mixture")
    a.add_argument("--seconds", type=float, default=300, help="training time, after compilation")
    a.add_argument("--out", default="out")
    a.add_argument("--tag", default="run")
    a.add_argument("--start-from", help="checkpoint (without .0.pt)")
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--rows", type=int, default=4)
    a.add_argument("--width", type=int, default=4352)
    a.add_argument("--config", default="{}", help="JSON of model.Config fields")
    a.add_argument("--muon", type=float, default=0.02)
    a.add_argument("--adam", type=float, default=3e-3)
    a.add_argument("--decay-from", type=float, default=0.5, help="share of the time after which the rate falls linearly to 0 (1: never)")
    a.add_argument("--guide", type=float, default=0.0, help="weight of the attention guide in the retrieval phase")
    a.add_argument("--gain", type=float, default=1.0, help="initial norm weight of compressed rows")
    a.add_argument("--small-window", type=int, default=1, help="0: the retrieval phase keeps the full window throughout")
    a.add_argument("--prompt-weight", type=float, default=0.1)
    a.add_argument("--code-weight", type=float, default=3.0)
    a.add_argument("--share", type=float, default=0.5, help="retrieval's share of tokens in the mixture")
    a.add_argument("--workers", type=int, default=8)
    a.add_argument("--device", default="cuda")
    a.add_argument("--plain", action="store_true", help="no torch.compile, no CUDA graph")
    a.add_argument("--no-graph", action="store_true")
    a.add_argument("--score-every", type=float, default=0, help="seconds between scorings of the held-out questions")
    a.add_argument("--deadline", type=float, default=0, help="stop at this time of the clock (seconds since 1970) whatever --seconds says")
    return a.parse_args()


def save(net, path, extra):
    """Half precision, in two files: the trained weights lose nothing that the GGUF would keep."""
    state = net.state()
    names = sorted(state)
    total, parts, run = sum(v.numel() for v in state.values()), ([], []), 0
    for name in names:
        parts[run * 2 >= total].append(name)
        run += state[name].numel()
    for i, part in enumerate(parts):
        torch.save({"config": net.c.dict(), "extra": extra if i == 0 else None,
                    "state": {k: (state[k].half() if state[k].is_floating_point() else state[k].to(torch.int16)).cpu() for k in part}}, f"{path}.{i}.pt")


def load_checkpoint(path):
    parts = [torch.load(f"{path}.{i}.pt", map_location="cpu", weights_only=False) for i in range(2)]
    return Config(**parts[0]["config"]), {**parts[0]["state"], **parts[1]["state"]}, parts[0]["extra"]


VOCABULARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vocabulary.txt")


def vocabulary(size):
    """The file beside this one; delete it to learn a new one. Weights and vocabulary belong together."""
    if not os.path.exists(VOCABULARY):
        made, learned = train(world.vocabulary_texts(), size, 20)
        made.save(VOCABULARY)
        print(f"vocabulary: {learned} of {size} entries learned", flush=True)
    return VOCABULARY


class Trainer:
    """One step on static buffers, so that it can be captured once and replayed without the host."""

    def __init__(self, net, a):
        self.net, self.a, device = net, a, a.device
        shape = (a.rows, a.width + 1)
        self.raw = [torch.zeros(shape, dtype=torch.int16, device=device), torch.zeros(shape, dtype=torch.uint8, device=device),
                    torch.zeros(shape, dtype=torch.int16, device=device), torch.zeros(shape, dtype=torch.int16, device=device)]
        scalar = lambda v: torch.tensor(v, device=device)
        self.rounding, self.sparse, self.window = scalar(0.0), scalar(True), scalar(net.c.window)
        self.muon_rate, self.adam_rate, self.c1, self.c2, self.balance = (scalar(v) for v in (0.0, 0.0, 1.0, 1.0, 0.0))
        self.guide_weight, self.code_weight = scalar(a.guide), scalar(a.code_weight)
        matrices, groups = split(net)
        self.muon, self.adam = Muon(matrices), Adam(groups)
        self.biases = [(int(k.split(".")[2]), v) for k, v in net.buffers_.items() if k.endswith("bias")]
        self.steps, self.graph = 0, None

    def _compute(self):
        ids, kind, source, start = self.raw
        ids = ids.long()
        target = ids[:, 1:].reshape(-1)
        kind = kind[:, 1:].reshape(-1)
        weight = torch.where(kind == corpus.CODE, self.code_weight, torch.where(kind == corpus.ANSWER, 1.0, self.a.prompt_weight))
        weight = torch.where((target == PAD) | (target == BOS), 0.0, weight)
        (loss, each, guess), indexer, guide, loads = self.net(
            ids[:, :-1].contiguous(), target, weight, start=start[:, :-1].long(), source=source[:, 1:].long(),
            rounding=self.rounding, sparse=self.sparse, window=self.window, train=True, guide=self.a.guide > 0)
        total = loss + sum(indexer)
        if guide:
            total = total + self.guide_weight * sum(guide)
        total.backward()
        self.muon.step(self.muon_rate)
        self.adam.step(self.adam_rate, self.c1, self.c2)
        with torch.no_grad():
            for i, bias in self.biases:
                bias.add_(1e-3 * torch.sign(loads[i].mean() - loads[i]) * self.balance)
            right = (guess == target).float()
            parts = []
            for mask in (kind == corpus.ANSWER, kind == corpus.CODE):
                m = mask.float()
                parts += [(each * m).sum() / (m.sum() + 1e-6), (right * m).sum() / (m.sum() + 1e-6)]
            prompt = ((kind == corpus.PROMPT) & (weight > 0)).float()
            parts.append((each * prompt).sum() / (prompt.sum() + 1e-6))
            parts += [k.detach() for k in indexer]
            parts += [(g.detach() if guide else torch.zeros_like(parts[0])) for g in (guide or indexer)]
            parts.append(torch.stack([l.max() / l.mean() for l in loads[self.net.c.hash_layers:]]).max())
            self.report = torch.stack(parts)

    def step(self, batch, factor):
        for buffer, part in zip(self.raw, batch):
            buffer.copy_(torch.from_numpy(part), non_blocking=True)
        self.steps += 1
        self.muon_rate.fill_(self.a.muon * factor)
        self.adam_rate.fill_(self.a.adam * factor)
        self.c1.fill_(1 - 0.9 ** self.steps)
        self.c2.fill_(1 - 0.97 ** self.steps)
        self.balance.fill_(1.0 if factor > 0.1 else 0.0)
        if self.graph is not None:
            self.graph.replay()
            return
        wants_graph = self.a.device == "cuda" and not self.a.plain and not self.a.no_graph and self.steps == 4
        for p in self.net.parameters():
            p.grad = None
        if not wants_graph:
            if self.a.device == "cuda" and not self.a.no_graph:  # warm up where capture will happen
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    self._compute()
                torch.cuda.current_stream().wait_stream(side)
            else:
                self._compute()
            return
        try:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._compute()
            self.graph = graph
            self.graph.replay()
        except Exception as fault:  # slower, but it trains
            print("no CUDA graph:", repr(fault)[:600], flush=True)
            self.a.no_graph = True
            for p in self.net.parameters():
                p.grad = None
            self._compute()


def score(net, table, questions, width, rows, words, most=None):
    """Share of questions whose whole answer and EOS are the argmax, given the right tokens before: that is greedy decoding.

    Gradients stay enabled though nobody asks for them: torch.compile would compile everything anew without."""
    device, by_task = net.P["model/norm/weight"].device, {}
    for q in questions:
        by_task.setdefault(q.task, []).append(q)
    result = {}
    for task, members in by_task.items():
        texts = [(words.encode_rendered(corpus.prompt_text(q, table)), words.encode(q.answer) + [EOS]) for q in members[:most] if not q.think]
        texts = [(prompt, answer) for prompt, answer in texts if len(prompt) + len(answer) <= width + 1]
        if not texts:  # thoughts are scored by evaluate.py
            continue
        right = 0
        for at in range(0, len(texts), rows):
            group = texts[at:at + rows]
            ids = np.full((rows, width + 1), PAD, np.int64)
            marks = np.zeros((rows, width + 1), bool)
            for j, (prompt, answer) in enumerate(group):
                ids[j, :len(prompt) + len(answer)] = prompt + answer
                marks[j, len(prompt):len(prompt) + len(answer)] = True
            x = torch.from_numpy(ids).to(device)
            m = torch.from_numpy(marks).to(device)[:, 1:]
            target = x[:, 1:].reshape(-1)
            (_, _, guess), _, _, _ = net(x[:, :-1].contiguous(), target, torch.ones_like(target, dtype=torch.float32), train=True, guide=net.guided)
            right += int(((guess.view(rows, -1) == x[:, 1:]) | ~m).all(1)[:len(group)].sum())
        result[task] = round(right / len(texts), 4)
    return result


def main():
    a = arguments()
    os.makedirs(a.out, exist_ok=True)
    began = time.time()
    say = lambda *what: print(f"[{a.tag} {time.time() - began:6.1f}]", *what, flush=True)
    state, history = None, []
    if a.start_from:
        config, state, _ = load_checkpoint(a.start_from)
    else:
        config = Config(**json.loads(a.config))
    words_path = vocabulary(config.vocabulary)
    words = Vocabulary.load(words_path)
    retrieval = a.phase == "retrieval"
    stage = 0
    longest, share = mp.Value("i", GROWTH[0] if retrieval else a.width), mp.Value("d", 1.0 if retrieval else a.share)
    queue = mp.Queue(maxsize=4 * a.workers)
    workers = [mp.Process(target=corpus.feed, args=(1000 * a.seed + i + (0 if retrieval else 500), words_path, a.rows, a.width, longest, share, queue), daemon=True) for i in range(a.workers)]
    for w in workers:
        w.start()
    cuda = a.device == "cuda"
    torch.set_float32_matmul_precision("high")
    if cuda:
        torch._dynamo.config.recompile_limit = 128
    net = Net(config, seed=a.seed, compiled=cuda and not a.plain, dtype=torch.bfloat16 if cuda else torch.float32, compressor_gain=a.gain)
    if state is not None:
        net.load(state)
    net.move(a.device)
    net.guided = a.guide > 0
    say("parameters", sum(p.numel() for p in net.parameters()))
    trainer = Trainer(net, a)
    table, questions = corpus.held_out(words, 64, 48, seed=555)
    asked = [q for q in questions if not retrieval or q.task.startswith("retrieval")]
    dice = random.Random(a.seed)
    smooth, hold, tokens, last_score, mark = None, 0, 0, time.time(), None
    start = None
    names = None
    while True:
        now = time.time()
        if start is not None and (now - start >= a.seconds or (a.deadline and now > a.deadline)):
            break
        fraction = 0.0 if start is None else (now - start) / a.seconds
        factor = min(1.0, (trainer.steps + 1) / 100)
        if a.decay_from < 1:
            factor *= min(1.0, max(0.0, (1 - fraction) / (1 - a.decay_from)))
        if retrieval:
            size = longest.value
            if not a.small_window:
                choice = (128,)
            elif size <= 128:
                choice = (16,)
            elif size <= 512:
                choice = (16, 32, 64, 128)
            else:
                choice = (32, 64, 128, 128)
            trainer.window.fill_(dice.choice(choice))
            trainer.rounding.fill_(1.0 if size >= 768 else 0.0)
        else:
            trainer.rounding.fill_(1.0)
            trainer.window.fill_(dice.choice((32, 64)) if factor == 1.0 and dice.random() < 0.1 else config.window)
        trainer.step(queue.get(), factor)
        tokens += a.rows * a.width
        if trainer.steps in (1, 5):
            if cuda:
                torch.cuda.synchronize()
            say("step", trainer.steps, "done", f"graph {trainer.graph is not None}", f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if cuda else "")
            if trainer.steps == 5:
                start = mark = time.time()
                tokens = 0
        if trainer.steps % 10 == 0:
            values = trainer.report.tolist()
            answer_loss, answer_right, code_loss, code_right, prompt_loss = values[:5]
            if names is None:
                names = len(values)
            smooth = code_right if smooth is None else 0.8 * smooth + 0.2 * code_right
            hold = max(0, hold - 10)
            if retrieval and smooth > 0.9 and hold == 0 and stage + 1 < len(GROWTH):
                stage += 1
                longest.value = GROWTH[stage]
                smooth, hold = min(smooth, 0.8), 5 * a.workers  # what waits in the queue is still the old length
                say(f"step {trainer.steps}: documents grow to {GROWTH[stage]}")
            history.append([trainer.steps, tokens, round(time.time() - start, 2) if start else 0.0, longest.value, *(round(v, 4) for v in values)])
            if trainer.steps % (200 if cuda else 20) == 0 and start:
                rate = tokens / max(time.time() - start, 1e-6)
                say(f"step {trainer.steps} len {longest.value} answer {answer_loss:.4f} {answer_right:.4f} code {code_loss:.4f} {code_right:.4f} prompt {prompt_loss:.3f} "
                    f"rest {[round(v, 3) for v in values[5:]]} {rate / 1e3:.0f}k tok/s queue {queue.qsize()}")
        if a.score_every and start and time.time() - last_score > a.score_every:
            last_score = time.time()
            say("SCORE", json.dumps(score(net, table, asked, a.width, a.rows, words, 32)), f"{time.time() - last_score:.1f}s")
    longest.value = -1
    for w in workers:
        w.kill()
    final = score(net, table, asked, a.width, a.rows, words)
    say("FINAL", trainer.steps, "steps", tokens, "tokens", json.dumps(final))
    record = dict(arguments=vars(a), config=config.dict(), steps=trainer.steps, tokens=tokens, seconds=time.time() - start, history=history, final=final)
    with open(os.path.join(a.out, a.tag + ".json"), "w") as file:
        json.dump(record, file)
    save(net, os.path.join(a.out, a.tag), dict(phase=a.phase))
    say("saved")


if __name__ == "__main__":
    main()
