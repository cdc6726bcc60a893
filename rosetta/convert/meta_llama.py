"""LLaMA's weights as Meta hands them out: params.json, and consolidated.NN.pth for each GPU that
the model was split over.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import config_fields, output_folder, torch_file
from rosetta.convert.dtype_conversion import view_as_bits
from rosetta.convert.llama import (
    EMBEDDING,
    OUTPUT,
    ModelShape,
    check_no_leftover,
    check_rotary,
    list_tensor_sizes,
)
from rosetta.core.errors import CONFLICT, DAMAGED, DIFFERS, INVALID, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ROTARY_BUFFER = "rope.freqs"  # a buffer of LLaMA's and LLaMA-2's files; the model computes it again
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
_PART_COUNTS = {
    4096: 1,
    5120: 2,
    8192: 8,
}  # by the residual stream's width, as LLaMA-2 was handed out


def _find_split_axis(name: str) -> int | None:
    """Return the axis a tensor is split along, None for one that every part has.

    An embedding is split along its width (LLaMA 3's is not).
    """
    if name == EMBEDDING:
        return 1
    return 0 if name == OUTPUT else _SPLIT_AXES.get(name.split(".", 2)[-1])


class Source:
    """A folder of Meta's.

    Attributes:
      shape: the model's sizes.
    """

    def __init__(self, folder: Path) -> None:
        params = output_folder.read_document(folder / "params.json")
        numbered = {
            int(found[1]): path
            for path in folder.iterdir()
            if (found := _PART_NAME.fullmatch(path.name))
        }
        odd = sorted(
            path.name
            for path in folder.glob("consolidated*")
            if path.suffix in _WEIGHT_SUFFIXES and not _PART_NAME.fullmatch(path.name)
        )
        if odd:
            raise UserError(
                f"{odd[0]!r} lies there, which is not a part as 'consolidated.00.pth' is",
                str(folder),
                "move it away, or name a folder with one model in it",
                kind=CONFLICT,
                value=odd[0],
            )
        missing = sorted(set(range(max(numbered, default=0) + 1)) - set(numbered))
        if missing:
            raise UserError(
                f"consolidated.{missing[0]:02}.pth is not there",
                str(folder),
                "download or copy it again",
                kind=MISSING,
            )
        self.folder, self.parts = (
            folder,
            [torch_file.read_tensors(numbered[number]) for number in sorted(numbered)],
        )
        where = str(folder / "params.json")
        config_fields.check_rotary_base(params.get("rope_theta"), where)
        config_fields.check_fields(
            params,
            config_fields.META_READ_FIELDS,
            config_fields.META_FIXED_VALUES,
            config_fields.META_HARMLESS_FIELDS,
            where,
        )
        epsilon = config_fields.read_epsilon(params, "norm_eps", where)
        self._check_number_of_parts(params)
        try:
            heads = params["n_heads"]
            hidden = len(self.parts) * self._part_size("layers.0.feed_forward.w1")[0]
            self.shape = ModelShape(
                params["n_layers"],
                params["dim"],
                heads,
                params.get("n_kv_heads") or heads,
                params["dim"] // heads,
                hidden,
                self._vocab(params["dim"]),
                epsilon,
            ).check(str(folder))
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
            raise UserError(
                "it is not as Meta's is: it lacks n_layers, dim, n_heads or norm_eps",
                where,
                "download or copy it again",
                kind=INVALID,
            ) from None
        self._check_sizes(params, where)

    def _check_number_of_parts(self, params: dict[str, Any]) -> None:
        """Raise UserError where there are fewer or more parts than the model was split into: each
        has an equal share of the queries' rows.
        """
        dim, (rows, *_) = params.get("dim"), self._part_size("layers.0.attention.wq") or (0,)
        if type(dim) is not int or dim < 1 or rows < 1 or dim % rows:
            return  # not a split model's: what is wrong is said of the sizes
        expected, number = dim // rows, len(self.parts)
        if number < expected:
            names = f"consolidated.{number:02}.pth" + (
                f" to consolidated.{expected - 1:02}.pth" if expected - number > 1 else ""
            )
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
        """Check the sizes that params.json states and the tensors have, too."""
        vocab = params.get("vocab_size")
        if vocab not in (None, -1, self.shape.vocab) or isinstance(vocab, bool):
            raise UserError(
                (
                    f"'vocab_size' is {config_fields.shorten_value(vocab)}, and the embedding has "
                    f"{self.shape.vocab} rows"
                ),
                where,
                "download or copy it again",
                kind=DIFFERS,
            )
        multiple, multiplier = params.get("multiple_of"), params.get("ffn_dim_multiplier")
        if multiple is None and multiplier is None:
            return
        multiple, multiplier = (
            256 if multiple is None else multiple,
            1 if multiplier is None else multiplier,
        )
        if (
            type(multiple) is not int
            or multiple < 1
            or isinstance(multiplier, bool)
            or not isinstance(multiplier, (int, float))
            or not 0 < multiplier < 1000
        ):
            hidden = None
        else:
            hidden = -(-int(multiplier * (8 * self.shape.dim // 3)) // multiple) * multiple
        if hidden != self.shape.hidden:
            what = (
                f"'multiple_of' {config_fields.shorten_value(multiple)} and 'ffn_dim_multiplier' "
                f"{config_fields.shorten_value(multiplier)} do not give the feed-forward width of "
                f"the tensors, {self.shape.hidden}"
            )
            raise UserError(what, where, "download or copy it again", kind=DAMAGED)

    def _vocab(self, dim: int) -> int:
        rows, columns = self._part_size(EMBEDDING)
        return rows if columns * len(self.parts) == dim else rows * len(self.parts)

    def _part_size(self, name: str) -> tuple[int, ...]:
        return self._held(0, name).size

    def _split_axis(self, name: str) -> int | None:
        """Return the axis along which a tensor is split over the parts, None for one that every
        part has whole.
        """
        if name == EMBEDDING and self._part_size(name)[-1] == self.shape.dim:
            return 0
        return _find_split_axis(name)

    def size(self, name: str) -> tuple[int, ...]:
        """Return the size of a whole tensor.

        UserError where the parts do not have equal shares of it.
        """
        held = [self._held(part, name).size for part in range(len(self.parts))]
        if len(set(held)) > 1:
            raise UserError(
                (
                    f"{name}.weight has different sizes in the parts: {list(held[0])} and "
                    f"{list(next(size for size in held if size != held[0]))}"
                ),
                str(self.folder),
                "download or copy it again",
                kind=DIFFERS,
            )
        axis = self._split_axis(name) if len(held) > 1 else None
        return tuple(
            length * len(held) if place == axis else length for place, length in enumerate(held[0])
        )

    def check_unused(self) -> None:
        """Raise UserError for a tensor that a LLaMA does not have."""
        expected = {f"{name}.weight" for name in list_tensor_sizes(self.shape)}
        for number, part in enumerate(self.parts):
            where = str(self.folder / f"consolidated.{number:02}.pth")
            if ROTARY_BUFFER in part:
                check_rotary(part[ROTARY_BUFFER](), self.shape, ROTARY_BUFFER, where)
            check_no_leftover(part.keys() - expected - {ROTARY_BUFFER}, where)

    def _held(self, part: int, name: str) -> torch_file.StoredTensor:
        held = self.parts[part].get(f"{name}.weight")
        if held is None:
            raise UserError(
                f"{name}.weight is not in consolidated.{part:02}.pth",
                str(self.folder),
                "download or copy it again",
                kind=MISSING,
            )
        return held

    def read(self, name: str) -> Any:
        """Return a whole tensor, put together of its parts."""
        tensors = [self._held(part, name)() for part in range(len(self.parts))]
        if len(tensors) == 1:
            return tensors[0]
        axis = self._split_axis(name)
        if axis is not None:
            return np.concatenate(tensors, axis)
        if any(
            tensor.dtype != tensors[0].dtype
            or not np.array_equal(view_as_bits(tensor), view_as_bits(tensors[0]))
            for tensor in tensors[1:]
        ):
            raise UserError(
                f"{name}.weight is not the same in all parts",
                str(self.folder),
                "download or copy it again",
                kind=DIFFERS,
            )
        return tensors[0]


def _make_params(shape: ModelShape) -> dict[str, Any]:
    """Return params.json.

    Meta states the hidden width by what 8/3 of the width is multiplied with and rounded up to.
    """
    plain = 8 * shape.dim // 3
    found: dict[str, Any] = {
        "dim": shape.dim,
        "n_layers": shape.layers,
        "n_heads": shape.heads,
        "norm_eps": shape.epsilon,
        "vocab_size": shape.vocab,
    }
    if shape.kv_heads != shape.heads:
        found["n_kv_heads"] = shape.kv_heads
    if -(-plain // 256) * 256 == shape.hidden:
        return found | {"multiple_of": 256}
    return found | {
        "multiple_of": shape.hidden,
        "ffn_dim_multiplier": min(1.0, shape.hidden / plain),
    }


def write_model(
    folder: Path,
    shape: ModelShape,
    tensors: Iterable[tuple[str, Any]],
    dtype: Any,
    *,
    parts: int | None = None,
) -> None:
    """Write a folder of Meta's.

    `tensors`: in the order of `sizes`, in `dtype`; `parts`: how many files, LLaMA-2's own number by
    default.
    """
    number = parts or _PART_COUNTS.get(shape.dim, 1)
    if shape.head_dim * shape.heads != shape.dim:
        raise UserError(
            (
                f"Meta's layout has no {shape.heads} heads of {shape.head_dim} at a width of "
                f"{shape.dim}"
            ),
            "--to meta",
            "give --to hf",
            kind=UNSUPPORTED,
        )
    odd = [
        name
        for name, value in (
            ("kv_heads", shape.kv_heads),
            ("hidden", shape.hidden),
            ("vocab", shape.vocab),
        )
        if value % number
    ]
    if odd:
        raise UserError(
            f"{odd[0]} {getattr(shape, odd[0])} does not split into {number}",
            "--parts",
            "give a number that divides it, or 1",
            kind=INVALID,
            value=number,
        )

    def split(name: str, size: tuple[int, ...]) -> tuple[int, ...]:
        axis = _find_split_axis(name)
        return (
            size
            if axis is None
            else tuple(
                length // number if place == axis else length for place, length in enumerate(size)
            )
        )

    held = {f"{name}.weight": split(name, size) for name, size in list_tensor_sizes(shape).items()}
    with contextlib.ExitStack() as opened:
        writers = [
            opened.enter_context(
                contextlib.closing(
                    torch_file.Writer(folder / f"consolidated.{part:02}.pth", held, dtype)
                )
            )
            for part in range(number)
        ]
        for name, tensor in tensors:
            axis = _find_split_axis(name)
            for writer, piece in zip(
                writers,
                [tensor] * number if axis is None else np.split(tensor, number, axis),
                strict=True,
            ):
                writer.add(f"{name}.weight", piece)
    output_folder.write_document(folder / "params.json", _make_params(shape))
