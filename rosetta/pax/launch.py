"""Public program `python -m rosetta.pax.launch`: see rosetta.launch.pax_trainer."""

import sys

from rosetta.launch.pax_trainer import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
