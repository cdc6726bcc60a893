"""Pretrain a T5 with the options of t5-experiments: see rosetta.launch.t5_experiments. Importing it does nothing."""

import sys
from pathlib import Path

from rosetta.launch.t5_experiments import program

if __name__ == "__main__":
    sys.exit(program.main(["run_t5_pretraining", str(Path(__file__).resolve().parents[4]), *sys.argv[1:]]))
