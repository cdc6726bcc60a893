"""Compile the steps of a search, each in a process of its own, and keep their figures in a file.

A process has a time limit and a memory limit. What is in the file is not compiled again, so that a
killed search continues.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core import limited_programs, xla_flags
from rosetta.core.errors import TOO_BIG, UserError
from rosetta.core.evidence_file import EvidenceFile
from rosetta.plan import layer_extrapolation, preset_arguments, progress
from rosetta.plan.layout_search import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from rosetta.core.run_description import Run
    from rosetta.plan.search_space import Candidate, Model

SCHEMA_VERSION = 1
FEWEST_LAYERS = (1, 2)
# The memory that must be left on this machine before a step is compiled, in bytes.
NEEDED_MEMORY = 3_000_000_000
_SHOWN_LINES = 3
COMPILE_SECONDS, COMPILE_MEMORY = "compile seconds", "compile memory"  # figures of the compiler


@dataclass(frozen=True)
class _Step:
    """A step to compile: the words after `rosetta plan`, and the XLA flags of its run."""

    arguments: list[str]
    flags: dict[str, Any]

    @property
    def key(self) -> str:
        """A text that is the same for the same step."""
        return json.dumps([self.arguments, self.flags], sort_keys=True)


class CompileTrials:
    """Compiles candidates.

    Args:
        model: The model.
        describe_run: Candidate -> the run that it would be.
        card: The short name of the GPU.
        evidence: The file with the figures of all steps.
        versions: Package -> version. Figures of other versions do not count.
        logs: The folder for the logs.
        seconds: The time after which a compilation is ended.
        layer_step: Layers are compiled in multiples of this number.

    Raises:
        UserError: The file is not valid evidence, or was made with other versions.
    """

    def __init__(
        self,
        model: Model,
        describe_run: Callable[[Candidate], Run],
        card: str,
        *,
        evidence: Path,
        versions: Mapping[str, str],
        logs: Path,
        seconds: float,
        layer_step: int = 1,
    ) -> None:
        self._model, self._describe_run, self._card = model, describe_run, card
        self._few_layers = tuple(layers * layer_step for layers in FEWEST_LAYERS)
        self._figures: dict[str, dict[str, float]] = {}
        self._file = EvidenceFile(
            evidence,
            {"schema": SCHEMA_VERSION, "versions": dict(versions)},
            self._read_entry,
            "rosetta plan --search",
        )
        available = limited_programs.read_available_memory()
        self._programs = limited_programs.LimitedPrograms(logs, seconds, memory=available)
        self._used: dict[str, dict[str, float]] = {}
        self.compiled = 0

    def _read_entry(self, entry: dict[str, Any]) -> None:
        """Take the figures of a step from the file."""
        step = _Step(list(entry["arguments"]), dict(entry["flags"]))
        self._figures[step.key] = {
            str(name): float(value) for name, value in entry["figures"].items()
        }

    @property
    def used(self) -> int:
        """How many steps the trials have used, compiled now or before."""
        return len(self._used)

    @property
    def compile_seconds(self) -> float:
        """The seconds in which these steps were compiled."""
        return sum(figures[COMPILE_SECONDS] for figures in self._used.values())

    @property
    def largest_process(self) -> float:
        """The largest memory of a process that compiled one of these steps, in bytes."""
        return max((figures[COMPILE_MEMORY] for figures in self._used.values()), default=0.0)

    def measure(self, candidate: Candidate) -> Trial:
        """Return the trial of a candidate: of few layers, extrapolated, or of the whole model.

        The whole model is compiled if its layers are scanned over, because that takes no longer, or
        if it has few layers.
        """
        if candidate.scanned or self._model.layers <= self._few_layers[-1]:
            return self.compile_whole(candidate)
        points = []
        for layers in self._few_layers:
            figures = self._compile(self._make_step(candidate, layers), f"{layers} layer(s)")
            if isinstance(figures, str):
                return Trial(candidate, problem=figures)
            points.append((layers, _drop_compiler_figures(figures)))
        extrapolated = layer_extrapolation.extrapolate(points, self._model.layers)
        if extrapolated.problem:
            return Trial(candidate, problem=f"not linear in the layers: {extrapolated.problem}")
        return _make_trial(candidate, extrapolated.figures, whole=False)

    def compile_whole(self, candidate: Candidate) -> Trial:
        """Return the trial of the whole model."""
        figures = self._compile(self._make_step(candidate, None), f"{self._model.layers} layers")
        if isinstance(figures, str):
            return Trial(candidate, problem=figures)
        return _make_trial(candidate, figures, whole=True)

    def _make_step(self, candidate: Candidate, layers: int | None) -> _Step:
        """Return the step of a candidate with so many layers, None for those of the model."""
        run = self._describe_run(candidate)
        arguments = preset_arguments.make_plan_arguments(run, self._card)
        if layers is not None:
            arguments += preset_arguments.list_layer_words(run.framework, layers)
        flags = {name: value for name, value in run.xla_flags.items() if value is not None}
        return _Step(arguments, flags)

    def _compile(self, step: _Step, what: str) -> dict[str, float] | str:
        """Return the figures of a step, or why there are none.

        Raises:
            UserError: This machine has too little memory left to compile anything.
        """
        if step.key in self._figures:
            self._used[step.key] = self._figures[step.key]
            return self._figures[step.key]
        available = limited_programs.read_available_memory()
        if available is not None and available < NEEDED_MEMORY:
            raise UserError(
                f"this machine has {available / 1e9:.1f} GB of memory left, and compiling needs "
                f"{NEEDED_MEMORY / 1e9:.0f}",
                "rosetta plan --search",
                "end other programs, then start the search again: it continues",
                kind=TOO_BIG,
            )
        with progress.show_phase(f"compiling {what}"):
            result = self._run(step)
        if isinstance(result, str):
            return result
        figures = list_figures(result)
        self._file.append({"arguments": step.arguments, "flags": step.flags, "figures": figures})
        self._figures[step.key] = self._used[step.key] = figures
        self.compiled += 1
        return figures

    def _run(self, step: _Step) -> dict[str, Any] | str:
        """Run `rosetta plan` for a step; return its result, or why there is none."""
        words = [sys.executable, "-P", "-m", "rosetta", "plan", *step.arguments, "--json"]
        flags = xla_flags.join_flags(xla_flags.format_flags(step.flags))
        with tempfile.TemporaryFile() as out:
            end = self._programs.run(words, {**os.environ, "XLA_FLAGS": flags}, out)
            out.seek(0)
            output = out.read()
        if end.limit == limited_programs.TIME:
            return f"compiling took too long: see --seconds; log: {end.log}"
        if end.limit == limited_programs.MEMORY:
            return f"compiling took more memory than this machine has; log: {end.log}"
        try:
            document = json.loads(output)
        except ValueError:
            lines = end.log.read_text(encoding="utf-8", errors="replace").splitlines()
            shown = " / ".join(lines[-_SHOWN_LINES:])
            return f"rosetta plan ended with status {end.status}: {shown}; log: {end.log}"
        if not document["ok"]:
            error = document["error"]
            return f"{error['where']}: {error['what']}; {error['do']}"
        result: dict[str, Any] = document["result"]
        return result


def list_figures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a result of `rosetta plan` that a search needs, as one mapping."""
    time, memory = result["time"], result["memory"]
    parts = {
        f"{layer_extrapolation.PART_PREFIX}{kind}": seconds
        for kind, seconds in time["parts"].items()
    }
    return {
        "peak": memory["peak"],
        **time["seconds"],
        **parts,
        "kernels": result["kernels"],
        "bytes": result["bytes"],
        "gemm flops": result["gemm_flops"],
        COMPILE_SECONDS: result["compile"]["seconds"],
        COMPILE_MEMORY: result["compile"]["rss"],
    }


def _drop_compiler_figures(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of the step alone, which are linear in its layers."""
    compiler = (COMPILE_SECONDS, COMPILE_MEMORY)
    return {name: value for name, value in figures.items() if name not in compiler}


def _make_trial(candidate: Candidate, figures: Mapping[str, float], *, whole: bool) -> Trial:
    """Return the trial that has these figures."""
    prefix = layer_extrapolation.PART_PREFIX
    return Trial(
        candidate,
        figures["peak"],
        {name: figures[name] for name in ("likely", "fastest", "slowest")},
        {
            name.removeprefix(prefix): value
            for name, value in figures.items()
            if name.startswith(prefix)
        },
        whole,
    )
