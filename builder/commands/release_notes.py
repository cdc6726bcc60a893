"""Print the notes of a release: the section of its version in CHANGELOG.md.

The version must be the one that builder/__init__.py declares.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder import __version__
from builder.core.command_context import Context, Result
from builder.release import release_notes
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DIFFERS, INVALID, UserError

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "tag",
        nargs="?",
        metavar="TAG",
        default=f"v{__version__}",
        help="the tag of the release in git (default: v and the version of this checkout)",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        default="",
        help="write the notes to this file, too",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if arguments.tag != f"v{__version__}":
        raise UserError(
            f"this checkout is version {__version__}",
            f"the tag {arguments.tag!r}",
            f"check out that tag, or give v{__version__}",
            kind=DIFFERS,
            value=arguments.tag,
        )
    output = Path(arguments.write).absolute() if arguments.write else None
    if output and output.exists() and not output.is_file():
        raise UserError(
            "is not a file", f"--write {output}", "give the name of a file", kind=INVALID
        )
    changelog = (context.root / release_notes.FILE).read_text(encoding="utf-8")
    notes = release_notes.read_notes(changelog, __version__)
    if output:
        write_atomic(output, notes + "\n")
    return Result({"version": __version__, "notes": notes}, notes)
