"""Read and write the weights of a language model in a checkpoint of Paxml.

A checkpoint is a folder `checkpoint_N`. Its folder `state` has one zarr folder for each array. The
name of that folder is the path of the array in the tree of the training state. The layers of a
model are arrays of their own, or, with USE_REPEATED_LAYER, stacked in arrays whose first dimension
is for the layers.

`rosetta.convert.pax_llama` and `rosetta.convert.pax_gpt` know the arrays of a kind of model.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import json_documents, zarr_arrays
from rosetta.convert.config_fields import shorten_value
from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, DIFFERS, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.health import checkpoint_files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

# The beginnings of the paths of arrays: of the whole model, of one layer, and of stacked layers.
_ARRAY_PREFIX = "mdl_vars.params.lm."
_LAYER_PREFIX, _REPEATED_PREFIX = "transformer.x_layers_{}.", "transformer.repeat.sub.x_layers_0."
_DTYPES = ("<f4", "<f2", "bfloat16")
# paxml/checkpoint_version.py: one folder for each array, and the shapes in the metadata.
VERSION = 1.1
_COPY_AGAIN = "copy the checkpoint again"
_COMPLETE_CHECKPOINT = "name a complete checkpoint"
# The scales and the histories of largest values with which products are computed in FP8.
_FP8_STATE = re.compile(r"\.(input|kernel|output_grad)_(amax_history|scale)$")
_OPTIMIZER_PREFIX = "opt_states_"


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that a path names.

    Args:
        path: A folder checkpoint_N, or a folder that has some, itself or in `checkpoints`. The
            newest of several counts.

    Raises:
        UserError: There is no checkpoint.
    """
    if run_folders.parse_checkpoint_step(path.name) is not None:
        return path
    for folder in (path / "checkpoints", path):
        checkpoints: dict[int, Path] = {}
        for checkpoint in folder.iterdir() if folder.is_dir() else ():
            step = run_folders.parse_checkpoint_step(checkpoint.name)
            if step is not None:
                checkpoints[step] = max(checkpoint, checkpoints.get(step, checkpoint))
        if checkpoints:
            return checkpoints[max(checkpoints)]
    raise UserError(
        run_folders.describe_missing_checkpoint(str(path)),
        str(path),
        "name the folder of a run, or one of its folders checkpoint_N",
        kind=MISSING,
    )


class Checkpoint:
    """The weights of a language model in a checkpoint.

    The weights of LoRA adapters are added to the arrays that they adapt.

    Attributes:
        folder: The folder `state` of the checkpoint.
        where: The checkpoint, for errors.
        shapes: The shapes of the model's arrays by their paths.
        repeated: Whether the layers are stacked.
        adapted: The number of arrays that have a LoRA adapter.
    """

    def __init__(self, path: Path) -> None:
        """Read everything but the values of the arrays.

        Args:
            path: The folder of a run or of a checkpoint.

        Raises:
            UserError: The folder has no checkpoint.
        """
        self.folder = find_checkpoint(path) / "state"
        self.where = str(self.folder.parent)
        if not self.folder.is_dir():
            raise UserError(
                "the checkpoint has no folder 'state' of Paxml's",
                self.where,
                "name a checkpoint of Pax",
                kind=MISSING,
            )
        self._names = {path.name for path in self.folder.iterdir()}
        self.shapes = {
            name.removeprefix(_ARRAY_PREFIX): _read_shape(self.folder / name)
            for name in sorted(self._names)
            if name.startswith(_ARRAY_PREFIX) and not _FP8_STATE.search(name)
        }
        self.repeated = any(name.startswith(_REPEATED_PREFIX) for name in self.shapes)
        self.adapted = sum(name.endswith(".lora_a") for name in self.shapes)
        # The arrays of which no chunk is missing.
        self._complete = set[str]()

    @property
    def layer_count(self) -> int:
        """The number of layers, 0 if there is none."""
        if self.repeated:
            stacked = (name for name in self.shapes if name.startswith(_REPEATED_PREFIX))
            return self.shapes[next(stacked)][0]
        matches = (re.match(r"transformer\.x_layers_(\d+)\.", name) for name in self.shapes)
        return 1 + max((int(match[1]) for match in matches if match), default=-1)

    def make_full_path(self, path: str, layer: int | None) -> str:
        """Return the path in the model of an array.

        Args:
            path: The path within the layer, or in the model.
            layer: The layer; None outside the layers.
        """
        return _make_full_path(path, layer, repeated=self.repeated)

    def find_shape(self, path: str, layer: int | None = 0) -> tuple[int, ...]:
        """Return the shape of an array, of stacked layers that of one layer; () if there is none.

        The arguments are those of `make_full_path`.
        """
        shape = self.shapes.get(self.make_full_path(path, layer), ())
        return shape[1:] if self.repeated and layer is not None else shape

    def check_array(self, path: str, layer: int | None, shape: tuple[int, ...]) -> None:
        """Check that an array is complete and has a shape.

        Args:
            path: The path within the layer, or in the model.
            layer: The layer; None outside the layers.
            shape: The expected shape; of stacked layers, that of one layer.

        Raises:
            UserError: The array is missing or has another shape, or the file of a chunk is missing.
        """
        full_path = self.make_full_path(path, layer)
        if full_path not in self.shapes:
            raise UserError(
                f"the checkpoint does not have {full_path}",
                self.where,
                _COMPLETE_CHECKPOINT,
                kind=MISSING,
                value=full_path,
            )
        is_stacked = self.repeated and layer is not None
        expected = (self.layer_count, *shape) if is_stacked else shape
        if self.shapes[full_path] != expected:
            raise UserError(
                f"the shape of {path} does not fit the other arrays",
                self.where,
                _COMPLETE_CHECKPOINT,
                kind=DIFFERS,
                value=path,
            )
        self._check_chunks(full_path)

    def read(self, path: str, layer: int | None) -> Any:
        """Return the values of an array, with its LoRA adapter added if there is one.

        The adapter's two factors are [inputs, rank] and [outputs, rank]. The arguments are those
        of `make_full_path`.

        Raises:
            UserError: The array is damaged.
        """
        full_path = self.make_full_path(path, layer)
        array, module = self._read_array(full_path, layer), full_path.removesuffix("w")
        if f"{module}lora_a" not in self.shapes:
            return array
        down, up = (
            self._read_array(f"{module}lora_{letter}", layer).astype(np.float32) for letter in "ab"
        )
        try:
            update = (down @ up.swapaxes(-1, -2)).reshape(array.shape)
            return (array + update).astype(array.dtype)
        except ValueError:
            raise UserError(
                f"lora_a of {list(down.shape)} and lora_b of {list(up.shape)} do not fit the "
                f"array of {list(array.shape)} that they adapt",
                str(self.folder / (_ARRAY_PREFIX + full_path)),
                _COPY_AGAIN,
                kind=DAMAGED,
            ) from None

    def _read_array(self, full_path: str, layer: int | None) -> Any:
        """Return the values of an array; of stacked layers, those of one layer."""
        tensorstore = zarr_arrays.load_tensorstore()
        folder = self.folder / (_ARRAY_PREFIX + full_path)
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(folder)}}
        try:
            store = tensorstore.open(spec, open=True, read=True).result()
            self._check_chunks(full_path)
            if layer is not None and self.repeated:
                store = store[layer]
            return np.asarray(store.read().result())
        except ValueError as error:
            raise UserError(
                f"the array cannot be read: {str(error)[:200]}",
                str(folder),
                _COPY_AGAIN,
                kind=DAMAGED,
            ) from None

    def _check_chunks(self, full_path: str) -> None:
        """Raise UserError if the file of a chunk is missing.

        TensorStore would read such a chunk as zeros. Paxml, Orbax and `Writer` write
        chunks of zeros too.
        """
        if full_path in self._complete:
            return
        folder = self.folder / (_ARRAY_PREFIX + full_path)
        metadata = json_documents.read_document(folder / ".zarray")
        try:
            missing = checkpoint_files.find_missing_chunk(
                folder, checkpoint_files.list_chunk_names(metadata)
            )
        except (ValueError, KeyError, TypeError, ArithmeticError):
            raise UserError(
                f"the chunks are {shorten_value(metadata.get('chunks'))}, which does not fit the "
                "shape",
                str(folder / ".zarray"),
                _COPY_AGAIN,
                kind=INVALID,
            ) from None
        if missing:
            raise UserError(
                f"the file {missing!r} of the array is missing, so its values are not known",
                str(folder),
                _COPY_AGAIN,
                kind=MISSING,
                value=missing,
            )
        self._complete.add(full_path)

    def list_unused(
        self, top_paths: Collection[str], layer_paths: Collection[str], layer_count: int
    ) -> list[str]:
        """Return the names of the weights that a conversion does not use.

        Args:
            top_paths: The paths of the arrays that it uses, outside the layers.
            layer_paths: The paths within a layer.
            layer_count: The number of layers.
        """
        expected = set(top_paths)
        for layer in range(1 if self.repeated else layer_count):
            expected |= {self.make_full_path(path, layer) for path in layer_paths}
        adapters = set[str]()
        for path in expected:
            pair = {path.removesuffix("w") + name for name in ("lora_a", "lora_b")}
            if path.endswith(".w") and pair <= self.shapes.keys():
                adapters |= pair
        used = {_ARRAY_PREFIX + path for path in expected | adapters}
        weights = {name for name in self._names if name.startswith("mdl_vars.")}
        return sorted(name for name in weights - used if not _FP8_STATE.search(name))

    def describe_dropped(self) -> list[str]:
        """Return what a conversion leaves out, because it is not part of the model."""
        optimizer_count = sum(name.startswith(_OPTIMIZER_PREFIX) for name in self._names)
        fp8_count = sum(bool(_FP8_STATE.search(name)) for name in self._names)
        dropped = []
        if optimizer_count:
            dropped.append(f"the state of the optimizer ({optimizer_count} arrays)")
        if fp8_count:
            dropped.append(f"the state of FP8 ({fp8_count} arrays)")
        return dropped


def _make_full_path(path: str, layer: int | None, *, repeated: bool) -> str:
    """Return the path in the model of an array; `layer` is None outside the layers."""
    if layer is None:
        return path
    return (_REPEATED_PREFIX if repeated else _LAYER_PREFIX.format(layer)) + path


def _read_shape(folder: Path) -> tuple[int, ...]:
    """Return the shape of an array. Raise UserError if it is not valid, or not of _DTYPES."""
    metadata = json_documents.read_document(folder / ".zarray")
    shape, dtype = metadata.get("shape"), metadata.get("dtype")
    if not isinstance(shape, list) or not all(
        type(length) is int and length >= 0 for length in shape
    ):
        raise UserError(
            f"the shape is {shorten_value(shape)}, and a list of whole numbers is expected",
            str(folder / ".zarray"),
            _COPY_AGAIN,
            kind=INVALID,
        )
    if dtype not in _DTYPES:
        raise UserError(
            (
                f"the numbers are of the type {shorten_value(dtype)}, and one of "
                f"{', '.join(_DTYPES)} is expected"
            ),
            str(folder / ".zarray"),
            "name a checkpoint of a language model",
            kind=UNSUPPORTED,
        )
    return tuple(shape)


class Writer:
    """Write `checkpoints/checkpoint_00000000` for CHECKPOINT_RESTORE_PATH.

    It has weights in float32 and no state of an optimizer.
    """

    def __init__(
        self,
        folder: Path,
        shapes: Mapping[str, tuple[int, ...]],
        layer_count: int,
        *,
        repeated: bool,
    ) -> None:
        """Prepare to write.

        Args:
            folder: The folder to write into.
            shapes: The shape of each array, by its path within a layer or outside the layers.
            layer_count: The number of layers.
            repeated: Stack the layers, as USE_REPEATED_LAYER needs them.
        """
        self._checkpoint = folder / "checkpoints" / "checkpoint_00000000"
        self._state = self._checkpoint / "state"
        self._shapes, self._layer_count, self._repeated = shapes, layer_count, repeated
        self._stores: dict[str, Any] = {}
        (self._checkpoint / "metadata").mkdir(parents=True)

    def write(self, path: str, layer: int | None, array: Any) -> None:
        """Write an array, or one layer of a stacked array.

        Args:
            path: The path within the layer, or in the model.
            layer: The layer; None outside the layers.
            array: The values in float32.
        """
        is_stacked = self._repeated and layer is not None
        full_path = _make_full_path(path, layer, repeated=self._repeated)
        folder = self._state / (_ARRAY_PREFIX + full_path)
        if full_path not in self._stores:
            shape = self._shapes[path]
            chunks = zarr_arrays.choose_chunks(shape, 4)
            if is_stacked:
                shape, chunks = (self._layer_count, *shape), [1, *chunks]
            self._stores[full_path] = zarr_arrays.create_array(folder, shape, chunks, "<f4")
        store = self._stores[full_path]
        with zarr_arrays.report_failed_writes(folder):
            (store[layer] if is_stacked else store).write(array).result()

    def finish(self) -> None:
        """Write the number of the step, and the metadata."""
        step = zarr_arrays.create_array(self._state / "step", (), [], "<u4")
        with zarr_arrays.report_failed_writes(self._state / "step"):
            step.write(np.uint32(0)).result()
        text = json.dumps(self._make_metadata())
        (self._checkpoint / "metadata" / "metadata").write_text(text, encoding="utf-8")

    def _make_metadata(self) -> dict[str, Any]:
        """Return the metadata that Paxml writes beside the state: the shapes of its arrays."""
        tree: dict[str, Any] = {}
        for full_path, store in self._stores.items():
            node = tree
            *parents, last = f"params.lm.{full_path}".split(".")
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = {
                "_array_metadata_tag": True,
                "is_optax_masked_node": False,
                "unpadded_shape": list(store.shape),
                "dtype": "float32",
            }
        return {"version": VERSION, "train_state_metadata": {"mdl_vars": tree}}


def format_options(settings: Mapping[str, Any]) -> str:
    """Return hyper-parameters as the `--fdl` options of a command line."""
    options = []
    for name, value in settings.items():
        text = "[" + ",".join(map(str, value)) + "]" if isinstance(value, list) else str(value)
        options.append(f"--fdl.{name}={text}")
    return " ".join(options)
