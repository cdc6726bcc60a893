"""Compile the step of a golden in a baked environment."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.subprocesses import output_end
from builder.pipeline import environment_build, verification
from builder.pipeline.step_plans import figures
from rosetta.core.errors import FAILED, MISSING, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.command_context import Context

FOLDER = "build/plans"  # of the environments that compile
ACCELERATOR = "cuda13"  # of these environments


@dataclass(frozen=True)
class PlanEnvironment:
    """A baked environment that compiles steps.

    Attributes:
        folder: The folder of the environment.
        distribution: The distribution that the environment was baked from.
        jaxlib: The version of jaxlib, "" if it has none.
        sources: Source -> the upstream commit that it is pinned to.
    """

    folder: Path
    distribution: str
    jaxlib: str
    sources: dict[str, str]


@dataclass(frozen=True)
class CompiledPlan:
    """What compiling a step gave.

    Attributes:
        figures: The figures of step_plans.figures.
        compile_s: The seconds that tracing and compiling took.
    """

    figures: dict[str, float]
    compile_s: float


def read_environment(folder: Path, where: str) -> PlanEnvironment:
    """Return what a baked environment consists of.

    Args:
        folder: The folder of the environment.
        where: The option that names the folder, for the error.

    Raises:
        UserError: The folder is not a baked environment.
    """
    try:
        record = json.loads((folder / "opt/rosetta/lock.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            "is not a baked environment",
            where,
            f"bake one: build.py build --distribution NAME --accelerator {ACCELERATOR} "
            "--output env:DIR",
            kind=MISSING,
        ) from error
    packages = folder.glob("opt/rosetta/env/lib/python*/site-packages/jaxlib-*.dist-info")
    versions = [path.name.removesuffix(".dist-info").partition("-")[2] for path in packages]
    sources = {name: source.get("commit") or "" for name, source in record["sources"].items()}
    return PlanEnvironment(folder, record["distribution"], versions[0] if versions else "", sources)


def bake_environment(context: Context, distribution: str, folder: Path) -> PlanEnvironment:
    """Bake the environment that compiles the steps of a distribution, if it is not up to date.

    Args:
        context: The manifest, the cache and the mirrors.
        distribution: The name of the distribution.
        folder: The folder of the environments; this one is the subfolder of that name.

    Raises:
        UserError: The environment cannot be baked.
    """
    output = folder / distribution
    environment_build.bake_environment(
        environment_build.plan_environment(context, distribution, ACCELERATOR, output)
    )
    return read_environment(output, str(output))


def compile_plan(environment: Path, plan: str, package_root: Path | None = None) -> CompiledPlan:
    """Run `rosetta plan` in an environment and return the figures.

    Args:
        environment: The folder of the environment.
        plan: The words after `rosetta plan`.
        package_root: The folder with the package `rosetta` to use; None for that of the
            environment.

    Raises:
        UserError: The step does not compile.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in verification.HIDDEN_VARIABLES
    }
    if package_root:
        variables["PYTHONPATH"] = str(package_root)
    argv = [str(environment / "bin/python"), "-m", "rosetta", "plan", *plan.split(), "--json"]
    with log.stage(f"rosetta plan {plan}"):
        process = subprocess.run(argv, env=variables, capture_output=True, check=False)
    report = _read_result(process)
    return CompiledPlan(figures.read_figures(report), round(report["compile"]["seconds"], 1))


def _read_result(process: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    """Return the result in the document that `rosetta plan --json` printed.

    Raises:
        UserError: The command failed.
    """
    try:
        document = json.loads(process.stdout)
        error = document["error"]
    except (ValueError, KeyError, TypeError):
        document, error = None, None
    if error:
        raise UserError(
            **{name: error[name] for name in ("what", "where", "do")}, kind=error["kind"]
        )
    if process.returncode or not document:
        raise UserError(
            f"it ended with status {process.returncode}: {output_end(process.stderr)}",
            "rosetta plan",
            "run the command in the environment to see its whole output",
            kind=FAILED,
        )
    result: dict[str, Any] = document["result"]
    return result
