"""PyTorch's files of tensors (a zip archive with a pickle and the tensors' bytes), read and written
without PyTorch.

Nothing in the pickle is executed: of the names that a pickle may load, only the few that stand for
tensors are known. Layout: torch/serialization.py, class _open_zipfile_writer, and torch/_utils.py,
_rebuild_tensor_v2.
"""

from __future__ import annotations

import collections
import contextlib
import io
import pickle
import pickletools
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from rosetta.convert.config_fields import shorten_value
from rosetta.core.errors import DAMAGED, DENIED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
STORAGE_DTYPES = {
    "BFloat16Storage": BFLOAT16,
    "HalfStorage": np.dtype("<f2"),
    "FloatStorage": np.dtype("<f4"),
}
_LARGEST_PICKLE = 64 << 20  # bytes; that of LLaMA-2 70B, in one file, has a tenth of a megabyte
_NUMBERED_OPCODES = ("FRAME", "BINPUT", "LONG_BINPUT", "PUT", "BINGET", "LONG_BINGET", "GET")
# Opcodes of torch.save's pickles, of protocols 2 to 5.
_OPCODES = frozenset(
    (
        *_NUMBERED_OPCODES,
        "APPEND",
        "APPENDS",
        "BINFLOAT",
        "BININT",
        "BININT1",
        "BININT2",
        "BINPERSID",
        "BINUNICODE",
        "BUILD",
        "DICT",
        "EMPTY_DICT",
        "EMPTY_LIST",
        "EMPTY_TUPLE",
        "GLOBAL",
        "LONG1",
        "MARK",
        "MEMOIZE",
        "NEWFALSE",
        "NEWOBJ",
        "NEWTRUE",
        "NONE",
        "PROTO",
        "REDUCE",
        "SETITEM",
        "SETITEMS",
        "SHORT_BINUNICODE",
        "STACK_GLOBAL",
        "STOP",
        "TUPLE",
        "TUPLE1",
        "TUPLE2",
        "TUPLE3",
    )
)
_BLOCK_SIZE = 16 << 20  # bytes that are read at once
_LOCAL_HEADER = struct.Struct(
    "<26xHH"
)  # of a zip's local header: how long the name and the extra field after it are


class _UnknownNameError(pickle.UnpicklingError):
    """A name that no file of tensors needs."""


class ZipRecord:
    """The bytes of a storage in a zip file, whose checksum is compared before the first use.

    Attributes:
      path: the file.
      start, length: of the bytes there.
      checksum: the CRC-32 that the zip's directory states. 0 means none: PyTorch can be told to
        write none.
    """

    def __init__(self, path: Path, start: int, length: int, checksum: int) -> None:
        self.path, self.start, self.length, self.checksum = path, start, length, checksum
        self._checked = not (length and checksum)

    def check(self) -> None:
        """Raise UserError where the bytes are not those that were written."""
        if self._checked:
            return
        checksum, left = 0, self.length
        with self.path.open("rb") as file:
            file.seek(self.start)
            while left and (block := file.read(min(left, _BLOCK_SIZE))):
                checksum, left = zlib.crc32(block, checksum), left - len(block)
        if checksum != self.checksum:
            raise UserError(
                (
                    "the checksum (CRC-32) of a tensor's bytes is not the one that the file "
                    "states, so the file is damaged"
                ),
                str(self.path),
                "download or copy it again",
                kind=DAMAGED,
            )
        self._checked = True


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
      path: the file.
      start: where its storage begins there, in bytes.
      dtype: of its elements.
      offset: its first element in the storage.
      size, strides: in elements.
      record: the bytes with a checksum that its storage is in, None in a file without checksums.
    """

    path: str
    start: int
    dtype: np.dtype[Any]
    offset: int
    size: tuple[int, ...]
    strides: tuple[int, ...]
    record: ZipRecord | None = None

    def __setstate__(self, state: Any) -> None:
        """Refuse a state: a pickle must not change the places of a tensor after they were
        checked.
        """
        raise TypeError("a tensor takes no state")

    def __call__(self) -> Any:
        """Return it, mapped from the file.

        UserError where its bytes do not have the checksum that the file states.
        """
        if self.record is not None:
            self.record.check()
        last = self.offset + sum(
            (length - 1) * stride for length, stride in zip(self.size, self.strides, strict=True)
        )
        flat: Any = np.memmap(self.path, self.dtype, "r", self.start, (last + 1,))
        return np.lib.stride_tricks.as_strided(
            flat[self.offset :],
            self.size,
            [stride * self.dtype.itemsize for stride in self.strides],
            writeable=False,
        )


class _TensorUnpickler(pickle.Unpickler):  # noqa: S301 - it refuses all but tensors
    """Makes Tensors of what a pickle says of tensors, and refuses all else."""

    def __init__(self, file: IO[bytes], path: Path, records: Mapping[str, ZipRecord]) -> None:
        super().__init__(file)
        self.path, self.records = path, records

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self.tensor
        if module == "torch" and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        raise _UnknownNameError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        _, dtype, key, _, count = pid
        record = self.records[f"data/{key}"]
        if type(count) is not int or count < 0 or count * dtype.itemsize > record.length:
            raise ValueError
        return record, dtype, count

    def tensor(self, storage: Any, offset: Any, size: Any, strides: Any, *_: Any) -> StoredTensor:
        record, dtype, count = storage
        if not isinstance(record, ZipRecord):  # a tuple that the pickle made up
            raise TypeError
        whole = all(type(each) is int and each >= 0 for each in (offset, *size, *strides)) and len(
            size
        ) == len(strides)
        if (
            not whole
            or not all(size)
            or offset
            + sum((length - 1) * stride for length, stride in zip(size, strides, strict=True))
            >= count
        ):
            raise ValueError
        return StoredTensor(
            str(self.path), record.start, dtype, offset, tuple(size), tuple(strides), record
        )


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return a file's tensors by name.

    Raises:
      UserError: it is no such file, is cut short, or holds something else than tensors in float32,
        float16 and bfloat16.
    """
    again = "download or copy it again"
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
            index = next(info for info in archive.infolist() if info.filename.endswith("/data.pkl"))
            folder = index.filename.removesuffix("data.pkl")
            records = {
                info.filename.removeprefix(folder): _find_record(path, info, raw, size)
                for info in archive.infolist()
                if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
            }
            if index.CRC == 0:
                del (
                    index.CRC
                )  # PyTorch can be told to write no checksums; zipfile compares none then
            with archive.open(index) as file:
                body = file.read(_LARGEST_PICKLE + 1)
        check_pickle(body)
        found = _TensorUnpickler(io.BytesIO(body), path, records).load()
        odd = [
            name
            for name, value in found.items()
            if not (isinstance(name, str) and isinstance(value, StoredTensor))
        ]
    except _UnknownNameError as problem:
        raise UserError(
            f"it holds {problem}, which no file of weights needs; nothing of it was run",
            str(path),
            "use a file of weights alone, or safetensors",
            kind=DENIED,
            value=str(problem),
        ) from None
    except OSError:
        raise
    except Exception:  # noqa: BLE001 (a damaged archive or a made-up pickle can raise anything)
        raise UserError(
            "not a complete file of PyTorch's tensors", str(path), again, kind=DAMAGED
        ) from None
    if odd:
        raise UserError(
            f"it holds {shorten_value(odd[0])}, which is not a tensor",
            str(path),
            "use a file with the model's tensors at its top, and nothing else in it",
            kind=DAMAGED,
        )
    return dict(found)


def check_pickle(body: bytes) -> None:
    """Check a pickle before it is loaded: loading it takes no more memory than its own size
    accounts for.

    An opcode can ask for memory by a number alone, as that of a place in the memo does.

    Raises:
      ValueError: it is too large, damaged, or has an opcode that no file of tensors needs.
    """
    if len(body) > _LARGEST_PICKLE:
        raise ValueError("the pickle is too large")
    for opcode, argument, _ in pickletools.genops(body):
        if opcode.name not in _OPCODES:
            raise ValueError(f"the pickle has the opcode {opcode.name}")
        if opcode.name in _NUMBERED_OPCODES and int(argument or 0) > len(body):
            raise ValueError(f"the pickle asks {opcode.name} for more than it holds")


def _find_record(path: Path, info: zipfile.ZipInfo, raw: IO[bytes], size: int) -> ZipRecord:
    """Return where a record's bytes are in the file."""
    raw.seek(info.header_offset)
    name, extra = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    start = info.header_offset + _LOCAL_HEADER.size + name + extra
    if start + info.file_size > size:
        raise ValueError("a record is longer than the file")
    return ZipRecord(path, start, info.file_size, info.CRC)


def _pickle_text(value: str) -> bytes:
    encoded = value.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded


def _pickle_number(value: int) -> bytes:
    return (
        pickle.BININT + struct.pack("<i", value)
        if value < 1 << 31
        else pickle.LONG1 + b"\x08" + struct.pack("<q", value)
    )


def _pickle_tuple(values: tuple[int, ...]) -> bytes:
    return pickle.MARK + b"".join(map(_pickle_number, values)) + pickle.TUPLE


def _pickle_global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


_EMPTY_DICT = _pickle_global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE


def _pickle_tensor(name: str, key: int, dtype: np.dtype[Any], size: tuple[int, ...]) -> bytes:
    storage = next(theirs for theirs, ours in STORAGE_DTYPES.items() if ours == dtype)
    strides = tuple(int(np.prod(size[place + 1 :])) for place in range(len(size)))
    pid = (
        pickle.MARK
        + _pickle_text("storage")
        + _pickle_global("torch", storage)
        + _pickle_text(str(key))
        + _pickle_text("cpu")
        + _pickle_number(int(np.prod(size)))
        + pickle.TUPLE
        + pickle.BINPERSID
    )
    arguments = (
        pickle.MARK
        + pid
        + _pickle_number(0)
        + _pickle_tuple(size)
        + _pickle_tuple(strides)
        + pickle.NEWFALSE
        + _EMPTY_DICT
        + pickle.TUPLE
    )
    return (
        _pickle_text(name)
        + _pickle_global("torch._utils", "_rebuild_tensor_v2")
        + arguments
        + pickle.REDUCE
    )


class Writer:
    """Writes a file of tensors: first all names and sizes, then the tensors in that order."""

    def __init__(
        self, path: Path, sizes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any]
    ) -> None:
        self.archive, self.folder, self.dtype = (
            zipfile.ZipFile(path, "w", zipfile.ZIP_STORED),
            path.stem,
            dtype,
        )
        self.sizes: Iterator[tuple[int, tuple[str, tuple[int, ...]]]] = iter(
            enumerate(sizes.items())
        )
        entries = b"".join(
            _pickle_tensor(name, key, dtype, size) for key, (name, size) in enumerate(sizes.items())
        )
        try:
            self._record(
                "data.pkl",
                pickle.PROTO
                + b"\x02"
                + _EMPTY_DICT
                + pickle.MARK
                + entries
                + pickle.SETITEMS
                + pickle.STOP,
            )
            self._record("byteorder", b"little")
        except OSError:
            self._abandon()
            raise

    def _record(self, name: str, body: Any) -> None:
        with self.archive.open(
            zipfile.ZipInfo(f"{self.folder}/{name}"), "w", force_zip64=True
        ) as file:
            file.write(body)

    def add(self, name: str, tensor: Any) -> None:
        """Write the next tensor."""
        key, expected = next(self.sizes)
        if expected != (name, tensor.shape) or tensor.dtype != self.dtype:
            raise ValueError(f"{name} {tensor.shape} {tensor.dtype} comes where {expected} is due")
        self._record(
            f"data/{key}", memoryview(np.ascontiguousarray(tensor).view(np.uint8).reshape(-1))
        )

    def close(self) -> None:
        """End the file."""
        try:
            self._record("version", b"3\n")
            self.archive.close()
        except OSError:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Close a file that cannot be written, so that Python does not try once more, and print a
        traceback, when it frees the archive.
        """
        with contextlib.suppress(OSError):
            self.archive.close()
