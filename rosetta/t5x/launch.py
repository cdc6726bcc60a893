"""Public program `python -m rosetta.t5x.launch`: see rosetta.launch.t5x_trainer."""

import sys

from rosetta.launch.t5x_trainer import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
