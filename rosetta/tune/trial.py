"""One trial: the preset's own training program with made-up data and no checkpoints, for some
steps, in a process of its own.
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

from rosetta.core import run_description
from rosetta.core.secrets import Mask
from rosetta.launch import node_processes, rendering
from rosetta.pax.run.parameter_count import NO_CHECKPOINTS
from rosetta.presets import preset_files, preset_run
from rosetta.tune import trial_process
from rosetta.tune.search import OK, OUT_OF_MEMORY, Choice, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.core.run_description import Run

_OUT_OF_MEMORY_MESSAGE = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|OUT_OF_MEMORY|CUDA_ERROR_OUT_OF_MEMORY", re.IGNORECASE
)
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # by the kernel, for the host's memory
_ROSETTA_LINE = re.compile(
    r"rosetta( \S+)*: "
)  # how a line of ours begins: "rosetta: …", "rosetta t5x pretrain: …" of a word it does not know
_SHOWN_LINES = 5  # last lines of a log that fails


class Trials:
    """Trials of a preset on this machine.

    Args:
      preset: its name or file; accelerator: short name of the cards, None for the CPU or others.
      gpus: devices that each trial has.
      settings: NAME -> VALUE of the command line.
      steps: of each trial.
      seconds: after which a trial is ended.
      logs: folder that they are kept in.
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
        self._processes = trial_process.TrialProcesses(logs, seconds)

    def describe(self, choice: Choice, folder: str = "") -> Run:
        """Return the run of a choice, whose files go into a folder.

        UserError where preset or settings are wrong.
        """
        framework = preset_files.load_preset_chain(self.preset)[0].name
        bench = (
            _list_t5x_settings(self.steps, folder)
            if framework == "t5x"
            else _list_pax_settings(self.steps, folder)
        )
        run = preset_run.describe_run(
            self.preset,
            accelerator=self.accelerator,
            settings={**bench, **self.settings, **choice.settings()},
            nodes=1,
            gpus_per_node=self.gpus,
            environment=os.environ,
        )
        return (
            _use_synthetic_data(replace(run, processes_per_node="node"))
            if framework == "pax" and "DATA" not in run.env
            else replace(run, processes_per_node="node")
        )

    def __call__(self, choice: Choice, _: int) -> Outcome:
        """Make a trial.

        Its rate is tokens a second of all devices, without the first step, which compiles.
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
            status, log = self._processes.run(argv, env)
            mask = Mask(variables)
            more: dict[str, Any] = {
                "command": [mask.mask_text(word) for word in argv],
                "env": mask.mask_variables(variables),
                "log": str(log),
            }
            return _read_outcome(
                status, log.read_text(encoding="utf-8", errors="replace"), Path(folder), more
            )


def _list_t5x_settings(steps: int, folder: str) -> dict[str, str]:
    return {
        "BENCHMARK_MODE": "1",
        "CHECKPOINT_DISABLE": "true",
        "TRAIN_STEPS": str(steps),
        "MODEL_DIR": f"{folder}/run",
    }


def _list_pax_settings(steps: int, folder: str) -> dict[str, str]:
    return {
        "MAX_STEPS": str(steps),
        "fdl.SUMMARY_INTERVAL_STEPS": str(max(steps // 2, 1)),
        "LOG_DIR": f"{folder}/run",
        "ADDITIONAL_ARGS": NO_CHECKPOINTS,
    }


def _use_synthetic_data(run: Run) -> Run:
    """Return the run of the model's size on synthetic data, if there is such an experiment."""
    from rosetta.pax.run import hyper_parameters

    name = f"Synthetic{run.model.removeprefix('Pile')}"
    if name not in hyper_parameters.list_experiments():
        return run
    return replace(
        run, entry=(*run.entry[:-1], "train"), model=name, env={**run.env, "CONFIG": name}
    )


def _read_outcome(status: int | None, log: str, folder: Path, more: dict[str, Any]) -> Outcome:
    if status == 0:
        found = next(iter(sorted(folder.rglob("progress.jsonl"))), None)
        reports = (
            [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()]
            if found
            else []
        )
        rates = [each["tokens_per_second"] for each in reports if each.get("tokens_per_second")]
        if rates:
            last = reports[-1]
            return Outcome(
                OK,
                float(rates[-1]),
                more={
                    **more,
                    **{name: last.get(name) for name in ("steps_per_second", "mfu", "loss")},
                },
            )
        return Outcome("failed", reason="it ended without a rate: give more --steps", more=more)
    last_lines = [line for line in log.splitlines() if line.strip()][-_SHOWN_LINES:]
    if status is None:
        return Outcome("too long", reason="it was ended: see --seconds", more=more)
    if _OUT_OF_MEMORY_MESSAGE.search(log) or status in _KILLED:
        return Outcome(
            OUT_OF_MEMORY, reason="it does not fit into memory", more={**more, "end": last_lines}
        )
    own = [line for line in last_lines if _ROSETTA_LINE.match(line)]
    reason = (own or last_lines or [f"status {status}"])[-1]
    return Outcome(
        "refused" if status == 2 else "failed",
        reason=reason.removeprefix("rosetta: "),
        more={**more, "status": status, "end": last_lines},
    )
