"""Trains ds4-small from nothing and writes every file that comes from it: python3 tools/small-model/reproduce.py

Needs one CUDA GPU (about 7 GiB of its memory) with PyTorch 2.11, 13 free cores, numpy and regex; 25 minutes on an H200,
of which 5 compile. The weights will not be the shipped ones bit for bit: training goes by the clock, and the shipped
model's last phrasings were added to the world before its third run.

A rehearsal of the whole chain, which teaches nothing: --scale shortens every run, and options that are not known here go to
train.py, for example: reproduce.py --scale 0.02 --device cpu --plain --rows 1 --width 1536 --workers 1
"""
import argparse
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "..", "build", "small-model")
RUNS = {  # seconds, settings
    "retrieval": (260, "--phase retrieval --decay-from 1 --guide 0.3 --workers 4"),
    "mixture": (455, "--phase mixture --decay-from 0.4 --guide 0.1 --code-weight 1.5 --share 0.42 --workers 13"),
    "polish": (355, "--phase mixture --decay-from 0.25 --muon 0.014 --adam 2e-3 --seed 1 --guide 0.1 --code-weight 1.5 --share 0.35 --workers 13"),
}


def python(script, *rest):
    subprocess.run([sys.executable, os.path.join(HERE, script), *rest], check=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--scale", type=float, default=1.0, help="of every run's time")
    a, more = a.parse_known_args()
    before = []
    for tag, (seconds, settings) in RUNS.items():
        python("train.py", "--tag", tag, "--out", OUT, "--seconds", str(seconds * a.scale), *settings.split(), *before, *more)
        before = ["--start-from", os.path.join(OUT, tag)]
    python("quantise.py", "--from", os.path.join(OUT, tag))
    python("curve.py", *(os.path.join(OUT, f"{tag}.json") for tag in RUNS))
    python("evaluate.py", os.path.join(HERE, "..", "..", "models", "ds4-small.gguf"), "--golden")


if __name__ == "__main__":
    main()
