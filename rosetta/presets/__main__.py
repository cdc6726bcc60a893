"""Run `rosetta explain` as `python -m rosetta.presets`.

This works on a Python that is too old for the other commands, such as that of a login node.
"""

from __future__ import annotations

import sys

from rosetta import cli

if __name__ == "__main__":
    sys.exit(cli.main(["explain", *sys.argv[1:]]))
