"""`python -m rosetta.doctor`: `rosetta doctor` on a Python that is too old for the other commands,
as a login node has it.
"""

from __future__ import annotations

import sys

from rosetta import cli
from rosetta.commands import doctor

if __name__ == "__main__":
    cli.COMMAND_MODULES = {doctor.__name__: tuple(doctor.RUN)}
    sys.exit(cli.main(["doctor", *sys.argv[1:]]))
