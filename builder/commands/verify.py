"""The command `verify`: check that an environment or an image works.

The check imports all packages, trains a tiny model, saves a checkpoint, restores it and continues.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core.command_context import Context, Result
from builder.images.engines import container_engine
from builder.pipeline import verification
from rosetta.core import option_types
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "what",
        metavar="env:DIR|image:NAME|registry:REF",
        help=(
            "an environment, an image in the engine, or a published image as "
            "registry:HOST/NAME@sha256:DIGEST"
        ),
    )
    parser.add_argument(
        "--engine",
        default="",
        choices=["docker", "buildah"],
        help="the engine that has the image (default: the first that answers)",
    )
    parser.add_argument(
        "--user",
        type=_parse_user,
        default="12345",
        help="image: the UID that runs it, with a read-only root and no network (default: 12345)",
    )
    parser.add_argument(
        "--steps",
        type=option_types.make_whole_number_type(maximum=999_999),
        default=20,
        help="training steps before the restore (default: 20)",
    )
    parser.add_argument(
        "--devices",
        type=option_types.parse_device_counts,
        default=(1, 4),
        help="numbers of virtual devices to train on (default: 1,4)",
    )
    parser.add_argument(
        "--gpu",
        action="store_true",
        help=(
            "image: train on the first GPU of this machine; this needs docker and the NVIDIA "
            "Container Toolkit"
        ),
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        default="",
        help="also write the JSON document to this file, for `build.py promote --result`",
    )
    parser.add_argument(
        "--workdir",
        metavar="DIR",
        default="",
        help="keep checkpoints and logs in this folder (default: a temporary folder)",
    )


def _parse_user(text: str) -> str:
    """Return the value of --user if it is UID or UID:GID, else raise UserError."""
    if not re.fullmatch(r"[0-9]{1,9}(:[0-9]{1,9})?", text):
        raise UserError(f"{text!r} is not a valid user", do="give UID or UID:GID")
    return text


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    kind, _, name = arguments.what.partition(":")
    _refuse_bad_arguments(arguments, kind, name)
    devices = ",".join(map(str, arguments.devices))
    if kind == "env":
        data = verification.verify_environment(
            Path(name).absolute(),
            steps=arguments.steps,
            devices=devices,
            workdir=arguments.workdir,
            root=context.root,
        )
    else:
        checks = verification.ImageChecks(
            arguments.user, arguments.steps, "1" if arguments.gpu else devices, arguments.gpu
        )
        data = _verify_image(context, kind, name, arguments.engine, checks)
    if arguments.write:
        _write_document(Path(arguments.write).absolute(), data)
    return Result(data, verification.format_report(data), ok=bool(data["ok"]))


def _refuse_bad_arguments(arguments: argparse.Namespace, kind: str, name: str) -> None:
    """Raise UserError for arguments that name nothing to verify or contradict each other."""
    if kind not in ("env", "image", "registry") or not name:
        raise UserError(
            f"{arguments.what!r} is not a valid environment or image",
            "verify",
            "give env:DIR, image:NAME or registry:HOST/NAME@sha256:DIGEST",
        )
    if kind == "env" and arguments.gpu:
        raise UserError("is for images", "--gpu", "leave it out, or give image:NAME")
    if arguments.write and Path(arguments.write).is_dir():
        raise UserError("is a folder", f"--write {arguments.write}", "give the name of a file")


def _verify_image(
    context: Context, kind: str, name: str, engine: str, checks: verification.ImageChecks
) -> dict[str, Any]:
    """Verify an image of the engine, or of a registry if `kind` is "registry"."""
    if kind == "image":
        return verification.verify_image(name, container_engine.choose_engine(engine), checks)
    if context.offline:
        raise UserError(
            "a registry cannot be reached with --offline",
            "verify",
            "leave it out, or give image:NAME",
        )
    return verification.verify_registry_image(name, engine, checks)


def _write_document(path: Path, data: dict[str, Any]) -> None:
    """Write the JSON document of the result, in the form that `build.py promote` reads."""
    document = {
        "schema": 1,
        "command": "verify",
        "ok": bool(data["ok"]),
        "result": data,
        "error": None,
    }
    write_atomic(path, json.dumps(document, indent=1) + "\n")
