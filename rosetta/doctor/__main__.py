"""`python -m rosetta.doctor`: `rosetta doctor` on a Python that is too old for the other commands,
as a login node has it.
"""

from __future__ import annotations

import sys

from rosetta import cli

if __name__ == "__main__":
    sys.exit(cli.main(["doctor", *sys.argv[1:]]))
