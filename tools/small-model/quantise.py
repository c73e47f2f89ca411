"""Writes ds4-small in its quantisations.

  python3 tools/small-model/quantise.py                        both siblings of models/ds4-small.gguf, from that file; needs numpy only
  python3 tools/small-model/quantise.py --from out/polish      from trained float weights: the shipped file first, then its siblings

The siblings are always made from the shipped file, so every checkout gets the same bytes: the Q4_K one is a copy of it,
the IQ2_XXS one has its routed experts quantised anew (gate and up IQ2_XXS, down Q2_K).
"""
import argparse
import os
import shutil

import blocks
import gguf

MODELS = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models"))
SHIPPED, Q4K, IQ2 = "ds4-small.gguf", "ds4-small-q4k.gguf", "ds4-small-iq2.gguf"
IQ2_TYPES = {"ffn_gate_exps.weight": blocks.IQ2_XXS, "ffn_up_exps.weight": blocks.IQ2_XXS, "ffn_down_exps.weight": blocks.Q2_K}


def requantise(source, target, types):
    """Copies a file, with every tensor whose name ends in a key of `types` quantised anew."""
    file, made = gguf.File(source), []
    for name, (shape, kind, raw) in file.tensors.items():
        new = next((to for suffix, to in types.items() if name.endswith(suffix)), kind)
        made.append((name, shape, new, raw if new == kind else blocks.quantise(file.array(name), new)))
    return gguf.write(target, file.metadata, made)


def ship(checkpoint, target):
    import layout
    from train import VOCABULARY, load_checkpoint  # the only way here that needs PyTorch
    from vocabulary import Vocabulary
    c, state, _ = load_checkpoint(checkpoint)
    state = {k: v.float().numpy() if v.is_floating_point() else v.numpy() for k, v in state.items()}
    return gguf.write(target, layout.metadata(c, Vocabulary.load(VOCABULARY)), layout.tensors(c, state))


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--from", dest="checkpoint", help="checkpoint of train.py (without .0.pt)")
    a.add_argument("--out", default=MODELS)
    a = a.parse_args()
    os.makedirs(a.out, exist_ok=True)
    shipped = os.path.join(MODELS, SHIPPED)
    if a.checkpoint:
        shipped = os.path.join(a.out, SHIPPED)
        report(shipped, ship(a.checkpoint, shipped))
    q4k, iq2 = os.path.join(a.out, Q4K), os.path.join(a.out, IQ2)
    shutil.copyfile(shipped, q4k)
    report(q4k, os.path.getsize(q4k))
    report(iq2, requantise(shipped, iq2, IQ2_TYPES))


def report(path, size):
    print(f"{path}: {size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
