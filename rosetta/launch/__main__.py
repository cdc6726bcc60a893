"""Run `rosetta run`, `submit`, `spawn` and `runs` as `python -m rosetta.launch`.

They work on the old Python of a login node, where the other commands do not.
"""

from __future__ import annotations

import sys

from rosetta import cli
from rosetta.core.commands import PROGRAM

if __name__ == "__main__":
    sys.exit(cli.main(program=PROGRAM.keep_commands("run", "submit", "spawn", "runs")))
