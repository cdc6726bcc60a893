"""`python -m rosetta.launch`: `rosetta run`, `submit` and `spawn` on a Python that is too old for
the other commands, as a login node has it.
"""

from __future__ import annotations

import sys

from rosetta import cli
from rosetta.core.commands import PROGRAM

if __name__ == "__main__":
    sys.exit(cli.main(program=PROGRAM.keep_commands("run", "submit", "spawn")))
