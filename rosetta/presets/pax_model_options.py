"""What the switches come to for a run on the GPUs at hand: what was asked for, else what is best
of what can be had, and a line for each choice.
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
    """What a run's switches become: variables and hyper-parameters (name -> literal) to set, and
    what to say of them.
    """

    env: Mapping[str, str]
    hyper: Mapping[str, str]
    notes: tuple[str, ...]


def choose_model_options(
    given: Settings, detected_gpus: Sequence[DetectedGpu], flags: Sequence[str], *, on_cpu: bool
) -> ModelOptions:
    """Decide Transformer Engine, FP8 and attention.

    ENABLE_TE is on where nothing is said, the environment has it and the GPUs are Ampere or newer;
    not for LLaMA, whose script says 0. ENABLE_FP8 is off; with Transformer Engine off it means
    XLA's own FP8, which is USE_FP8. Attention is fused where every GPU can, but for the 126M
    model.

    Args:
      given: the run.
      detected_gpus: that this process sees.
      flags: of XLA, the user's among them: --xla_gpu_enable_cudnn_fmha=false means no fused
        attention.
      on_cpu: whether it runs on the CPU.

    Raises:
      UserError: something was asked for that this machine or environment cannot do, or that
        excludes something else asked for.
    """
    notes = list[str]()
    native = bool(given.hyper_switch("USE_FP8"))
    with_te = _decide_transformer_engine(
        given, detected_gpus, on_cpu=on_cpu, native=native, notes=notes
    )
    asked = given.reads_on("ENABLE_FP8")
    if asked and not with_te and not native:
        notes.append("FP8 is XLA's own (USE_FP8), as Transformer Engine is off")
    if native or asked:
        _check_fp8(given, detected_gpus, on_cpu=on_cpu, native=native, notes=notes)
    env = {"ENABLE_TE": str(int(with_te)), "ENABLE_FP8": str(int(asked and with_te))}
    if (
        with_te and given.llama
    ):  # the script's own values: they leave room for communication beside layer norms
        env |= {
            name: given.values[name]
            for name in ("NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN")
        }
    hyper = {"USE_FP8": "True"} if asked and not with_te else {}
    return ModelOptions(
        env,
        {
            **hyper,
            **_choose_attention(
                given, detected_gpus, flags, on_cpu=on_cpu, with_te=with_te, notes=notes
            ),
        },
        tuple(notes),
    )


def _decide_transformer_engine(
    given: Settings,
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    native: bool,
    notes: list[str],
) -> bool:
    if given.values["ENABLE_TE"] is not None or given.hyper_switch("ENABLE_TE") is not None:
        asked = given.reads_on("ENABLE_TE")
        if asked and native:
            raise UserError(
                "XLA's own FP8 needs Transformer Engine off",
                "--fdl.USE_FP8=True",
                "set ENABLE_TE=0, or ENABLE_FP8=1 for Transformer Engine's",
                kind=CONFLICT,
            )
        if asked:
            transformer_engine.require_transformer_engine()
            if on_cpu:
                raise UserError(
                    "it needs an NVIDIA GPU",
                    "Transformer Engine",
                    "set ENABLE_TE=0",
                    kind=UNSUPPORTED,
                )
        return asked
    able = (
        not on_cpu
        and transformer_engine.find_installed_version() is not None
        and bool(detected_gpus)
        and all(gpus.TRANSFORMER_ENGINE.supported_by(gpu.capability) for gpu in detected_gpus)
    )
    if not able or native or given.llama:
        return False
    notes.append("Transformer Engine is on (ENABLE_TE=0 turns it off)")
    return True


def _check_fp8(
    given: Settings,
    detected_gpus: Sequence[DetectedGpu],
    *,
    on_cpu: bool,
    native: bool,
    notes: list[str],
) -> None:
    lacking = [gpu.name for gpu in detected_gpus if not gpus.FP8.supported_by(gpu.capability)]
    where = "--fdl.USE_FP8=True" if native else "ENABLE_FP8=1"
    if lacking and not on_cpu:
        raise UserError(
            f"{lacking[0]} has no FP8",
            where,
            f"leave it out; {gpus.FP8.requirement}",
            kind=UNSUPPORTED,
            value=lacking[0],
        )
    if given.precision and given.precision != "bfloat16":
        raise UserError(
            "with FP8 all else is in bfloat16",
            f"PREC={given.precision}",
            f"set PREC=bfloat16, or leave out {where}",
            kind=CONFLICT,
            value=given.precision,
        )
    if on_cpu:
        notes.append("FP8 is computed as on a GPU, but slowly: the CPU has none")


def _choose_attention(
    given: Settings,
    detected_gpus: Sequence[DetectedGpu],
    flags: Sequence[str],
    *,
    on_cpu: bool,
    with_te: bool,
    notes: list[str],
) -> dict[str, str]:
    """ATTENTION as a hyper-parameter; nothing where the experiment's own, XLA's, is what there
    is.
    """
    if "ATTENTION" in given.hyper:
        return {}
    if asked := given.values["ATTENTION"]:
        return {"ATTENTION": fiddle_arguments.to_literal(asked)}
    refused = xla_flags.find_flag_value(flags, _FUSED_ATTENTION_FLAG) == "false" or (
        with_te and transformer_engine.disables_fused_attention(given.variables)
    )
    able = (
        not on_cpu
        and given.precision != "float32"
        and bool(detected_gpus)
        and all(gpus.CUDNN_ATTENTION.supported_by(gpu.capability) for gpu in detected_gpus)
    )
    if not able or "USE_CUDNN_FLASH_ATTENTION" in given.hyper:
        return {}
    if refused:
        return {"ATTENTION": '"xla"'}
    if pax_flags.is_126m_model(given.config):
        notes.append(
            "attention is XLA's: the 126M model was seen to diverge with a fused one "
            "(ATTENTION=cudnn sets it)"
        )
        return {"ATTENTION": '"xla"'}
    return {"ATTENTION": '"te"' if with_te else '"cudnn"'}
