"""LLaMA's weights in a checkpoint of Paxml: a folder for each array (zarr), by its path in the
tree, in `checkpoint_N/state`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import output_folder
from rosetta.convert.config_fields import shorten_value
from rosetta.convert.llama import (
    TOP_ARRAYS,
    ModelShape,
    check_no_leftover,
    list_array_sizes,
    list_layer_arrays,
    list_tensor_sizes,
    pack_array,
    unpack_array,
)
from rosetta.core import run_folders
from rosetta.core.errors import DAMAGED, DIFFERS, FAILED, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.health import checkpoint_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_ARRAY_PREFIX = "mdl_vars.params.lm."
_LAYER_PREFIX, _REPEATED_PREFIX = "transformer.x_layers_{}.", "transformer.repeat.sub.x_layers_0."
_LARGEST_CHUNK = 1 << 26  # bytes: several devices read one array at once
_DTYPES = ("<f4", "<f2", "bfloat16")
VERSION = 1.1  # paxml/checkpoint_version.py: a folder for each array, shapes in the metadata


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint that a path names: itself, or the newest in the folder or in
    `checkpoints` below. UserError for none.
    """
    if run_folders.parse_checkpoint_step(path.name) is not None:
        return path
    for folder in (path / "checkpoints", path):
        numbered = [
            (step, each)
            for each in (folder.iterdir() if folder.is_dir() else ())
            if (step := run_folders.parse_checkpoint_step(each.name)) is not None
        ]
        if numbered:
            return max(numbered)[1]
    raise UserError(
        "there is no checkpoint_N in it",
        str(path),
        "name the folder of a run, or one checkpoint_N of it",
        kind=MISSING,
    )


class Source:
    """A checkpoint, of layers by themselves or repeated ones. Weights of LoRA are added to those
    that they adapt.

    Attributes:
      shape: the model's sizes, with this epsilon, which no checkpoint has.
      adapted: how many arrays LoRA has changed.
    """

    def __init__(self, path: Path, epsilon: float = 1e-5) -> None:
        self.folder = find_checkpoint(path) / "state"
        if not self.folder.is_dir():
            raise UserError(
                "it holds no state of Paxml's",
                str(self.folder.parent),
                "name a checkpoint of Pax",
                kind=MISSING,
            )
        names = {
            each.name.removeprefix(_ARRAY_PREFIX): each
            for each in self.folder.iterdir()
            if each.name.startswith(_ARRAY_PREFIX)
        }
        self.sizes = {name: self._size(each) for name, each in names.items()}
        self.repeated = any(name.startswith(_REPEATED_PREFIX) for name in self.sizes)
        where = str(self.folder.parent)
        layers = 1 + max(
            (
                int(each[1])
                for each in (
                    re.match(r"transformer\.x_layers_(\d+)\.", name) for name in self.sizes
                )
                if each
            ),
            default=-1,
        )
        try:
            (vocab, dim), norm = (
                self.sizes["embedding_lookup.emb_var"],
                self._of("layer_norm.scale"),
            )
            combined = (
                self._of("self_attention.combined_qkv.w")
                if f"{self._prefix(0)}self_attention.combined_qkv.w" in self.sizes
                else None
            )
            heads, head_dim = combined[2:] if combined else self._of("self_attention.query.w")[1:]
            keys = (0, *combined[2:]) if combined else self._of("self_attention.key.w")
            if self.repeated:
                layers = self.sizes[f"{_REPEATED_PREFIX}layer_norm.scale"][0]
            hidden = self._of("ff_layer.ffn_layer1_gate.linear.w")[1]
            self.shape = ModelShape(
                layers,
                dim,
                heads,
                keys[1] if len(keys) > 2 else 1,
                head_dim,
                hidden,
                vocab,
                epsilon,
            ).check(where)
        except (KeyError, ValueError, IndexError):
            raise UserError(
                "it is no checkpoint of a LLaMA in Pax's layout",
                where,
                "name one, saved without OCDBT",
                kind=UNSUPPORTED,
            ) from None
        expected = list_array_sizes(self.shape)
        wrong = next(
            (
                name
                for name in list_layer_arrays(self.shape)
                for layer in range(layers)
                if self._of(name, layer) != expected[name]
            ),
            None,
        )
        if wrong or norm != (dim,):
            raise UserError(
                f"{wrong or 'layer_norm.scale'} is of another size than the rest",
                where,
                "name a whole checkpoint of a LLaMA",
                kind=DIFFERS,
                value=wrong or "layer_norm.scale",
            )
        self.adapted = sum(name.endswith(".lora_a") for name in self.sizes)
        self._names = {each.name for each in self.folder.iterdir()}
        self.kept: tuple[str, tuple[Any, ...]] = ("", ())
        self._complete = set[str]()  # arrays whose chunks are all there

    @staticmethod
    def _size(folder: Path) -> tuple[int, ...]:
        about = output_folder.read_document(folder / ".zarray")
        size, kind = about.get("shape"), about.get("dtype")
        if not isinstance(size, list) or not all(
            type(length) is int and length >= 0 for length in size
        ):
            raise UserError(
                f"its shape is {shorten_value(size)}, and a list of whole numbers is expected",
                str(folder / ".zarray"),
                "copy the checkpoint again",
                kind=INVALID,
            )
        if kind not in _DTYPES:
            raise UserError(
                (
                    f"its numbers are of the type {shorten_value(kind)}, and one of "
                    f"{', '.join(_DTYPES)} is expected"
                ),
                str(folder / ".zarray"),
                "name a checkpoint of a LLaMA",
                kind=UNSUPPORTED,
            )
        return tuple(size)

    def _prefix(self, layer: int) -> str:
        return _REPEATED_PREFIX if self.repeated else _LAYER_PREFIX.format(layer)

    def _of(self, name: str, layer: int = 0) -> tuple[int, ...]:
        size = self.sizes.get(self._prefix(layer) + name, ())
        return size[1:] if self.repeated else size  # of all layers

    def _array(self, name: str, layer: int | None) -> Any:
        import tensorstore  # type: ignore[import-not-found]

        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "file", "path": str(self.folder / (_ARRAY_PREFIX + name))},
        }
        try:
            store = tensorstore.open(spec, open=True, read=True).result()
            self._check_chunks(name)
            return np.asarray(
                (store if layer is None or not self.repeated else store[layer]).read().result()
            )
        except ValueError as problem:
            raise UserError(
                f"the array cannot be read: {str(problem)[:200]}",
                str(self.folder / (_ARRAY_PREFIX + name)),
                "copy the checkpoint again",
                kind=DAMAGED,
            ) from None

    def _check_chunks(self, name: str) -> None:
        """Raise UserError where an array lacks the file of a chunk.

        Neither Paxml nor Orbax nor `write` leaves out a chunk of zeros.
        """
        if name in self._complete:
            return
        folder = self.folder / (_ARRAY_PREFIX + name)
        about = output_folder.read_document(folder / ".zarray")
        try:
            missing = checkpoint_files.find_missing_chunk(
                folder, checkpoint_files.list_chunk_names(about)
            )
        except (ValueError, KeyError, TypeError, ArithmeticError):
            raise UserError(
                f"its chunks are {shorten_value(about.get('chunks'))}, which do not fit its shape",
                str(folder / ".zarray"),
                "copy the checkpoint again",
                kind=INVALID,
            ) from None
        if missing:
            raise UserError(
                f"the file {missing!r} of the array is missing, so its values are not known",
                str(folder),
                "copy the checkpoint again",
                kind=MISSING,
                value=missing,
            )
        self._complete.add(name)

    def _merged(self, name: str, layer: int | None) -> Any:
        value, module = self._array(name, layer), name.removesuffix("w")
        if f"{module}lora_a" not in self.sizes:
            return value
        down, up = (
            self._array(f"{module}lora_{which}", layer).astype(np.float32) for which in "ab"
        )
        try:
            return (value + (down @ up.swapaxes(-1, -2)).reshape(value.shape)).astype(value.dtype)
        except ValueError:
            what = (
                f"lora_a of {list(down.shape)} and lora_b of {list(up.shape)} do not fit the "
                f"array of {list(value.shape)} that they adapt"
            )
            raise UserError(
                what,
                str(self.folder / (_ARRAY_PREFIX + name)),
                "copy the checkpoint again",
                kind=DAMAGED,
            ) from None

    def size(self, name: str) -> tuple[int, ...]:
        """Return the size of a tensor by Meta's name.

        UserError where the array that holds it has another size than its model.
        """
        layer, path = self._path(name)
        held = self._of(path, layer) if layer is not None else self.sizes[path]
        if held != list_array_sizes(self.shape)[path]:
            raise UserError(
                f"{path} is of another size than the rest",
                str(self.folder.parent),
                "name a whole checkpoint of a LLaMA",
                kind=DIFFERS,
                value=path,
            )
        self._check_chunks(path if layer is None else self._prefix(layer) + path)
        return list_tensor_sizes(self.shape)[name]

    def check_unused(self) -> None:
        """Raise UserError for an array that a LLaMA does not have.

        States of the optimizer are not weights, and are left behind.
        """
        expected = set(TOP_ARRAYS)
        for layer in range(1 if self.repeated else self.shape.layers):
            expected |= {self._prefix(layer) + path for path in list_layer_arrays(self.shape)}
        adapters = set[str]()
        for path in expected:
            pair = {path.removesuffix("w") + name for name in ("lora_a", "lora_b")}
            if path.endswith(".w") and pair <= self.sizes.keys():
                adapters |= pair
        used = {_ARRAY_PREFIX + path for path in expected | adapters}
        weights = {name for name in self._names if name.startswith("mdl_vars.")}
        check_no_leftover(weights - used, str(self.folder.parent))

    def _path(self, name: str) -> tuple[int | None, str]:
        """Return the layer, None for none, and the path of the array that holds a tensor."""
        layer = int(name.split(".")[1]) if name.startswith("layers.") else None
        arrays, own = (
            (TOP_ARRAYS, name)
            if layer is None
            else (list_layer_arrays(self.shape), name.split(".", 2)[2])
        )
        path = next(path for path, names in arrays.items() if own in names)
        whole = path if layer is None else self._prefix(layer) + path
        if whole not in self.sizes:
            raise UserError(
                f"{whole} is not in it",
                str(self.folder.parent),
                "name a whole checkpoint of a LLaMA",
                kind=MISSING,
            )
        return layer, path

    def read(self, name: str) -> Any:
        """Return a tensor by Meta's name."""
        layer, path = self._path(name)
        arrays, own = (
            (TOP_ARRAYS, name)
            if layer is None
            else (list_layer_arrays(self.shape), name.split(".", 2)[2])
        )
        whole = path if layer is None else self._prefix(layer) + path
        key = f"{whole} {layer}"
        if self.kept[0] != key:  # q, k and v come of one array
            self.kept = key, unpack_array(path, self._merged(whole, layer), self.shape)
        return self.kept[1][arrays[path].index(own)]


def _choose_chunks(size: tuple[int, ...], width: int) -> list[int]:
    """Return a chunk's size: the array's, halved along its largest dimensions until it is small
    enough.
    """
    chunk = list(size)
    while math.prod(chunk) * width > _LARGEST_CHUNK:
        largest = chunk.index(max(chunk))
        chunk[largest] = -(-chunk[largest] // 2)
    return chunk


@contextlib.contextmanager
def _report_failed_writes(folder: Path) -> Iterator[None]:
    """Raise UserError where TensorStore cannot write an array: a full disk, a quota, a limit of
    files' sizes, permissions.
    """
    try:
        yield
    except OSError:
        raise
    except (
        Exception
    ) as problem:  # TensorStore raises ValueError and RuntimeError for what the system said
        number = re.search(r"os_error_code='(\d+)'|OS error (\d+)", str(problem))
        words = re.search(r"\[OS error: ([^\]]+)\]", str(problem))  # of the TensorStore of pax-1.4
        if number is None and words is None and " local file " not in str(problem):
            raise
        what = words[1] if words else str(problem)[-200:]
        what = os.strerror(int(number[1] or number[2])) if number else what
        raise UserError(
            f"the array cannot be written ({what})",
            str(folder),
            "make room or name another folder",
            kind=FAILED,
        ) from None


def _create_array(folder: Path, size: tuple[int, ...], chunks: list[int], kind: str) -> Any:
    import tensorstore

    metadata = {
        "shape": list(size),
        "chunks": chunks,
        "dtype": kind,
        "compressor": {"id": "zstd", "level": 1},
        "order": "C",
    }
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(folder)},
        "metadata": metadata,
        "create": True,
    }
    with _report_failed_writes(folder):
        return tensorstore.open(spec).result()


def _make_metadata(shape: ModelShape, paths: Iterable[str]) -> dict[str, Any]:
    """Return what Paxml keeps of a state's arrays beside them."""
    known = list_array_sizes(shape)
    tree: dict[str, Any] = {}
    for path in paths:
        at: dict[str, Any] = tree
        *above, last = f"params.lm.{path}".split(".")
        for step in above:
            at = at.setdefault(step, {})
        repeated, plain = (
            path.startswith(_REPEATED_PREFIX),
            re.sub(r"^transformer\..*?x_layers_\d+\.", "", path),
        )
        size = [*([shape.layers] if repeated else []), *known[plain]]
        at[last] = {
            "_array_metadata_tag": True,
            "is_optax_masked_node": False,
            "unpadded_shape": size,
            "dtype": "float32",
        }
    return {"version": VERSION, "train_state_metadata": {"mdl_vars": tree}}


def write_checkpoint(
    folder: Path, shape: ModelShape, tensors: Iterable[tuple[str, Any]], *, repeated: bool = False
) -> None:
    """Write `checkpoints/checkpoint_00000000` with weights in float32 and nothing else, for
    CHECKPOINT_RESTORE_PATH. `tensors`: in the order of `sizes`.
    """
    checkpoint = folder / "checkpoints" / "checkpoint_00000000"
    state, known, layer_paths = (
        checkpoint / "state",
        list_array_sizes(shape),
        list_layer_arrays(shape),
    )
    (checkpoint / "metadata").mkdir(parents=True)
    waiting: dict[str, dict[str, Any]] = {}
    stores: dict[str, Any] = {}
    for name, tensor in tensors:
        layer = int(name.split(".")[1]) if name.startswith("layers.") else None
        own, made = (name, TOP_ARRAYS) if layer is None else (name.split(".", 2)[2], layer_paths)
        path = next(path for path, names in made.items() if own in names)
        held = waiting.setdefault(path, {})
        held[own] = tensor
        if len(held) < len(made[path]):
            continue
        value = pack_array(path, [held[each] for each in made[path]], shape)
        del waiting[path]
        stacked = repeated and layer is not None
        whole = (
            path
            if layer is None
            else (_REPEATED_PREFIX if repeated else _LAYER_PREFIX.format(layer)) + path
        )
        if whole not in stores:
            chunks = _choose_chunks(known[path], 4)
            stores[whole] = _create_array(
                state / (_ARRAY_PREFIX + whole),
                (shape.layers, *known[path]) if stacked else known[path],
                [1, *chunks] if stacked else chunks,
                "<f4",
            )
        with _report_failed_writes(state / (_ARRAY_PREFIX + whole)):
            (stores[whole][layer] if stacked else stores[whole]).write(value).result()
    step = _create_array(state / "step", (), [], "<u4")
    with _report_failed_writes(state / "step"):
        step.write(np.uint32(0)).result()
    text = json.dumps(_make_metadata(shape, stores))
    (checkpoint / "metadata" / "metadata").write_text(text, encoding="utf-8")


def describe_experiment(shape: ModelShape) -> str:
    """Return the words that make the experiment fit the checkpoint."""
    known_sizes = (
        (4096, 32, 32, 11008, "LLaMA7B"),
        (5120, 40, 40, 13824, "LLaMA13B"),
        (8192, 80, 8, 28672, "LLaMA70B"),
    )
    known = next(
        (
            name
            for dim, layers, keys, hidden, name in known_sizes
            if (shape.dim, shape.layers, shape.kv_heads, shape.hidden)
            == (dim, layers, keys, hidden)
        ),
        None,
    )
    usual = shape.vocab == 32000 and math.isclose(shape.epsilon, 1e-5)
    return (
        f"the experiment is {known}"
        if known and usual
        else "give the experiment "
        + " ".join(f"--fdl.{name}={value}" for name, value in shape.make_fdl_settings().items())
    )
