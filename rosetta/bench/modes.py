"""The modes that `rosetta bench t5` compares, and the fields of T5 1.1's sizes.

A mode is a way to compute the same model. Its name joins words with "+", for example
`fp8+fused+cudnn`. The sizes come from the gin files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import gpus
from rosetta.core.errors import UNKNOWN, UserError
from rosetta.core.gpu_query import format_capability
from rosetta.core.not_known import NOT_KNOWN
from rosetta.t5x.run import gin_files, gin_reader, network_fields
from rosetta.t5x.run.gin_text import Reference

if TYPE_CHECKING:
    from pathlib import Path

# The fields of T5Config that describe the model. The other fields say how to compute it.
MODEL_FIELDS = (
    "vocab_size",
    "mlp_activations",
    "logits_via_embedding",
    "relative_bias",
    "emb_dim",
    "num_heads",
    "num_encoder_layers",
    "num_decoder_layers",
    "head_dim",
    "mlp_dim",
)
DTYPES = {"bf16": "bfloat16", "f32": "float32"}
SWITCHES: dict[str, dict[str, Any]] = {
    "fp8": {"fp8": "xla"},
    "fused": {"fuse_qkv": True},
    "mlp": {"fuse_mlp": True},
    "no-geglu": {"fused_geglu": False},
    "no-qkv-gradients": {"fused_qkv_gradients": False},
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
    """A way to compute a model: its name, and the fields of T5Config that select it."""

    name: str
    fields: dict[str, Any]

    @property
    def fp8(self) -> bool:
        """Whether matrix products are computed in FP8."""
        return "fp8" in self.fields

    @property
    def cudnn(self) -> bool:
        """Whether cuDNN computes attention."""
        return self.fields.get("attention") == "cudnn"

    @property
    def arithmetic(self) -> str:
        """The type of the matrix products: "fp8", "bfloat16" or "float32".

        The MFU is relative to the GPU's peak for this type.
        """
        return "fp8" if self.fp8 else str(self.fields["dtype"])


def parse_mode(name: str) -> Mode:
    """Return the mode with a name; its dtype is bfloat16 unless a word of the name is a dtype.

    Raises:
        UserError: A word is not known.
    """
    fields: dict[str, Any] = {"dtype": DTYPES["bf16"]}
    for word in name.split("+"):
        if word in DTYPES:
            fields["dtype"] = DTYPES[word]
        elif word in SWITCHES:
            fields |= SWITCHES[word]
        else:
            known = ", ".join([*DTYPES, *SWITCHES])
            raise UserError(
                f"{word!r} is not a known word of a mode",
                "bench t5 --modes",
                f"join some of these words with +: {known}",
                kind=UNKNOWN,
                value=word,
            )
    return Mode(name, fields)


def explain_unsupported_mode(mode: Mode, platform: str, capability: tuple[int, int]) -> str:
    """Return the reason why a device cannot run a mode, or "" if the device can run it.

    Args:
        mode: The mode.
        platform: "gpu" or "cpu". On the CPU, XLA emulates FP8.
        capability: The GPU's compute capability, major and minor number.
    """
    if mode.cudnn and platform != "gpu":
        return "cuDNN needs a GPU"
    if platform != "gpu":
        return ""
    for is_used, feature in ((mode.cudnn, gpus.CUDNN_ATTENTION), (mode.fp8, gpus.FP8)):
        if is_used and not feature.supported_by(capability):
            return (
                f"{feature.name} needs compute capability {format_capability(feature.oldest)}, "
                f"this GPU has {format_capability(capability)}"
            )
    return ""


def list_sizes() -> tuple[str, ...]:
    """Return the names of the T5 1.1 sizes, smallest first."""
    names = ("tiny", "small", "base", "large", "xl", "xxl")
    return tuple(name for name in names if _find_size_file(name).is_file())


def _find_size_file(size: str) -> Path:
    """Return the path that the gin file of a size has."""
    return gin_files.ROOT / gin_files.GIN_FOLDER / "t5_1_1" / f"{size}.gin"


def read_size_fields(name: str) -> dict[str, Any]:
    """Return the fields of T5Config that describe T5 1.1 of one size, with T5's vocabulary.

    Raises:
        UserError: The size is not known.
    """
    if name not in list_sizes():
        raise UserError(
            f"{name!r} is not a known size of T5 1.1",
            "bench t5 --size",
            f"choose one of: {', '.join(list_sizes())}",
            kind=UNKNOWN,
            value=name,
        )
    family = gin_files.ROOT / gin_files.GIN_FOLDER / "families" / "t5_1_1.gin"
    values: dict[str, Any] = {}
    for file in (family, _find_size_file(name)):
        configuration = gin_reader.read_configuration([file], [gin_files.ROOT])
        for field in MODEL_FIELDS:
            value = network_fields.read_field(configuration, field)
            # The size tiny computes vocab_size from the run's vocabulary, which is not here.
            if value is not NOT_KNOWN and not isinstance(value, Reference):
                values[field] = value
    return values
