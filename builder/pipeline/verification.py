"""Verify a baked environment or image: run its self-test and read the report."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log, machine_architecture
from builder.images.engines import container_engine
from builder.images.engines.container_engine import TEMPORARY_NAME, RunLimits
from builder.images.oci import reference
from rosetta.core.errors import FAILED, INVALID, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.images.engines.container_engine import Engine

# Variables of this process that would change what the self-test imports or how XLA compiles.
HIDDEN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "XLA_FLAGS", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class ImageChecks:
    """How an image is verified.

    Attributes:
        user: The UID that runs the self-test.
        steps: The number of training steps.
        devices: The numbers of devices to train on, separated by commas.
        gpu: Whether to train on a GPU.
    """

    user: str
    steps: int
    devices: str
    gpu: bool = False


def verify_environment(
    environment: Path, *, steps: int, devices: str, workdir: str, root: Path
) -> dict[str, Any]:
    """Run the self-test of an environment and return its report.

    Args:
        environment: The folder of the environment.
        steps: The number of training steps.
        devices: The numbers of devices to train on, separated by commas.
        workdir: The folder for checkpoints; empty for a temporary one.
        root: The folder of this repository, for the error's remedy.

    Raises:
        UserError: the folder is not a finished environment, or the self-test ended without a
            report.
    """
    required = ("opt/rosetta/bin/rosetta", "opt/rosetta/lock.json")
    if not all((environment / path).is_file() for path in required):
        raise UserError(
            "is not a finished environment of rosetta",
            str(environment),
            f"make it: python {root / 'build.py'} --distribution NAME --output env:{environment}",
            kind=INVALID,
        )
    options = ["--steps", str(steps), "--devices", devices]
    if workdir:
        options += ["--workdir", workdir]
    return run_selftest(environment, *options)


def run_selftest(environment: Path, *options: str) -> dict[str, Any]:
    """Run the self-test of a finished environment; return its report."""
    argv = [str(environment / "opt/rosetta/bin/rosetta"), "selftest", "--json", *options]
    variables = {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}
    process = subprocess.run(argv, stdout=subprocess.PIPE, check=False, env=variables, text=True)
    return _read_report(process.stdout, process.returncode, str(environment))


def verify_registry_image(name: str, engine_name: str, checks: ImageChecks) -> dict[str, Any]:
    """Pull an image from a registry, verify it, and remove it from the engine again.

    Args:
        name: HOST/NAME@sha256:DIGEST.
        engine_name: The container engine; empty for the first that answers.
        checks: How the image is verified.

    Returns:
        The report of the self-test, with the reference, digest and architecture of the image.

    Raises:
        UserError: the image is not named by its digest, cannot be pulled, or cannot be verified.
    """
    image = reference.parse_reference(name)
    if not image.digest or image.tag:
        raise UserError(
            "is not named by its digest",
            str(image),
            "give registry:HOST/NAME@sha256:DIGEST: a tag may move while the image is tested",
        )
    engine = container_engine.choose_engine(engine_name)
    local_tag = f"{TEMPORARY_NAME}:{image.digest[7:39]}"
    architecture = machine_architecture.detect_architecture()
    try:
        with log.stage(f"pull {image}"):
            engine.pull(str(image), architecture, local_tag)
        report = verify_image(local_tag, engine, checks)
    finally:
        engine.remove([local_tag])
    return {
        **report,
        "reference": f"{image.host}/{image.name}",
        "digest": image.digest,
        "architecture": architecture,
    }


def verify_image(name: str, engine: Engine, checks: ImageChecks) -> dict[str, Any]:
    """Run the self-test of an image in a container; return its report.

    The container has no network and a read-only root, and its user is unknown to the image.

    Raises:
        UserError: the engine has no such image, or the self-test ended without a report, or did
            not train on a GPU although a GPU was asked for.
    """
    if not engine.find_digest(name):
        raise UserError(
            f"{engine.name} has no image of this name",
            f"image:{name}",
            f"give the name of an image that {engine.name} has, or make it: --output image:{name}",
        )
    limits = RunLimits(
        user=checks.user,
        read_only=True,
        memory_folders=("/tmp",),  # noqa: S108 - inside the container
        env={"ROSETTA_SELFTEST_PLATFORM": "cuda"} if checks.gpu else {},
        gpus=checks.gpu,
    )
    command = ["rosetta", "selftest", "--json"]
    command += ["--steps", str(checks.steps), "--devices", checks.devices]
    outcome = engine.run(name, command, limits)
    for line in outcome.stderr.splitlines():
        log.info(line)
    report = _read_report(outcome.stdout, outcome.returncode, f"image:{name}")
    if checks.gpu:
        _require_gpu(report, name)
    return report


def _require_gpu(report: dict[str, Any], name: str) -> None:
    """Raise UserError unless every training run of a report was on a GPU."""
    platforms = sorted({str(run.get("platform")) for run in report.get("runs", [])})
    if platforms != ["cuda"]:
        raise UserError(
            f"the self-test trained on {', '.join(platforms) or 'nothing'}, not on a GPU",
            f"image:{name}",
            "the image is older than the option --gpu: verify a newer image",
            kind=UNSUPPORTED,
            value=", ".join(platforms),
        )


def _read_report(stdout: str, status: int, where: str) -> dict[str, Any]:
    """Return the result in a self-test's JSON document; raise its error as a UserError."""
    try:
        document = json.loads(stdout)
        error, result = document["error"], document["result"]
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(
            f"the self-test ended with status {status} and without a report",
            where,
            "see the lines above",
            kind=FAILED,
            value=status,
        ) from problem
    if error:
        raise UserError(error["what"], error["where"], error["do"])
    return dict(result)


def format_report(report: dict[str, Any]) -> str:
    """Return the report of a self-test as a short table."""
    lines = _format_imports(report.get("imports") or {})
    for run in report.get("runs", []):
        lines += _format_run(run)
    lines += [_format_check(check) for check in report.get("checks", [])]
    lines += [f"PROBLEM     {problem}" for problem in report.get("problems", [])]
    return "\n".join([*lines, f"verified    {'yes' if report['ok'] else 'NO'}"])


def _format_imports(imports: dict[str, Any]) -> list[str]:
    if not imports:
        return []
    failed = imports.get("failed", {})
    summary = (
        f"imports     {imports['modules']} modules, {len(imports.get('skipped', {}))} "
        f"left out with a reason, {len(failed)} failed"
    )
    return [summary, *(f"            {name}: {reason}" for name, reason in failed.items())]


def _format_check(check: dict[str, Any]) -> str:
    if check["reason"]:
        return f"{check['name']:<11} {check['outcome']}: {check['reason']}"
    devices = f"{check['devices']} device{'s' if check['devices'] > 1 else ''}"
    return f"{check['name']:<11} {check['outcome']} on {devices} ({check['platform']})"


def _format_run(run: dict[str, Any]) -> list[str]:
    losses = {**run["losses"], **run["resumed_losses"]}
    resumed = f"resumed from step {run['resumed_from']}"
    if run["resumed_from"] is None:
        resumed = "not resumed"
    devices = f"{run['devices']} device{'s' if run['devices'] > 1 else ' '}"
    speed = f"{run['steps_per_second']:.2f} steps/s"
    return [
        f"{devices}   mesh {run.get('mesh', '')}, {speed}, {resumed}",
        "  step      " + "".join(f"{int(step):>9}" for step in losses),
        "  loss      " + "".join(f"{loss:>9.4f}" for loss in losses.values()),
    ]
