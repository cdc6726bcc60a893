"""The journal of a bump: what it wants to write, and how everything was before.

There is one journal for each manifest, as a file in the cache. Every write is noted in the journal
first. After a kill, the next run finishes what was noted, and `--abort` restores every file.
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
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.core.manifest import GitSource, Manifest


@dataclass
class Entry:
    """One source of a bump.

    Attributes:
        start: The pin before the bump.
        pin: The present pin.
        target: The commit that the pin shall move to, or "" if it is there.
        before: The mode and the content of each file of the source's folders before the bump.
        writing: The pin and the files that are being written.
    """

    start: str
    pin: str
    target: str
    before: dict[str, dict[str, Any]]
    writing: dict[str, Any] | None = None


@dataclass
class Journal:
    """What a bump remembers between two runs of the command.

    Attributes:
        file: Where the journal is stored.
        manifest: The manifest.
        entries: The sources that are not at their target, by name.
        records: The text of the lock files before the bump, or None for a file that was missing.
        running: Whether a run is in progress, or was killed.
    """

    file: Path
    manifest: Path
    entries: dict[str, Entry] = field(default_factory=dict)
    records: dict[str, str | None] = field(default_factory=dict)
    running: bool = False

    def save(self) -> None:
        """Write the journal to its file."""
        data = {
            "schema": 1,
            "manifest": str(self.manifest),
            "running": self.running,
            "sources": {name: vars(entry) for name, entry in self.entries.items()},
            "records": self.records,
        }
        write_atomic(self.file, json.dumps(data, indent=1) + "\n")

    def without(self, names: Iterable[str]) -> Journal | None:
        """Return the journal without some sources, or None if no source is left."""
        removed = set(names)
        entries = {name: entry for name, entry in self.entries.items() if name not in removed}
        return replace(self, entries=entries) if entries else None

    def begin_source(self, source: GitSource, root: Path, target: str) -> None:
        """Note the target of a source, and its present state if the journal has none.

        Args:
            source: The source at its present pin.
            root: The folder of the manifest.
            target: The commit that the pin shall move to.
        """
        if source.name in self.entries:
            self.entries[source.name].target = target
            self.entries[source.name].pin = source.commit
        else:
            self.entries[source.name] = Entry(
                source.commit, source.commit, target, _read_folders(source, root)
            )
        self.save()

    def write_source(
        self, source: GitSource, root: Path, pin: str, files: Mapping[Path, bytes | None]
    ) -> None:
        """Write the files of a source and move its pin.

        After a kill, `finish_writes` does the rest.

        Args:
            source: The source.
            root: The folder of the manifest.
            pin: The new pin.
            files: The new content of each file, or None to delete the file.
        """
        changes = {
            str(path.relative_to(root)): [
                _encode_file(path),
                None if content is None else _encode_bytes(content),
            ]
            for path, content in files.items()
        }
        self.entries[source.name].writing = {"pin": pin, "files": changes}
        self.save()
        self.finish_writes(root)

    def finish_writes(self, root: Path) -> None:
        """Write what was noted and has not been written.

        Raises:
            UserError: one of the files was edited since it was noted.
        """
        for name, entry in self.entries.items():
            if entry.writing is None:
                continue
            for path, (old, new) in entry.writing["files"].items():
                if _encode_file(root / path) not in (old, new):
                    raise UserError(
                        "was edited before a bump that was killed has finished",
                        str(root / path),
                        "restore the file, or give up the bump: build.py bump --abort",
                    )
            for path, (_, new) in entry.writing["files"].items():
                _remove_temporary_files(root / path)
                if new is None:
                    (root / path).unlink(missing_ok=True)
                elif _encode_file(root / path) != new:
                    write_atomic(root / path, base64.b64decode(new))
            _remove_temporary_files(self.manifest)
            manifest_edit.set_pin(self.manifest, name, entry.pin, entry.writing["pin"])
            entry.pin, entry.writing = entry.writing["pin"], None
            self.save()

    def restore_all(self, manifest: Manifest) -> list[str]:
        """Restore every file of the sources, their pins and the locks, and delete the journal.

        Returns:
            The paths that changed.

        Raises:
            UserError: a pin was edited. Nothing is restored then.
        """
        for name, entry in self.entries.items():
            expected = {entry.start, entry.pin, (entry.writing or {}).get("pin")}
            if getattr(manifest.source(name), "commit", "") not in expected:
                raise UserError(
                    f"the pin of {name} was edited during the bump",
                    self.manifest.name,
                    f"set it to {entry.pin} or {entry.start}, then abort",
                )
        changed: list[str] = []
        for name, entry in self.entries.items():
            source = manifest.source(name)
            for folder in filter(None, (source.patches, source.overlay)):
                changed += _restore_folder(folder, manifest.root, entry.before)
            pin = getattr(source, "commit", "")
            manifest_edit.set_pin(self.manifest, name, pin, entry.start)
            if pin != entry.start:
                changed.append(f"{self.manifest.name}: {name}")
        changed += self._restore_records(manifest.root)
        self.delete()
        return changed

    def _restore_records(self, root: Path) -> Iterator[str]:
        """Restore the lock files, and yield the paths of those that changed."""
        for path, text in self.records.items():
            file = root / path
            if _encode_file(file) == (None if text is None else _encode_bytes(text.encode())):
                continue
            if text is None:
                file.unlink()
            else:
                write_atomic(file, text)
            yield path

    def delete(self) -> None:
        """Delete the file, which ends the bump."""
        self.file.unlink(missing_ok=True)


def load_journal(cache: Cache, manifest: Path) -> Journal | None:
    """Read the journal of a manifest.

    Returns:
        None if no bump of the manifest is in progress.

    Raises:
        UserError: the file is not a journal.
    """
    empty = new_journal(cache, manifest)
    _remove_temporary_files(empty.file)
    try:
        data = json.loads(empty.file.read_text(encoding="utf-8"))
        entries = {name: Entry(**entry) for name, entry in data["sources"].items()}
        return Journal(
            empty.file, empty.manifest, entries, dict(data["records"]), bool(data["running"])
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "not a valid journal of a bump",
            str(empty.file),
            "delete it, and check with git what the last bump changed",
        ) from error


def new_journal(cache: Cache, manifest: Path) -> Journal:
    """Return an empty journal for a manifest. Its file is not written."""
    path = manifest.resolve()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()
    return Journal(cache.path("bump", f"{digest[:16]}.json"), path)


def _read_folders(source: GitSource, root: Path) -> dict[str, dict[str, Any]]:
    """Return the mode and the content of each file in a source's patches and overlay."""
    files = {}
    for folder in filter(None, (source.patches, source.overlay)):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not is_temporary(path.name):
                files[str(path.relative_to(root))] = {
                    "mode": stat.S_IMODE(path.stat().st_mode),
                    "content": _encode_file(path),
                }
    return files


def _restore_folder(folder: Path, root: Path, before: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Restore a folder, and return the paths that changed.

    Args:
        folder: The folder.
        root: The folder of the manifest, where all paths start.
        before: What `_read_folders` returned.
    """
    changed = []
    present = set()
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        name = str(path.relative_to(root))
        present.add(name)
        if name not in before:
            remove_path(path)
            changed.append(name)
    for name, old in before.items():
        path = root / name
        if not path.is_relative_to(folder):
            continue
        if name not in present or _encode_file(path) != old["content"]:
            write_atomic(path, base64.b64decode(old["content"]), old["mode"])
            changed.append(name)
    return changed


def _remove_temporary_files(path: Path) -> None:
    """Remove what killed runs left when they wrote this file."""
    for temporary in path.parent.glob(f".tmp-*-{path.name}"):
        temporary.unlink(missing_ok=True)


def _encode_file(path: Path) -> str | None:
    """Return the content of a file as base64, or None if there is no such file."""
    return _encode_bytes(path.read_bytes()) if path.is_file() else None


def _encode_bytes(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
