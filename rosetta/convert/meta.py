"""LLaMA's weights as Meta hands them out: params.json, and consolidated.NN.pth for each GPU that the model was split over."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.convert import files, torchfile
from rosetta.convert.llama import EMBEDDING, OUTPUT, Shape, sizes
from rosetta.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ROTARY_BASE = 10_000.0
_PART = re.compile(r"consolidated\.(\d\d)\.pth")
_SPLIT = {"attention.wq": 0, "attention.wk": 0, "attention.wv": 0, "attention.wo": 1, "feed_forward.w1": 0, "feed_forward.w2": 1, "feed_forward.w3": 0}
_PARTS = {4096: 1, 5120: 2, 8192: 8}  # by the residual stream's width, as LLaMA-2 was handed out


def _axis(name: str) -> int | None:
    """Return the axis a tensor is split along, None for one that every part has. An embedding is split along its width (LLaMA 3's is not)."""
    if name == EMBEDDING:
        return 1
    return 0 if name == OUTPUT else _SPLIT.get(name.split(".", 2)[-1])


class Source:
    """A folder of Meta's.

    Attributes:
      shape: the model's sizes.
    """

    def __init__(self, folder: Path) -> None:
        params = files.document(folder / "params.json")
        numbered = {int(found[1]): path for path in folder.iterdir() if (found := _PART.fullmatch(path.name))}
        missing = sorted(set(range(max(numbered, default=0) + 1)) - set(numbered))
        if missing:
            raise UserError(f"consolidated.{missing[0]:02}.pth is not there", str(folder), "download or copy it again")
        self.folder, self.parts = folder, [torchfile.read(numbered[number]) for number in sorted(numbered)]
        if float(params.get("rope_theta", ROTARY_BASE)) != ROTARY_BASE or params.get("use_scaled_rope"):
            raise UserError(f"its rotary embedding is another than LLaMA-2's (base {params.get('rope_theta')})", str(folder / "params.json"), "convert a LLaMA or LLaMA-2")
        try:
            heads = params["n_heads"]
            hidden = len(self.parts) * self._size("layers.0.feed_forward.w1")[0]
            self.shape = Shape(
                params["n_layers"], params["dim"], heads, params.get("n_kv_heads") or heads, params["dim"] // heads, hidden, self._vocab(params["dim"]), float(params["norm_eps"])
            ).checked(str(folder))
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise UserError("it is not as Meta's is: it lacks n_layers, dim, n_heads or norm_eps", str(folder / "params.json"), "download or copy it again") from None

    def _vocab(self, dim: int) -> int:
        rows, columns = self._size(EMBEDDING)
        return rows if columns * len(self.parts) == dim else rows * len(self.parts)

    def _size(self, name: str) -> tuple[int, ...]:
        return self._held(0, name).size

    def _held(self, part: int, name: str) -> torchfile.Tensor:
        held = self.parts[part].get(f"{name}.weight")
        if held is None:
            raise UserError(f"{name}.weight is not in consolidated.{part:02}.pth", str(self.folder), "download or copy it again")
        return held

    def read(self, name: str) -> Any:
        """Return a whole tensor, put together of its parts."""
        tensors = [self._held(part, name)() for part in range(len(self.parts))]
        axis = _axis(name)
        if axis is None or len(tensors) == 1:
            return tensors[0]
        if name == EMBEDDING and tensors[0].shape[1] == self.shape.dim:
            axis = 0
        return np.concatenate(tensors, axis)


def _params(shape: Shape) -> dict[str, Any]:
    """Return params.json. Meta states the hidden width by what 8/3 of the width is multiplied with and rounded up to."""
    plain = 8 * shape.dim // 3
    found: dict[str, Any] = {"dim": shape.dim, "n_layers": shape.layers, "n_heads": shape.heads, "norm_eps": shape.epsilon, "vocab_size": shape.vocab}
    if shape.kv_heads != shape.heads:
        found["n_kv_heads"] = shape.kv_heads
    if -(-plain // 256) * 256 == shape.hidden:
        return found | {"multiple_of": 256}
    return found | {"multiple_of": shape.hidden, "ffn_dim_multiplier": min(1.0, shape.hidden / plain)}


def write(folder: Path, shape: Shape, tensors: Iterable[tuple[str, Any]], dtype: Any, *, parts: int | None = None) -> None:
    """Write a folder of Meta's. `tensors`: in the order of `sizes`, in `dtype`; `parts`: how many files, LLaMA-2's own number by default."""
    number = parts or _PARTS.get(shape.dim, 1)
    if shape.head_dim * shape.heads != shape.dim:
        raise UserError(f"Meta's layout has no {shape.heads} heads of {shape.head_dim} at a width of {shape.dim}", "--to meta", "give --to hf")
    odd = [name for name, value in (("kv_heads", shape.kv_heads), ("hidden", shape.hidden), ("vocab", shape.vocab)) if value % number]
    if odd:
        raise UserError(f"{odd[0]} {getattr(shape, odd[0])} does not split into {number}", "--parts", "give a number that divides it, or 1")

    def split(name: str, size: tuple[int, ...]) -> tuple[int, ...]:
        axis = _axis(name)
        return size if axis is None else tuple(length // number if place == axis else length for place, length in enumerate(size))

    held = {f"{name}.weight": split(name, size) for name, size in sizes(shape).items()}
    with contextlib.ExitStack() as opened:
        writers = [opened.enter_context(contextlib.closing(torchfile.Writer(folder / f"consolidated.{part:02}.pth", held, dtype))) for part in range(number)]
        for name, tensor in tensors:
            axis = _axis(name)
            for writer, piece in zip(writers, [tensor] * number if axis is None else np.split(tensor, number, axis), strict=True):
                writer.add(f"{name}.weight", piece)
    files.write_document(folder / "params.json", _params(shape))
