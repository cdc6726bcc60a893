"""What several command lines take: numbers that say what would do, and a training step's shape."""

from __future__ import annotations

import argparse
import re


def whole(text: str) -> int | None:
    """Return a whole number of at least 1 and at most nine digits; None where the text is none."""
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else None


def positive(text: str) -> int:
    """Parse an option's value as a whole number of at least 1."""
    number = whole(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"it is {text!r}: give a whole number, at least 1")
    return number


def share(text: str) -> float:
    """Parse an option's value as a number from 0 to below 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"it is {text!r}: give a number from 0 to below 1")
    return number


def shape(
    parser: argparse.ArgumentParser,
    *,
    size: str,
    sizes: str = "",
    inputs: int = 512,
    targets: int = 128,
    dropout: float = 0.0,
) -> None:
    """Add --size, --inputs, --targets and --dropout with these defaults.

    `sizes`: which there are, if one can say.
    """
    parser.add_argument(
        "--size",
        default=size,
        help=f"{f'one of {sizes}' if sizes else 'of the model'} (default {size})",
    )
    parser.add_argument(
        "--inputs",
        type=positive,
        default=inputs,
        help=f"input tokens of a sequence (default {inputs})",
    )
    parser.add_argument(
        "--targets",
        type=positive,
        default=targets,
        help=f"target tokens of a sequence (default {targets})",
    )
    parser.add_argument(
        "--dropout",
        type=share,
        default=dropout,
        help=f"rate (default {dropout:g}; cuDNN's attention has none)",
    )
