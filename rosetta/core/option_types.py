"""Types for argparse options, and the options that several commands of rosetta share.

The types are parsers of value_parsing. They raise UserError, to which rosetta.core.command_line
adds the name of the option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import value_parsing
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def make_whole_number_type(
    minimum: int = 1, maximum: int = value_parsing.LARGEST
) -> Callable[[str], int]:
    """Return the type of an option whose value is a whole number in a range."""
    return lambda text: value_parsing.parse_whole_number("", text, minimum=minimum, maximum=maximum)


parse_count = make_whole_number_type()


def parse_positive_number(text: str) -> float:
    """Parse an option's value as a number above 0."""
    return value_parsing.parse_number("", text, above_zero=True)


def parse_number(text: str) -> float:
    """Parse an option's value as a number of 0 or more."""
    return value_parsing.parse_number("", text)


def parse_share(text: str) -> float:
    """Parse an option's value as a number from 0 to below 1."""
    number = value_parsing.parse_decimal(text)
    if number is None or number >= 1:
        raise UserError(
            f"{text!r} is not a valid share",
            do="give a number from 0 to below 1",
        )
    return number


def parse_device_counts(text: str) -> tuple[int, ...]:
    """Parse an option's value as different numbers of devices, such as 1,4."""
    counts = tuple(
        value_parsing.parse_whole_number("", item, maximum=64)
        for item in value_parsing.parse_list("", text)
    )
    if not counts or len(set(counts)) != len(counts):
        raise UserError(
            f"{text!r} is not a valid list of numbers",
            do="give different numbers from 1 to 64",
        )
    return counts


def add_shape_options(
    parser: argparse.ArgumentParser,
    *,
    size: str,
    sizes: str = "",
    inputs: int = 512,
    targets: int = 128,
    dropout: float = 0.0,
) -> None:
    """Add --size, --inputs, --targets and --dropout.

    Args:
      parser: The parser of the command.
      size: The default of --size.
      sizes: The valid sizes, for the help; "" if they depend on something.
      inputs: The default of --inputs.
      targets: The default of --targets.
      dropout: The default of --dropout.
    """
    valid_sizes = f": {sizes}" if sizes else ""
    parser.add_argument(
        "--size",
        default=size,
        help=f"the size of the model{valid_sizes} (default: {size})",
    )
    parser.add_argument(
        "--inputs",
        type=parse_count,
        default=inputs,
        help=f"tokens of an input (default: {inputs})",
    )
    parser.add_argument(
        "--targets",
        type=parse_count,
        default=targets,
        help=f"tokens of a target (default: {targets})",
    )
    parser.add_argument(
        "--dropout",
        type=parse_share,
        default=dropout,
        help=f"the dropout rate (default: {dropout:g})",
    )


# In the help of every command that takes settings of a run.
SETTINGS_HELP = (
    "Write each setting as NAME=VALUE, or set it in the environment. `rosetta explain NAME` "
    "describes a setting."
)


def add_run_arguments(
    parser: argparse.ArgumentParser, help_text: str, *, traced: bool = True
) -> None:
    """Add the arguments of a command that starts a run.

    Args:
      parser: The parser of the command.
      help_text: The help of the arguments NAME=VALUE.
      traced: Whether the run can trace steps.
    """
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help=help_text)
    if traced:
        parser.add_argument(
            "--profile",
            metavar="A:B",
            help=(
                "trace the steps from A to B - 1, as PROFILE_STEPS=A:B does "
                "(docs/how-to/profile-a-run.md)"
            ),
        )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything and print what would run, but run nothing",
    )
