"""Find and open the files of weights in a model folder of Hugging Face.

The weights are in safetensors or in pytorch_model.bin, in one file or in several with an index.
"""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING, Any

from rosetta.convert import json_documents, safetensors, torch_file
from rosetta.core.errors import CONFLICT, DAMAGED, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy as np

LARGEST_FILE = 5 * 10**9  # bytes of one file of weights, as in Hugging Face's own
_COPY_AGAIN = "download or copy it again"
# The formats: beginning of the names, end of the names, reader.
_FORMATS = (
    ("model", "safetensors", safetensors.read_tensors),
    ("pytorch_model", "bin", torch_file.read_tensors),
)


def find_tensor(
    tensors: Mapping[str, torch_file.StoredTensor], name: str, folder: Path
) -> torch_file.StoredTensor:
    """Return a tensor of a model.

    Args:
        tensors: What `open_tensors` returned.
        name: The name of the tensor.
        folder: The folder of the model, for the error.

    Raises:
        UserError: No file has the tensor.
    """
    stored = tensors.get(name)
    if stored is None:
        raise UserError(
            f"no file of the model has {name}",
            str(folder),
            _COPY_AGAIN,
            kind=MISSING,
            value=name,
        )
    return stored


def open_tensors(folder: Path) -> dict[str, torch_file.StoredTensor]:
    """Return the tensors of a model folder by name, without reading their values.

    Args:
        folder: The folder of the model.

    Raises:
        UserError: The folder has no weights, the weights of two models, an adapter, or a damaged
            file.
    """
    adapter = folder / "adapter_config.json"
    if adapter.exists():
        raise UserError(
            "the weights have an adapter (LoRA) beside them, which is not merged into them",
            str(adapter),
            "merge it first, or move its files away to convert the model without it",
            kind=UNSUPPORTED,
        )
    _check_one_format(folder)
    tensors: dict[str, torch_file.StoredTensor] = {}
    for stem, suffix, read in _FORMATS:
        names = _list_files(folder, stem, suffix)
        for name in names:
            _add_tensors(tensors, folder, name, read(_find_listed_file(folder, name)))
        if names:
            return tensors
    raise UserError(
        "the folder has no weights: neither safetensors nor pytorch_model.bin",
        str(folder),
        _COPY_AGAIN,
        kind=MISSING,
    )


def _check_one_format(folder: Path) -> None:
    """Raise UserError if the folder has weights in both formats, which may differ."""
    first_files = [
        next(iter(sorted(folder.glob(f"{stem}*.{suffix}"))), None) for stem, suffix, _ in _FORMATS
    ]
    if first_files[0] and first_files[1]:
        names = f"{first_files[0].name!r} and {first_files[1].name!r}"
        raise UserError(
            f"the folder has weights twice, {names}, which may differ",
            str(folder),
            "move the files of one kind away",
            kind=CONFLICT,
        )


def _add_tensors(
    tensors: dict[str, torch_file.StoredTensor],
    folder: Path,
    file_name: str,
    added: dict[str, torch_file.StoredTensor],
) -> None:
    """Add the tensors of a file. Raise UserError if another file has one of them."""
    duplicates = sorted(tensors.keys() & added.keys())
    if duplicates:
        raise UserError(
            f"{duplicates[0]!r} is in {file_name} and in another file",
            str(folder),
            _COPY_AGAIN,
            kind=CONFLICT,
            value=duplicates[0],
        )
    tensors |= added


def _list_files(folder: Path, stem: str, suffix: str) -> list[str]:
    """Return the names of the files of weights in one format.

    Args:
        folder: The folder of the model.
        stem: The beginning of the names.
        suffix: The end of the names.

    Raises:
        UserError: The index is damaged, or does not list each file of that format.
    """
    index = folder / f"{stem}.{suffix}.index.json"
    single = folder / f"{stem}.{suffix}"
    names = {single.name} if single.exists() else set()
    if index.exists():
        names = _read_index(index)
    unlisted = sorted({path.name for path in folder.glob(f"{stem}*.{suffix}")} - names)
    if unlisted and (names or index.exists()):
        raise UserError(
            f"the folder has {unlisted[0]}, which the model does not list",
            str(folder),
            "move it away, or download or copy the model again",
            kind=CONFLICT,
            value=unlisted[0],
        )
    return sorted(names)


def _find_listed_file(folder: Path, name: str) -> Path:
    """Return the path of a file that the index of the folder lists.

    Raises:
        UserError: The name leads out of the folder, or the file is missing.
    """
    if os.path.basename(name) != name:
        raise UserError(
            f"the index lists {name!r}, which is not a file of this folder",
            str(folder),
            _COPY_AGAIN,
            kind=MISSING,
            value=name,
        )
    if not (folder / name).is_file():
        raise UserError(
            f"the file {name!r} is missing",
            str(folder),
            _COPY_AGAIN,
            kind=MISSING,
            value=name,
        )
    return folder / name


def _read_index(index: Path) -> set[str]:
    """Return the names of the files that an index lists."""
    weights = json_documents.read_document(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights.values()):
        raise UserError(
            "'weight_map' does not give the file of each tensor",
            str(index),
            _COPY_AGAIN,
            kind=DAMAGED,
        )
    return set(weights.values())


def assign_files(sizes: dict[str, int]) -> dict[str, list[str]]:
    """Return the names of the files to write, with the names of the tensors in each file.

    Args:
        sizes: The bytes of each tensor by name, in the order of the files.
    """
    groups: list[list[str]] = [[]]
    free = LARGEST_FILE
    for name, needed in sizes.items():
        if needed > free and groups[-1]:
            groups.append([])
            free = LARGEST_FILE
        groups[-1].append(name)
        free -= needed
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {
        f"model-{number:05}-of-{len(groups):05}.safetensors": names
        for number, names in enumerate(groups, 1)
    }


def write_index(folder: Path, files: dict[str, list[str]], total_size: int) -> None:
    """Write the index of a model in several files; one file needs none.

    Args:
        folder: The folder of the model.
        files: The result of `assign_files`.
        total_size: The bytes of all tensors.
    """
    if len(files) > 1:
        weight_map = {name: file for file, names in files.items() for name in names}
        json_documents.write_document(
            folder / "model.safetensors.index.json",
            {"metadata": {"total_size": total_size}, "weight_map": weight_map},
        )


def write_tensors(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[Any],
    dtype: np.dtype[Any],
) -> None:
    """Write the files of weights of a model, and their index.

    Args:
        folder: The folder of the model.
        shapes: The shape of each tensor by name, in the order of the files.
        tensors: The tensors in this order and in `dtype`. One is in memory at a time.
        dtype: The type of the numbers.
    """
    byte_counts = {name: math.prod(shape) * dtype.itemsize for name, shape in shapes.items()}
    files = assign_files(byte_counts)
    remaining = iter(tensors)
    for file_name, names in files.items():
        writer = safetensors.Writer(
            folder / file_name, {name: shapes[name] for name in names}, dtype
        )
        with contextlib.closing(writer):
            for name in names:
                writer.add(name, next(remaining))
    write_index(folder, files, sum(byte_counts.values()))
