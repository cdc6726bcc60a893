"""Read and write PyTorch's files of tensors without PyTorch.

A file is a zip archive with a pickle and the bytes of the tensors. Nothing in the pickle is
executed: of the names that a pickle can load, only the few for tensors are known here. Format:
torch/serialization.py, class _open_zipfile_writer, and torch/_utils.py, _rebuild_tensor_v2.
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
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
STORAGE_DTYPES = {
    "BFloat16Storage": BFLOAT16,
    "HalfStorage": np.dtype("<f2"),
    "FloatStorage": np.dtype("<f4"),
}
# Bytes. LLaMA-2 70B, in one file, needs a tenth of a megabyte.
_LARGEST_PICKLE = 64 << 20
# Opcodes whose argument is a number for which the unpickler may allocate memory.
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
# A checkpoint of a trainer has the model's tensors under this name, as in t5-experiments and in
# PyTorch's own tutorials, beside the optimizer's state and metrics.
_MODEL_KEY = "model_state_dict"
# Names that such a checkpoint may load for what is not read: dictionaries, and NumPy's numbers.
_IGNORED_NAMES = frozenset(
    (
        ("__builtin__", "dict"),  # the name of a pickle of protocol 2
        ("_codecs", "encode"),
        ("builtins", "dict"),
        ("collections", "defaultdict"),
        ("numpy", "dtype"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.multiarray", "scalar"),
    )
)
# From the local header of a zip entry: the lengths of the name and the extra field after it.
_LOCAL_HEADER = struct.Struct("<26xHH")
_COPY_AGAIN = "download or copy it again"


class _UnknownNameError(pickle.UnpicklingError):
    """A pickle loads a name that no file of tensors needs."""


class _Ignored(dict[Any, Any]):
    """Stands for an object of a pickle that is not a tensor; it keeps nothing that it is given."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Take the state of the object, and do nothing with it."""


class ZipRecord:
    """An entry of a zip file. Its checksum is compared before the first use.

    Attributes:
        path: The zip file.
        start: Where the entry's bytes begin in the file.
        length: The number of bytes.
        checksum: The CRC-32 in the zip's directory. 0 means none: PyTorch has an option to write
            none.
    """

    def __init__(self, path: Path, start: int, length: int, checksum: int) -> None:
        self.path, self.start, self.length, self.checksum = path, start, length, checksum
        self._is_checked = not (length and checksum)

    def check(self) -> None:
        """Compare the bytes with the checksum, in the first call only.

        Raises:
            UserError: The bytes are not those that were written.
        """
        if self._is_checked:
            return
        checksum, remaining = 0, self.length
        with self.path.open("rb") as file:
            file.seek(self.start)
            while remaining and (block := file.read(min(remaining, _BLOCK_SIZE))):
                checksum = zlib.crc32(block, checksum)
                remaining -= len(block)
        if checksum != self.checksum:
            raise UserError(
                "the file is damaged: the CRC-32 of a tensor's bytes is not the one in the file",
                str(self.path),
                _COPY_AGAIN,
                kind=DAMAGED,
            )
        self._is_checked = True


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. A call returns its values.

    A storage is an array in the file; a tensor is a view of one.

    Attributes:
        path: The file.
        start: Where the storage begins in the file, in bytes.
        dtype: The type of the elements.
        offset: The index of the first element in the storage.
        shape: The length of each dimension.
        strides: The stride of each dimension, in elements.
        record: The zip entry of the storage; None if the file has no checksums.
    """

    path: str
    start: int
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    record: ZipRecord | None = None

    def __setstate__(self, state: Any) -> None:
        """Refuse a state: a pickle must not change a tensor's place after it was checked."""
        raise TypeError("a tensor takes no state")

    def __call__(self) -> Any:
        """Return the values as a read-only array that is mapped from the file.

        Raises:
            UserError: The bytes do not have the checksum in the file.
        """
        if self.record is not None:
            self.record.check()
        last = self.offset + _find_last_element(self.shape, self.strides)
        storage: Any = np.memmap(self.path, self.dtype, "r", self.start, (last + 1,))
        return np.lib.stride_tricks.as_strided(
            storage[self.offset :],
            self.shape,
            [stride * self.dtype.itemsize for stride in self.strides],
            writeable=False,
        )


def _find_last_element(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the distance of a tensor's last element from its first, in elements."""
    return sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


class _TensorUnpickler(pickle.Unpickler):  # noqa: S301 - it refuses all but tensors
    """Make StoredTensors from the tensors of a pickle, and refuse everything else."""

    def __init__(self, file: IO[bytes], path: Path, records: Mapping[str, ZipRecord]) -> None:
        """Prepare to load a pickle.

        Args:
            file: The pickle.
            path: The zip file that has it.
            records: The entries of the zip file, by their names in the archive's folder.
        """
        super().__init__(file)
        self.path, self.records = path, records

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name in the pickle; the base class calls this.

        Raises:
            _UnknownNameError: No file of tensors needs the name.
        """
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._make_tensor
        if module == "torch" and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        if (module, name) in _IGNORED_NAMES:
            return _Ignored
        raise _UnknownNameError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        """Return the entry, type and number of elements of a storage; the base class calls this.

        Raises:
            ValueError: The storage is larger than its entry.
        """
        _, dtype, key, _, count = pid
        record = self.records[f"data/{key}"]
        if type(count) is not int or count < 0 or count * dtype.itemsize > record.length:
            raise ValueError
        return record, dtype, count

    def _make_tensor(
        self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any
    ) -> StoredTensor:
        """Return a tensor; the arguments are those of torch._utils._rebuild_tensor_v2.

        Raises:
            ValueError: The tensor is empty or reaches beyond its storage.
        """
        record, dtype, count = storage
        if not isinstance(record, ZipRecord):  # The pickle may have a tuple of its own.
            raise TypeError
        numbers = (offset, *shape, *strides)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError
        if len(shape) != len(strides) or not all(shape):
            raise ValueError
        if offset + _find_last_element(shape, strides) >= count:
            raise ValueError
        return StoredTensor(
            str(self.path), record.start, dtype, offset, tuple(shape), tuple(strides), record
        )


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, without reading their values.

    Of the checkpoint of a trainer, these are the tensors of the model.

    Raises:
        UserError: The file is damaged or incomplete, or has something other than tensors in
            float32, float16 and bfloat16.
    """
    try:
        contents = _load_pickle(path)
        if isinstance(contents.get(_MODEL_KEY), dict):
            contents = contents[_MODEL_KEY]
        other = [
            name
            for name, value in contents.items()
            if not (isinstance(name, str) and isinstance(value, StoredTensor))
        ]
    except _UnknownNameError as error:
        raise UserError(
            f"the file has {error}, which no file of weights needs; nothing of it was run",
            str(path),
            "use a file of weights alone, or safetensors",
            kind=DENIED,
            value=str(error),
        ) from None
    except OSError:
        raise
    except Exception:  # noqa: BLE001 (a damaged archive or a made-up pickle can raise anything)
        raise UserError(
            "not a complete file of PyTorch's tensors", str(path), _COPY_AGAIN, kind=DAMAGED
        ) from None
    if other:
        raise UserError(
            f"the file has {shorten_value(other[0])}, which is not a tensor",
            str(path),
            "use a file that has the model's tensors at the top level, and nothing else",
            kind=DAMAGED,
        )
    return dict(contents)


def _load_pickle(path: Path) -> Any:
    """Return the object of a file's pickle. A damaged file can raise any exception."""
    file_size = path.stat().st_size
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        index = next(info for info in archive.infolist() if info.filename.endswith("/data.pkl"))
        folder = index.filename.removesuffix("data.pkl")
        records = {
            info.filename.removeprefix(folder): _find_record(path, info, raw, file_size)
            for info in archive.infolist()
            if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
        }
        if index.CRC == 0:
            # PyTorch has an option to write no checksums. Without the attribute, zipfile compares
            # none.
            del index.CRC
        with archive.open(index) as file:
            body = file.read(_LARGEST_PICKLE + 1)
    check_pickle(body)
    return _TensorUnpickler(io.BytesIO(body), path, records).load()


def check_pickle(body: bytes) -> None:
    """Check that loading a pickle takes no more memory than its size accounts for.

    Some opcodes take memory for a number alone, for example for an index in the memo.

    Raises:
        ValueError: The pickle is too large or damaged, or has an opcode that no file of tensors
            needs.
    """
    if len(body) > _LARGEST_PICKLE:
        raise ValueError("the pickle is too large")
    for opcode, argument, _ in pickletools.genops(body):
        if opcode.name not in _OPCODES:
            raise ValueError(f"the pickle has the opcode {opcode.name}")
        if opcode.name in _NUMBERED_OPCODES and int(argument or 0) > len(body):
            raise ValueError(f"the pickle asks {opcode.name} for more than it holds")


def _find_record(path: Path, info: zipfile.ZipInfo, raw: IO[bytes], file_size: int) -> ZipRecord:
    """Return where an entry's bytes are in a zip file.

    Args:
        path: The zip file.
        info: The entry.
        raw: The open zip file.
        file_size: The size of the zip file in bytes.
    """
    raw.seek(info.header_offset)
    name_length, extra_length = _LOCAL_HEADER.unpack(raw.read(_LOCAL_HEADER.size))
    start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if start + info.file_size > file_size:
        raise ValueError("a record is longer than the file")
    return ZipRecord(path, start, info.file_size, info.CRC)


def _pickle_text(value: str) -> bytes:
    """Return the opcodes that make a string."""
    encoded = value.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded


def _pickle_number(value: int) -> bytes:
    """Return the opcodes that make an integer."""
    if value < 1 << 31:
        return pickle.BININT + struct.pack("<i", value)
    return pickle.LONG1 + b"\x08" + struct.pack("<q", value)


def _pickle_tuple(values: tuple[int, ...]) -> bytes:
    """Return the opcodes that make a tuple of integers."""
    return pickle.MARK + b"".join(map(_pickle_number, values)) + pickle.TUPLE


def _pickle_global(module: str, name: str) -> bytes:
    """Return the opcodes that load a name of a module."""
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


_EMPTY_DICT = _pickle_global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE


def _pickle_tensor(name: str, key: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the opcodes that make one entry of the file's dictionary: a name and a tensor.

    Args:
        name: The name of the tensor.
        key: The number of its storage.
        dtype: The type of the elements.
        shape: The length of each dimension.
    """
    storage = next(torch_name for torch_name, known in STORAGE_DTYPES.items() if known == dtype)
    strides = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    pid = (
        pickle.MARK
        + _pickle_text("storage")
        + _pickle_global("torch", storage)
        + _pickle_text(str(key))
        + _pickle_text("cpu")
        + _pickle_number(int(np.prod(shape)))
        + pickle.TUPLE
        + pickle.BINPERSID
    )
    arguments = (
        pickle.MARK
        + pid
        + _pickle_number(0)
        + _pickle_tuple(shape)
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
    """Write a file: the pickle with all names and shapes first, then one tensor after the other."""

    def __init__(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any]
    ) -> None:
        """Open the file and write the pickle.

        Args:
            path: The file.
            shapes: The shape of each tensor by name, in the order in which they will be added.
            dtype: The type of all tensors.
        """
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)
        self.folder, self.dtype = path.stem, dtype
        self.shapes: Iterator[tuple[int, tuple[str, tuple[int, ...]]]] = iter(
            enumerate(shapes.items())
        )
        entries = b"".join(
            _pickle_tensor(name, key, dtype, shape)
            for key, (name, shape) in enumerate(shapes.items())
        )
        body = pickle.PROTO + b"\x02" + _EMPTY_DICT + pickle.MARK + entries
        body += pickle.SETITEMS + pickle.STOP
        try:
            self._write_record("data.pkl", body)
            self._write_record("byteorder", b"little")
        except OSError:
            self._abandon()
            raise

    def _write_record(self, name: str, body: Any) -> None:
        """Write an entry of the archive."""
        info = zipfile.ZipInfo(f"{self.folder}/{name}")
        with self.archive.open(info, "w", force_zip64=True) as file:
            file.write(body)

    def add(self, name: str, tensor: Any) -> None:
        """Write the next tensor.

        Raises:
            ValueError: The tensor is not the one that the pickle has next.
        """
        key, expected = next(self.shapes)
        if expected != (name, tensor.shape) or tensor.dtype != self.dtype:
            raise ValueError(f"got {name} {tensor.shape} {tensor.dtype}, expected {expected}")
        body = memoryview(np.ascontiguousarray(tensor).view(np.uint8).reshape(-1))
        self._write_record(f"data/{key}", body)

    def close(self) -> None:
        """Write the last entry and close the file."""
        try:
            self._write_record("version", b"3\n")
            self.archive.close()
        except OSError:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Close an archive that cannot be written.

        Otherwise Python would try to write it once more when it frees the archive, and print a
        traceback.
        """
        with contextlib.suppress(OSError):
            self.archive.close()
