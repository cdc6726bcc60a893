"""Edit the pin of a source in the manifest. Comments, order and layout stay as they are."""

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
    """Change the commit of a source in the manifest from `old` to `new`.

    Raises:
        UserError: the commit is neither `old` nor `new`.
    """
    file = manifest.resolve()
    text = file.read_bytes().decode("utf-8")
    current = strict_yaml.parse_document(text, manifest.name).data["sources"][name]["commit"]
    if current == new:
        return
    start, end = _find_commit(text, name)
    if current != old or text[start:end].count(old) != 1:
        raise UserError(
            f"the pin of {name} is {current}, not {old}",
            manifest.name,
            "the manifest was edited in the meantime: run again",
            kind=DIFFERS,
            value=current,
        )
    new_text = text[:start] + text[start:end].replace(old, new) + text[end:]
    write_atomic(file, new_text, stat.S_IMODE(os.stat(file).st_mode))


def _find_commit(text: str, name: str) -> tuple[int, int]:
    """Return the start and the end of the value of sources.NAME.commit."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for wanted in ("sources", name, "commit"):
        node = next(value for key, value in node.value if key.value == wanted)
    return node.start_mark.index, node.end_mark.index
