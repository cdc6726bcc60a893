"""Read a BERT in the files of Hugging Face, or in a checkpoint of T5X.

Both classes are a `rosetta.convert.t5_tensors.Model`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import json_documents, t5x_checkpoint, weight_files
from rosetta.convert.bert_config import BertArchitecture, parse_config, parse_record
from rosetta.convert.bert_tensors import list_bert_tensors
from rosetta.convert.dtype_conversion import view_as_bits
from rosetta.convert.t5_tensors import Tensor, check_no_leftover, check_shapes, find_common_dtype
from rosetta.core.errors import CONFLICT, MISSING, UserError
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.convert import torch_file
    from rosetta.t5x.run.checkpoint_record import Record

_TARGET = "target/"
_WORDS = "bert.embeddings.word_embeddings.weight"
_BIAS = "cls.predictions.bias"
# Copies that files may have, and the tensors that they are copies of.
_COPIES = {"cls.predictions.decoder.weight": _WORDS, "cls.predictions.decoder.bias": _BIAS}
_UNUSED = ("bert.embeddings.position_ids",)


class _BertModel:
    """What both kinds of files share.

    Attributes:
        architecture: The architecture.
        dtype: The type of the numbers.
        dropped: Lines that name what a conversion leaves out.
        notes: Further lines for the user.
        record: The record of a checkpoint of T5X; None without one.
        is_scaled: False: nothing is folded into the query kernels.
        fold_difference: 0.
        scratch_bytes: 0.
    """

    def __init__(self) -> None:
        self.architecture: BertArchitecture
        self.dtype: np.dtype[Any]
        self.dropped: list[str] = []
        self.notes: list[str] = []
        self.record: Record | None = None
        self.is_scaled, self.fold_difference, self.scratch_bytes = False, 0.0, 0

    def list_tensors(self, architecture: BertArchitecture) -> list[Tensor]:
        """Return the tensors of a BERT."""
        return list_bert_tensors(architecture)


class HuggingFaceBert(_BertModel):
    """A BERT of Hugging Face: with the heads of pretraining, of classification, or without one."""

    def __init__(self, folder: Path) -> None:
        """Read everything but the values of the tensors.

        Args:
            folder: The folder of the model.

        Raises:
            UserError: The folder is not a complete BERT.
        """
        super().__init__()
        self.folder = folder
        path = folder / "config.json"
        document = json_documents.read_document(path)
        architecture = parse_config(document, str(path))
        self._tensors = {
            _rename(name): tensor for name, tensor in weight_files.open_tensors(folder).items()
        }
        self._drop_copies()
        self.architecture = self._find_head(architecture, document)
        used = {tensor.name for tensor in list_bert_tensors(self.architecture)}
        check_no_leftover(self._tensors.keys() - used, str(folder))
        self.dtype = find_common_dtype(tensor.dtype for tensor in self._tensors.values())
        check_shapes(self, str(folder))

    def _drop_copies(self) -> None:
        """Leave out what files have twice.

        Raises:
            UserError: A copy has other values: the output layer is not the embedding.
        """
        for name in _UNUSED:
            self._tensors.pop(name, None)
        for name, original in _COPIES.items():
            copy = self._tensors.pop(name, None)
            if copy is None:
                continue
            if original not in self._tensors:
                self._tensors[original] = copy
            elif not np.array_equal(view_as_bits(copy()[:]), view_as_bits(self._find(original)[:])):
                raise UserError(
                    f"{name} differs from {original}",
                    str(self.folder),
                    "convert a BERT whose output layer is the embedding",
                    kind=CONFLICT,
                    value=name,
                )

    def _find_head(self, architecture: BertArchitecture, document: Any) -> BertArchitecture:
        """Return the architecture with the head that the tensors have."""
        has_pooler = "bert.pooler.dense.weight" in self._tensors
        if "classifier.weight" in self._tensors:
            outputs = self._tensors["classifier.weight"].shape[0]
            is_number = outputs == 1 or document.get("problem_type") == "regression"
            return dataclasses.replace(
                architecture,
                head="regression" if is_number else "classification",
                classes=0 if is_number else outputs,
            )
        return dataclasses.replace(
            architecture,
            head="mlm" if _BIAS in self._tensors else "none",
            sentence_head="cls.seq_relationship.weight" in self._tensors,
            has_pooler=has_pooler,
        )

    def _find(self, name: str) -> np.ndarray[Any, Any]:
        """Return the values of a tensor, which are mapped from the file."""
        values: np.ndarray[Any, Any] = weight_files.find_tensor(self._tensors, name, self.folder)()
        return values

    def find_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it.

        Raises:
            UserError: The files do not have the tensor.
        """
        stored: torch_file.StoredTensor = weight_files.find_tensor(
            self._tensors, tensor.name, self.folder
        )
        return stored.shape

    def find_alignment(self, tensor: Tensor) -> int:
        """Return the number of rows that are read together: one, because files are mapped."""
        del tensor
        return 1

    def read(self, tensor: Tensor, rows: slice) -> np.ndarray[Any, Any]:
        """Return rows of a tensor, in the type of the files."""
        values: np.ndarray[Any, Any] = np.array(self._find(tensor.name)[rows])
        return values


def _rename(name: str) -> str:
    """Return today's name of a tensor. Old files have gamma and beta, and BertModel no prefix."""
    if name.endswith("LayerNorm.gamma"):
        name = f"{name.removesuffix('gamma')}weight"
    elif name.endswith("LayerNorm.beta"):
        name = f"{name.removesuffix('beta')}bias"
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


class T5XBert(_BertModel):
    """A BERT of a checkpoint of T5X, which `rosetta t5x pretrain T5_FAMILY=bert` trains.

    Attributes:
        source: The checkpoint.
    """

    def __init__(self, path: Path) -> None:
        """Read everything but the values of the arrays.

        Args:
            path: A folder checkpoint_N, or a folder that has some, of which the newest counts.

        Raises:
            UserError: The checkpoint is not complete, or not the BERT of Hugging Face.
        """
        super().__init__()
        self.source = t5x_checkpoint.Source(path)
        self.where = str(self.source.folder)
        self.record = checkpoint_record.read_record(self.where)
        if self.record is None or "norm" not in self.record.config:
            raise UserError(
                "the record of the checkpoint does not describe a BERT",
                self.where,
                "name a checkpoint of a run with T5_FAMILY=bert",
                kind=MISSING,
            )
        self._arrays = {
            name.removeprefix(_TARGET): array
            for name, array in self.source.arrays.items()
            if name.startswith(_TARGET)
        }
        architecture = parse_record(self.record.config, self.where)
        self.architecture = dataclasses.replace(
            architecture, has_pooler="row_head/pooler/kernel" in self._arrays
        )
        used = {tensor.array for tensor in list_bert_tensors(self.architecture)}
        check_no_leftover(self._arrays.keys() - used, self.where)
        others = len(self.source.arrays) - len(self._arrays) - 1
        if others > 0:
            self.dropped.append(f"the state of the optimizer ({others} arrays)")
        self.dtype = find_common_dtype(array.dtype for array in self._arrays.values())
        check_shapes(self, self.where)

    def find_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of a tensor in Hugging Face's layout, without reading it.

        Raises:
            UserError: The checkpoint does not have the tensor.
        """
        if tensor.array not in self._arrays:
            raise UserError(
                f"the checkpoint has no array {tensor.array!r}",
                self.where,
                "name a complete checkpoint",
                kind=MISSING,
                value=tensor.array,
            )
        shape = self._arrays[tensor.array].shape
        return shape[::-1] if tensor.is_transposed else shape

    def find_alignment(self, tensor: Tensor) -> int:
        """Return the number of rows that the checkpoint stores, and reads, together."""
        return self._arrays[tensor.array].chunk_shape[-1 if tensor.is_transposed else 0]

    def read(self, tensor: Tensor, rows: slice) -> np.ndarray[Any, Any]:
        """Return rows of a tensor in Hugging Face's layout, in the type of the checkpoint."""
        array = self._arrays[tensor.array]
        selection = [slice(None)] * len(array.shape)
        selection[-1 if tensor.is_transposed else 0] = rows
        block: np.ndarray[Any, Any] = array.read(tuple(selection))
        return block.T if tensor.is_transposed else block
