"""The arguments of `rosetta plan` for the step that the run of a preset would compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import gpus, xla_flags
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.core.gpu_query import DetectedGpu
from rosetta.core.variables import readers, setting_values
from rosetta.pax.run import settings
from rosetta.presets import pax_model_options, t5x_model_options

if TYPE_CHECKING:
    from rosetta.core.run_description import Run
    from rosetta.pax.run.settings import Settings

# The settings of T5X that change a step, but that `rosetta plan` has no option for.
UNPLANNED_SETTINGS = ("PACK", "GRADIENT_DTYPE", "ROSETTA_GIN", "FT_TASK")


def make_plan_arguments(run: Run, card: str) -> list[str]:
    """Return the arguments of `rosetta plan` for the step that a run would compute on a GPU.

    Raises:
        UserError: The step has something that cannot be planned.
    """
    gpu = gpus.get_gpu(card, "--card")
    planned_gpus = [DetectedGpu(gpu.name, gpu.capability)]
    options = [
        "--card",
        card,
        "--gpus",
        str(run.nodes * run.gpus_per_node),
        "--gpus-per-node",
        str(run.gpus_per_node),
    ]
    make_arguments = _make_t5x_arguments if run.framework == "t5x" else _make_pax_arguments
    return make_arguments(run, planned_gpus, options)


def _make_t5x_arguments(
    run: Run, planned_gpus: list[DetectedGpu], gpu_options: list[str]
) -> list[str]:
    """Return the arguments of `rosetta plan` for a T5X run."""
    for name in UNPLANNED_SETTINGS:
        value = run.env.get(name, "")
        if value and (name != "PACK" or setting_values.read_setting(run.env, name)):
            raise UserError(
                "a run with this setting cannot be planned",
                f"{name}={value}",
                "unset it, or run `rosetta tune` on the GPU itself",
                kind=UNSUPPORTED,
                value=value,
            )
    model_options = t5x_model_options.choose_model_options(run.env, planned_gpus, on_cpu=False)
    batch = {name: str(value) for name, value in run.batch.items()}
    options = {
        "--batch-per-gpu": batch.get("per_gpu"),
        "--microbatches": batch.get("microbatches"),
        "--tp": run.env.get("TP_SIZE"),
        "--inputs": run.env.get("ENC_SL"),
        "--targets": run.env.get("DEC_SL"),
    }
    arguments = ["t5x", "--size", run.model, *gpu_options]
    for option, option_value in options.items():
        if option_value:
            arguments += [option, option_value]
    if model_options.fsdp:
        arguments.append("--fsdp")
    arguments.append("--with")
    for name, setting in model_options.list_network_fields().items():
        text = str(setting).lower() if isinstance(setting, bool) else str(setting)
        arguments.append(f"{name}={text}")
    return arguments


def read_pax_settings(run: Run) -> Settings:
    """Return the settings of the script that starts a Pax run.

    Transformer Engine is off unless the user asks for it, which a plan refuses.
    """
    environment = {
        **run.env,
        "ENABLE_TE": run.env.get("ENABLE_TE") or "0",
        "SLURM_NTASKS": str(run.processes),
        "SLURM_JOB_NUM_NODES": str(run.nodes),
    }
    script = readers.COMMAND_SCRIPTS[f"pax {run.entry[-1]}"]
    return settings.read_settings(script, [], environment, run.gpus_per_node)


def _make_pax_arguments(
    run: Run, planned_gpus: list[DetectedGpu], gpu_options: list[str]
) -> list[str]:
    """Return the arguments of `rosetta plan` for a Pax run."""
    script_settings = read_pax_settings(run)
    if script_settings.values["ENABLE_TE"]:
        raise UserError(
            "a run with Transformer Engine cannot be planned",
            "ENABLE_TE=1",
            "set ENABLE_TE=0, or precision=fp8-xla; or run `rosetta tune` on the GPUs themselves",
            kind=UNSUPPORTED,
        )
    model_options = pax_model_options.choose_model_options(
        script_settings, planned_gpus, xla_flags.format_flags(run.xla_flags), on_cpu=False
    )
    hyper_parameters = {**script_settings.hyper, **model_options.hyper}
    arguments = ["pax", run.model, *gpu_options, "--with"]
    return arguments + [f"{name}={value}" for name, value in hyper_parameters.items()]


def list_layer_words(framework: str, layers: int) -> list[str]:
    """Return the words after --with that give a model another number of layers."""
    if framework == "t5x":
        return [f"num_encoder_layers={layers}", f"num_decoder_layers={layers}"]
    return [f"NUM_LAYERS={layers}"]
