"""Run the program `rosetta`: `python -m rosetta`."""

from __future__ import annotations

import sys

from rosetta.cli import main

if __name__ == "__main__":
    sys.exit(main())
