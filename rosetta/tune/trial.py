"""A trial: the training program of a preset, for some steps, in a process of its own.

The data are random, and no checkpoint is written.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core import limited_programs, run_description
from rosetta.core.secrets import Mask
from rosetta.launch import node_processes, rendering
from rosetta.pax.run.parameter_count import NO_CHECKPOINTS
from rosetta.presets import preset_files, preset_run
from rosetta.t5x.run import settings as t5x_settings
from rosetta.tune.search import OK, OUT_OF_MEMORY, Choice, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.core.run_description import Run

_OUT_OF_MEMORY_MESSAGE = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|OUT_OF_MEMORY|CUDA_ERROR_OUT_OF_MEMORY", re.IGNORECASE
)
# The exit statuses of a program that the kernel killed because the machine ran out of memory.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
# A line that rosetta itself wrote: it begins with "rosetta: " or, for example, "rosetta t5x: ".
_ROSETTA_LINE = re.compile(r"rosetta( \S+)*: ")
_SHOWN_LINES = 5  # of the log of a trial that failed


class Trials:
    """Trials of a preset on this machine.

    Args:
        preset: The name or the file of the preset.
        accelerator: The short name of the GPUs; None for the CPU and for unknown GPUs.
        gpus: The number of devices of each trial.
        settings: NAME -> VALUE of the command line.
        steps: The number of steps of each trial.
        seconds: The time after which a trial is ended.
        logs: The folder for the logs.
    """

    def __init__(
        self,
        preset: str,
        accelerator: str | None,
        gpus: int,
        settings: Mapping[str, str],
        *,
        steps: int,
        seconds: float,
        logs: Path,
    ) -> None:
        self.preset, self.accelerator, self.gpus, self.settings = (
            preset,
            accelerator,
            gpus,
            settings,
        )
        self.steps = steps
        self._programs = limited_programs.LimitedPrograms(logs, seconds)

    def describe(self, choice: Choice, folder: str = "") -> Run:
        """Return the run of a choice.

        Args:
            choice: The settings to try.
            folder: The folder for the files of the run.

        Raises:
            UserError: The preset or a setting is not valid.
        """
        framework = preset_files.load_preset_chain(self.preset)[0].name
        list_settings = _list_t5x_settings if framework == "t5x" else _list_pax_settings
        run = preset_run.describe_run(
            self.preset,
            accelerator=self.accelerator,
            settings={
                **list_settings(self.steps, folder),
                **self.settings,
                **choice.settings(),
            },
            nodes=1,
            gpus_per_node=self.gpus,
            environment=os.environ,
        )
        run = replace(run, processes_per_node="node")
        return _use_synthetic_data(run) if framework == "pax" and "DATA" not in run.env else run

    def __call__(self, choice: Choice, _: int) -> Outcome:
        """Make a trial.

        The rate is in tokens per second over all devices. The first step, which compiles, does not
        count.
        """
        with tempfile.TemporaryDirectory(prefix="rosetta-tune-") as folder:
            run = self.describe(choice, folder)
            argv = [sys.executable, "-P", "-m", *run.entry]
            variables = rendering.make_variables(run)
            env = {
                name: value
                for name, value in os.environ.items()
                if name not in (*node_processes.SLURM_VARIABLES, "XLA_FLAGS", "BASE_XLA_FLAGS")
            } | variables
            if run_description.runs_on_cpu(run):
                env["JAX_PLATFORMS"] = "cpu"
            end = self._programs.run(argv, env)
            mask = Mask(variables)
            more: dict[str, Any] = {
                "command": [mask.mask_text(word) for word in argv],
                "env": mask.mask_variables(variables),
                "log": str(end.log),
            }
            log = end.log.read_text(encoding="utf-8", errors="replace")
            return _read_outcome(end.status, log, Path(folder), more)


def _list_t5x_settings(steps: int, folder: str) -> dict[str, str]:
    """Return the settings that make a T5X run a trial."""
    return {
        "BENCHMARK_MODE": "1",
        "CHECKPOINT_DISABLE": "true",
        "TRAIN_STEPS": str(steps),
        "MODEL_DIR": f"{folder}/run",
        "LOGDIR": t5x_settings.TERMINAL_LOG,  # the log of the trial outlives the folder
    }


def _list_pax_settings(steps: int, folder: str) -> dict[str, str]:
    """Return the settings that make a Pax run a trial."""
    return {
        "MAX_STEPS": str(steps),
        "fdl.SUMMARY_INTERVAL_STEPS": str(max(steps // 2, 1)),
        "LOG_DIR": f"{folder}/run",
        "ADDITIONAL_ARGS": NO_CHECKPOINTS,
    }


def _use_synthetic_data(run: Run) -> Run:
    """Return the run with the experiment that has the same model and synthetic data, if any."""
    from rosetta.pax.run import hyper_parameters

    name = f"Synthetic{run.model.removeprefix('Pile')}"
    if name not in hyper_parameters.list_experiments():
        return run
    return replace(
        run, entry=(*run.entry[:-1], "train"), model=name, env={**run.env, "CONFIG": name}
    )


def _read_outcome(status: int | None, log: str, folder: Path, more: dict[str, Any]) -> Outcome:
    """Return the outcome of a trial.

    Args:
        status: The exit status; None if the trial took too long.
        log: The text of the log.
        folder: The folder of the run's files.
        more: Details for the evidence.
    """
    if status is None:
        return Outcome("too long", reason="the trial was ended: see --seconds", more=more)
    if status == 0:
        return _read_rate(folder, more)
    last_lines = [line for line in log.splitlines() if line.strip()][-_SHOWN_LINES:]
    if _OUT_OF_MEMORY_MESSAGE.search(log) or status in _KILLED:
        return Outcome(
            OUT_OF_MEMORY,
            reason="the run does not fit into memory",
            more={**more, "end": last_lines},
        )
    rosetta_lines = [line for line in last_lines if _ROSETTA_LINE.match(line)]
    reason = (rosetta_lines or last_lines or [f"status {status}"])[-1]
    return Outcome(
        "refused" if status == 2 else "failed",
        reason=reason.removeprefix("rosetta: "),
        more={**more, "status": status, "end": last_lines},
    )


def _read_rate(folder: Path, more: dict[str, Any]) -> Outcome:
    """Return the outcome of a trial that ended well: the last rate in its progress file."""
    progress = next(iter(sorted(folder.rglob("progress.jsonl"))), None)
    lines = progress.read_text(encoding="utf-8").splitlines() if progress else []
    reports = [report for line in lines if "evaluation" not in (report := json.loads(line))]
    rates = [entry["tokens_per_second"] for entry in reports if entry.get("tokens_per_second")]
    if not rates:
        return Outcome(
            "failed", reason="the trial ended without a rate: give more --steps", more=more
        )
    last = {name: reports[-1].get(name) for name in ("steps_per_second", "mfu", "loss")}
    return Outcome(OK, float(rates[-1]), more={**more, **last})
