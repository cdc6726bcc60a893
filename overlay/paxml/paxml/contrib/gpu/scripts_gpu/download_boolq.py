"""Download BoolQ into TFDS_DATA_DIR, or find that it is there. Importing it does nothing."""

import sys

if __name__ == "__main__":
    from rosetta.pax import download

    sys.exit(download.main("boolq"))
