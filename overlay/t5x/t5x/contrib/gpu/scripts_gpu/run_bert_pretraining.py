"""Pretrain a BERT with the options of t5-experiments. Importing it does nothing."""

import sys
from pathlib import Path

from rosetta.launch.t5_experiments import program

TREE = str(Path(__file__).resolve().parents[4])

if __name__ == "__main__":
    sys.exit(program.main([Path(__file__).stem, TREE, *sys.argv[1:]]))
