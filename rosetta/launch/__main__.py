"""`python -m rosetta.launch`: `rosetta run` and `rosetta submit` on a Python that is too old for
the other commands, as a login node has it.
"""

from __future__ import annotations

import sys

from rosetta import cli
from rosetta.commands import run

if __name__ == "__main__":
    cli.COMMAND_MODULES = {run.__name__: tuple(run.RUN)}
    sys.exit(cli.main())
