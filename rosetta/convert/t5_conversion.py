"""Write a T5 or a BERT in the files of Hugging Face, or as a checkpoint of T5X.

A part of a tensor is in memory at a time. What was written is read back, and its checksum is
compared with that of what should have been written. The journal of the folder has the checksums of
the finished parts, so that a conversion that was killed is continued.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import safetensors, t5x_checkpoint, weight_files
from rosetta.convert.dtype_conversion import Cast
from rosetta.convert.t5_tensors import Tensor, read_padded
from rosetta.core.errors import DIFFERS, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rosetta.convert.output_folder import PartFolder
    from rosetta.convert.stored_array import StoredArray
    from rosetta.convert.t5_tensors import Model
    from rosetta.t5x.run.checkpoint_record import Record

_TARGET = "target/"
_HASH_BLOCK = 16 << 20  # bytes that are read at once


@dataclass
class Conversion:
    """A conversion: what is read, what is written, and what has changed on the way.

    Attributes:
        model: The model to read.
        architecture: The architecture to write. It may have another number of rows.
        dtype: The type of the numbers to write.
        part: The folder to write into.
        show_progress: A function that gets an action, the number of a tensor and how many there
            are.
        rounded: The number of values that changed because of the type.
        fold_difference: The largest relative difference that dividing a query kernel made.
    """

    model: Model
    architecture: Any
    dtype: np.dtype[Any]
    part: PartFolder
    show_progress: Callable[[str, int, int], None]
    rounded: int = 0
    fold_difference: float = 0.0

    def __post_init__(self) -> None:
        self._tensors = self.model.list_tensors(self.architecture)
        self._numbers = {tensor.name: number for number, tensor in enumerate(self._tensors, 1)}

    def count_bytes(self, tensor: Tensor) -> int:
        """Return the bytes of a tensor in the files to write."""
        return math.prod(tensor.shape) * self.dtype.itemsize

    def write_hugging_face(self) -> dict[str, list[str]]:
        """Write the files of weights, and their index; return the tensors of each file.

        Raises:
            UserError: A tensor is damaged, the disk is full, or the files differ when they are
                read back.
        """
        tensors = {tensor.name: tensor for tensor in self._tensors}
        sizes = {name: self.count_bytes(tensor) for name, tensor in tensors.items()}
        files = weight_files.assign_files(sizes)
        for file_name in files:
            if file_name in self.part.finished and not self._is_intact(file_name):
                self.part.discard(file_name)
        finished_bytes = sum(
            sizes[name] for file_name in self.part.finished for name in files[file_name]
        )
        needed = sum(sizes.values()) - finished_bytes
        self.part.check_free_space(needed + self.model.scratch_bytes)
        for file_name, names in files.items():
            if file_name not in self.part.finished:
                facts = self._write_file(file_name, [tensors[name] for name in names])
                self.part.finish(file_name, facts)
            self._add_changes(self.part.finished[file_name])
        weight_files.write_index(self.part.path, files, sum(sizes.values()))
        return files

    def _is_intact(self, file_name: str) -> bool:
        """Return whether a finished file has the bytes that were written."""
        path = self.part.path / file_name
        return path.is_file() and _hash_file(path) == self.part.finished[file_name]["sha256"]

    def _write_file(self, file_name: str, tensors: list[Tensor]) -> dict[str, Any]:
        """Write a file of weights and read it back; return its facts for the journal."""
        path = self.part.path / file_name
        cast, shapes = Cast(self.dtype), {tensor.name: tensor.shape for tensor in tensors}
        writer = safetensors.Writer(path, shapes, self.dtype)
        with contextlib.closing(writer):
            for tensor in tensors:
                self._show("writing", tensor)
                blocks = (block for _, block in self._read_blocks(tensor, cast))
                writer.add_blocks(tensor.name, tensor.shape, blocks)
        digest = writer.digest.hexdigest()
        if _hash_file(path) != digest:
            raise _make_difference_error(file_name)
        return {"sha256": digest, **self._take_changes(cast)}

    def write_checkpoint(self, record: Record) -> None:
        """Write a checkpoint of T5X.

        Args:
            record: The record of the checkpoint, with its step.

        Raises:
            UserError: A tensor is damaged, the disk is full, or the arrays differ when they are
                read back.
        """
        shapes = {_TARGET + tensor.array: tensor.array_shape for tensor in self._tensors}
        with t5x_checkpoint.Writer(
            self.part.path, record.step, shapes, self.dtype, record, resumes=True
        ) as writer:
            needed = 0
            for tensor in self._tensors:
                name = _TARGET + tensor.array
                if self._is_written(writer, tensor):
                    writer.keep(name)
                    continue
                self.part.discard(name)
                writer.discard(name)
                needed += self.count_bytes(tensor)
            self.part.check_free_space(needed + self.model.scratch_bytes)
            for tensor in self._tensors:
                name = _TARGET + tensor.array
                if name not in self.part.finished:
                    self._show("writing", tensor)
                    self.part.finish(name, self._write_array(writer, tensor))
                self._add_changes(self.part.finished[name])

    def _is_written(self, writer: t5x_checkpoint.Writer, tensor: Tensor) -> bool:
        """Return whether a killed conversion wrote an array in full."""
        name = _TARGET + tensor.array
        facts = self.part.finished.get(name)
        try:
            stored = writer.open_array(name)
            return (
                facts is not None
                and stored is not None
                and self._hash_array(stored, tensor) == facts["sha256"]
            )
        except UserError:  # The array is damaged.
            return False

    def _write_array(self, writer: t5x_checkpoint.Writer, tensor: Tensor) -> dict[str, Any]:
        """Write an array and read it back; return its facts for the journal."""
        name, cast, digest = _TARGET + tensor.array, Cast(self.dtype), hashlib.sha256()
        for rows, block in self._read_blocks(tensor, cast):
            values = np.ascontiguousarray(block.T if tensor.is_transposed else block)
            digest.update(_view_bytes(values))
            start = [0] * len(tensor.shape)
            start[-1 if tensor.is_transposed else 0] = rows.start
            writer.write(name, tuple(start), values)
        stored = writer.open_array(name)
        if stored is None or self._hash_array(stored, tensor) != digest.hexdigest():
            raise _make_difference_error(name)
        return {"sha256": digest.hexdigest(), **self._take_changes(cast)}

    def _hash_array(self, stored: StoredArray, tensor: Tensor) -> str:
        """Return the SHA-256 of an array's values, in the order in which they are written."""
        digest = hashlib.sha256()
        if stored.shape != tensor.array_shape or stored.dtype != self.dtype:
            return ""
        for rows in self._split_rows(tensor):
            selection = [slice(None)] * len(tensor.shape)
            selection[-1 if tensor.is_transposed else 0] = rows
            digest.update(_view_bytes(stored.read(tuple(selection))))
        return digest.hexdigest()

    def _split_rows(self, tensor: Tensor) -> Iterator[slice]:
        """Yield the slices of rows in which a tensor is read and written."""
        return tensor.split_rows(self.model.find_alignment(tensor))

    def _read_blocks(
        self, tensor: Tensor, cast: Cast
    ) -> Iterator[tuple[slice, np.ndarray[Any, Any]]]:
        """Yield the rows of a tensor, in blocks and in the type to write."""
        for rows in self._split_rows(tensor):
            yield rows, cast(tensor.name, read_padded(self.model, tensor, rows))

    def _take_changes(self, cast: Cast) -> dict[str, Any]:
        """Return what changed in a part, for the journal."""
        return {"rounded": cast.rounded, "fold_difference": self.model.fold_difference}

    def _add_changes(self, facts: dict[str, Any]) -> None:
        """Add what changed in a finished part."""
        self.rounded += facts["rounded"]
        self.fold_difference = max(self.fold_difference, facts["fold_difference"])

    def _show(self, action: str, tensor: Tensor) -> None:
        """Show how far the conversion is."""
        self.show_progress(action, self._numbers[tensor.name], len(self._tensors))


def _hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _view_bytes(values: np.ndarray[Any, Any]) -> memoryview:
    """Return the bytes of an array's values."""
    return memoryview(np.ascontiguousarray(values).view(np.uint8).reshape(-1))


def _make_difference_error(name: str) -> UserError:
    """Return the error for a part that reads back with other bytes than were written."""
    return UserError(
        "the part reads back with other values than were written",
        name,
        "check the disk and convert again; nothing was left behind",
        kind=DIFFERS,
        value=name,
    )
