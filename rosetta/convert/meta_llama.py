"""Read and write LLaMA models as Meta releases them.

A model is a folder with params.json, and one file consolidated.NN.pth for each GPU over which the
model was split. Such a file is a part here: it has a share of most tensors, and all of the others.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import config_fields, json_documents, rotary_embedding, torch_file
from rosetta.convert.dtype_conversion import view_as_bits
from rosetta.convert.llama import (
    EMBEDDING,
    LLAMA2_ROTARY,
    OUTPUT,
    ModelSizes,
    check_no_leftover,
    check_rotary,
    list_tensor_shapes,
    split_tensor_name,
)
from rosetta.core.errors import CONFLICT, DAMAGED, DIFFERS, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.nn.rotary_positions import RotaryEmbedding

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# A buffer in the files of LLaMA and LLaMA-2. The model computes it again.
ROTARY_BUFFER = "rope.freqs"
_PART_NAME = re.compile(r"consolidated\.(\d\d)\.pth")
_WEIGHT_SUFFIXES = (".pth", ".pt", ".bin", ".safetensors")
_SPLIT_AXES = {
    "attention.wq": 0,
    "attention.wk": 0,
    "attention.wv": 0,
    "attention.wo": 1,
    "feed_forward.w1": 0,
    "feed_forward.w2": 1,
    "feed_forward.w3": 0,
}
# The number of parts of Meta's LLaMA-2, by the width of the residual stream.
_PART_COUNTS = {4096: 1, 5120: 2, 8192: 8}
_COPY_AGAIN = "download or copy it again"


def _find_split_axis(name: str) -> int | None:
    """Return the axis along which a tensor is split over the parts; None if each part has it all.

    The embedding is split along its width, as in LLaMA-2. LLaMA 3 splits it along the ids.
    """
    if name == EMBEDDING:
        return 1
    return 0 if name == OUTPUT else _SPLIT_AXES.get(split_tensor_name(name)[1])


def _name_part(number: int) -> str:
    """Return the file name of a part."""
    return f"consolidated.{number:02}.pth"


class Source:
    """A model of Meta; see `rosetta.convert.llama.Source`.

    Attributes:
        sizes: The sizes of the model.
    """

    def __init__(self, folder: Path) -> None:
        """Read everything but the values of the tensors.

        Args:
            folder: The folder of the model.

        Raises:
            UserError: The folder is not a complete LLaMA.
        """
        params_file = folder / "params.json"
        params = json_documents.read_document(params_file)
        where = str(params_file)
        self.folder = folder
        self.parts = [torch_file.read_tensors(path) for path in _list_parts(folder)]
        config_fields.check_fields(params, config_fields.META_RULES, where)
        epsilon = config_fields.read_epsilon(params, "norm_eps", where)
        rotary = LLAMA2_ROTARY
        if params.get("rope_theta") is not None:
            base = rotary_embedding.parse_base(params["rope_theta"], "rope_theta", where)
            rotary = RotaryEmbedding(base)
        self._check_number_of_parts(params)
        try:
            heads = params["n_heads"]
            self.sizes = ModelSizes(
                layers=params["n_layers"],
                dim=params["dim"],
                heads=heads,
                kv_heads=params.get("n_kv_heads") or heads,
                head_dim=params["dim"] // heads,
                hidden=len(self.parts) * self._part_shape("layers.0.feed_forward.w1")[0],
                vocab=self._count_ids(params["dim"]),
                epsilon=epsilon,
                rotary=rotary,
            ).check(str(folder))
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
            raise UserError(
                "not a LLaMA of Meta's: n_layers, dim, n_heads or norm_eps is missing or not valid",
                where,
                _COPY_AGAIN,
                kind=INVALID,
            ) from None
        self._check_sizes(params, where)

    def _check_number_of_parts(self, params: dict[str, Any]) -> None:
        """Raise UserError if there are fewer or more parts than the model was split into.

        Each part has an equal share of the queries' rows, which shows the number.
        """
        dim = params.get("dim")
        rows, *_ = self._part_shape("layers.0.attention.wq") or (0,)
        if type(dim) is not int or dim < 1 or rows < 1 or dim % rows:
            return  # These shapes do not show a number. The check of all shapes reports them.
        expected, number = dim // rows, len(self.parts)
        if number < expected:
            names = _name_part(number)
            if expected - number > 1:
                names += f" to {_name_part(expected - 1)}"
            raise UserError(
                f"{number} of the model's {expected} parts are there; missing: {names}",
                str(self.folder),
                "download or copy the missing files",
                kind=MISSING,
                value=number,
            )
        if number > expected:
            raise UserError(
                f"{number} parts are there, and the model was split into {expected}",
                str(self.folder),
                "move away the files of another model, or download or copy it again",
                kind=CONFLICT,
                value=number,
            )

    def _check_sizes(self, params: dict[str, Any], where: str) -> None:
        """Raise UserError if the tensors do not have the sizes that params.json states."""
        vocab = params.get("vocab_size")
        if vocab not in (None, -1, self.sizes.vocab) or isinstance(vocab, bool):
            raise UserError(
                (
                    f"'vocab_size' is {config_fields.shorten_value(vocab)}, and the embedding has "
                    f"{self.sizes.vocab} rows"
                ),
                where,
                _COPY_AGAIN,
                kind=DIFFERS,
            )
        multiple, multiplier = params.get("multiple_of"), params.get("ffn_dim_multiplier")
        if multiple is None and multiplier is None:
            return
        multiple = 256 if multiple is None else multiple
        multiplier = 1 if multiplier is None else multiplier
        if _compute_hidden_width(self.sizes.dim, multiple, multiplier) != self.sizes.hidden:
            multiple_text = config_fields.shorten_value(multiple)
            multiplier_text = config_fields.shorten_value(multiplier)
            raise UserError(
                (
                    f"'multiple_of' {multiple_text} and 'ffn_dim_multiplier' {multiplier_text} do "
                    f"not give the feed-forward width of the tensors, {self.sizes.hidden}"
                ),
                where,
                _COPY_AGAIN,
                kind=DAMAGED,
            )

    def _count_ids(self, dim: int) -> int:
        """Return the number of token ids, from the embedding's shape in one part."""
        rows, columns = self._part_shape(EMBEDDING)
        return rows if columns * len(self.parts) == dim else rows * len(self.parts)

    def _part_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in the first part."""
        return self._find_tensor(0, name).shape

    def _split_axis(self, name: str) -> int | None:
        """Return the axis along which a tensor is split over the parts of this model.

        It is None if each part has the whole tensor.
        """
        if name == EMBEDDING and self._part_shape(name)[-1] == self.sizes.dim:
            return 0
        return _find_split_axis(name)

    def find_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor.

        Raises:
            UserError: A part lacks the tensor, or the parts do not have equal shares of it.
        """
        shapes = [self._find_tensor(part, name).shape for part in range(len(self.parts))]
        if len(set(shapes)) > 1:
            other = next(shape for shape in shapes if shape != shapes[0])
            raise UserError(
                (
                    f"{name}.weight has different shapes in the parts: {list(shapes[0])} and "
                    f"{list(other)}"
                ),
                str(self.folder),
                _COPY_AGAIN,
                kind=DIFFERS,
            )
        whole = list(shapes[0])
        split_axis = self._split_axis(name) if len(shapes) > 1 else None
        if split_axis is not None and split_axis < len(whole):
            whole[split_axis] *= len(shapes)
        return tuple(whole)

    def check_unused(self) -> None:
        """Check the tensors that the conversion leaves out.

        Raises:
            UserError: A tensor is not one of a LLaMA.
        """
        expected = {f"{name}.weight" for name in list_tensor_shapes(self.sizes)}
        for number, part in enumerate(self.parts):
            where = str(self.folder / _name_part(number))
            if ROTARY_BUFFER in part:
                check_rotary(part[ROTARY_BUFFER](), self.sizes, ROTARY_BUFFER, where)
            check_no_leftover(part.keys() - expected - {ROTARY_BUFFER}, where)

    def _find_tensor(self, part: int, name: str) -> torch_file.StoredTensor:
        """Return a part's share of a tensor, without its values."""
        tensor = self.parts[part].get(f"{name}.weight")
        if tensor is None:
            raise UserError(
                f"{name}.weight is not in {_name_part(part)}",
                str(self.folder),
                _COPY_AGAIN,
                kind=MISSING,
            )
        return tensor

    def read(self, name: str) -> Any:
        """Return a whole tensor, joined from the parts.

        Raises:
            UserError: A share is missing or damaged, or a tensor that each part has is not the same
                in all of them.
        """
        tensors = [self._find_tensor(part, name)() for part in range(len(self.parts))]
        if len(tensors) == 1:
            return tensors[0]
        axis = self._split_axis(name)
        if axis is not None:
            return np.concatenate(tensors, axis)
        first, *others = tensors
        if any(
            tensor.dtype != first.dtype
            or not np.array_equal(view_as_bits(tensor), view_as_bits(first))
            for tensor in others
        ):
            raise UserError(
                f"{name}.weight is not the same in all parts",
                str(self.folder),
                _COPY_AGAIN,
                kind=DIFFERS,
            )
        return first


def _list_parts(folder: Path) -> list[Path]:
    """Return the files of the parts in their order.

    Raises:
        UserError: A file has a name like a part's but is none, or a number is left out.
    """
    numbered = {}
    for path in folder.iterdir():
        if match := _PART_NAME.fullmatch(path.name):
            numbered[int(match[1])] = path
    others = sorted(
        path.name
        for path in folder.glob("consolidated*")
        if path.suffix in _WEIGHT_SUFFIXES and not _PART_NAME.fullmatch(path.name)
    )
    if others:
        raise UserError(
            f"{others[0]!r} is not a part such as 'consolidated.00.pth'",
            str(folder),
            "move it away, or name a folder with one model in it",
            kind=CONFLICT,
            value=others[0],
        )
    missing = sorted(set(range(max(numbered, default=0) + 1)) - set(numbered))
    if missing:
        raise UserError(
            f"the file {_name_part(missing[0])} is missing",
            str(folder),
            _COPY_AGAIN,
            kind=MISSING,
        )
    return [numbered[number] for number in sorted(numbered)]


def _compute_hidden_width(dim: int, multiple: Any, multiplier: Any) -> int | None:
    """Return the feed-forward width that params.json states; None for values that are not valid.

    As in Meta's llama/model.py, it is 8/3 of `dim` times the multiplier, rounded up to a multiple.

    Args:
        dim: The width of the residual stream.
        multiple: The value of 'multiple_of'.
        multiplier: The value of 'ffn_dim_multiplier'.
    """
    if type(multiple) is not int or multiple < 1:
        return None
    if isinstance(multiplier, bool) or not isinstance(multiplier, (int, float)):
        return None
    if not 0 < multiplier < 1000:
        return None
    return -(-int(multiplier * (8 * dim // 3)) // multiple) * multiple


def _make_params(sizes: ModelSizes) -> dict[str, Any]:
    """Return the fields of params.json.

    Meta states the feed-forward width by a multiplier of 8/3 of `dim`, and a multiple to which the
    product is rounded up.
    """
    base_width = 8 * sizes.dim // 3
    params: dict[str, Any] = {
        "dim": sizes.dim,
        "n_layers": sizes.layers,
        "n_heads": sizes.heads,
        "norm_eps": sizes.epsilon,
        "vocab_size": sizes.vocab,
    }
    if sizes.kv_heads != sizes.heads:
        params["n_kv_heads"] = sizes.kv_heads
    if sizes.rotary != LLAMA2_ROTARY:
        params["rope_theta"] = sizes.rotary.base
    if -(-base_width // 256) * 256 == sizes.hidden:
        return params | {"multiple_of": 256}
    return params | {
        "multiple_of": sizes.hidden,
        "ffn_dim_multiplier": min(1.0, sizes.hidden / base_width),
    }


def write_model(
    folder: Path,
    sizes: ModelSizes,
    tensors: Iterable[tuple[str, Any]],
    dtype: Any,
    *,
    parts: int | None = None,
) -> None:
    """Write a model of Meta.

    Args:
        folder: The folder to write into.
        sizes: The sizes of the model.
        tensors: The name and value of each tensor, in the order of `list_tensor_shapes` and in
            `dtype`.
        dtype: The type of the numbers.
        parts: The number of parts; that of Meta's LLaMA-2 of this width if None.

    Raises:
        UserError: Meta's files cannot have such a model, or it does not split into so many parts.
    """
    count = parts or _PART_COUNTS.get(sizes.dim, 1)
    _check_split(sizes, count)
    part_sizes = {
        f"{name}.weight": _split_shape(name, shape, count)
        for name, shape in list_tensor_shapes(sizes).items()
    }
    with contextlib.ExitStack() as stack:
        writers = []
        for number in range(count):
            writer = torch_file.Writer(folder / _name_part(number), part_sizes, dtype)
            writers.append(stack.enter_context(contextlib.closing(writer)))
        for name, tensor in tensors:
            axis = _find_split_axis(name)
            shares = [tensor] * count if axis is None else np.split(tensor, count, axis)
            for writer, share in zip(writers, shares, strict=True):
                writer.add(f"{name}.weight", share)
    json_documents.write_document(folder / "params.json", _make_params(sizes))


def _check_split(sizes: ModelSizes, count: int) -> None:
    """Raise UserError if Meta's files cannot have a model, or it does not split into `count`."""
    if sizes.head_dim * sizes.heads != sizes.dim:
        raise UserError(
            (
                f"Meta's files cannot have {sizes.heads} heads of {sizes.head_dim} features at a "
                f"width of {sizes.dim}"
            ),
            "--to meta",
            "give --to hf",
            kind=UNSUPPORTED,
        )
    if sizes.rotary.scaling is not None:
        raise UserError(
            "Meta's files do not have the numbers of a scaled rotary embedding",
            "--to meta",
            "give --to hf",
            kind=UNSUPPORTED,
        )
    for name in ("kv_heads", "hidden", "vocab"):
        size = getattr(sizes, name)
        if size % count:
            raise UserError(
                f"{name} {size} does not split into {count}",
                "--parts",
                "give a number that divides it, or 1",
                kind=INVALID,
                value=count,
            )


def _split_shape(name: str, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Return the shape of a part's share of a tensor that is split into `count`."""
    share = list(shape)
    axis = _find_split_axis(name)
    if axis is not None:
        share[axis] //= count
    return tuple(share)
