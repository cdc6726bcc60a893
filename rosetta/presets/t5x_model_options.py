"""Choose how a T5X run computes its model: precision, FP8, attention and the like.

What the user sets is used. Otherwise the documented default is used if the GPUs support it. The
choices become gin bindings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rosetta.core import gpus, transformer_engine
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.core.variables.setting_values import read_setting
from rosetta.presets import launch_flags
from rosetta.t5x.run.model_config import T5Config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu

# The fields of T5Config that these options set.
NETWORK_FIELDS = (
    "fp8",
    "fuse_qkv",
    "fuse_mlp",
    "transpose_batch_sequence",
    "attention",
    "remat",
    "scan_layers",
)
# T5Config.fp8 -> the precision as presets name it.
PRESET_PRECISIONS = {
    "xla": "fp8-xla",
    "te": "fp8-te",
    "off": "bf16",
}


@dataclass(frozen=True)
class ModelOptions:
    """How a run computes its model.

    The fields are those of T5Config, of PjitPartitioner (fsdp) and of Trainer (gradient_dtype).

    Attributes:
        precision: The type of the activations. FP8 is rounded from bfloat16.
        logits_dtype: Training only: the type of the logits' factors; None for what gin says.
        pack: Whether several examples share a row of the batch.
        notes: What to tell the user: where the documented default is not used, and why.
    """

    precision: str
    fp8: str
    fuse_qkv: bool
    fuse_mlp: bool
    transpose_batch_sequence: bool
    attention: str
    remat: str
    scan_layers: bool
    fsdp: bool
    pack: bool
    logits_dtype: str | None = None
    gradient_dtype: str | None = None
    notes: tuple[str, ...] = ()

    def list_network_fields(self) -> dict[str, object]:
        """Return the fields of T5Config for training, name -> value."""
        fields: dict[str, object] = {"dtype": self.precision}
        fields |= {name: getattr(self, name) for name in NETWORK_FIELDS}
        return fields | ({"logits_dtype": self.logits_dtype} if self.logits_dtype else {})

    def evaluation_bindings(self) -> dict[str, object]:
        """Return the gin bindings for evaluation and inference."""
        fields = replace(self, logits_dtype=None).list_network_fields()
        return {f"network.T5Config.{name}": value for name, value in fields.items()}

    def training_bindings(self) -> dict[str, object]:
        """Return the gin bindings for training."""
        fields = self.list_network_fields()
        bindings = {
            **{f"network.T5Config.{name}": value for name, value in fields.items()},
            "partitioning.PjitPartitioner.fsdp": self.fsdp,
            "PACK": self.pack,
        }
        if self.gradient_dtype:
            bindings["trainer.Trainer.gradient_dtype"] = self.gradient_dtype
        return bindings


def resolve_xla_flags(fp8: str, size: str, accelerator: str | None) -> dict[str, Any]:
    """Return the XLA flags of a model, flag without dashes -> value.

    Args:
        fp8: The value of T5Config.fp8.
        size: T5_SIZE.
        accelerator: The short name of the GPU, None for the CPU.
    """
    return launch_flags.resolve_default_flags(
        "t5x", size, precision=PRESET_PRECISIONS[fp8], accelerator=accelerator
    )


def choose_model_options(
    settings: Mapping[str, str],
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    finetune: bool = False,
) -> ModelOptions:
    """Choose all options from the settings and the GPUs.

    If nothing is set, ENABLE_FP8 is on and PACK is off, as documented. FP8 also needs that every
    GPU supports it and that no other precision is set. The attention is cuDNN's if every GPU
    supports it. TRANSPOSE_BS and FUSE_QKV are what `_choose_layout` expects to be faster, and
    LOGITS_DTYPE what `_choose_logits_dtype` does.

    Args:
        settings: Variable -> value. An empty value counts as not set.
        detected_gpus: The GPUs of the run.
        on_cpu: Whether the run uses the CPU.
        finetune: Whether the run finetunes.

    Raises:
        UserError: A value is not valid, or this machine or environment does not support what is
            set.
    """
    notes = list[str]()
    precision: str = read_setting(settings, "PREC", "t5x")
    with_te: bool = read_setting(settings, "ENABLE_TE", "t5x")
    fp8 = _decide_fp8(settings, detected_gpus, on_cpu=on_cpu, precision=precision, notes=notes)
    if fp8 and precision != "bfloat16":
        notes.append(
            f"with FP8, everything else is in bfloat16, not in {precision} "
            "(ENABLE_FP8=0 turns FP8 off)"
        )
        precision = "bfloat16"
    attention = _choose_attention(
        settings, detected_gpus, on_cpu=on_cpu, precision=precision, with_te=with_te
    )
    if with_te or attention == "te":
        transformer_engine.require_transformer_engine()
        if on_cpu:
            raise UserError(
                "Transformer Engine needs an NVIDIA GPU",
                "ENABLE_TE=1" if with_te else "ATTENTION=te",
                "set ENABLE_TE=0, and ATTENTION to a value other than te",
                kind=UNSUPPORTED,
            )
    fp8_kind = "te" if with_te else "xla"
    fuse_qkv, fuse_mlp, transposed = _choose_layout(
        settings, fp8=fp8, attention=attention, notes=notes
    )
    options = ModelOptions(
        precision=precision,
        fp8=fp8_kind if fp8 else "off",
        fuse_qkv=fuse_qkv,
        fuse_mlp=fuse_mlp,
        transpose_batch_sequence=transposed,
        attention=attention,
        remat=read_setting(settings, "REMAT"),
        scan_layers=read_setting(settings, "SCAN_LAYERS"),
        fsdp=read_setting(settings, "FSDP"),
        pack=read_setting(settings, "PACK"),
        logits_dtype=_choose_logits_dtype(
            settings, precision, pretrains_on_gpu=not on_cpu and not finetune, notes=notes
        ),
        gradient_dtype=read_setting(settings, "GRADIENT_DTYPE"),
        notes=tuple(notes),
    )
    # T5Config refuses options that cannot be combined.
    T5Config(vocab_size=1, **{name: getattr(options, name) for name in NETWORK_FIELDS})
    return options


def _decide_fp8(
    settings: Mapping[str, str],
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    precision: str,
    notes: list[str],
) -> bool:
    """Return whether the run uses FP8.

    Raises:
        UserError: The user turned FP8 on, and a GPU does not support it.
    """
    unsupported = [gpu.name for gpu in detected_gpus if not gpus.FP8.supported_by(gpu.capability)]
    supported = not on_cpu and bool(detected_gpus) and not unsupported
    setting: bool | None = read_setting(settings, "ENABLE_FP8", "t5x")
    if setting is not None:
        if setting and unsupported and not on_cpu:
            raise UserError(
                f"{unsupported[0]} has no FP8",
                f"ENABLE_FP8={settings['ENABLE_FP8']}",
                f"set ENABLE_FP8=0; {gpus.FP8.requirement}",
                kind=UNSUPPORTED,
                value=unsupported[0],
            )
        if setting and on_cpu:
            notes.append("the CPU has no FP8: FP8 is emulated, which is slow")
        return setting
    if not supported:
        notes.append(f"FP8 is off: {_explain_missing_fp8(unsupported, on_cpu=on_cpu)}")
    elif precision != "bfloat16":
        notes.append(f"FP8 is off: PREC={precision} is set (ENABLE_FP8=1 turns it on)")
        return False
    return supported


def _choose_layout(
    settings: Mapping[str, str], *, fp8: bool, attention: str, notes: list[str]
) -> tuple[bool, bool, bool]:
    """Return whether projections of attention and of the MLP are joined, and whether activations
    are transposed.

    What FUSE_QKV and TRANSPOSE_BS leave open follows from compiled steps of T5-large
    (docs/project/benchmarks.md). In FP8, and with XLA's attention, joined products and transposed
    activations are faster. In bfloat16, cuDNN's attention would need copies of the parts of a
    joined product, and of transposed activations.

    Args:
        settings: Variable -> value.
        fp8: Whether products are computed in FP8.
        attention: The implementation of attention.
        notes: Gets a line if a layout other than the published scripts' is chosen.

    Returns:
        The values of T5Config's fuse_qkv, fuse_mlp and transpose_batch_sequence.
    """
    fuse_qkv: bool | None = read_setting(settings, "FUSE_QKV", "t5x")
    transposed: bool | None = read_setting(settings, "TRANSPOSE_BS", "t5x")
    is_separate = attention == "cudnn" and not fp8
    if is_separate and None in (fuse_qkv, transposed):
        unset = [
            f"{name}=0"
            for name, value in (("FUSE_QKV", fuse_qkv), ("TRANSPOSE_BS", transposed))
            if value is None
        ]
        notes.append(
            f"{' and '.join(unset)}: predicted to be faster without FP8, with cuDNN's attention"
        )
    fuse_mlp = True if fuse_qkv is None else fuse_qkv
    if fuse_qkv is None:
        fuse_qkv = not is_separate
    if transposed is None:
        transposed = not is_separate
    return fuse_qkv, fuse_mlp, transposed


def _choose_logits_dtype(
    settings: Mapping[str, str], precision: str, *, pretrains_on_gpu: bool, notes: list[str]
) -> str | None:
    """Return the type of the factors of the logits; None for what gin says.

    In bfloat16, T5-large is predicted to be 1 ms a step faster. The losses of paired runs differ by
    far less than those of two seeds (docs/project/benchmarks.md).

    Args:
        settings: Variable -> value.
        precision: The type of the activations.
        pretrains_on_gpu: Whether the run trains a new model on GPUs.
        notes: Gets a line if bfloat16 is chosen, because upstream has float32.
    """
    setting: str | None = read_setting(settings, "LOGITS_DTYPE", "t5x pretrain")
    if setting is not None or not pretrains_on_gpu or precision != "bfloat16":
        return setting
    notes.append("LOGITS_DTYPE=bfloat16: predicted to be faster than upstream's float32")
    return "bfloat16"


def _explain_missing_fp8(unsupported: Sequence[str], *, on_cpu: bool) -> str:
    """Return why FP8 is not on by default. `unsupported` are the GPUs without FP8."""
    if on_cpu:
        return "the CPU would emulate it, which is slow (ENABLE_FP8=1 turns it on)"
    if unsupported:
        return f"{unsupported[0]} has no FP8"
    return "the GPUs are not known, because there is no nvidia-smi (ENABLE_FP8=1 turns it on)"


def _choose_attention(
    settings: Mapping[str, str],
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    precision: str,
    with_te: bool,
) -> str:
    """Return the implementation of attention.

    Raises:
        UserError: The user set ATTENTION=cudnn, and the GPUs or the precision do not support it.
    """
    unsupported = [
        gpu.name for gpu in detected_gpus if not gpus.CUDNN_ATTENTION.supported_by(gpu.capability)
    ]
    supported = not on_cpu and precision != "float32" and bool(detected_gpus) and not unsupported
    setting: str | None = read_setting(settings, "ATTENTION", "t5x")
    if setting is None:
        if with_te:
            return "te"
        return "cudnn" if supported else "xla"
    if setting == "cudnn" and not supported and (detected_gpus or on_cpu):
        if on_cpu:
            reason = "the CPU does not support it"
        elif precision == "float32":
            reason = "PREC has to be bfloat16 or float16"
        else:
            reason = f"{unsupported[0]} does not support it"
        raise UserError(
            f"cuDNN's attention cannot run here: {reason}",
            "ATTENTION=cudnn",
            "set ATTENTION=xla, or leave it out",
            kind=UNSUPPORTED,
        )
    return setting
