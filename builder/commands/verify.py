"""Prove that what was baked works: import all of it, train a tiny model, checkpoint, restore and
continue.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

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
        type=_user,
        default="12345",
        help="image: the UID that runs it, with a read-only root and no network (default: 12345)",
    )
    parser.add_argument(
        "--steps",
        type=option_types.whole_number(maximum=999_999),
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
            "image: train on the first GPU of this machine; this needs docker and the runtime of "
            "NVIDIA"
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


def _user(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,9}(:[0-9]{1,9})?", text):
        raise UserError(f"{text!r} is not a valid user", do="give UID or UID:GID")
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
    devices = ",".join(map(str, arguments.devices))
    asked = verification.ImageChecks(
        arguments.user, arguments.steps, "1" if arguments.gpu else devices, arguments.gpu
    )
    if kind == "registry":
        if context.offline:
            raise UserError(
                "a registry cannot be reached with --offline",
                "verify",
                "leave it out, or give image:NAME",
            )
        data = verification.verify_registry_image(name, arguments.engine, asked)
    elif kind == "image":
        data = verification.verify_image(
            name, container_engine.choose_engine(arguments.engine), asked
        )
    else:
        data = verification.verify_environment(
            Path(name).absolute(),
            steps=arguments.steps,
            devices=devices,
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
    return Result(data, verification.format_report(data), ok=bool(data["ok"]))
