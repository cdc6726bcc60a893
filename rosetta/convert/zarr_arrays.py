"""Read and write arrays in the format Zarr with TensorStore.

An array is a folder: a description in JSON (`.zarray`, or `zarr.json` in version 3), and one file
for each chunk of the values. The folder is one of the file system, or one in a database of
TensorStore (OCDBT), which has the same files as its keys.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert.config_fields import shorten_value
from rosetta.convert.stored_array import StoredArray, parse_dtype
from rosetta.core.errors import DAMAGED, FAILED, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LARGEST_CHUNK = 1 << 26  # bytes; several devices read the chunks of an array at once
DESCRIPTIONS = {".zarray": "zarr", "zarr.json": "zarr3"}  # file -> TensorStore's driver
_COPY_AGAIN = "copy the checkpoint again"
# TensorStore's defaults keep as many chunks in memory as the machine has cores.
_CONCURRENCY = {"file_io_concurrency": {"limit": 4}, "data_copy_concurrency": {"limit": 4}}


def load_tensorstore() -> Any:
    """Return the module tensorstore."""
    import tensorstore  # type: ignore[import-not-found]

    return tensorstore


@functools.cache
def _make_context() -> Any:
    """Return the settings with which TensorStore reads: few chunks at once, and none kept."""
    return load_tensorstore().Context(_CONCURRENCY)


@dataclass(frozen=True)
class ArrayPlace:
    """Where the files of an array are.

    Attributes:
        root: The folder of the arrays, or that of the database.
        name: The name of the array's folder in it.
        in_database: Whether `root` is the folder of an OCDBT database.
    """

    root: Path
    name: str
    in_database: bool = False

    @property
    def where(self) -> str:
        """The array as errors name it."""
        return str(self.root / self.name)

    def make_store_spec(self) -> dict[str, Any]:
        """Return TensorStore's description of the array's folder."""
        if self.in_database:
            return {"driver": "ocdbt", "base": f"file://{self.root}/", "path": f"{self.name}/"}
        return {"driver": "file", "path": f"{self.root / self.name}/"}


class ZarrArray(StoredArray):
    """An array in the format Zarr, version 2 or 3."""

    def __init__(self, place: ArrayPlace, driver: str, description: bytes) -> None:
        """Parse the description of the array.

        Args:
            place: Where the array is.
            driver: "zarr" or "zarr3".
            description: The content of `.zarray` or `zarr.json`.

        Raises:
            UserError: The description is damaged, or the values are not numbers.
        """
        shape, dtype_name, chunk_shape = _parse_description(place, driver, description)
        try:
            dtype = parse_dtype(dtype_name)
        except ValueError:
            raise UserError(
                f"the values are of the type {shorten_value(dtype_name)}",
                place.where,
                "name a checkpoint of numbers",
                kind=UNSUPPORTED,
                value=dtype_name,
            ) from None
        super().__init__(place.where, shape, dtype, chunk_shape)
        self._spec: dict[str, Any] = {"driver": driver, "kvstore": place.make_store_spec()}
        if driver == "zarr3":
            # A missing chunk is an error, and not zeros. health.checkpoint_files looks for the
            # chunks of the other version; the TensorStore of pax-1.4 does not know this option.
            self._spec["fill_missing_data_reads"] = False
        self._store: Any = None

    def _read_block(self, block: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        tensorstore = load_tensorstore()
        try:
            if self._store is None:
                opened = tensorstore.open(self._spec, open=True, read=True, context=_make_context())
                self._store = opened.result()
            values: np.ndarray[Any, Any] = np.asarray(self._store[block].read().result())
        except Exception as error:  # noqa: BLE001 (TensorStore raises ValueError, OSError and its own)
            reason = (str(error).splitlines() or [""])[0].split(" [source", 1)[0]
            raise UserError(
                f"the array cannot be read: {reason[:200]}", self.where, _COPY_AGAIN, kind=DAMAGED
            ) from None
        return values


def _parse_description(
    place: ArrayPlace, driver: str, description: bytes
) -> tuple[list[int], str, list[int]]:
    """Return the shape, the name of the type and the shape of a chunk.

    Raises:
        UserError: The description is not that of an array.
    """
    try:
        fields = json.loads(description)
        shape = fields["shape"]
        if driver == "zarr":
            dtype, chunk_shape = fields["dtype"], fields["chunks"]
        else:
            dtype = fields["data_type"]
            chunk_shape = fields["chunk_grid"]["configuration"]["chunk_shape"]
        if not isinstance(dtype, str) or len(shape) != len(chunk_shape):
            raise ValueError
        if not all(type(size) is int and size >= 0 for size in (*shape, *chunk_shape)):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            "the description of the array is damaged", place.where, _COPY_AGAIN, kind=DAMAGED
        ) from None
    return shape, dtype, chunk_shape


def read_array_folder(root: Path, name: str) -> ZarrArray:
    """Return the array in a folder of the file system.

    Args:
        root: The folder of the arrays.
        name: The name of the array's folder.

    Raises:
        UserError: The folder has no description of an array, or a damaged one.
    """
    place = ArrayPlace(root, name)
    for file, driver in DESCRIPTIONS.items():
        path = root / name / file
        if path.is_file():
            return ZarrArray(place, driver, path.read_bytes())
    raise UserError("the folder of the array is missing", place.where, _COPY_AGAIN, kind=DAMAGED)


def list_array_folders(root: Path) -> list[str]:
    """Return the names of the folders that have an array, sorted."""
    return sorted(
        folder.name
        for folder in root.iterdir()
        if any((folder / file).is_file() for file in DESCRIPTIONS)
    )


def read_database(root: Path) -> dict[str, ZarrArray]:
    """Return the arrays of an OCDBT database by the names of their folders in it.

    Args:
        root: The folder that has `manifest.ocdbt`.

    Raises:
        UserError: The database or the description of an array cannot be read.
    """
    tensorstore = load_tensorstore()
    try:
        spec = {"driver": "ocdbt", "base": f"file://{root}/"}
        store = tensorstore.KvStore.open(spec, context=_make_context()).result()
        files = [key.decode() for key in store.list().result()]
        descriptions = {}
        for file in files:
            name, _, last = file.rpartition("/")
            if last in DESCRIPTIONS:
                descriptions[name] = (DESCRIPTIONS[last], store.read(file).result().value)
    except Exception as error:  # noqa: BLE001 (TensorStore raises ValueError and its own)
        reason = (str(error).splitlines() or [""])[0].split(" [source", 1)[0]
        raise UserError(
            f"the arrays cannot be read: {reason[:200]}", str(root), _COPY_AGAIN, kind=DAMAGED
        ) from None
    return {
        name: ZarrArray(ArrayPlace(root, name, in_database=True), driver, content)
        for name, (driver, content) in descriptions.items()
    }


def choose_chunks(shape: Sequence[int], itemsize: int) -> list[int]:
    """Return the size of a chunk: the array's, halved along its largest dimension until it fits.

    Args:
        shape: The shape of the array.
        itemsize: The bytes of a number.
    """
    chunk = list(shape)
    while math.prod(chunk) * itemsize > LARGEST_CHUNK:
        largest = chunk.index(max(chunk))
        chunk[largest] = -(-chunk[largest] // 2)
    return chunk


@contextlib.contextmanager
def report_failed_writes(folder: Path) -> Iterator[None]:
    """Raise UserError if TensorStore cannot write an array in the block.

    The reason may be a full disk, a quota, a limit on the size of files, or permissions.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # TensorStore raises ValueError or RuntimeError for system errors.
        message = str(error)
        number = re.search(r"os_error_code='(\d+)'|OS error (\d+)", message)
        words = re.search(r"\[OS error: ([^\]]+)\]", message)  # TensorStore of pax-1.4
        if number is None and words is None and " local file " not in message:
            raise
        reason = message[-200:]
        if number:
            reason = os.strerror(int(number[1] or number[2]))
        elif words:
            reason = words[1]
        raise UserError(
            f"the array cannot be written ({reason})",
            str(folder),
            "free some space, or name another folder",
            kind=FAILED,
        ) from None


def create_array(folder: Path, shape: Sequence[int], chunks: Sequence[int], dtype: str) -> Any:
    """Create an array on disk and return its TensorStore.

    Args:
        folder: The zarr folder of the array.
        shape: The shape of the array.
        chunks: The size of a chunk.
        dtype: The type in zarr's notation, for example "<f4".
    """
    tensorstore = load_tensorstore()
    metadata = {
        "shape": list(shape),
        "chunks": list(chunks),
        "dtype": dtype,
        "compressor": {"id": "zstd", "level": 1},
        "order": "C",
    }
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(folder)},
        "metadata": metadata,
        "create": True,
    }
    with report_failed_writes(folder):
        return tensorstore.open(spec).result()
