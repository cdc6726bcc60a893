"""The builder's cache: entries are written under a temporary name and renamed, with one lock a key.

If a build is killed, the cache holds either the finished entry or a temporary one. The next build
of the same key removes the temporary entry.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from builder.core import cache_folder, folder_checksums, log
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


def stage_key(stage: str, inputs: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of a stage's inputs."""
    text = json.dumps(
        {"stage": stage, **inputs}, sort_keys=True, separators=(",", ":"), ensure_ascii=True
    )
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """The paths and locks of a cache.

    Below `root` there is a folder for each kind of entry: bin, env, git, pyc, stamps, trees and
    wheels; for images base, debs and layers. A file of `layers` records one layer and names its
    blob in `blobs/sha256`. The folder `sums` has the checksums of entries, `locks` the lock files.
    """

    root: Path

    def path(self, kind: str, name: str = "") -> Path:
        """Return the path of an entry, and create the folder of its kind.

        Raises:
            UserError: The cache cannot be written.
        """
        folder = self.root / kind
        if folder.is_dir():
            return folder / name if name else folder
        cache_folder.prepare_folder(self.root)
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
    def in_use(self, *, exclusive: bool = False) -> Iterator[None]:
        """Mark the cache as used, so that no other process prunes it.

        Args:
            exclusive: Wait until no other process uses the cache, as pruning needs it.
        """
        try:
            handle = open(self.path("locks", "use"), "ab")  # noqa: SIM115 - closed below
        except (OSError, UserError):
            if exclusive:
                raise
            yield  # a cache that cannot be written cannot be pruned either
            return
        with handle:
            lock_kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            try:
                fcntl.flock(handle, lock_kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if exclusive:
                    log.info("waiting for the builds that use the cache")
                else:
                    log.info("waiting for another process to prune the cache")
                fcntl.flock(handle, lock_kind)
            yield

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the lock of one key; print a line if another build holds the lock."""
        path = self.path("locks") / (name.replace("/", "-") + ".lock")
        with open(path, "ab") as handle:  # closing the file releases the lock
            if not _try_lock(handle):
                log.info(f"waiting for another build that holds {name}")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def ensure_folder(
        self,
        kind: str,
        name: str,
        make: Callable[[Path], None],
        *,
        grows: bool = False,
        contents: bool = True,
    ) -> Path:
        """Return the finished folder `kind/name`. If the folder is missing or damaged, make it.

        Args:
            kind: The kind of entry, a folder of the cache.
            name: The name of the entry, usually the key of its inputs.
            make: Fills the empty temporary folder that is its argument.
            grows: Whether later builds change the folder. If so, the folder only has to exist.
            contents: Whether to compare the bytes of the files, too, and not only names, sizes,
                times and modes.
        """
        final = self.path(kind, name)

        def is_ready() -> bool:
            return final.is_dir() if grows else self._is_intact(final, contents=contents)

        if is_ready():
            log.debug(f"cache: {kind}/{name} is used")
            return final
        with self.lock(f"{kind}-{name}"):
            if is_ready():  # another build made the folder meanwhile
                return final
            if final.exists():
                reason = self._explain_damage(final)
                log.info(f"{kind}/{name[:12]} in the cache {reason}: the builder makes it again")
            log.debug(f"cache: {kind}/{name} is made")
            remove_path(final)
            temporary = final.with_name(f".tmp-{name}")
            remove_path(temporary)
            temporary.mkdir(parents=True)
            try:
                make(temporary)
                if not grows:
                    write_atomic(
                        self._checksums_path(final),
                        folder_checksums.render_record(folder_checksums.record_folder(temporary)),
                    )
                os.rename(temporary, final)  # a folder, whole, under the lock of the entry
            except BaseException:
                remove_path(temporary)
                raise
        return final

    def has_intact(self, kind: str, name: str) -> bool:
        """Return whether the cache has the folder `kind/name` with all its contents."""
        return self._is_intact(self.path(kind, name), contents=True)

    def _checksums_path(self, final: Path) -> Path:
        return self.path("sums", f"{final.parent.name}-{final.name}")

    def _is_intact(self, final: Path, *, contents: bool) -> bool:
        """Return whether an entry equals its record; if so, mark it as used for `cache prune`."""
        recorded = folder_checksums.read_record(self._checksums_path(final))
        if recorded is None:
            return False
        if folder_checksums.list_differences(final, recorded, contents=contents):
            return False
        with contextlib.suppress(OSError):
            os.utime(final)
        return True

    def _explain_damage(self, final: Path) -> str:
        if folder_checksums.read_record(self._checksums_path(final)) is None:
            return "has no valid record of its contents (an earlier version made it, or damage)"
        return "is damaged or was edited"


def _try_lock(handle: IO[bytes]) -> bool:
    """Lock a file, unless another process holds its lock for a second; return whether it worked."""
    deadline = time.monotonic() + 1
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def remove_path(path: Path) -> None:
    """Delete a file or a whole folder, read-only parts included; a missing path is no error."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return

    def make_writable(function: Callable[[str], object], name: str, _: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(name), stat.S_IRWXU)
            function(name)

    shutil.rmtree(path, onerror=make_writable)
