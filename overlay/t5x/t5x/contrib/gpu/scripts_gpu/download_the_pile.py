"""The Pile can no longer be downloaded: says so, looks over a copy where there is one, and names what replaces it.

Importing it does nothing.
"""

import os
import sys

INSTEAD = (
    "train on text of your own (DATA=text:/data/*.txt or jsonl:/data/*.jsonl), on a prepared C4 (DATA=tfds:c4/en, T5's own corpus), or on a"
    " Hugging Face set such as DATA=hf:allenai/c4/en, streamed"
)


def main() -> int:
    """Return 0 where TFDS_DATA_DIR has a whole copy, 2 where there is none or a damaged one."""
    root = os.environ.get("TFDS_DATA_DIR") or "/t5x_home/datasets"
    folder = os.path.join(root, "the_pile")
    if not os.path.isdir(folder):
        print(
            f"download_the_pile: {folder}: the Pile has been offline since October 2023 and there is no copy here; set TFDS_DATA_DIR to a"
            f" copy prepared earlier, or {INSTEAD}",
            file=sys.stderr,
        )
        return 2
    from rosetta.data import spec, tfds  # noqa: PLC0415 (only where there is a copy to look over)
    from rosetta.errors import UserError  # noqa: PLC0415

    os.environ["TFDS_DATA_DIR"] = root
    try:
        found = tfds.check(spec.parse("tfds:the_pile"), "train")
    except UserError as error:
        print(
            f"download_the_pile: {error} (the Pile has been offline since October 2023: it cannot be fetched again); or {INSTEAD}", file=sys.stderr
        )
        return 2
    print(
        f"{found['folder']}: {found['files']} files, {found['bytes']:,} bytes, {found['examples']:,} examples: complete as far as sizes and heads"
        " tell. Nothing to download; use it with DATA=tfds:the_pile"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
