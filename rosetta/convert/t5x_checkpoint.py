"""Read and write checkpoints of T5X without T5X, JAX and Orbax.

A checkpoint is a folder `checkpoint_N`. Its arrays are the leaves of the tree of the train state,
and have the path in the tree as their name: `target/encoder/layers_0/attention/query/kernel` is a
parameter, `state/step` is the step, and the names of the optimizer's state begin with
`state/param_states/`. FP8 state is below `flax_mutables/`.

Formats:
    orbax-ocdbt: the folder `state` is a database of TensorStore. Today's T5X writes it.
    orbax-zarr: the folder `state` has a Zarr folder for each array, with dots in its name.
    t5x-tensorstore: T5X's format from before Orbax, in which public weights are. The file
        `checkpoint` has the tree and its small arrays. Large arrays have a Zarr folder each.
    t5x-msgpack: the same format, without Zarr folders.

Orbax's formats are older than its list of the arrays, `_METADATA`. Without that list, the file
`checkpoint` in the folder `state` has the tree.
"""

from __future__ import annotations

import math
import re
import shutil
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rosetta.convert import json_documents, msgpack_file, transformer_engine_layout, zarr_arrays
from rosetta.convert.msgpack_file import ConstantArray
from rosetta.convert.stored_array import StoredArray
from rosetta.convert.torch_file import BFLOAT16
from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, EXISTS, MISSING, UNSUPPORTED, UserError
from rosetta.core.value_parsing import is_address
from rosetta.health import checkpoint_files
from rosetta.t5x import pretrained
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

STEP = "state/step"
_COPY_AGAIN = "copy the checkpoint again, or name another one"
# The class of Orbax that restores the folder `state`.
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"
_TREE_FILE = "checkpoint"
_PLACEHOLDER = "PLACEHOLDER://"  # Orbax has it in the tree before the name of an array's folder
_TENSORFLOW_START = b"model_checkpoint_path"
_LEGACY_VERSION = 3  # t5x/checkpoints.py; the versions before it are from before T5X was public
_PART_PREFIX = "rosetta-part-"  # of the folder of a checkpoint that is being written
# The folder of a checkpoint that T5X, Orbax or Writer has not finished.
_UNFINISHED_NAME = re.compile(rf"checkpoint_\d+\.(orbax-checkpoint-)?tmp|{_PART_PREFIX}")
_METADATA = "_METADATA"  # Orbax's list of the arrays
# The type of the values in Zarr's notation.
_ZARR_DTYPES = {np.dtype("<f4"): "<f4", BFLOAT16: "bfloat16"}
_SMALLEST_CHUNK = 1 << 20  # bytes; a small block shares a file with its neighbours
_ARRAY_TYPES = ("jax.Array", "np.ndarray", "scalar")  # of the leaves in _METADATA


class Source:
    """A checkpoint to read. The values of an array are read when its `read` is called.

    Attributes:
        folder: The folder checkpoint_N.
        step: The step.
        format: The format: one of those at the top of this module.
        arrays: All arrays of the checkpoint by their names, sorted.
        is_transformer_engine: Whether NVIDIA's fork of T5X has trained the model with Transformer
            Engine. Such arrays are split, and have the names of T5X's own network here.
        record: The record that rosetta wrote; None for a checkpoint without one.
    """

    def __init__(self, path: Path) -> None:
        """Read everything but the values of the arrays.

        Args:
            path: A folder checkpoint_N, or a folder that has some, of which the newest counts.

        Raises:
            UserError: There is no checkpoint, or it is not complete.
        """
        self.folder = _find_checkpoint(path)
        self.record = checkpoint_record.read_record(str(self.folder))
        self.format, arrays = _read_arrays(self.folder)
        self.is_transformer_engine = transformer_engine_layout.is_used(arrays)
        if self.is_transformer_engine:
            arrays = transformer_engine_layout.rename_arrays(arrays)
        self.arrays: dict[str, StoredArray] = dict(sorted(arrays.items()))
        if not any(name.startswith("target/") for name in self.arrays):
            raise UserError(
                "the checkpoint has no parameters (arrays below 'target')",
                str(self.folder),
                "name a checkpoint of T5X",
                kind=UNSUPPORTED,
            )
        self.step = self._find_step()

    def _find_step(self) -> int:
        """Return the step in the folder's name. The folder may have another name after a copy."""
        step = run_folders.parse_checkpoint_step(str(self.folder))
        if step is None:
            step = int(self.arrays[STEP].read()) if STEP in self.arrays else 0
        return step


def _find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that a path names.

    Args:
        path: A checkpoint, also one whose folder was renamed, or a folder of checkpoints.

    Raises:
        UserError: There is no checkpoint, or the path is not one of this machine.
    """
    # pathlib makes one slash of two.
    if is_address(str(path).replace(":/", "://", 1)):
        raise UserError(
            "the converter reads folders of this machine only",
            str(path).replace(":/", "://", 1),
            "copy the checkpoint to this machine, for example with: gcloud storage cp -r",
            kind=UNSUPPORTED,
        )
    if _UNFINISHED_NAME.match(path.absolute().name):
        raise UserError(
            "the checkpoint was not finished",
            str(path),
            "name a checkpoint_N that was written to its end",
            kind=DAMAGED,
        )
    if any((path / name).exists() for name in (_TREE_FILE, "state", _METADATA)):
        return path.absolute()
    folder = type(path)(pretrained.find_checkpoint(str(path.absolute())))
    if not folder.is_dir():
        raise UserError(
            "the folder does not exist",
            str(path),
            "name a checkpoint_N, or a folder of them",
            kind=MISSING,
        )
    return folder


def _read_arrays(folder: Path) -> tuple[str, Mapping[str, StoredArray]]:
    """Return the format of a checkpoint and its arrays by name.

    Raises:
        UserError: The checkpoint is not complete, or not in a format that can be read.
    """
    root = folder / "state" if (folder / "state").is_dir() else folder
    tree = _read_tree(root / _TREE_FILE)
    if damage := checkpoint_files.find_damage(str(folder)):
        raise UserError(
            f"not a complete checkpoint of T5X: {damage.problem}",
            damage.file,
            _COPY_AGAIN,
            kind=DAMAGED,
        )
    if tree is not None and not (root / _METADATA).exists() and root == folder:
        return _read_legacy_arrays(root, tree)
    if tree is None and not (root / _METADATA).exists():
        raise UserError(
            "not a complete checkpoint of T5X: the list of its arrays is missing",
            str(root / _METADATA),
            _COPY_AGAIN,
            kind=DAMAGED,
        )
    is_database = (root / "manifest.ocdbt").exists()
    stored: Mapping[str, StoredArray]
    if is_database:
        stored = zarr_arrays.read_database(root)
    else:
        names = zarr_arrays.list_array_folders(root)
        stored = {name: zarr_arrays.read_array_folder(root, name) for name in names}
    arrays = _name_arrays(root, stored, tree or {})
    return "orbax-ocdbt" if is_database else "orbax-zarr", arrays


def _read_tree(path: Path) -> dict[str, Any] | None:
    """Return the tree in the file `checkpoint`; None if there is no such file.

    Raises:
        UserError: The file is damaged, or one of TensorFlow.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if file.read(len(_TENSORFLOW_START)) == _TENSORFLOW_START:
            raise UserError(
                "a checkpoint of TensorFlow (T5 before T5X)",
                str(path),
                "name a checkpoint of T5X; T5X's own restore converts this one",
                kind=UNSUPPORTED,
            )
    return msgpack_file.read_tree(path)


def _read_legacy_arrays(
    root: Path, tree: Mapping[str, Any]
) -> tuple[str, Mapping[str, StoredArray]]:
    """Return the format of a checkpoint from before Orbax, and its arrays by name.

    Args:
        root: The folder of the checkpoint.
        tree: The tree in the file `checkpoint`.

    Raises:
        UserError: The version is too old, or the folder of an array is missing or damaged.
    """
    version = tree.get("version")
    if isinstance(version, ConstantArray):
        _check_version(root, int(version.read()))
        optimizer = tree.get("optimizer")
        tree = optimizer if isinstance(optimizer, dict) else {}
    leaves = _flatten_tree(tree)
    arrays: dict[str, StoredArray] = {}
    stored_format = "t5x-msgpack"
    for name, leaf in leaves.items():
        if isinstance(leaf, StoredArray):
            arrays[name] = leaf
        elif isinstance(leaf, dict):
            stored_format = "t5x-tensorstore"
            arrays[name] = _read_specified_array(root, name, leaf)
    return stored_format, arrays


def _check_version(root: Path, version: int) -> None:
    """Raise UserError if the version of a checkpoint from before Orbax is not the known one."""
    if version != _LEGACY_VERSION:
        raise UserError(
            f"the checkpoint has the version {version} of T5X's format",
            str(root / _TREE_FILE),
            f"name one of version {_LEGACY_VERSION}, which T5X wrote since June 2021",
            kind=UNSUPPORTED,
            value=version,
        )


def _flatten_tree(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a tree by their paths. A description of an array is a leaf."""
    leaves: dict[str, Any] = {}
    for key, node in tree.items():
        if isinstance(node, dict) and not msgpack_file.is_specification(node):
            leaves.update(_flatten_tree(node, f"{prefix}{key}/"))
        else:
            leaves[prefix + key] = node
    return leaves


def _read_specified_array(root: Path, name: str, specification: Mapping[str, Any]) -> StoredArray:
    """Return the array in the folder that TensorStore's specification names.

    Nothing else of the specification is used: it could name a file or a server anywhere.

    Args:
        root: The folder of the checkpoint.
        name: The name of the array, for errors.
        specification: The specification, as T5X has put it into the tree.

    Raises:
        UserError: The specification is not one of T5X, or does not fit the array in the folder.
    """
    where = str(root / _TREE_FILE)
    try:
        # TensorStore before 0.1.14 had the path outside of `kvstore`.
        path = specification["kvstore"].get("path") or specification["path"]
        folder = path.rstrip("/")
        shape = tuple(specification["metadata"]["shape"])
        if not folder or folder in {".", ".."} or "/" in folder:
            raise ValueError
    except (KeyError, TypeError, AttributeError, ValueError):
        raise UserError(
            f"the description of the array {name} is damaged", where, _COPY_AGAIN, kind=DAMAGED
        ) from None
    array = zarr_arrays.read_array_folder(root, folder)
    if array.shape != shape:
        raise UserError(
            f"{name} has the shape {shape}, and its folder has {array.shape}",
            array.where,
            _COPY_AGAIN,
            kind=DAMAGED,
            value=name,
        )
    return array


def _name_arrays(
    root: Path, stored: Mapping[str, StoredArray], tree: Mapping[str, Any]
) -> dict[str, StoredArray]:
    """Return the arrays of an Orbax checkpoint by their names in the tree.

    Args:
        root: The folder of the arrays.
        stored: The arrays by the names of their folders: the keys of the tree, joined by dots.
        tree: The tree in the file `checkpoint`; empty without this file.

    Raises:
        UserError: An array that Orbax lists is missing.
    """
    arrays: dict[str, StoredArray] = {}
    folders = {"/".join(keys): ".".join(keys) for keys in _list_orbax_leaves(root)}
    for name, leaf in _flatten_tree(tree).items():
        if isinstance(leaf, StoredArray):
            arrays[name] = leaf
        elif isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
            folders[name] = leaf.removeprefix(_PLACEHOLDER)
    for name, folder in folders.items():
        if folder in stored:
            arrays[name] = stored[folder]
        elif name not in arrays:
            raise UserError(
                f"not a complete checkpoint of T5X: the array {folder!r} is missing",
                str(root),
                _COPY_AGAIN,
                kind=DAMAGED,
                value=folder,
            )
    for folder in stored.keys() - set(folders.values()):
        arrays[folder.replace(".", "/")] = stored[folder]
    return arrays


def _list_orbax_leaves(root: Path) -> list[list[str]]:
    """Return the keys of each array that `_METADATA` lists; an empty list without this file.

    Raises:
        UserError: The file is damaged.
    """
    path = root / _METADATA
    if not path.exists():
        return []
    document = json_documents.read_document(path)
    try:
        return [
            [str(part["key"]) for part in leaf["key_metadata"]]
            for leaf in document.get("tree_metadata", {}).values()
            if leaf["value_metadata"]["value_type"] in _ARRAY_TYPES
        ]
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            "the list of the arrays is damaged", str(path), _COPY_AGAIN, kind=DAMAGED
        ) from None


class Writer:
    """Write a checkpoint with parameters and a step, and without the state of an optimizer.

    The writer is a context manager. The checkpoint gets the name checkpoint_N when the block ends
    without an error. Until then its folder has another name, and an error removes the folder. A
    process that is killed leaves it, see `resumes`.

        with Writer(folder, 0, {"target/token_embedder/embedding": (384, 64)}, dtype) as writer:
            writer.write("target/token_embedder/embedding", (0, 0), values)
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        shapes: Mapping[str, tuple[int, ...]],
        dtype: np.dtype[Any],
        record: checkpoint_record.Record | None = None,
        *,
        resumes: bool = False,
    ) -> None:
        """Make the folder of the checkpoint.

        Args:
            folder: The folder to make checkpoint_N in. It may exist.
            step: N.
            shapes: The shapes of the parameters by their names, which begin with `target/`.
            dtype: The type of the parameters: float32 or bfloat16.
            record: What the model was trained with, for rosetta.json. A run of rosetta needs it.
            resumes: Whether to keep the arrays that a killed process wrote. The caller then calls
                `keep` or `discard` for each parameter before it writes it.

        Raises:
            UserError: The checkpoint exists already.
        """
        self.checkpoint = folder / f"checkpoint_{step}"
        self._part = folder / f"{_PART_PREFIX}checkpoint_{step}"
        self._step, self._shapes, self._dtype, self._record = step, dict(shapes), dtype, record
        self._zarr_dtype = _ZARR_DTYPES[dtype]
        self._arrays = {name: _WrittenArray(shape) for name, shape in shapes.items()}
        if self.checkpoint.exists():
            raise UserError(
                "already exists", str(self.checkpoint), "name a new folder", kind=EXISTS
            )
        if not resumes:
            shutil.rmtree(self._part, ignore_errors=True)
        (self._part / "state").mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.close()
        except Exception:
            shutil.rmtree(self._part, ignore_errors=True)
            raise
        if isinstance(error, Exception):
            shutil.rmtree(self._part, ignore_errors=True)

    def open_array(self, name: str) -> StoredArray | None:
        """Return a parameter that was written, to read it; None if there is none.

        Raises:
            UserError: The array is damaged.
        """
        folder = self._find_array_folder(name)
        if not folder.is_dir():
            return None
        return zarr_arrays.read_array_folder(folder.parent, folder.name)

    def keep(self, name: str) -> None:
        """Count a parameter as written, which a killed process wrote in full."""
        shape = self._shapes[name]
        self._arrays[name].add_block(name, (0,) * len(shape), shape)

    def discard(self, name: str) -> None:
        """Remove what a killed process wrote of a parameter."""
        shutil.rmtree(self._find_array_folder(name), ignore_errors=True)

    def write(self, name: str, start: tuple[int, ...], values: np.ndarray[Any, Any]) -> None:
        """Write a block of a parameter. The blocks of a parameter may come in any order.

        The first block of a parameter sets the shape of its chunks. So give all blocks of a
        parameter the same shape, apart from those at the edges; a chunk that several blocks share
        is read and written again for each.

        Args:
            name: The name of the parameter.
            start: The index of the block's first value.
            values: The values, in the type of the checkpoint.

        Raises:
            UserError: The disk is full, or cannot be written to.
            ValueError: The block is outside the array, was written before, or has another type.
        """
        if values.dtype != self._dtype:
            raise ValueError(f"{name} is {values.dtype}, the checkpoint is {self._dtype}")
        array = self._arrays[name]
        block = array.add_block(name, start, values.shape)
        folder = self._find_array_folder(name)
        if array.store is None:
            chunks = _choose_chunks(array.shape, values.shape, self._dtype.itemsize)
            array.store = zarr_arrays.create_array(folder, array.shape, chunks, self._zarr_dtype)
        with zarr_arrays.report_failed_writes(folder):
            array.store[block].write(values).result()
        if array.remaining == 0:
            array.store = None

    def close(self) -> None:
        """Complete the checkpoint, and give its folder the name checkpoint_N.

        Raises:
            UserError: The disk is full, or cannot be written to.
            ValueError: A part of a parameter was not written.
        """
        for name, array in self._arrays.items():
            if array.remaining or array.is_untouched:
                raise ValueError(f"{name} has {array.remaining} values that were not written")
        step_folder = self._find_array_folder(STEP)
        step = zarr_arrays.create_array(step_folder, (), (), "<i4")
        with zarr_arrays.report_failed_writes(step_folder):
            step.write(np.int32(self._step)).result()
        names = {STEP: (), **self._shapes}
        json_documents.write_document(self._part / "state" / _METADATA, _describe_arrays(names))
        json_documents.write_document(
            self._part / "_CHECKPOINT_METADATA", {"item_handlers": {"state": _HANDLER}}
        )
        if self._record is not None:
            run_folders.write_file(
                self._part / checkpoint_record.RECORD_FILE,
                checkpoint_record.render_record(self._record),
            )
        # A folder; replace_file is for files.
        self._part.rename(self.checkpoint)

    def _find_array_folder(self, name: str) -> Path:
        """Return the folder of an array."""
        return self._part / "state" / name.replace("/", ".")


class _WrittenArray:
    """An array that is being written.

    Attributes:
        shape: The shape of the array.
        store: The TensorStore of the array, while it is open.
        remaining: The number of values that were not written yet.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.store: Any = None
        self.remaining = math.prod(shape)
        self._blocks: list[tuple[slice, ...]] = []

    @property
    def is_untouched(self) -> bool:
        """Whether no block was written."""
        return not self._blocks

    def add_block(
        self, name: str, start: tuple[int, ...], block_shape: tuple[int, ...]
    ) -> tuple[slice, ...]:
        """Note that a block is written, and return its place in the array.

        Args:
            name: The name of the array, for the error.
            start: The index of the first value.
            block_shape: The shape of the block.

        Raises:
            ValueError: The block is outside the array, or overlaps another one.
        """
        block = tuple(
            slice(first, first + size) for first, size in zip(start, block_shape, strict=True)
        )
        bounds = zip(block, self.shape, strict=False)
        if len(block) != len(self.shape) or not all(
            0 <= part.start <= part.stop <= size for part, size in bounds
        ):
            raise ValueError(f"the block {block} is outside {name} of {self.shape}")
        for other in self._blocks:
            if all(
                part.start < taken.stop and taken.start < part.stop
                for part, taken in zip(block, other, strict=True)
            ):
                raise ValueError(f"the block {block} of {name} overlaps {other}")
        self._blocks.append(block)
        self.remaining -= math.prod(block_shape)
        return block


def _choose_chunks(shape: tuple[int, ...], block: tuple[int, ...], itemsize: int) -> list[int]:
    """Return the size of a chunk: that of a block, halved if it is large, doubled if it is small.

    Args:
        shape: The shape of the array.
        block: The shape of a block.
        itemsize: The bytes of a number.
    """
    chunk = zarr_arrays.choose_chunks(block, itemsize)
    while math.prod(chunk) * itemsize < _SMALLEST_CHUNK and chunk != list(shape):
        growable = [axis for axis, size in enumerate(shape) if chunk[axis] < size]
        last = growable[-1]
        chunk[last] = min(2 * chunk[last], shape[last])
    return chunk


def _describe_arrays(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the content of Orbax's _METADATA for arrays with these names and shapes."""
    tree = {}
    for name, shape in shapes.items():
        keys = name.split("/")
        tree[repr(tuple(keys))] = {
            "key_metadata": [{"key": key, "key_type": 2} for key in keys],
            "value_metadata": {
                "value_type": "jax.Array",
                "skip_deserialize": False,
                "write_shape": list(shape),
            },
        }
    return {
        "tree_metadata": tree,
        "use_ocdbt": False,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
