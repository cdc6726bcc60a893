"""What `rosetta bench t5` can compare: words joined by "+", such as fp8+fused+cudnn, and the sizes of models as the gin files give them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rosetta.errors import UserError

GIN = Path(__file__).parent.parent / "t5x" / "gin"
DTYPES = {"bf16": "bfloat16", "f32": "float32"}
SWITCHES: dict[str, dict[str, Any]] = {
    "fp8": {"fp8": "xla"},
    "fused": {"fuse_qkv": True},
    "transposed": {"transpose_batch_sequence": True},
    "cudnn": {"attention": "cudnn"},
    "scan": {"scan_layers": True},
    "remat": {"remat": "minimal"},
    "rematfull": {"remat": "full"},
    "logits16": {"logits_dtype": "bfloat16"},
    "chunked": {"loss_chunks": 8},
}
DEFAULT = ("bf16", "fused", "transposed", "cudnn", "fp8", "fp8+fused+cudnn")


@dataclass(frozen=True)
class Mode:
    """A way to compute a model: its name, and the fields of T5Config that make it."""

    name: str
    fields: dict[str, Any]

    @property
    def fp8(self) -> bool:
        return "fp8" in self.fields

    @property
    def cudnn(self) -> bool:
        return self.fields.get("attention") == "cudnn"

    @property
    def arithmetic(self) -> str:
        """Return the type whose peak its MFU is of: "fp8", "bfloat16" or "float32"."""
        return "fp8" if self.fp8 else str(self.fields["dtype"])


def parse(name: str) -> Mode:
    """Return the mode for words joined by "+"; bfloat16 where none of them is a dtype."""
    fields: dict[str, Any] = {"dtype": DTYPES["bf16"]}
    for word in name.split("+"):
        if word in DTYPES:
            fields["dtype"] = DTYPES[word]
        elif word in SWITCHES:
            fields |= SWITCHES[word]
        else:
            known = ", ".join([*DTYPES, *SWITCHES])
            raise UserError(f"there is no mode {word!r}", "bench t5 --modes", f"join words by +, from: {known}")
    return Mode(name, fields)


def unfit(mode: Mode, platform: str, capability: float) -> str:
    """Say why a device cannot run a mode, or nothing if it can.

    platform: "gpu" or "cpu", where XLA imitates FP8; capability: the GPU's compute capability, such as 9.0.
    """
    if mode.cudnn and platform != "gpu":
        return "cuDNN needs a GPU"
    if mode.cudnn and capability < 8.0:
        return f"cuDNN's attention needs compute capability 8.0, this card has {capability}"
    if mode.fp8 and platform == "gpu" and capability < 8.9:
        return f"FP8 needs compute capability 8.9, this card has {capability}"
    return ""


def sizes() -> tuple[str, ...]:
    """Return the names of the T5 1.1 sizes, smallest first."""
    return tuple(name for name in ("tiny", "small", "base", "large", "xl", "xxl") if _file(name).is_file())


def _file(size: str) -> Path:
    return GIN / "sizes" / ("tiny.gin" if size == "tiny" else f"gated/{size}.gin")


def _fields(path: Path) -> dict[str, Any]:
    """Return the literals that a gin file's block `network.T5Config:` sets; gin itself is not needed for them."""
    block = re.search(r"^network\.T5Config:\n((?:[ \t]+.*\n|\n)*)", path.read_text(encoding="utf-8") + "\n", re.MULTILINE)
    lines = re.findall(r"^\s+(\w+)\s*=\s*(.+?)\s*(?:#.*)?$", block[1], re.MULTILINE) if block else []
    return {name: ast.literal_eval(value) for name, value in lines}


def size(name: str) -> dict[str, Any]:
    """Return the fields of T5Config that make a T5 1.1 of one size."""
    if name not in sizes():
        raise UserError(f"there is no size {name!r}", "bench t5 --size", f"choose one of: {', '.join(sizes())}")
    return _fields(GIN / "families" / "t5_1_1.gin") | _fields(_file(name))
