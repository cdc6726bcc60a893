"""The one directory that holds the builder's state: written by temporary name + rename, under a
lock per key.

A kill at any moment leaves either the finished thing or a temporary one that the next run of the
same key throws away.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import filelock

from builder.core import cache_folder, folder_checksums, log
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


def stage_key(stage: str, inputs: Mapping[str, Any]) -> str:
    """Sha256 over the canonical JSON of a stage's inputs."""
    text = json.dumps(
        {"stage": stage, **inputs}, sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """Paths and locks below `root`. Kinds of content: bin, env, git, pyc, stamps, trees, wheels;
    `sums` of their entries; `locks`.

    Of images: base, debs, and `layers`, a record per layer, each naming a file of `blobs/sha256`.
    """

    root: Path

    def path(self, kind: str, name: str = "") -> Path:
        """Return the path of `name` among the entries of one kind, and create its parent folder."""
        folder = self.root / kind
        if folder.is_dir():
            return folder / name if name else folder
        cache_folder.prepare(self.root)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(
                f"the cache cannot be written ({error.strerror})",
                str(folder),
                "set ROSETTA_CACHE to a folder of yours",
            ) from error
        return folder / name if name else folder

    @contextlib.contextmanager
    def used(self, *, alone: bool = False) -> Iterator[None]:
        """While it is used nothing in it is pruned: many may use it, one alone may prune it."""
        try:
            handle = open(self.path("locks", "use"), "ab")  # noqa: SIM115 - closed below; a cache that cannot be written cannot be pruned either
        except (OSError, UserError):
            if alone:
                raise
            yield
            return
        with handle:
            kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
            try:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info(
                    "waiting for "
                    f"{'the builds that use the cache' if alone else 'the cache to be pruned'}"
                )
                fcntl.flock(handle, kind)
            yield

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the lock of one key; says so when it has to wait for another build."""
        lock = filelock.FileLock(self.path("locks") / (name.replace("/", "-") + ".lock"))
        try:
            lock.acquire(timeout=1)
        except filelock.Timeout:
            log.info(f"waiting for another build that holds {name}")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def folder(
        self,
        kind: str,
        name: str,
        make: Callable[[Path], None],
        *,
        grows: bool = False,
        contents: bool = True,
    ) -> Path:
        """Return the finished folder `kind/name`; made by `make(temporary folder)` if it is not
        there, or not as it was made.

        Args:
            kind: What it is, a folder of the cache.
            name: Its name, best the key of its inputs.
            make: Fills the empty folder that it gets.
            grows: The folder is changed later on, and only has to be there.
            contents: Compare the bytes of its files too, not only names, sizes, times and modes.
        """
        final = self.path(kind, name)
        if final.is_dir() if grows else self._is_whole(final, contents=contents):
            log.debug(f"cache: {kind}/{name} is there")
            return final
        with self.lock(f"{kind}-{name}"):
            if final.is_dir() if grows else self._is_whole(final, contents=contents):
                return final
            if final.exists():
                log.info(
                    f"{kind}/{name[:12]} in the cache {self._why_not_whole(final)}: it is "
                    "made again"
                )
            log.debug(f"cache: {kind}/{name} is made")
            remove(final)
            temporary = final.with_name(f".tmp-{name}")
            remove(temporary)
            temporary.mkdir(parents=True)
            try:
                make(temporary)
                if not grows:
                    write_atomic(
                        self._sums(final),
                        folder_checksums.render(folder_checksums.record(temporary)),
                    )
                os.rename(temporary, final)  # a folder, whole, under the lock of the entry
            except BaseException:
                remove(temporary)
                raise
        return final

    def _sums(self, final: Path) -> Path:
        return self.path("sums", f"{final.parent.name}-{final.name}")

    def _is_whole(self, final: Path, *, contents: bool) -> bool:
        """Is the entry there and as it was made? Notes that it was used, for `cache prune`."""
        known = folder_checksums.read(self._sums(final))
        if known is None or folder_checksums.differences(final, known, contents=contents):
            return False
        with contextlib.suppress(OSError):
            os.utime(final)
        return True

    def _why_not_whole(self, final: Path) -> str:
        if folder_checksums.read(self._sums(final)) is None:
            return (
                "has no valid record of its contents, as one of an earlier version, or one that "
                "is damaged"
            )
        return "is damaged or was edited"


def remove(path: Path) -> None:
    """Delete a file or a whole folder, read-only parts included; nothing there is fine."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return

    def writable(function: Callable[[str], object], name: str, _: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(name), stat.S_IRWXU)
            function(name)

    shutil.rmtree(path, onerror=writable)
