"""What a bump that is not at its end has to remember: where it wants to, how everything was, and
what it is writing.

A file in the cache, one for each manifest. What is to be written is noted there first; so a kill at
any moment leaves something that the next run finishes, and `--abort` brings back every file of the
sources that were not at their end.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder.core.cache import remove_path
from builder.release.bump import manifest_edit
from rosetta.core.atomic_files import is_temporary, write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.core.manifest import GitSource, Manifest


@dataclass
class Entry:
    """One source: its pin at first and now, where it is to go ("" once it is there), and the files
    in its folders at first.
    """

    start: str
    pin: str
    target: str
    before: dict[str, dict[str, Any]]
    writing: dict[str, Any] | None = None


@dataclass
class Journal:
    """`records` are machine-owned files as they were at first, None for one that was not there;
    `running` until a run has ended.
    """

    file: Path
    manifest: Path
    entries: dict[str, Entry] = field(default_factory=dict)
    records: dict[str, str | None] = field(default_factory=dict)
    running: bool = False

    def save(self) -> None:
        entries = {name: vars(entry) for name, entry in self.entries.items()}
        data = {
            "schema": 1,
            "manifest": str(self.manifest),
            "running": self.running,
            "sources": entries,
            "records": self.records,
        }
        write_atomic(self.file, json.dumps(data, indent=1) + "\n")

    def without(self, names: Iterable[str]) -> Journal | None:
        """Return what it has of other sources: these start anew. None where that is nothing."""
        gone = set(names)
        entries = {name: entry for name, entry in self.entries.items() if name not in gone}
        return replace(self, entries=entries) if entries else None

    def begin(self, source: GitSource, root: Path, target: str) -> None:
        """Remember how a source is now, unless that is known from before."""
        if source.name in self.entries:
            self.entries[source.name].target = target
            self.entries[source.name].pin = source.commit
        else:
            self.entries[source.name] = Entry(
                source.commit, source.commit, target, _folders(source, root)
            )
        self.save()

    def write(
        self, source: GitSource, root: Path, pin: str, files: Mapping[Path, bytes | None]
    ) -> None:
        """Write files (None: away with it) and move the pin, all of it or, after a kill, by
        `finish`.
        """
        changes = {
            str(path.relative_to(root)): [_packed(path), None if data is None else _text(data)]
            for path, data in files.items()
        }
        self.entries[source.name].writing = {"pin": pin, "files": changes}
        self.save()
        self.finish(root)

    def finish(self, root: Path) -> None:
        """Write what was noted and is not written yet.

        Raises UserError if somebody changed one of the files since.
        """
        for name, entry in self.entries.items():
            if entry.writing is None:
                continue
            for path, (old, new) in entry.writing["files"].items():
                if _packed(root / path) not in (old, new):
                    do = "put it back as it was, or give up what was begun: build.py bump --abort"
                    raise UserError(
                        "was edited while a bump that was killed is not finished",
                        str(root / path),
                        do,
                    )
            for path, (_, new) in entry.writing["files"].items():
                _sweep(root / path)
                if new is None:
                    (root / path).unlink(missing_ok=True)
                elif _packed(root / path) != new:
                    write_atomic(root / path, base64.b64decode(new))
            _sweep(self.manifest)
            manifest_edit.set_pin(self.manifest, name, entry.pin, entry.writing["pin"])
            entry.pin, entry.writing = entry.writing["pin"], None
            self.save()

    def abort(self, manifest: Manifest) -> list[str]:
        """Everything of these sources as it was; returns the paths that changed.

        What can fail is looked at first.
        """
        changed = []
        for name, entry in self.entries.items():
            source = manifest.source(name)
            pins = {entry.start, entry.pin, (entry.writing or {}).get("pin")}
            if getattr(source, "commit", "") not in pins:
                raise UserError(
                    f"the pin of {name} was edited since",
                    self.manifest.name,
                    f"set it to {entry.pin} or {entry.start}, then abort",
                )
        for name, entry in self.entries.items():
            source = manifest.source(name)
            for folder in filter(None, (source.patches, source.overlay)):
                changed += _restore(folder, manifest.root, entry.before)
            pin = getattr(source, "commit", "")
            manifest_edit.set_pin(self.manifest, name, pin, entry.start)
            changed += [f"{self.manifest.name}: {name}"] if pin != entry.start else []
        for path, text in self.records.items():
            file = manifest.root / path
            if _packed(file) == (None if text is None else _text(text.encode())):
                continue
            changed.append(path)
            if text is None:
                file.unlink()
            else:
                write_atomic(file, text)
        self.close()
        return changed

    def close(self) -> None:
        """Nothing is to be remembered any more."""
        self.file.unlink(missing_ok=True)


def load(cache: Cache, manifest: Path) -> Journal | None:
    """Return the journal of this manifest, if a bump of it is not at its end."""
    empty = new(cache, manifest)
    _sweep(empty.file)
    try:
        data = json.loads(empty.file.read_text(encoding="utf-8"))
        entries = {name: Entry(**entry) for name, entry in data["sources"].items()}
        return Journal(
            empty.file, empty.manifest, entries, dict(data["records"]), bool(data["running"])
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        do = "delete it, and look with git what the bump before left"
        raise UserError("is no journal of a bump", str(empty.file), do) from error


def new(cache: Cache, manifest: Path) -> Journal:
    """Return an empty one; nothing is written yet."""
    path = manifest.resolve()
    key = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return Journal(cache.path("bump", f"{key}.json"), path)


def _folders(source: GitSource, root: Path) -> dict[str, dict[str, Any]]:
    """Every file in a source's patches and overlay: {path from the root: its mode and content}."""
    found = {}
    for folder in filter(None, (source.patches, source.overlay)):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not is_temporary(path.name):
                found[str(path.relative_to(root))] = {
                    "mode": stat.S_IMODE(path.stat().st_mode),
                    "content": _packed(path),
                }
    return found


def _restore(folder: Path, root: Path, before: Mapping[str, Mapping[str, Any]]) -> list[str]:
    changed = []
    there = {
        str(path.relative_to(root)): path
        for path in sorted(folder.rglob("*"))
        if not path.is_dir() or path.is_symlink()
    }
    for name, path in there.items():
        if name not in before:
            remove_path(path)
            changed.append(name)
    for name, was in before.items():
        path = root / name
        if path.is_relative_to(folder) and (name not in there or _packed(path) != was["content"]):
            write_atomic(path, base64.b64decode(was["content"]), was["mode"])
            changed.append(name)
    return changed


def _sweep(path: Path) -> None:
    """Away with what killed runs left of writing this file."""
    for left in path.parent.glob(f".tmp-*-{path.name}"):
        left.unlink(missing_ok=True)


def _packed(path: Path) -> str | None:
    return _text(path.read_bytes()) if path.is_file() else None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
