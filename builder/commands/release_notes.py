"""Print the notes of a release: the section of its version in CHANGELOG.md.

The version must be the one that builder/__init__.py declares.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builder import __version__
from builder.core import manifest
from builder.core.command_context import Context, Result
from builder.images.oci import reference
from builder.release import release_notes, release_version
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "tag",
        nargs="?",
        metavar="TAG",
        default=release_version.GIT_TAG,
        help="the tag of the release in git (default: v and the version of this checkout)",
    )
    parser.add_argument(
        "--images",
        metavar="HOST/NAMESPACE",
        default="",
        help="also list the images of the release in this registry and namespace",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        default="",
        help="write the notes to this file, too",
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    release_version.check_git_tag(arguments.tag)
    output = Path(arguments.write).absolute() if arguments.write else None
    if output and output.exists() and not output.is_file():
        raise UserError(
            "is not a file", f"--write {output}", "give the name of a file", kind=INVALID
        )
    changelog = (context.root / release_notes.FILE).read_text(encoding="utf-8")
    notes = release_notes.read_notes(changelog, __version__)
    if arguments.images:
        registry = reference.parse_reference(arguments.images)
        loaded = manifest.load(context.manifest_path)
        notes += "\n\n" + release_notes.format_images(loaded, str(registry), __version__)
    if output:
        write_atomic(output, notes + "\n")
    return Result({"version": __version__, "notes": notes}, notes)
