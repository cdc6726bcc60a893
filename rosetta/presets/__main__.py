"""`python -m rosetta.presets`: `rosetta explain` on a Python that is too old for the other
commands, as a login node has it.
"""

from __future__ import annotations

import sys

from rosetta import cli

if __name__ == "__main__":
    sys.exit(cli.main(["explain", *sys.argv[1:]]))
