"""Read and write LLaMA models as checkpoints of Paxml.

A checkpoint is a folder `checkpoint_N`. Its folder `state` has one zarr folder for each array. The
name of that folder is the path of the array in the tree of the training state. The layers of a
model are arrays of their own, or, with USE_REPEATED_LAYER, stacked in arrays whose first dimension
is for the layers.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rosetta.convert import json_documents, zarr_arrays
from rosetta.convert.config_fields import shorten_value
from rosetta.convert.llama import (
    TOP_ARRAYS,
    ModelSizes,
    check_no_leftover,
    find_array,
    list_array_shapes,
    list_layer_arrays,
    list_tensor_shapes,
    pack_array,
    split_tensor_name,
    unpack_array,
)
from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, DIFFERS, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.health import checkpoint_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# The beginnings of the paths of arrays: of the whole model, of one layer, and of stacked layers.
_ARRAY_PREFIX = "mdl_vars.params.lm."
_LAYER_PREFIX, _REPEATED_PREFIX = "transformer.x_layers_{}.", "transformer.repeat.sub.x_layers_0."
_DTYPES = ("<f4", "<f2", "bfloat16")
# paxml/checkpoint_version.py: one folder for each array, and the shapes in the metadata.
VERSION = 1.1
_COPY_AGAIN = "copy the checkpoint again"
_COMPLETE_CHECKPOINT = "name a complete checkpoint of a LLaMA"
# Pax's experiments for LLaMA-2, by dim, layers, kv_heads and hidden.
_EXPERIMENTS = {
    (4096, 32, 32, 11008): "LLaMA7B",
    (5120, 40, 40, 13824): "LLaMA13B",
    (8192, 80, 8, 28672): "LLaMA70B",
}


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
        "the folder has no checkpoint_N",
        str(path),
        "name the folder of a run, or one of its folders checkpoint_N",
        kind=MISSING,
    )


class _ArrayPlace(NamedTuple):
    """The array that has a tensor.

    Attributes:
        layer: The layer of the tensor; None outside the layers.
        path: The path within the layer, or in the model.
        full_path: The path in the model.
        position: Which of the tensors in the array it is.
    """

    layer: int | None
    path: str
    full_path: str
    position: int


class Source:
    """A checkpoint of Paxml; see `rosetta.convert.llama.Source`.

    The weights of LoRA adapters are added to the arrays that they adapt.

    Attributes:
        sizes: The sizes of the model.
        adapted: The number of arrays that have a LoRA adapter.
    """

    def __init__(self, path: Path, epsilon: float = 1e-5) -> None:
        """Read everything but the values of the arrays.

        Args:
            path: The folder of a run or of a checkpoint.
            epsilon: The epsilon of the RMS norms, which checkpoints do not have.

        Raises:
            UserError: The folder has no checkpoint of a LLaMA.
        """
        self.folder = find_checkpoint(path) / "state"
        self._where = str(self.folder.parent)
        if not self.folder.is_dir():
            raise UserError(
                "the checkpoint has no folder 'state' of Paxml's",
                self._where,
                "name a checkpoint of Pax",
                kind=MISSING,
            )
        self.shapes = {
            folder.name.removeprefix(_ARRAY_PREFIX): self._read_shape(folder)
            for folder in self.folder.iterdir()
            if folder.name.startswith(_ARRAY_PREFIX)
        }
        self.repeated = any(name.startswith(_REPEATED_PREFIX) for name in self.shapes)
        try:
            self.sizes = self._infer_sizes(epsilon).check(self._where)
        except (KeyError, ValueError, IndexError):
            raise UserError(
                "not a checkpoint of a LLaMA of Pax's",
                self._where,
                "name a checkpoint that was saved without OCDBT",
                kind=UNSUPPORTED,
            ) from None
        self._check_layers()
        self.adapted = sum(name.endswith(".lora_a") for name in self.shapes)
        self._names = {path.name for path in self.folder.iterdir()}
        # The last array that was unpacked: q, k and v come from one.
        self._unpacked: tuple[str, tuple[Any, ...]] = ("", ())
        # The arrays of which no chunk is missing.
        self._complete = set[str]()

    def _infer_sizes(self, epsilon: float) -> ModelSizes:
        """Return the sizes of the model from those of the arrays.

        Raises:
            KeyError, ValueError, IndexError: The arrays are not those of a LLaMA.
        """
        vocab, dim = self.shapes["embedding_lookup.emb_var"]
        combined = self._layer_shape("self_attention.combined_qkv.w")
        if combined:
            heads, head_dim = combined[2:]
            kv_heads = heads
        else:
            heads, head_dim = self._layer_shape("self_attention.query.w")[1:]
            key_shape = self._layer_shape("self_attention.key.w")
            kv_heads = key_shape[1] if len(key_shape) > 2 else 1
        if self.repeated:
            layers = self.shapes[f"{_REPEATED_PREFIX}layer_norm.scale"][0]
        else:
            layers = self._count_layers()
        return ModelSizes(
            layers=layers,
            dim=dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            hidden=self._layer_shape("ff_layer.ffn_layer1_gate.linear.w")[1],
            vocab=vocab,
            epsilon=epsilon,
        )

    def _count_layers(self) -> int:
        """Return the number of layers that are arrays of their own."""
        matches = (re.match(r"transformer\.x_layers_(\d+)\.", name) for name in self.shapes)
        return 1 + max((int(match[1]) for match in matches if match), default=-1)

    def _check_layers(self) -> None:
        """Raise UserError if an array of a layer does not fit the others."""
        expected = list_array_shapes(self.sizes)
        for name in list_layer_arrays(self.sizes):
            for layer in range(self.sizes.layers):
                if self._layer_shape(name, layer) != expected[name]:
                    raise self._make_size_error(name)

    def _make_size_error(self, path: str) -> UserError:
        """Return the error for an array whose shape does not fit the others."""
        return UserError(
            f"the shape of {path} does not fit the other arrays",
            self._where,
            _COMPLETE_CHECKPOINT,
            kind=DIFFERS,
            value=path,
        )

    @staticmethod
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
                "name a checkpoint of a LLaMA",
                kind=UNSUPPORTED,
            )
        return tuple(shape)

    def _prefix(self, layer: int) -> str:
        """Return the beginning of the paths of a layer's arrays."""
        return _REPEATED_PREFIX if self.repeated else _LAYER_PREFIX.format(layer)

    def _layer_shape(self, path: str, layer: int = 0) -> tuple[int, ...]:
        """Return the shape of a layer's array; () if there is none."""
        shape = self.shapes.get(self._prefix(layer) + path, ())
        return shape[1:] if self.repeated else shape

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

        TensorStore would read such a chunk as zeros. Paxml, Orbax and `write_checkpoint` write
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

    def _read_merged(self, full_path: str, layer: int | None) -> Any:
        """Return the values of an array, with its LoRA adapter added if there is one.

        The adapter's two factors are [inputs, rank] and [outputs, rank].
        """
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

    def _find_place(self, name: str) -> _ArrayPlace:
        """Return the array that has a tensor. Raise UserError if the checkpoint lacks it."""
        layer, name_in_layer = split_tensor_name(name)
        path, names = find_array(name_in_layer, self.sizes)
        full_path = path if layer is None else self._prefix(layer) + path
        if full_path not in self.shapes:
            raise UserError(
                f"the checkpoint does not have {full_path}",
                self._where,
                _COMPLETE_CHECKPOINT,
                kind=MISSING,
            )
        return _ArrayPlace(layer, path, full_path, names.index(name_in_layer))

    def find_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor by Meta's name.

        Raises:
            UserError: The checkpoint does not have the tensor, or its array has another shape than
                the model needs or lacks a chunk.
        """
        place = self._find_place(name)
        if place.layer is None:
            array_shape = self.shapes[place.path]
        else:
            array_shape = self._layer_shape(place.path, place.layer)
        if array_shape != list_array_shapes(self.sizes)[place.path]:
            raise self._make_size_error(place.path)
        self._check_chunks(place.full_path)
        return list_tensor_shapes(self.sizes)[name]

    def check_unused(self) -> None:
        """Check the arrays that the conversion leaves out.

        The states of the optimizer are left out: they are not weights.

        Raises:
            UserError: An array is not one of a LLaMA, nor of a LoRA adapter of one.
        """
        expected = set(TOP_ARRAYS)
        for layer in range(1 if self.repeated else self.sizes.layers):
            expected |= {self._prefix(layer) + path for path in list_layer_arrays(self.sizes)}
        adapters = set[str]()
        for path in expected:
            pair = {path.removesuffix("w") + name for name in ("lora_a", "lora_b")}
            if path.endswith(".w") and pair <= self.shapes.keys():
                adapters |= pair
        used = {_ARRAY_PREFIX + path for path in expected | adapters}
        weights = {name for name in self._names if name.startswith("mdl_vars.")}
        check_no_leftover(weights - used, self._where)

    def read(self, name: str) -> Any:
        """Return a tensor by Meta's name.

        Raises:
            UserError: The array of the tensor is missing or damaged.
        """
        place = self._find_place(name)
        key = f"{place.full_path} {place.layer}"
        if self._unpacked[0] != key:
            array = self._read_merged(place.full_path, place.layer)
            self._unpacked = key, unpack_array(place.path, array, self.sizes)
        return self._unpacked[1][place.position]


def _make_metadata(sizes: ModelSizes, full_paths: Iterable[str]) -> dict[str, Any]:
    """Return the metadata that Paxml writes beside the state: the shapes of its arrays."""
    shapes = list_array_shapes(sizes)
    tree: dict[str, Any] = {}
    for full_path in full_paths:
        node = tree
        *parents, last = f"params.lm.{full_path}".split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        path = re.sub(r"^transformer\..*?x_layers_\d+\.", "", full_path)
        stacked = [sizes.layers] if full_path.startswith(_REPEATED_PREFIX) else []
        node[last] = {
            "_array_metadata_tag": True,
            "is_optax_masked_node": False,
            "unpadded_shape": [*stacked, *shapes[path]],
            "dtype": "float32",
        }
    return {"version": VERSION, "train_state_metadata": {"mdl_vars": tree}}


class _ArrayWriter:
    """Write the arrays of a checkpoint.

    Attributes:
        stores: The TensorStores of the arrays that were created, by their paths in the model.
    """

    def __init__(self, state: Path, sizes: ModelSizes, *, repeated: bool) -> None:
        """Prepare to write.

        Args:
            state: The folder `state` of the checkpoint.
            sizes: The sizes of the model.
            repeated: Whether the layers are stacked.
        """
        self.stores: dict[str, Any] = {}
        self._state, self._sizes, self._repeated = state, sizes, repeated
        self._shapes = list_array_shapes(sizes)

    def write(self, path: str, layer: int | None, array: Any) -> None:
        """Write an array, or one layer of a stacked array.

        Args:
            path: The path within the layer, or in the model.
            layer: The layer; None outside the layers.
            array: The values in float32.
        """
        is_stacked = self._repeated and layer is not None
        full_path = path
        if layer is not None:
            prefix = _REPEATED_PREFIX if self._repeated else _LAYER_PREFIX.format(layer)
            full_path = prefix + path
        folder = self._state / (_ARRAY_PREFIX + full_path)
        if full_path not in self.stores:
            shape = self._shapes[path]
            chunks = zarr_arrays.choose_chunks(shape, 4)
            if is_stacked:
                shape, chunks = (self._sizes.layers, *shape), [1, *chunks]
            self.stores[full_path] = zarr_arrays.create_array(folder, shape, chunks, "<f4")
        store = self.stores[full_path]
        with zarr_arrays.report_failed_writes(folder):
            (store[layer] if is_stacked else store).write(array).result()


def write_checkpoint(
    folder: Path, sizes: ModelSizes, tensors: Iterable[tuple[str, Any]], *, repeated: bool = False
) -> None:
    """Write `checkpoints/checkpoint_00000000` for CHECKPOINT_RESTORE_PATH.

    It has weights in float32 and no state of an optimizer.

    Args:
        folder: The folder to write into.
        sizes: The sizes of the model.
        tensors: The name and value of each tensor, in the order of `list_tensor_shapes` and in
            float32.
        repeated: Stack the layers, as USE_REPEATED_LAYER needs them.
    """
    checkpoint = folder / "checkpoints" / "checkpoint_00000000"
    state = checkpoint / "state"
    (checkpoint / "metadata").mkdir(parents=True)
    writer = _ArrayWriter(state, sizes, repeated=repeated)
    # The tensors of an array wait for the others of the array, for example q for k and v.
    waiting: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors:
        layer, name_in_layer = split_tensor_name(name)
        path, names = find_array(name_in_layer, sizes)
        own_tensors = waiting.setdefault(path, {})
        own_tensors[name_in_layer] = tensor
        if len(own_tensors) == len(names):
            del waiting[path]
            ordered = [own_tensors[own_name] for own_name in names]
            writer.write(path, layer, pack_array(path, ordered, sizes))
    step = zarr_arrays.create_array(state / "step", (), [], "<u4")
    with zarr_arrays.report_failed_writes(state / "step"):
        step.write(np.uint32(0)).result()
    text = json.dumps(_make_metadata(sizes, writer.stores))
    (checkpoint / "metadata" / "metadata").write_text(text, encoding="utf-8")


def describe_experiment(sizes: ModelSizes) -> str:
    """Return how to choose the experiment of Pax that fits a checkpoint.

    It is the name of a known experiment, or the `--fdl` options for any other.
    """
    name = _EXPERIMENTS.get((sizes.dim, sizes.layers, sizes.kv_heads, sizes.hidden))
    if name and sizes.vocab == 32000 and math.isclose(sizes.epsilon, 1e-5):
        return f"the experiment is {name}"
    settings = sizes.make_fdl_settings().items()
    options = " ".join(f"--fdl.{setting}={value}" for setting, value in settings)
    return f"give the experiment {options}"
