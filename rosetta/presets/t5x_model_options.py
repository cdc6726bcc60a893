"""The switches that people set by variables or positionals, what they default to on the GPU at
hand, and the gin bindings they become.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import gpus, transformer_engine
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.core.variables.setting_values import read_setting
from rosetta.presets import launch_flags
from rosetta.t5x.run.model_config import T5Config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu

NETWORK_FIELDS = (
    "fp8",
    "fuse_qkv",
    "transpose_batch_sequence",
    "attention",
    "remat",
    "scan_layers",
)
PRESET_PRECISIONS = {
    "xla": "fp8-xla",
    "te": "fp8-te",
    "off": "bf16",
}  # T5Config.fp8 -> what presets call it


@dataclass(frozen=True)
class ModelOptions:
    """How a model is computed; see T5Config, PjitPartitioner for fsdp, Trainer for gradient_dtype.

    Attributes:
      precision: of activations: FP8 is rounded from bfloat16.
      notes: what was decided instead of the documented default, and why.
    """

    precision: str
    fp8: str
    fuse_qkv: bool
    transpose_batch_sequence: bool
    attention: str
    remat: str
    scan_layers: bool
    fsdp: bool
    pack: bool
    gradient_dtype: str | None = None
    notes: tuple[str, ...] = ()

    def reading(self) -> dict[str, object]:
        """Return what evaluation and inference take of them, as gin bindings."""
        return {
            "network.T5Config.dtype": self.precision,
            **{f"network.T5Config.{name}": getattr(self, name) for name in NETWORK_FIELDS},
        }

    def training(self) -> dict[str, object]:
        """Return them as gin bindings."""
        reduced = (
            {"trainer.Trainer.gradient_dtype": self.gradient_dtype} if self.gradient_dtype else {}
        )
        return {
            **self.reading(),
            "partitioning.PjitPartitioner.fsdp": self.fsdp,
            "PACK": self.pack,
            **reduced,
        }


def resolve_xla_flags(fp8: str, size: str, accelerator: str | None) -> dict[str, Any]:
    """Return the options of XLA that a model of a size with this T5Config.fp8 runs with on a GPU;
    see launch_flags.resolve_default_flags.
    """
    return launch_flags.resolve_default_flags(
        "t5x", size, precision=PRESET_PRECISIONS[fp8], accelerator=accelerator
    )


def choose_model_options(
    given: Mapping[str, str], detected_gpus: Sequence[DetectedGpu], *, on_cpu: bool
) -> ModelOptions:
    """Decide all switches from what was given, by the names of the variables (empty: not given),
    and from the GPUs.

    ENABLE_FP8, TRANSPOSE_BS and FUSE_QKV are on and PACK is off where nothing is said, as
    documented; FP8 only where every GPU has it and no other precision was asked for. The attention
    is cuDNN's where every GPU has it.

    Raises:
      UserError: a value is none, or something was asked for that this machine or environment cannot
        do.
    """
    notes = list[str]()
    precision: str = read_setting(given, "PREC", "t5x")
    with_te: bool = read_setting(given, "ENABLE_TE", "t5x")
    fp8 = _decide_fp8(given, detected_gpus, on_cpu=on_cpu, precision=precision, notes=notes)
    if fp8 and precision != "bfloat16":
        notes.append(
            f"with FP8 all else is in bfloat16, not in {precision} (ENABLE_FP8=0 leaves it)"
        )
        precision = "bfloat16"
    attention = _choose_attention(
        given, detected_gpus, on_cpu=on_cpu, precision=precision, with_te=with_te
    )
    if with_te or attention == "te":
        transformer_engine.require_transformer_engine()
        if on_cpu:
            raise UserError(
                "it needs an NVIDIA GPU",
                "Transformer Engine",
                "set ENABLE_TE=0, and ATTENTION to another than te",
                kind=UNSUPPORTED,
            )
    chosen = ModelOptions(
        precision=precision,
        fp8=("te" if with_te else "xla") if fp8 else "off",
        fuse_qkv=read_setting(given, "FUSE_QKV"),
        transpose_batch_sequence=read_setting(given, "TRANSPOSE_BS"),
        attention=attention,
        remat=read_setting(given, "REMAT"),
        scan_layers=read_setting(given, "SCAN_LAYERS"),
        fsdp=read_setting(given, "FSDP"),
        pack=read_setting(given, "PACK"),
        gradient_dtype=read_setting(given, "GRADIENT_DTYPE"),
        notes=tuple(notes),
    )
    T5Config(
        vocab_size=1, **{name: getattr(chosen, name) for name in NETWORK_FIELDS}
    )  # refuses what cannot be combined
    return chosen


def _decide_fp8(
    given: Mapping[str, str],
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    precision: str,
    notes: list[str],
) -> bool:
    lacking = [gpu.name for gpu in detected_gpus if not gpus.FP8.supported_by(gpu.capability)]
    able = not on_cpu and bool(detected_gpus) and not lacking
    where = (
        "the CPU"
        if on_cpu
        else lacking[0]
        if lacking
        else "a GPU that cannot be asked (no nvidia-smi)"
    )
    asked: bool | None = read_setting(given, "ENABLE_FP8", "t5x")
    if asked is not None:
        if asked and detected_gpus and not able and not on_cpu:
            raise UserError(
                f"{where} has no FP8",
                f"ENABLE_FP8={given['ENABLE_FP8']}",
                f"set ENABLE_FP8=0; {gpus.FP8.requirement}",
                kind=UNSUPPORTED,
                value=where,
            )
        if asked and on_cpu:
            notes.append("FP8 is computed as on a GPU, but slowly: the CPU has none")
        return asked
    if not able:
        can = "computes it slowly" if on_cpu else "has none" if detected_gpus else "may have none"
        notes.append(
            f"FP8 is off: {where} {can}"
            + ("" if detected_gpus and not on_cpu else " (ENABLE_FP8=1 turns it on)")
        )
    elif precision != "bfloat16":
        notes.append(f"FP8 is off: PREC={precision} was asked for (ENABLE_FP8=1 turns it on)")
        return False
    return able


def _choose_attention(
    given: Mapping[str, str],
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    precision: str,
    with_te: bool,
) -> str:
    lacking = [
        gpu.name for gpu in detected_gpus if not gpus.CUDNN_ATTENTION.supported_by(gpu.capability)
    ]
    able = not on_cpu and precision != "float32" and bool(detected_gpus) and not lacking
    asked: str | None = read_setting(given, "ATTENTION", "t5x")
    if asked is None:
        return "te" if with_te else "cudnn" if able else "xla"
    if asked == "cudnn" and not able and (detected_gpus or on_cpu):
        why = (
            "the CPU has none"
            if on_cpu
            else "it is for bfloat16 and float16"
            if precision == "float32"
            else f"{lacking[0]} has none"
        )
        raise UserError(
            f"cuDNN's attention cannot run here: {why}",
            "ATTENTION=cudnn",
            "set ATTENTION=xla, or leave it out",
            kind=UNSUPPORTED,
        )
    return asked
