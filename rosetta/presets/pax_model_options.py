"""Choose how a Pax run computes its model: Transformer Engine, FP8 and the attention.

What the user sets is used. Otherwise the fastest choice that the GPUs support is used, and a note
says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rosetta.core import gpus, transformer_engine, xla_flags
from rosetta.core.errors import CONFLICT, UNSUPPORTED, UserError
from rosetta.pax.run import fiddle_arguments
from rosetta.presets import pax_flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.core.gpu_query import DetectedGpu
    from rosetta.pax.run.settings import Settings

_FUSED_ATTENTION_FLAG = "xla_gpu_enable_cudnn_fmha"


@dataclass(frozen=True)
class ModelOptions:
    """How a run computes its model.

    Attributes:
        env: Environment variables to set.
        hyper: Hyper-parameters to set, name -> Python literal.
        notes: What to tell the user about the choices.
    """

    env: Mapping[str, str]
    hyper: Mapping[str, str]
    notes: tuple[str, ...]


def choose_model_options(
    settings: Settings, detected_gpus: Sequence[DetectedGpu], flags: Sequence[str], *, on_cpu: bool
) -> ModelOptions:
    """Choose Transformer Engine, FP8 and the attention.

    - Transformer Engine, if ENABLE_TE is not set: on if it is installed and every GPU is Ampere or
      newer. It is off for LLaMA, whose script sets ENABLE_TE=0.
    - FP8, if ENABLE_FP8 is not set: off. Without Transformer Engine, ENABLE_FP8=1 means the FP8 of
      XLA, which is the hyper-parameter USE_FP8.
    - Attention: fused if every GPU supports it, except for the 126M model.

    Args:
        settings: The settings of the run.
        detected_gpus: The GPUs that this process sees.
        flags: The XLA flags, including those of the user. --xla_gpu_enable_cudnn_fmha=false means
            no fused attention.
        on_cpu: Whether the run uses the CPU.

    Raises:
        UserError: The user set something that this machine or environment does not support, or two
            settings that exclude each other.
    """
    notes = list[str]()
    xla_fp8 = bool(settings.hyper_switch("USE_FP8"))
    with_te = _decide_transformer_engine(
        settings, detected_gpus, on_cpu=on_cpu, xla_fp8=xla_fp8, notes=notes
    )
    fp8 = settings.reads_on("ENABLE_FP8")
    if fp8 and not with_te and not xla_fp8:
        notes.append("FP8 is XLA's own (USE_FP8), as Transformer Engine is off")
    if xla_fp8 or fp8:
        _check_fp8(settings, detected_gpus, on_cpu=on_cpu, xla_fp8=xla_fp8, notes=notes)
    env = {"ENABLE_TE": str(int(with_te)), "ENABLE_FP8": str(int(fp8 and with_te))}
    if with_te and settings.llama:
        # The script's own values leave multiprocessors to communication beside layer norms.
        for name in ("NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN"):
            env[name] = settings.values[name]
    hyper = {"USE_FP8": "True"} if fp8 and not with_te else {}
    hyper |= _choose_attention(
        settings, detected_gpus, flags, on_cpu=on_cpu, with_te=with_te, notes=notes
    )
    return ModelOptions(env, hyper, tuple(notes))


def _decide_transformer_engine(
    settings: Settings,
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    xla_fp8: bool,
    notes: list[str],
) -> bool:
    """Return whether the run uses Transformer Engine.

    Raises:
        UserError: The user set ENABLE_TE, and it is not possible.
    """
    if settings.values["ENABLE_TE"] is not None or settings.hyper_switch("ENABLE_TE") is not None:
        enabled = settings.reads_on("ENABLE_TE")
        if enabled:
            _check_transformer_engine(on_cpu=on_cpu, xla_fp8=xla_fp8)
        return enabled
    supported = (
        not on_cpu
        and transformer_engine.find_installed_version() is not None
        and bool(detected_gpus)
        and all(gpus.TRANSFORMER_ENGINE.supported_by(gpu.capability) for gpu in detected_gpus)
    )
    if not supported or xla_fp8 or settings.llama:
        return False
    notes.append("Transformer Engine is on (ENABLE_TE=0 turns it off)")
    return True


def _check_transformer_engine(*, on_cpu: bool, xla_fp8: bool) -> None:
    """Check that the run can use Transformer Engine, which the user asked for.

    Raises:
        UserError: It cannot.
    """
    if xla_fp8:
        raise UserError(
            "XLA's own FP8 does not work with Transformer Engine",
            "--fdl.USE_FP8=True",
            "set ENABLE_TE=0, or use ENABLE_FP8=1 for the FP8 of Transformer Engine",
            kind=CONFLICT,
        )
    transformer_engine.require_transformer_engine()
    if on_cpu:
        raise UserError(
            "Transformer Engine needs an NVIDIA GPU",
            "ENABLE_TE=1",
            "set ENABLE_TE=0",
            kind=UNSUPPORTED,
        )


def _check_fp8(
    settings: Settings,
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    xla_fp8: bool,
    notes: list[str],
) -> None:
    """Check that the run can use FP8, which the user asked for.

    Raises:
        UserError: A GPU has no FP8, or another precision is set.
    """
    unsupported = [gpu.name for gpu in detected_gpus if not gpus.FP8.supported_by(gpu.capability)]
    where = "--fdl.USE_FP8=True" if xla_fp8 else "ENABLE_FP8=1"
    if unsupported and not on_cpu:
        raise UserError(
            f"{unsupported[0]} has no FP8",
            where,
            f"leave it out; {gpus.FP8.requirement}",
            kind=UNSUPPORTED,
            value=unsupported[0],
        )
    if settings.precision and settings.precision != "bfloat16":
        raise UserError(
            "with FP8, everything else is in bfloat16",
            f"PREC={settings.precision}",
            f"set PREC=bfloat16, or leave out {where}",
            kind=CONFLICT,
            value=settings.precision,
        )
    if on_cpu:
        notes.append("the CPU has no FP8: FP8 is emulated, which is slow")


def _choose_attention(
    settings: Settings,
    detected_gpus: Sequence[DetectedGpu],
    flags: Sequence[str],
    *,
    on_cpu: bool,
    with_te: bool,
    notes: list[str],
) -> dict[str, str]:
    """Return the hyper-parameter ATTENTION, or nothing if the experiment's own value stays."""
    if "ATTENTION" in settings.hyper:
        return {}
    if chosen := settings.values["ATTENTION"]:
        return {"ATTENTION": fiddle_arguments.to_literal(chosen)}
    fused_is_off = xla_flags.find_flag_value(flags, _FUSED_ATTENTION_FLAG) == "false" or (
        with_te and transformer_engine.disables_fused_attention(settings.variables)
    )
    supported = (
        not on_cpu
        and settings.precision != "float32"
        and bool(detected_gpus)
        and all(gpus.CUDNN_ATTENTION.supported_by(gpu.capability) for gpu in detected_gpus)
    )
    if not supported or "USE_CUDNN_FLASH_ATTENTION" in settings.hyper:
        return {}
    if fused_is_off:
        return {"ATTENTION": '"xla"'}
    if pax_flags.is_126m_model(settings.config):
        notes.append(
            "attention is computed by XLA: the 126M model diverged with fused attention "
            "(ATTENTION=cudnn turns it on)"
        )
        return {"ATTENTION": '"xla"'}
    return {"ATTENTION": '"te"' if with_te else '"cudnn"'}
