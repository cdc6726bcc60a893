"""A trial without the GPU: `rosetta plan` says whether a step fits, and how much of its
communication is waited for.
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

DATA_VARIABLES = (
    "DATA",
    "EVAL_DATA",
    "VOCAB",
    "VOCAB_PATH",
    "TFDS_DATA_DIR",
)  # which some of Pax's experiments look at before they are compiled
# Of T5X's settings, those that change a step and that `rosetta plan` has no word for.
UNPLANNED_SETTINGS = ("PACK", "GRADIENT_DTYPE", "ROSETTA_GIN", "FT_TASK")


class PlannedTrials:
    """Plans of a preset for a GPU.

    The rate has no unit: it is the batch, less the share of what is communicated that nothing
    hides. So a larger batch that fits is better, and so is a switch that hides more.

    Args:
      preset: its name or file; card: short name; nodes, gpus: of a node, None: the preset's.
      settings: NAME -> VALUE of the command line.
      seconds: after which a plan is ended.
      logs: folder that what is said meanwhile is kept in.
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
        self.preset, self.card, self.settings, self.nodes, self.gpus = (
            preset,
            card,
            settings,
            nodes,
            gpus,
        )
        self._processes = trial_process.TrialProcesses(logs, seconds)

    def describe(self, choice: Choice) -> Run:
        """Return the run of a choice. UserError where preset or settings are wrong."""
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
        """Plan a choice. UserError where preset or settings are wrong, or cannot be planned."""
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
            said = out.read()
        more: dict[str, Any] = {"command": argv, "xla_flags": flags, "log": str(log)}
        if status is None:
            return Outcome("too long", reason="it was ended: see --seconds", more=more)
        try:
            answer = json.loads(said)
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
    """Return the outcome of a plan's figures: whether its peak fits into JAX's share of the GPU's
    memory, and the rate.
    """
    peak = result["memory"]["peak"]
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    share = parse_number(name, run.env.get(name) or "0.75", above_zero=True, example="0.9")
    room = gpus.get_gpu(card, "--card").memory * share
    moved = sum(each["bytes"] for each in result["collectives"])
    waited = moved - sum(each["bytes_behind"] for each in result["collectives"])
    found = {
        **more,
        "peak_bytes": peak,
        "room_bytes": int(room),
        "communicated_bytes": moved,
        "waited_for_bytes": waited,
        **{name: result.get(name) for name in ("kernels", "bytes", "gemm_flops")},
        "seconds": result.get("compile", {}).get("seconds"),
    }
    if peak > room:
        return Outcome(
            OUT_OF_MEMORY, reason=f"it takes {peak / 1e9:.1f} GB of {room / 1e9:.1f}", more=found
        )
    return Outcome(
        OK,
        float(run.batch.get("per_gpu", 1)) * (1 - (waited / moved if moved else 0.0) / 2),
        more=found,
    )


def make_plan_arguments(run: Run, card: str) -> list[str]:
    """Return the words of `rosetta plan` for a run: its step as the run's own launcher would have
    it on that GPU.

    Raises:
      UserError: the step has something that is not planned.
    """
    gpu = gpus.get_gpu(card, "--card")
    here = [DetectedGpu(gpu.name, gpu.capability)]
    options = [
        "--card",
        card,
        "--gpus",
        str(run.nodes * run.gpus_per_node),
        "--gpus-per-node",
        str(run.gpus_per_node),
    ]
    return (
        _make_t5x_arguments(run, here, options)
        if run.framework == "t5x"
        else _make_pax_arguments(run, here, options)
    )


def _make_t5x_arguments(run: Run, here: list[DetectedGpu], gpu_options: list[str]) -> list[str]:
    from rosetta.presets import t5x_model_options

    for name in UNPLANNED_SETTINGS:
        value = run.env.get(name, "")
        if value and (name != "PACK" or setting_values.read_setting(run.env, name)):
            raise UserError(
                "no plan is made with it",
                f"{name}={value}",
                "unset it, or tune on the GPU itself, without --card",
                kind=UNSUPPORTED,
                value=value,
            )
    chosen = t5x_model_options.choose_model_options(run.env, here, on_cpu=False)
    batch = {name: str(value) for name, value in run.batch.items()}
    options = {
        "--batch-per-gpu": batch.get("per_gpu"),
        "--microbatches": batch.get("microbatches"),
        "--tp": run.env.get("TP_SIZE"),
        "--inputs": run.env.get("ENC_SL"),
        "--targets": run.env.get("DEC_SL"),
    }
    given = [word for option, value in options.items() if value for word in (option, value)]
    fields = {
        name.rpartition(".")[2]: value for name, value in chosen.evaluation_bindings().items()
    }
    words = [
        f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in fields.items()
    ]
    return [
        "t5x",
        "--size",
        run.model,
        *gpu_options,
        *given,
        *(["--fsdp"] if chosen.fsdp else []),
        "--with",
        *words,
    ]


def _make_pax_arguments(run: Run, here: list[DetectedGpu], gpu_options: list[str]) -> list[str]:
    from rosetta.pax.run import settings
    from rosetta.presets import pax_model_options

    # Without Transformer Engine, unless it is asked for: then that is said to be missing, where it
    # is.
    environment = {
        **run.env,
        "ENABLE_TE": run.env.get("ENABLE_TE") or "0",
        "SLURM_NTASKS": str(run.processes),
        "SLURM_JOB_NUM_NODES": str(run.nodes),
    }
    script = readers.COMMAND_SCRIPTS[f"pax {run.entry[-1]}"]
    given = settings.read_settings(script, [], environment, run.gpus_per_node)
    if given.values["ENABLE_TE"]:
        raise UserError(
            "no plan is made with it",
            "ENABLE_TE=1",
            (
                "set ENABLE_TE=0, or precision=fp8-xla; or tune on the GPUs themselves, without "
                "--card"
            ),
            kind=UNSUPPORTED,
        )
    chosen = pax_model_options.choose_model_options(
        given, here, xla_flags.format_flags(run.xla_flags), on_cpu=False
    )
    return [
        "pax",
        run.model,
        *gpu_options,
        "--with",
        *(f"{name}={value}" for name, value in {**given.hyper, **chosen.hyper}.items()),
    ]
