"""The texts of a file, written once in a form that is read by position.

The rows of a table and the lines of a compressed file cannot be found by their place in the file.
So the first run that reads such a file writes its texts into rosetta's home folder, and each run
maps them from there into memory. A store is a folder:

- `texts.bin`: the documents in UTF-8, one after another, without empty ones.
- `ends.npy`: int64, the place after the last byte of each document.
- `meta.json`: the file's path, and its bad records if they were skipped.

The name of the folder depends on the file's path, size and time of change, and on the field that
has the text. A store that is no longer of use can be deleted.
"""

from __future__ import annotations

import array
import errno
import functools
import hashlib
import json
import mmap
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core import atomic_files, file_lock, home_folder, log
from rosetta.core.errors import TOO_BIG, UserError
from rosetta.data import bad_records, documents

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.data import Array
    from rosetta.data.bad_records import BadRecordError

STORES_FOLDER = "texts"  # in rosetta's home folder
_FORMAT = 1
_BUFFER_BYTES = 1 << 20
_ANNOUNCED_BYTES = 1 << 24  # reading a file of this size takes long enough to say so


class TextStore:
    """The texts of a file by position.

    Attributes:
        path: The file.
        folder: The folder of the store.
        size: The number of bytes of all documents.
    """

    def __init__(self, path: str, folder: str) -> None:
        self.path = path
        self.folder = folder
        self.size = int(self.ends[-1]) if len(self.ends) else 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: another process maps the files itself."""
        return {
            name: value for name, value in self.__dict__.items() if name not in ("ends", "texts")
        }

    @functools.cached_property
    def ends(self) -> Array:
        """The place after the last byte of each document, int64 [n], mapped into memory."""
        return np.asarray(np.load(os.path.join(self.folder, "ends.npy"), mmap_mode="r"))

    @functools.cached_property
    def texts(self) -> mmap.mmap:
        """The bytes of the documents."""
        with open(os.path.join(self.folder, "texts.bin"), "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def open_store(path: str, kind: str, field: str) -> TextStore:
    """Return the store of a file, and make it if there is none.

    Args:
        path: The file.
        kind: One of data_spec.FILE_KINDS.
        field: The field of records that has the text.

    Raises:
        UserError: The file cannot be read, a record is bad and BAD_RECORDS is "stop", or there is
            no room for the store.
    """
    status = os.stat(path)
    absolute_path = os.path.abspath(path)
    identity = [_FORMAT, absolute_path, status.st_size, status.st_mtime_ns, kind, field]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    stores = home_folder.make_home_folder() / STORES_FOLDER
    folder = stores / name
    meta_path = folder / "meta.json"
    if not meta_path.exists():
        with file_lock.hold_lock(stores / f"{name}.lock", f"{path} is being read"):
            if not meta_path.exists():
                _make_store(path, kind, field, folder)
                return TextStore(path, str(folder))
    meta = json.loads(meta_path.read_text())
    for place, problem, remedy, fault in meta["bad_records"]:
        error = bad_records.BadRecordError(
            problem, f"{path}, {place}", remedy, fault=fault, path=path
        )
        bad_records.stop_or_skip(error)
    return TextStore(path, str(folder))


def _make_store(path: str, kind: str, field: str, folder: Path) -> None:
    """Write the store of a file into a folder, which appears when it is complete."""
    if os.path.getsize(path) >= _ANNOUNCED_BYTES:
        log.info(f"data: reading the texts of {path} once, into {folder.parent}")
    # Only the process that holds the lock writes here: what is there is of a killed process.
    temporary = folder.with_name(f"{atomic_files.TEMPORARY_PREFIX}{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        _write_store(path, kind, field, temporary)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(temporary, folder)  # replace_file renames single files only
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"there is no room for the texts of {path}",
                str(folder.parent),
                "free space there, or set ROSETTA_HOME to a folder on a larger disk",
                kind=TOO_BIG,
            ) from None
        raise


def _write_store(path: str, kind: str, field: str, folder: Path) -> None:
    """Write the files of a store, meta.json last."""
    skipped: list[tuple[str, str, str, str]] = []

    def handle(error: BadRecordError) -> None:
        bad_records.stop_or_skip(error)
        place = error.where.removeprefix(f"{path}, ")
        skipped.append((place, error.what, error.do, error.fault))

    ends = array.array("q")
    size = 0
    with (folder / "texts.bin").open("wb", _BUFFER_BYTES) as file:
        for text in documents.read_file_documents(path, kind, field, handle):
            body = text.encode()
            file.write(body)
            size += len(body)
            ends.append(size)
    np.save(folder / "ends.npy", np.frombuffer(ends, np.int64) if ends else np.zeros(0, np.int64))
    meta = {"format": _FORMAT, "path": os.path.abspath(path), "bad_records": skipped}
    (folder / "meta.json").write_text(json.dumps(meta))
