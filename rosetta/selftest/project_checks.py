"""Check the projects built on T5X that an environment has: import them, and train a tiny model.

`build.py --with PROJECT` adds a project to an environment or an image. A project is a package of
the same name with underscores. Its model and its data are in projects/PROJECT.gin.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import MISSING, UNKNOWN, UserError
from rosetta.selftest import import_check, shipped_modules, tensorboard_events, training
from rosetta.selftest.child_process import Context
from rosetta.selftest.runner import make_output_folder, report_progress
from rosetta.selftest.t5x import T5X
from rosetta.selftest.workload import TrainingCommand
from rosetta.t5x.run import gin_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.selftest.runner import Options

GIN_FOLDER = Path(__file__).parent / "projects"
STEPS = 3  # the optimizer's state of the first is used in the second
# A tiny model at its first steps may get a little worse, but not by this factor.
_LARGEST_RISE = 10


@dataclass(frozen=True)
class Project(T5X):
    """A tiny model of a project, which T5X's trainer trains.

    Attributes:
        name: The name of the project in manifest.yaml.
    """

    name: str = ""

    @property
    def package(self) -> str:
        """The top-level package of the project."""
        return self.name.replace("-", "_")

    def make_command(
        self, workdir: Path, *, steps: int, devices: int = 1, fp8: str = "off"
    ) -> TrainingCommand:
        """Return the training command; see Workload."""
        del fp8
        bindings = {"MODEL_DIR": str(workdir / "model"), "TRAIN_STEPS": steps}
        argv = [sys.executable, "-P", "-m", "t5x.train"]
        argv.append(f"--gin_file=rosetta/selftest/projects/{self.name}.gin")
        argv += [f"--gin.{key}={gin_text.format_literal(value)}" for key, value in bindings.items()]
        flags = f"--xla_force_host_platform_device_count={devices}"
        # A few tiny steps take less time than the optimizations of their compiler.
        variables = {"XLA_FLAGS": flags, "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
        return TrainingCommand(argv, variables)

    def read_losses(self, workdir: Path) -> dict[int, float]:
        """Return the loss of each step; see Workload."""
        return tensorboard_events.read_scalars(workdir / "model" / "train", "loss")


def list_projects() -> list[str]:
    """Return the names of the projects that have a model to train."""
    return sorted(
        path.stem for path in GIN_FOLDER.glob("*.gin") if path.stem not in ("common", "t5_sizes")
    )


def check_projects(names: Sequence[str], options: Options) -> dict[str, Any]:
    """Import the modules of projects, and train a tiny model of each for a few steps.

    Args:
        names: The names of the projects.
        options: The options of the self-test: the folder, whether it is kept, and what to check.

    Returns:
        The document that `rosetta selftest --project NAME --json` prints.

    Raises:
        UserError: A project is unknown, or this environment does not have it.
    """
    projects = [Project(name=name) for name in dict.fromkeys(names)]
    for project in projects:
        _require_project(project)
    output = make_output_folder(options)
    cache_parent = options.workdir.resolve() if options.workdir else output
    context = Context(cache_parent / "jax-cache", report_progress)
    keep = options.keep or options.workdir is not None
    try:
        results = [_check_project(context, project, output, options) for project in projects]
    except (KeyboardInterrupt, UserError):
        if not keep:
            shutil.rmtree(output)
        raise
    problems = [
        f"{result['name']}: {problem}" for result in results for problem in result["problems"]
    ]
    if not problems and not keep:
        shutil.rmtree(output)
    return {
        "framework": "t5x",
        "projects": results,
        "workdir": str(output) if output.exists() else None,
        "ok": not problems,
        "problems": problems,
    }


def _require_project(project: Project) -> None:
    """Raise UserError if a project is unknown, or not in this environment."""
    known = list_projects()
    if project.name not in known:
        raise UserError(
            f"unknown project {project.name!r}",
            "selftest --project",
            f"name one of {', '.join(known)}",
            kind=UNKNOWN,
            value=project.name,
        )
    if importlib.util.find_spec(project.package) is None:
        raise UserError(
            f"this environment does not have {project.name}",
            "selftest --project",
            f"add it: build.py --distribution t5x --with {project.name}",
            kind=MISSING,
            value=project.name,
        )


def _check_project(
    context: Context, project: Project, output: Path, options: Options
) -> dict[str, Any]:
    """Check one project and return the result for the JSON document."""
    folder = output / project.name
    folder.mkdir()
    start = time.monotonic()
    imports = import_check.ImportResult()
    if options.with_imports:
        imports = import_check.check_package(
            context,
            project.package,
            shipped_modules.read_known_failures(project.name),
            framework=project.framework,
            workdir=folder,
        )
    losses: dict[int, float] = {}
    problems = [f"cannot import {name}: {error}" for name, error in imports.failed.items()]
    if options.with_training:
        command = project.make_command(folder, steps=STEPS)
        losses, problem = training.run_process(
            context, project, command, folder / "train.log", project.name
        )
        problems += [f"training {problem}"] if problem else find_loss_problems(losses)
    return {
        "name": project.name,
        "modules": imports.modules,
        "skipped": imports.skipped,
        "failed": imports.failed,
        "losses": {str(step): loss for step, loss in losses.items()},
        "wall_s": round(time.monotonic() - start, 1),
        "problems": problems,
    }


def find_loss_problems(losses: dict[int, float]) -> list[str]:
    """Return a line for each problem of the losses of a project.

    Args:
        losses: The losses by step, ascending.
    """
    steps = list(range(1, STEPS + 1))
    if list(losses) != steps:
        return [f"the loss was reported at steps {list(losses)}, not at {steps}"]
    if not all(math.isfinite(loss) for loss in losses.values()):
        return [f"a loss is not finite: {losses}"]
    if len(set(losses.values())) == 1:
        return [f"the loss never changes: {losses}"]
    if max(losses.values()) > _LARGEST_RISE * losses[1]:
        return [f"the loss rises to more than {_LARGEST_RISE} times the first: {losses}"]
    return []


def format_result(result: dict[str, Any]) -> str:
    """Return the text for the document that `check_projects` returns."""
    lines = []
    for project in result["projects"]:
        counts = f"{len(project['failed'])} failed, {len(project['skipped'])} skipped"
        lines.append(f"{project['name']}: {project['modules']} modules, {counts}")
        lines += [f"  skipped {name}: {reason}" for name, reason in project["skipped"].items()]
        losses = "  ".join(f"{step}: {loss:.3f}" for step, loss in project["losses"].items())
        if losses:
            lines.append(f"  loss at step  {losses}")
    lines += [f"PROBLEM {problem}" for problem in result["problems"]]
    if result["workdir"]:
        lines.append(f"the files are in {result['workdir']}")
    lines.append("ok" if result["ok"] else "FAILED")
    return "\n".join(lines)
