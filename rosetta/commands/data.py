"""The command `rosetta data`: check, show and tokenise training data.

The argument SPEC names the data. It is one source, written KIND:VALUE such as text:FILES, or a
mixture of sources. A part of a mixture is a source and its rate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.commands import data_cache, data_check, data_options, data_show

if TYPE_CHECKING:
    import argparse


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the top parser's subcommands.

    Args:
        commands: The subcommands of the top parser.
        common: A parser with the options of all commands.
    """
    data = commands.add_parser("data", parents=[common])
    actions = data.add_subparsers(dest="action", metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="check whether a run can use this data, and count records and tokens",
        description="The command reads every record.",
    )
    data_options.add_data_options(check)
    data_options.add_row_options(check)
    data_check.add_options(check)
    show = actions.add_parser(
        "show",
        help="print rows as the model gets them, and the hash of the batch",
        description="",
    )
    data_options.add_data_options(show)
    data_options.add_row_options(show)
    data_show.add_options(show)
    cache = actions.add_parser(
        "cache",
        help="tokenise the data once, for many runs",
        description="If you stop the command and start it again, it continues where it stopped.",
    )
    data_options.add_data_options(cache)
    data_cache.add_options(cache)


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta data`; return its result and the text to print."""
    from rosetta.data import bad_records, json_lines

    json_lines.set_field_option("--field")
    actions = {"check": data_check.run, "show": data_show.run, "cache": data_cache.run}
    result_and_text = actions[args.action](args)
    bad_records.report_skipped()
    return result_and_text


RUN = {"data": run}
