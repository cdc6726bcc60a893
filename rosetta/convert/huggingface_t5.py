"""Read a T5 in the files of Hugging Face."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import json_documents, t5_config, weight_files
from rosetta.convert.dtype_conversion import view_as_bits
from rosetta.convert.t5_tensors import (
    EMBEDDING,
    EMBEDDING_COPIES,
    OUTPUT,
    UNUSED_BIAS,
    Tensor,
    check_no_leftover,
    check_shapes,
    find_common_dtype,
    list_tensors,
)
from rosetta.core.errors import CONFLICT, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from rosetta.convert import torch_file
    from rosetta.t5x.run.checkpoint_record import Record


class HuggingFaceT5:
    """A T5 of Hugging Face; see `rosetta.convert.t5_tensors.Model`.

    Attributes:
        folder: The folder of the model.
    """

    def __init__(self, folder: Path, *, encoder_only: bool = False) -> None:
        """Read everything but the values of the tensors.

        Args:
            folder: The folder of the model.
            encoder_only: Whether to leave out the decoder.

        Raises:
            UserError: The folder is not a complete T5, or has more than one model.
        """
        self.folder = folder
        # Hugging Face's T5 has no scale of attention logits, and its files have no record.
        self.record: Record | None = None
        self.scratch_bytes = 0
        self.is_scaled, self.fold_difference = False, 0.0
        path = folder / "config.json"
        self._config = t5_config.parse_config(json_documents.read_document(path), str(path))
        self.dropped: list[str] = []
        self.notes = list(self._config.notes)
        self._tensors = weight_files.open_tensors(folder)
        if encoder_only:
            self._drop_decoder()
        self._check_embedding_copies()
        self.architecture = self._find_architecture()
        self.dtype = find_common_dtype(tensor.dtype for tensor in self._tensors.values())
        check_shapes(self, str(folder))
        self._check_unused()

    def _drop_decoder(self) -> None:
        """Leave out the decoder and the output layer."""
        names = [name for name in self._tensors if name.startswith(("decoder.block", "decoder.fi"))]
        for name in (*names, OUTPUT):
            self._tensors.pop(name, None)
        self.dropped.append(f"the decoder ({len(names)} tensors)")
        architecture = replace(
            self._config.architecture, num_decoder_layers=0, logits_via_embedding=True
        )
        self._config = replace(self._config, architecture=architecture)

    def _check_embedding_copies(self) -> None:
        """Keep one of the tensors of the embedding.

        Raises:
            UserError: The encoder and the decoder have different embeddings.
        """
        names = [name for name in (EMBEDDING, *EMBEDDING_COPIES) if name in self._tensors]
        if not names and self._config.ties_embedding and OUTPUT in self._tensors:
            names = [OUTPUT]
        for name in names[1:]:
            if not self._are_equal(names[0], name):
                raise UserError(
                    f"{name} differs from {names[0]}, and T5X's networks have one embedding",
                    str(self.folder),
                    "convert a T5 whose encoder and decoder share the embedding",
                    kind=CONFLICT,
                    value=name,
                )
            del self._tensors[name]
        if names and names[0] != EMBEDDING:
            self._tensors[EMBEDDING] = self._tensors.pop(names[0])

    def _are_equal(self, name: str, other_name: str) -> bool:
        """Return whether two tensors have the same type, shape and bits."""
        tensor, other = self._tensors[name], self._tensors[other_name]
        if tensor.shape != other.shape or tensor.dtype != other.dtype:
            return False
        return all(
            np.array_equal(view_as_bits(tensor()[rows]), view_as_bits(other()[rows]))
            for rows in Tensor(name, "", tensor.shape).split_rows()
        )

    def _find_architecture(self) -> t5_config.Architecture:
        """Return the architecture, once the output layer is known; see `t5_config`.

        Raises:
            UserError: config.json and the tensors contradict each other.
        """
        architecture = self._config.architecture
        if not architecture.num_decoder_layers:
            return architecture
        has_output = OUTPUT in self._tensors
        if not architecture.logits_via_embedding:
            is_tied = self._config.ties_embedding or self._config.written_by_5
            if not has_output and EMBEDDING in self._tensors and is_tied:
                # T5X has no tied output layer without the scale. A copy of the embedding does it.
                self._tensors[OUTPUT] = self._tensors[EMBEDDING]
                self.notes.append(
                    "the embedding is also the output layer, without a scale: T5X gets a copy of it"
                )
            return architecture
        if has_output and EMBEDDING in self._tensors and not self._are_equal(EMBEDDING, OUTPUT):
            raise UserError(
                f"config.json says that the embedding is the output layer, and {OUTPUT} differs "
                f"from {EMBEDDING}",
                str(self.folder),
                "set 'tie_word_embeddings' to false in config.json, or remove the tensor",
                kind=CONFLICT,
                value=OUTPUT,
            )
        self._tensors.pop(OUTPUT, None)
        return replace(architecture, logits_via_embedding=True)

    def _check_unused(self) -> None:
        """Name the tensors that the conversion leaves out.

        Raises:
            UserError: A tensor is not one of a T5 with this configuration.
        """
        used = {tensor.name for tensor in list_tensors(self.architecture)}
        leftover = self._tensors.keys() - used
        if UNUSED_BIAS in leftover:
            leftover.discard(UNUSED_BIAS)
            self.dropped.append(f"{UNUSED_BIAS}, which no version of transformers reads")
        check_no_leftover(leftover, str(self.folder))

    def _find_tensor(self, tensor: Tensor) -> torch_file.StoredTensor:
        """Return a tensor of the files.

        Raises:
            UserError: No file has the tensor.
        """
        return weight_files.find_tensor(self._tensors, tensor.name, self.folder)

    def list_tensors(self, architecture: t5_config.Architecture) -> list[Tensor]:
        """Return the tensors of a T5."""
        return list_tensors(architecture)

    def find_shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it.

        Raises:
            UserError: The files do not have the tensor.
        """
        return self._find_tensor(tensor).shape

    def find_alignment(self, tensor: Tensor) -> int:
        """Return the number of rows that are read together: one, because files are mapped."""
        del tensor
        return 1

    def read(self, tensor: Tensor, rows: slice) -> np.ndarray[Any, Any]:
        """Return rows of a tensor, in the type of the files.

        The file is mapped anew for each call. A mapping that is kept would hold all that was read.
        """
        values: np.ndarray[Any, Any] = np.array(self._find_tensor(tensor)()[rows])
        return values
