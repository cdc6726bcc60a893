"""Compile Transformer Engine's bindings for JAX into a wheel, or bring one here that was made
elsewhere; or make the one for login nodes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import machine_architecture, manifest
from builder.core.command_context import Context, Result
from builder.packages import login_node_wheel
from builder.packages.transformer_engine import addition, wheel_build
from rosetta.core import option_types
from rosetta.core.atomic_files import replace_file, write_atomic
from rosetta.core.errors import CONFLICT, EXISTS, INVALID, MISSING, UNKNOWN, UserError

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "project",
        choices=["transformer-engine", "launcher"],
        help="the wheel to make; launcher starts runs from a login node, and only takes --output",
    )
    parser.add_argument(
        "--accelerator", default="", choices=["cuda12", "cuda13"], help="the CUDA version"
    )
    parser.add_argument(
        "--architecture",
        choices=["amd64", "arm64"],
        help="the architecture that the wheel is for (default: the one of this machine)",
    )
    parser.add_argument(
        "--line",
        default="",
        metavar="LINE",
        help="the line whose JAX the wheel is for (default: the first that has Transformer Engine)",
    )
    parser.add_argument(
        "--python",
        default="",
        metavar="3.X",
        help="the Python that the wheel is for (default: the one of the images of the line)",
    )
    parser.add_argument(
        "--output", default="", metavar="DIR", help="also copy the wheel to this folder"
    )
    parser.add_argument(
        "--jobs",
        type=option_types.whole_number(minimum=0),
        default=0,
        metavar="N",
        help=(
            "compilers at a time, with up to 3 GB each (default: as many as cores and free memory "
            "allow)"
        ),
    )
    parser.add_argument(
        "--import",
        dest="file",
        default="",
        metavar="FILE",
        help="take this wheel from another machine instead of compiling one",
    )
    parser.add_argument(
        "--sha256", default="", metavar="HEX", help="the hash that the imported wheel must have"
    )
    parser.add_argument("--drop-import", action="store_true", help="forget the imported wheel")


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if arguments.output and Path(arguments.output).exists() and not Path(arguments.output).is_dir():
        raise UserError(
            "is no folder",
            f"--output {arguments.output}",
            "give the folder that the wheel goes into",
            kind=EXISTS,
        )
    if arguments.project == "launcher":
        return _launcher(context.root, Path(arguments.output or "build"))
    if not arguments.accelerator:
        raise UserError(
            "it is not given",
            "--accelerator",
            "name the CUDA that the wheel is for: cuda12 or cuda13",
            kind=MISSING,
        )
    loaded = manifest.load(context.manifest_path)
    if arguments.file and not re.fullmatch(r"[0-9a-f]{64}", arguments.sha256):
        raise UserError(
            "an imported wheel is taken by its sha256: 64 lower-case hex digits",
            "--sha256",
            "give the one that its maker names",
            kind=INVALID,
        )
    if arguments.sha256 and not arguments.file:
        raise UserError(
            "goes with --import only", "--sha256", "give the wheel by --import FILE", kind=CONFLICT
        )
    te = loaded.transformer_engine
    line = arguments.line or (te.lines[0] if te else "")
    if line and line not in loaded.lines:
        raise UserError(
            f"no line {line!r}",
            "--line",
            f"one of: {', '.join(loaded.lines)}",
            kind=UNKNOWN,
            value=line,
        )
    architecture = arguments.architecture or machine_architecture.detect_architecture()
    wanted = wheel_build.make_plan(
        loaded,
        line,
        arguments.accelerator,
        architecture,
        arguments.python or (loaded.lines[line].python if line else ""),
    )
    if arguments.drop_import:
        gone = addition.forget_imported_wheel(context.cache, wanted)
        return Result({"dropped": gone}, "forgotten" if gone else "there was no imported wheel")
    brought = (
        addition.import_wheel(context.cache, wanted, Path(arguments.file), arguments.sha256)
        if arguments.file
        else addition.find_imported_wheel(context.cache, wanted)
    )
    made = brought or wheel_build.ensure_wheel(
        context.cache, wanted, offline=context.offline, compiler_count=arguments.jobs
    )
    data = addition.describe_wheel(wanted, made, is_imported=brought is not None)
    text = [
        (
            f"{made.path.name}: {data['bytes'] / 1e6:.1f} MB, sha256 {made.sha256}, needs glibc "
            f"{made.glibc}{', imported' if brought else ''}"
        )
    ]
    if made.effort:
        text.append(
            f"compiled in {made.effort['seconds']:.0f} s, {made.effort['at_once']} files at a "
            f"time, at most {made.effort['peak_bytes'] / 1e9:.1f} GB of memory each"
        )
    if arguments.output:
        data["output"] = str(_copied(made.path, Path(arguments.output)))
        text.append(data["output"])
    return Result(data, "\n".join(text))


def _launcher(root: Path, folder: Path) -> Result:
    data, target = login_node_wheel.build_wheel(root), folder.absolute() / login_node_wheel.NAME
    write_atomic(target, data)
    digest = hashlib.sha256(data).hexdigest()
    return Result(
        {"output": str(target), "sha256": digest, "bytes": len(data)},
        f"{target}: {len(data) / 1e6:.1f} MB, sha256 {digest}, for Python 3.9 and later",
    )


def _copied(wheel: Path, folder: Path) -> Path:
    """Copy the wheel into a folder of the user's: whole or not at all."""
    target = folder.absolute() / wheel.name
    with replace_file(target, None) as new:
        shutil.copyfile(wheel, new)
    return target
