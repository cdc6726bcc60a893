"""Read and write a GPT in the files of Hugging Face."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import gpt_config, json_documents, tokenizer_copy, weight_files
from rosetta.convert.dtype_conversion import view_as_bits
from rosetta.convert.gpt import (
    GPT2,
    GPT_NEOX,
    Architecture,
    Tensor,
    check_no_leftover,
    list_tensors,
    make_shape_error,
)
from rosetta.core.errors import CONFLICT, DIFFERS, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from rosetta.convert import torch_file

# Masks and frequencies that older versions of transformers saved. The model computes them again.
_BUFFER = re.compile(
    r"(transformer|gpt_neox)\.(h|layers)\.\d+\.(attn|attention)\."
    r"(bias|masked_bias|rotary_emb\.inv_freq)|gpt_neox\.rotary_emb\.inv_freq"
)
_NEOX_OUTPUT = "embed_out.weight"
_OUTPUT_NAMES = ("lm_head.weight", _NEOX_OUTPUT)
_RENAMED_OUTPUT = {"lm_head.weight": _NEOX_OUTPUT}
_PREFIX = "transformer."  # which the files of GPT-2's base class lack


class HuggingFaceGPT:
    """A GPT of Hugging Face; see `rosetta.convert.gpt.Model`.

    Attributes:
        folder: The folder of the model.
        architecture: The architecture.
        dropped: What a conversion leaves out.
    """

    def __init__(self, folder: Path) -> None:
        """Read everything but the values of the tensors.

        Args:
            folder: The folder of the model.

        Raises:
            UserError: The folder is not a complete GPT that Pax can compute.
        """
        self.folder = folder
        path = folder / "config.json"
        self.architecture = gpt_config.parse_config(json_documents.read_document(path), str(path))
        tensors = weight_files.open_tensors(folder)
        if self.architecture.layout == GPT2 and "wte.weight" in tensors:
            tensors = {_add_prefix(name): tensor for name, tensor in tensors.items()}
        if self.architecture.layout == GPT_NEOX and _NEOX_OUTPUT not in tensors:
            # The name of the module in transformers 5, whose files have the old name.
            tensors = {_RENAMED_OUTPUT.get(name, name): tensor for name, tensor in tensors.items()}
        self._tensors = tensors
        self.dropped: list[str] = []
        for tensor in list_tensors(self.architecture):
            shape = self._find_tensor(tensor).shape
            if shape != tensor.shape:
                raise make_shape_error(tensor.name, shape, tensor.shape, str(folder))
        self._check_unused()

    def _find_tensor(self, tensor: Tensor) -> torch_file.StoredTensor:
        """Return a tensor of the files. Raise UserError if no file has it."""
        return weight_files.find_tensor(self._tensors, tensor.name, self.folder)

    def _check_unused(self) -> None:
        """Name the tensors that the conversion leaves out.

        Raises:
            UserError: A tensor is not one of a GPT with this configuration, or contradicts it.
        """
        tensors = list_tensors(self.architecture)
        leftover = self._tensors.keys() - {tensor.name for tensor in tensors}
        buffers = sorted(filter(_BUFFER.fullmatch, leftover))
        for name in buffers:
            self._check_buffer(name)
        if buffers:
            self.dropped.append(
                f"{len(buffers)} masks and frequencies, such as {buffers[0]}, which the model "
                "computes"
            )
        leftover -= set(buffers)
        for name in sorted(leftover.intersection(_OUTPUT_NAMES)):
            if self.architecture.is_tied:
                self._check_tied_output(tensors[0], name)
                leftover.discard(name)
        check_no_leftover(leftover, str(self.folder))

    def _check_buffer(self, name: str) -> None:
        """Raise UserError if a stored mask or frequency is not the one that the model computes."""
        values = self._tensors[name]()
        if name.endswith("masked_bias"):
            return  # a number so low that its value makes no difference
        if name.endswith("inv_freq"):
            is_expected = self._are_frequencies(values.astype(np.float64))
        else:
            is_expected = values.ndim == 4 and np.array_equal(values, np.tril(values != 0))
        if not is_expected:
            raise UserError(
                f"{name} is not what the configuration gives",
                str(self.folder),
                "download or copy the model again",
                kind=DIFFERS,
                value=name,
            )

    def _are_frequencies(self, values: np.ndarray[Any, Any]) -> bool:
        """Return whether values are the model's rotary frequencies, as far as bfloat16 has them."""
        width = int(self.architecture.head_dim * self.architecture.rotary_fraction)
        expected = self.architecture.rotary_base ** (-np.arange(0, width, 2) / width)
        return values.shape == expected.shape and np.allclose(values, expected, rtol=1e-2, atol=0)

    def _check_tied_output(self, embedding: Tensor, name: str) -> None:
        """Raise UserError if config.json ties the embedding and the output, but they differ."""
        stored, output = self._find_tensor(embedding), self._tensors[name]
        if (
            stored.shape != output.shape
            or stored.dtype != output.dtype
            or not np.array_equal(view_as_bits(stored()), view_as_bits(output()))
        ):
            raise UserError(
                f"'tie_word_embeddings' is true, and {name} differs from {embedding.name}",
                str(self.folder),
                "set 'tie_word_embeddings' to false in config.json, or remove the tensor",
                kind=CONFLICT,
                value=name,
            )

    def read(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Return the values of a tensor, in the type of the files."""
        values: np.ndarray[Any, Any] = self._find_tensor(tensor)()
        return values


def _add_prefix(name: str) -> str:
    """Return the name of a tensor of GPT-2 as the files of the whole model have it."""
    return name if name.startswith((_PREFIX, *_OUTPUT_NAMES)) else _PREFIX + name


def write_model(
    folder: Path,
    architecture: Architecture,
    tensors: Iterable[Any],
    dtype: np.dtype[Any],
    ids: Mapping[str, Any],
) -> None:
    """Write the weights, config.json and generation_config.json.

    Args:
        folder: The folder to write into.
        architecture: The architecture.
        tensors: The values of each tensor, in the order of `list_tensors` and in `dtype`.
        dtype: The type of the numbers.
        ids: The ids of special tokens by field.
    """
    shapes = {tensor.name: tensor.shape for tensor in list_tensors(architecture)}
    weight_files.write_tensors(folder, shapes, tensors, dtype)
    config = gpt_config.make_config(architecture, dtype.name, ids)
    json_documents.write_document(folder / "config.json", config)
    generation_config = {
        name: config[name] for name in tokenizer_copy.ID_FIELDS if config.get(name) is not None
    }
    json_documents.write_document(folder / "generation_config.json", generation_config)
