"""Remember a finished conversion until its folder is uploaded.

The same command that is started again finds the folder, does not convert again, and uploads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rosetta.core import folder_fingerprint
from rosetta.core.atomic_files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class PendingUpload:
    """The record of a finished conversion, a hidden file beside its folder."""

    def __init__(self, source: Path, out: Path, options: Mapping[str, Any]) -> None:
        """Describe a conversion; nothing is read but the times of the source's files.

        Args:
            source: The folder that is converted.
            out: The folder that is written.
            options: What else decides the result, as JSON.
        """
        self._out = out
        target = out.resolve()
        self._path = target.parent / f".rosetta-upload-{target.name}.json"
        key = [folder_fingerprint.compute_fingerprint(source), dict(options)]
        self._key = json.loads(json.dumps(key, default=str))

    def read(self) -> tuple[dict[str, Any], str] | None:
        """Return the result and the text of the conversion, or None.

        None if this conversion was not finished, or if the folder has changed since.
        """
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
            if [record["key"], record["out"]] == [self._key, self._compute_state()]:
                return dict(record["result"]), str(record["text"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def write(self, result: Mapping[str, Any], text: str) -> None:
        """Remember the result and the text of the conversion.

        Args:
            result: The result, as JSON.
            text: What the command prints.
        """
        state = self._compute_state()
        record = {"key": self._key, "out": state, "result": dict(result), "text": text}
        write_atomic(self._path, json.dumps(record))

    def remove(self) -> None:
        """Forget the conversion."""
        self._path.unlink(missing_ok=True)

    def _compute_state(self) -> str:
        """Return the fingerprint of the written folder."""
        return folder_fingerprint.compute_fingerprint(self._out)
