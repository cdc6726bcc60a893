"""Prove that what was baked works: import all of it, train a tiny model, checkpoint, restore and
continue.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.commands import build
from builder.core import log
from builder.core.cache import write_atomic
from builder.core.command_context import Context, Result
from builder.images.engines.engine import TEMPORARY, Limits, choose
from builder.images.oci import reference
from rosetta.core.errors import FAILED, INVALID, UserError

if TYPE_CHECKING:
    from builder.images.engines.engine import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "what",
        metavar="env:DIR|image:NAME|registry:REF",
        help=(
            "the bare environment, the engine's image or, as HOST/NAME@sha256:DIGEST, the "
            "published image to verify"
        ),
    )
    parser.add_argument(
        "--engine",
        default="",
        choices=["docker", "buildah"],
        help="whose image it is (default: the first engine that answers)",
    )
    parser.add_argument(
        "--user",
        type=_user,
        default="12345",
        help="image: the UID it runs as, on a read-only root without network (default: 12345)",
    )
    parser.add_argument(
        "--steps", type=_steps, default=20, help="training steps before the restore (default: 20)"
    )
    parser.add_argument(
        "--devices",
        type=_devices,
        default="1,4",
        help="numbers of virtual devices to train on (default: 1,4)",
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help=(
            "image: train on the first GPU of this machine, and on nothing else (needs docker "
            "with NVIDIA's runtime)"
        ),
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        default="",
        help="also write the JSON document there, as `build.py promote --result` takes it",
    )
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        default="",
        help="keep checkpoints and logs there (default: a temporary folder)",
    )


@dataclass(frozen=True)
class Asked:
    """How an image is verified: as which UID, how many steps on which numbers of devices, and
    whether on a GPU.
    """

    user: str
    steps: int
    devices: str
    gpu: bool = False


def _steps(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps")
    return int(text)


def _devices(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]{0,2}(,[1-9][0-9]{0,2})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1,4")
    return text


def _user(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,9}(:[0-9]{1,9})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no UID or UID:GID")
    return text


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    kind, _, name = arguments.what.partition(":")
    if kind not in ("env", "image", "registry") or not name:
        raise UserError(
            f"{arguments.what!r} is nothing that can be verified",
            "verify",
            "give env:DIR, image:NAME or registry:HOST/NAME@sha256:DIGEST",
        )
    if kind == "env" and arguments.gpu:
        raise UserError("is for images", "--gpu", "leave it out, or give image:NAME")
    if arguments.write and Path(arguments.write).is_dir():
        raise UserError("is a folder", f"--write {arguments.write}", "give the name of a file")
    asked = Asked(
        arguments.user, arguments.steps, "1" if arguments.gpu else arguments.devices, arguments.gpu
    )
    if kind == "registry":
        if context.offline:
            raise UserError(
                "a registry cannot be reached with --offline",
                "verify",
                "leave it out, or give image:NAME",
            )
        data = verify_published(name, arguments.engine, asked)
    elif kind == "image":
        data = verify_image(name, choose(arguments.engine), asked)
    else:
        data = verify(
            Path(name).absolute(),
            steps=arguments.steps,
            devices=arguments.devices,
            workdir=arguments.workdir,
            root=context.root,
        )
    if arguments.write:
        document = {
            "schema": 1,
            "command": "verify",
            "ok": bool(data["ok"]),
            "result": data,
            "error": None,
        }
        write_atomic(Path(arguments.write).absolute(), json.dumps(document, indent=1) + "\n")
    return Result(data, table(data), ok=bool(data["ok"]))


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
    taken, tag = choose(engine), f"{TEMPORARY}:{wanted.digest[7:39]}"
    own = build.here()
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
