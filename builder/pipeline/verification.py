"""Prove that what was baked works: run the self-test of an environment or of an image, and read its
report.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log, machine_architecture
from builder.images.engines import engine as engines
from builder.images.engines.engine import TEMPORARY, Limits
from builder.images.oci import reference
from rosetta.core.errors import FAILED, INVALID, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.images.engines.engine import Engine


@dataclass(frozen=True)
class Asked:
    """How an image is verified: as which UID, how many steps on which numbers of devices, and
    whether on a GPU.
    """

    user: str
    steps: int
    devices: str
    gpu: bool = False


def verify(
    environment: Path, *, steps: int, devices: str, workdir: str, root: Path
) -> dict[str, Any]:
    """Run the environment's own self-test; its report as rosetta gives it."""
    if (
        not (environment / "opt/rosetta/bin/rosetta").is_file()
        or not (environment / "opt/rosetta/lock.json").is_file()
    ):
        raise UserError(
            "is not a finished environment of rosetta's",
            str(environment),
            f"make it: python {root / 'build.py'} --distribution NAME --output env:{environment}",
            kind=INVALID,
        )
    return selftest(
        environment,
        "--steps",
        str(steps),
        "--devices",
        devices,
        *(["--workdir", workdir] if workdir else []),
    )


def selftest(environment: Path, *options: str) -> dict[str, Any]:
    """Run the self-test of a finished environment, without this process's variables."""
    argv = [str(environment / "opt/rosetta/bin/rosetta"), "selftest", "--json", *options]
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "XLA_FLAGS", "LD_LIBRARY_PATH")
    }
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False, env=env, text=True)
    return _report(done.stdout, done.returncode, str(environment))


def verify_published(name: str, engine: str, asked: Asked) -> dict[str, Any]:
    """Verify an image in a registry; the report names it by its digest."""
    wanted = reference.parse(name)
    if not wanted.digest or wanted.tag:
        raise UserError(
            "is not named by its digest",
            str(wanted),
            "give registry:HOST/NAME@sha256:DIGEST: a tag may move while it is tested",
        )
    taken, tag = engines.choose(engine), f"{TEMPORARY}:{wanted.digest[7:39]}"
    own = machine_architecture.here()
    try:
        with log.stage(f"pull {wanted}"):
            taken.pull(str(wanted), own, tag)
        return {
            **verify_image(tag, taken, asked),
            "reference": f"{wanted.host}/{wanted.name}",
            "digest": wanted.digest,
            "architecture": own,
        }
    finally:
        taken.remove([tag])


def verify_image(name: str, taken: Engine, asked: Asked) -> dict[str, Any]:
    """Run an image's own self-test as a user that the image does not know, on a read-only root
    without network.
    """
    if not taken.digest(name):
        raise UserError(
            "is no image of the engine's",
            f"image:{name}",
            f"give a name that {taken.name} has, or make one: --output image:{name}",
        )
    env = {"ROSETTA_SELFTEST_PLATFORM": "cuda"} if asked.gpu else {}
    limits = Limits(
        user=asked.user,
        read_only=True,
        memory_folders=("/tmp",),  # noqa: S108 - inside the container
        env=env,
        gpus=asked.gpu,
    )
    done = taken.run(
        name,
        ["rosetta", "selftest", "--json", "--steps", str(asked.steps), "--devices", asked.devices],
        limits,
    )
    for line in done.stderr.splitlines():
        log.info(line)
    report = _report(done.stdout, done.returncode, f"image:{name}")
    if asked.gpu and (
        found := sorted({str(run_.get("platform")) for run_ in report.get("runs", [])})
    ) != ["cuda"]:
        raise UserError(
            f"it trained on {', '.join(found) or 'nothing'}, not on a GPU",
            f"image:{name}",
            "its self-test is of a release before --gpu: verify a newer image",
            kind=UNSUPPORTED,
            value=", ".join(found),
        )
    return report


def _report(stdout: str, status: int, where: str) -> dict[str, Any]:
    try:
        document = json.loads(stdout)
        error, result = document["error"], document["result"]
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(
            f"its self-test ended with status {status} and no report",
            where,
            "see the lines above",
            kind=FAILED,
            value=status,
        ) from problem
    if error:
        raise UserError(error["what"], error["where"], error["do"])
    return dict(result)


def table(report: dict[str, Any]) -> str:
    """Return the report as a short table."""
    imports = report.get("imports") or {}
    lines = []
    if imports:
        failed = imports.get("failed", {})
        lines.append(
            f"imports     {imports['modules']} modules, {len(imports.get('skipped', {}))} "
            f"left out with a reason, {len(failed)} failed"
        )
        lines += [f"            {name}: {why}" for name, why in failed.items()]
    for run_ in report.get("runs", []):
        losses = {**run_["losses"], **run_["resumed_losses"]}
        resumed = (
            "not resumed"
            if run_["resumed_from"] is None
            else f"resumed from step {run_['resumed_from']}"
        )
        lines.append(
            f"{run_['devices']} device{'s' if run_['devices'] > 1 else ' '}   mesh "
            f"{run_.get('mesh', '')}, {run_['steps_per_second']:.2f} steps/s, {resumed}"
        )
        lines.append("  step      " + "".join(f"{int(step):>9}" for step in losses))
        lines.append("  loss      " + "".join(f"{loss:>9.4f}" for loss in losses.values()))
    lines += [f"PROBLEM     {problem}" for problem in report.get("problems", [])]
    return "\n".join([*lines, f"verified    {'yes' if report['ok'] else 'NO'}"])
