"""The place that an image goes to: an engine, an OCI layout, an offline bundle, or a registry."""

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
    """The place that --output names."""

    kind: str  # one of KINDS
    name: str  # the image's name and tag
    path: Path | None = None  # the folder or file

    @property
    def compression(self) -> str:
        """The compression of layers: gzip for what leaves this machine.

        An enroot before 4.0 cannot read zstd.
        """
        return "zstd" if self.kind == "image" else "gzip"


def parse_output(text: str, distribution: str, accelerator: str) -> Output:
    """Return the place that --output names.

    Args:
        text: The value of --output.
        distribution: The distribution, for the image's name if the value has none.
        accelerator: The accelerator, for the same.

    Raises:
        UserError: The value is not valid.
    """
    kind, colon, value = text.partition(":")
    default_name = f"{distribution}:{accelerator}"
    if kind not in KINDS or (colon and not value) or (kind != "image" and not value):
        raise UserError(
            f"{text!r} is not a valid kind of output", "--output", f"give env:DIR, {FORMS}"
        )
    if kind in ("oci", "bundle"):
        path = Path(value).absolute()
        require_folder_above(path, "--output")
        return Output(kind, default_name, path)
    if value and not _REFERENCE.fullmatch(value):
        raise UserError(
            f"{value!r} is not a valid name of an image",
            "--output",
            "lower-case letters, digits, and . _ - / between them, then :TAG",
        )
    return Output(kind, value or default_name)


def require_folder_above(path: Path, where: str) -> None:
    """Raise UserError if a path cannot be made, because a folder above it is a file.

    Args:
        path: The path.
        where: What the error names as its place, such as an option.
    """
    existing = next((folder for folder in path.parents if os.path.lexists(folder)), path)
    if not existing.is_dir():
        raise UserError(f"{str(existing)!r} is not a folder", where, "give a path below a folder")


def parse_platforms(text: str, offered: Sequence[str], kind: str) -> tuple[str, ...]:
    """Return the architectures that --platform names.

    Args:
        text: The value of --platform. Without it, all architectures are meant, but for the kind
            `image` only that of this machine.
        offered: The architectures of the distribution.
        kind: The kind of --output.

    Raises:
        UserError: The value is not valid.
    """
    if not text:
        own_architecture = machine_architecture.detect_architecture()
        if kind == "image" and own_architecture in offered:
            return (own_architecture,)
        return tuple(offered)
    architectures = set()
    for platform in parse_list("--platform", text):
        system, _, architecture = platform.partition("/")
        if system != "linux" or architecture not in ("amd64", "arm64"):
            raise UserError(
                f"{platform!r} is not a supported platform",
                "--platform",
                "give linux/amd64, linux/arm64 or both with a comma between them",
            )
        architectures.add(architecture)
    return tuple(sorted(architectures))
