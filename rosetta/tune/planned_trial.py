"""A trial without the GPU: `rosetta plan` predicts whether a step fits into memory, and for how
much of its communication the GPU waits.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from rosetta.core import gpus, xla_flags
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.core.gpu_query import DetectedGpu
from rosetta.core.value_parsing import parse_number
from rosetta.core.variables import readers, setting_values
from rosetta.presets import preset_run
from rosetta.tune import trial_process
from rosetta.tune.search import OK, OUT_OF_MEMORY, Choice, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rosetta.core.run_description import Run
    from rosetta.pax.run.settings import Settings

# Some Pax experiments read these before they are compiled.
DATA_VARIABLES = ("DATA", "EVAL_DATA", "VOCAB", "VOCAB_PATH", "TFDS_DATA_DIR")
# The settings of T5X that change a step, but that `rosetta plan` has no option for.
UNPLANNED_SETTINGS = ("PACK", "GRADIENT_DTYPE", "ROSETTA_GIN", "FT_TASK")


class PlannedTrials:
    """Plans of a preset for a GPU.

    The rate has no unit: it is batch x (1 - s / 2), where s is the share of the communication that
    no computation hides. So a larger batch that fits is better, and so is a switch that hides more.

    Args:
        preset: The name or the file of the preset.
        card: The short name of the GPU.
        settings: NAME -> VALUE of the command line.
        nodes: The number of nodes; None for the preset's.
        gpus: The number of GPUs of a node; None for the preset's.
        seconds: The time after which a plan is ended.
        logs: The folder for the logs.
    """

    def __init__(
        self,
        preset: str,
        card: str,
        settings: Mapping[str, str],
        *,
        nodes: int | None,
        gpus: int | None,
        seconds: float,
        logs: Path,
    ) -> None:
        self.preset, self.card, self.settings = preset, card, settings
        self.nodes, self.gpus = nodes, gpus
        self._processes = trial_process.TrialProcesses(logs, seconds)

    def describe(self, choice: Choice) -> Run:
        """Return the run of a choice.

        Raises:
            UserError: The preset or a setting is not valid.
        """
        settings = {**self.settings, **choice.settings()}
        return preset_run.describe_run(
            self.preset,
            accelerator=self.card,
            settings=settings,
            nodes=self.nodes,
            gpus_per_node=self.gpus,
            environment=os.environ,
        )

    def __call__(self, choice: Choice, _: int) -> Outcome:
        """Plan a choice.

        Raises:
            UserError: The preset or a setting is not valid, or cannot be planned.
        """
        run = self.describe(choice)
        argv = [
            sys.executable,
            "-P",
            "-m",
            "rosetta",
            "plan",
            *make_plan_arguments(run, self.card),
            "--json",
        ]
        flags = {name: value for name, value in run.xla_flags.items() if value is not None}
        with tempfile.TemporaryFile() as out:
            data = {name: run.env[name] for name in DATA_VARIABLES if name in run.env}
            status, log = self._processes.run(
                argv,
                {
                    **os.environ,
                    **data,
                    "XLA_FLAGS": xla_flags.join_flags(xla_flags.format_flags(flags)),
                },
                out,
            )
            out.seek(0)
            output = out.read()
        more: dict[str, Any] = {"command": argv, "xla_flags": flags, "log": str(log)}
        if status is None:
            return Outcome("too long", reason="the plan was ended: see --seconds", more=more)
        try:
            answer = json.loads(output)
        except ValueError:
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
            return Outcome(
                "failed",
                reason=f"rosetta plan ended with status {status}",
                more={**more, "end": last},
            )
        if not answer["ok"]:
            error = answer["error"]
            return Outcome(
                "refused" if status == 2 else "failed",
                reason=f"{error['where']}: {error['what']}; {error['do']}",
                more=more,
            )
        return judge_plan(answer["result"], run, self.card, more)


def judge_plan(result: Mapping[str, Any], run: Run, card: str, more: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a plan: whether it fits into the memory that JAX takes, and its rate.

    Args:
        result: The document of `rosetta plan`.
        run: The run that was planned.
        card: The short name of the GPU.
        more: Details for the evidence.
    """
    peak = result["memory"]["peak"]
    variable = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    share = parse_number(variable, run.env.get(variable) or "0.75", above_zero=True, example="0.9")
    usable = gpus.get_gpu(card, "--card").memory * share
    communicated = sum(entry["bytes"] for entry in result["collectives"])
    waited_for = communicated - sum(entry["bytes_behind"] for entry in result["collectives"])
    details = {
        **more,
        "peak_bytes": peak,
        "room_bytes": int(usable),
        "communicated_bytes": communicated,
        "waited_for_bytes": waited_for,
        **{name: result.get(name) for name in ("kernels", "bytes", "gemm_flops")},
        "seconds": result.get("compile", {}).get("seconds"),
    }
    if peak > usable:
        reason = f"the run needs {peak / 1e9:.1f} GB, and JAX takes {usable / 1e9:.1f} GB"
        return Outcome(OUT_OF_MEMORY, reason=reason, more=details)
    waited_share = waited_for / communicated if communicated else 0.0
    rate = float(run.batch.get("per_gpu", 1)) * (1 - waited_share / 2)
    return Outcome(OK, rate, more=details)


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
    from rosetta.presets import t5x_model_options

    for name in UNPLANNED_SETTINGS:
        value = run.env.get(name, "")
        if value and (name != "PACK" or setting_values.read_setting(run.env, name)):
            raise UserError(
                "a run with this setting cannot be planned",
                f"{name}={value}",
                "unset it, or tune on the GPU itself, without --card",
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
    for binding, setting in model_options.evaluation_bindings().items():
        text = str(setting).lower() if isinstance(setting, bool) else str(setting)
        arguments.append(f"{binding.rpartition('.')[2]}={text}")
    return arguments


def read_pax_settings(run: Run) -> Settings:
    """Return the settings of the script that starts a Pax run.

    Transformer Engine is off unless the user asks for it, which a plan refuses.
    """
    from rosetta.pax.run import settings

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
    from rosetta.presets import pax_model_options

    script_settings = read_pax_settings(run)
    if script_settings.values["ENABLE_TE"]:
        raise UserError(
            "a run with Transformer Engine cannot be planned",
            "ENABLE_TE=1",
            (
                "set ENABLE_TE=0, or precision=fp8-xla; or tune on the GPUs themselves, without "
                "--card"
            ),
            kind=UNSUPPORTED,
        )
    model_options = pax_model_options.choose_model_options(
        script_settings, planned_gpus, xla_flags.format_flags(run.xla_flags), on_cpu=False
    )
    hyper_parameters = {**script_settings.hyper, **model_options.hyper}
    arguments = ["pax", run.model, *gpu_options, "--with"]
    return arguments + [f"{name}={value}" for name, value in hyper_parameters.items()]
