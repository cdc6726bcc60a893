"""`python -m rosetta.doctor`: run `rosetta doctor` with an old Python, as login nodes have it.

The other commands need a newer Python.
"""

from __future__ import annotations

import sys

from rosetta import cli

if __name__ == "__main__":
    sys.exit(cli.main(["doctor", *sys.argv[1:]]))
