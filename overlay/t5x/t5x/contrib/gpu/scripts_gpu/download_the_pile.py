"""The Pile can no longer be downloaded: says so, and what to use instead. Importing it does nothing."""

import os
import sys


def main() -> int:
    """Return 0 where a prepared copy is in TFDS_DATA_DIR already, 2 where there is none to be had."""
    folder = os.path.join(os.environ.get("TFDS_DATA_DIR", "/t5x_home/datasets"), "the_pile")
    if os.path.isdir(folder):
        print(f"{folder} is there already: nothing to download")
        return 0
    print(
        f"download_the_pile: the Pile has been offline since October 2023, and {folder} does not exist; either set TFDS_DATA_DIR to a"
        " copy prepared earlier, or train on other text: rosetta/t5x/gin/pretrain_text.gin takes your own text files, and C4"
        " (t5.data.mixtures, c4_v220_span_corruption) is T5's own corpus",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
