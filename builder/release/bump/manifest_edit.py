"""The one line of the manifest that a bump changes: comments, order and layout stay a person's."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import yaml

from rosetta.core import strict_yaml
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DIFFERS, UserError

if TYPE_CHECKING:
    from pathlib import Path


def set_pin(manifest: Path, name: str, old: str, new: str) -> None:
    """Move the pin of source `name` from `old` to `new`; nothing is done where it stands at `new`
    already.

    Raises UserError if it stands anywhere else.
    """
    file = manifest.resolve()
    text = file.read_bytes().decode("utf-8")
    now = strict_yaml.load(text, manifest.name).data["sources"][name]["commit"]
    if now == new:
        return
    start, end = _span(text, name)
    if now != old or text[start:end].count(old) != 1:
        raise UserError(
            f"the pin of {name} is {now}, not {old}",
            manifest.name,
            "it was edited meanwhile: run again",
            kind=DIFFERS,
            value=now,
        )
    write_atomic(
        file,
        text[:start] + text[start:end].replace(old, new) + text[end:],
        stat.S_IMODE(os.stat(file).st_mode),
    )


def _span(text: str, name: str) -> tuple[int, int]:
    """Where the value of sources.NAME.commit stands."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in ("sources", name, "commit"):
        node = next(value for one, value in node.value if one.value == key)
    return node.start_mark.index, node.end_mark.index
