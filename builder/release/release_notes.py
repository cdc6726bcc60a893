"""The notes of a release: the section of its version in CHANGELOG.md, as GitHub shows it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.release.publish import image_variants
from rosetta.core.errors import INVALID, MISSING, UserError

if TYPE_CHECKING:
    from builder.core.manifest import Manifest

FILE = "CHANGELOG.md"
UNRELEASED = "Unreleased"

_HEADING = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
_RELEASE = re.compile(r"(?P<version>\d+\.\d+\.\d+) - (?P<date>\d{4}-\d{2}-\d{2})")
_LINK_TO_FILE = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]*\)")


def read_notes(changelog: str, version: str) -> str:
    """Return the notes of a version in Markdown.

    A page of a release breaks lines where its source does, and resolves no relative link. So each
    paragraph and each item of a list becomes one line, and a link to a file becomes its text.

    Args:
        changelog: The text of CHANGELOG.md.
        version: A version, such as 0.2.0.

    Raises:
        UserError: The changelog has no section of the version, or the section is empty.
    """
    sections = _sections(changelog)
    if version not in sections:
        raise UserError(
            f"has no section of version {version}",
            FILE,
            f"add one: ## {version} - YYYY-MM-DD",
            kind=MISSING,
            value=version,
        )
    notes = _join_lines(_LINK_TO_FILE.sub(r"\1", sections[version]))
    if not notes:
        raise UserError(
            f"the section of version {version} is empty",
            FILE,
            f'move the entries of "{UNRELEASED}" there',
            kind=MISSING,
            value=version,
        )
    return notes


def read_versions(changelog: str) -> list[str]:
    """Return the released versions of a changelog, newest first."""
    return list(_sections(changelog))


def format_images(manifest: Manifest, registry: str, version: str) -> str:
    """Return a section with the images of a version.

    Args:
        manifest: The manifest, which lists the distributions and their accelerators.
        registry: The registry and the namespace, such as ghcr.io/OWNER.
        version: The version.
    """
    lines = ["### Images", ""]
    for name, distribution in manifest.distributions.items():
        suffixes = [
            image_variants.find_suffix(accelerator) for accelerator in distribution.accelerators
        ]
        lines += [f"- `{registry}/{name}:{version}{suffix}`" for suffix in suffixes]
    return "\n".join(lines)


def _sections(changelog: str) -> dict[str, str]:
    """Return the text of each release, by its version.

    Raises:
        UserError: A heading is neither "Unreleased" nor a version with its date.
    """
    _, *parts = _HEADING.split(changelog)
    sections = {}
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        release = _RELEASE.fullmatch(title)
        if release:
            sections[release["version"]] = text.strip()
        elif title != UNRELEASED:
            raise UserError(
                f"{title!r} is not a valid heading of a release",
                FILE,
                f"write it as 0.2.0 - 2026-11-29, or {UNRELEASED}",
                kind=INVALID,
                value=title,
            )
    return sections


def _join_lines(text: str) -> str:
    """Join each line that continues a paragraph or an item to the line before it."""
    lines: list[str] = []
    for line in text.splitlines():
        begins_block = not line.strip() or line.lstrip().startswith(("- ", "#"))
        previous = lines[-1] if lines else ""
        if begins_block or not previous or previous.startswith("#"):
            lines.append(line.rstrip())
        else:
            lines[-1] = f"{previous} {line.strip()}"
    return "\n".join(lines)
