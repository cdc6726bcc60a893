"""Where an image goes: into an engine, an OCI layout, a bundle for a site without internet, or a
registry.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import machine_architecture
from rosetta.core.errors import UserError
from rosetta.core.value_parsing import parse_list

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = ("image", "oci", "bundle", "registry")
FORMS = "image[:NAME:TAG], oci:PATH, bundle:DIR or registry:HOST/NAME:TAG"
_REFERENCE = re.compile(
    r"([a-z0-9.-]+(:[0-9]{1,5})?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
)


@dataclass(frozen=True)
class Output:
    """One of KINDS with its place: `name` is the image's name and tag, `path` the folder or
    file.
    """

    kind: str
    name: str
    path: Path | None = None

    @property
    def compression(self) -> str:
        """Gzip, for what leaves this machine: an enroot before 4.0 cannot read zstd."""
        return "zstd" if self.kind == "image" else "gzip"


def parse_output(text: str, distribution: str, accelerator: str) -> Output:
    """Return what --output names; UserError for anything else."""
    kind, colon, rest = text.partition(":")
    name = f"{distribution}:{accelerator}"
    if kind not in KINDS or (colon and not rest) or (kind != "image" and not rest):
        raise UserError(f"{text!r} is no kind of output", "--output", f"give env:DIR, {FORMS}")
    if kind in ("oci", "bundle"):
        path = Path(rest).absolute()
        require_folder_above(path, "--output")
        return Output(kind, name, path)
    if rest and not _REFERENCE.fullmatch(rest):
        raise UserError(
            f"{rest!r} is no name of an image",
            "--output",
            "lower-case letters, digits, and . _ - / between them, then :TAG",
        )
    return Output(kind, rest or name)


def require_folder_above(path: Path, where: str) -> None:
    """Raise UserError where `path` can't be made, because a file stands in place of a folder above
    it.
    """
    above = next((folder for folder in path.parents if os.path.lexists(folder)), path)
    if not above.is_dir():
        raise UserError(f"{str(above)!r} is not a folder", where, "give a path below a folder")


def parse_platforms(text: str, offered: Sequence[str], kind: str) -> tuple[str, ...]:
    """Return the architectures that --platform asks for; without it all that are offered, for
    `image` this machine's own.
    """
    if not text:
        own = machine_architecture.detect_architecture()
        return (own,) if kind == "image" and own in offered else tuple(offered)
    found = []
    for part in parse_list("--platform", text):
        system, _, architecture = part.partition("/")
        if system != "linux" or architecture not in ("amd64", "arm64"):
            raise UserError(
                f"{part!r} is no platform of ours",
                "--platform",
                "give linux/amd64, linux/arm64 or both with a comma between them",
            )
        if architecture not in found:
            found.append(architecture)
    return tuple(sorted(found))
