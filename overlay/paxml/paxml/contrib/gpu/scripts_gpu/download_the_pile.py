"""The Pile can no longer be downloaded: says so, looks over a copy where there is one, and names what replaces it. Importing it does nothing."""

import sys

if __name__ == "__main__":
    from rosetta.pax import download

    sys.exit(download.main("the_pile"))
