"""The command `wheel`: make the wheel of Transformer Engine for JAX, or the one for login nodes.

The wheel of Transformer Engine is compiled here, or imported from another machine.
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

    from builder.core.manifest import Manifest


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
        help="the architecture that the wheel is for (default: that of this machine)",
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
        help="the Python that the wheel is for (default: that of the images of the line)",
    )
    parser.add_argument(
        "--output", default="", metavar="DIR", help="also copy the wheel to this folder"
    )
    parser.add_argument(
        "--jobs",
        type=option_types.make_whole_number_type(minimum=0),
        default=0,
        metavar="N",
        help=(
            "compilers that run at a time, with up to 3 GB each (default: as many as cores and "
            "free memory allow)"
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
            "is not a folder",
            f"--output {arguments.output}",
            "give the folder that the wheel goes into",
            kind=EXISTS,
        )
    if arguments.project == "launcher":
        return _build_login_node_wheel(context.root, Path(arguments.output or "build"))
    _refuse_bad_arguments(arguments)
    plan = _plan_wheel(manifest.load(context.manifest_path), arguments)
    if arguments.drop_import:
        is_dropped = addition.forget_imported_wheel(context.cache, plan)
        text = "forgot the imported wheel" if is_dropped else "there was no imported wheel"
        return Result({"dropped": is_dropped}, text)
    imported: wheel_build.BuiltWheel | None
    if arguments.file:
        imported = addition.import_wheel(
            context.cache, plan, Path(arguments.file), arguments.sha256
        )
    else:
        imported = addition.find_imported_wheel(context.cache, plan)
    wheel = imported or wheel_build.ensure_wheel(
        context.cache, plan, offline=context.offline, compiler_count=arguments.jobs
    )
    data = addition.describe_wheel(plan, wheel, is_imported=imported is not None)
    lines = _describe_wheel(wheel, data["bytes"], imported=imported is not None)
    if arguments.output:
        data["output"] = str(_copy_wheel(wheel.path, Path(arguments.output)))
        lines.append(data["output"])
    return Result(data, "\n".join(lines))


def _refuse_bad_arguments(arguments: argparse.Namespace) -> None:
    """Raise UserError for missing or contradicting options of a Transformer Engine wheel."""
    if not arguments.accelerator:
        raise UserError(
            "is required",
            "--accelerator",
            "give the CUDA version of the wheel: cuda12 or cuda13",
            kind=MISSING,
        )
    if arguments.file and not re.fullmatch(r"[0-9a-f]{64}", arguments.sha256):
        raise UserError(
            "--import needs the sha256 of the wheel: 64 lower-case hex digits",
            "--sha256",
            "give the one that the maker of the wheel published",
            kind=INVALID,
        )
    if arguments.sha256 and not arguments.file:
        raise UserError(
            "is only for --import", "--sha256", "give the wheel with --import FILE", kind=CONFLICT
        )


def _plan_wheel(loaded: Manifest, arguments: argparse.Namespace) -> wheel_build.Plan:
    """Return the plan of the Transformer Engine wheel that the options describe."""
    settings = loaded.transformer_engine
    line = arguments.line or (settings.lines[0] if settings else "")
    if line and line not in loaded.lines:
        raise UserError(
            f"no line {line!r}",
            "--line",
            f"one of: {', '.join(loaded.lines)}",
            kind=UNKNOWN,
            value=line,
        )
    return wheel_build.make_plan(
        loaded,
        line,
        arguments.accelerator,
        arguments.architecture or machine_architecture.detect_architecture(),
        arguments.python or (loaded.lines[line].python if line else ""),
    )


def _describe_wheel(wheel: wheel_build.BuiltWheel, size: int, *, imported: bool) -> list[str]:
    """Return for people the name, size and hash of a wheel, and what its compilation took."""
    origin = ", imported" if imported else ""
    lines = [
        (
            f"{wheel.path.name}: {size / 1e6:.1f} MB, sha256 {wheel.sha256}, needs glibc "
            f"{wheel.glibc}{origin}"
        )
    ]
    if wheel.effort:
        lines.append(
            f"compiled in {wheel.effort['seconds']:.0f} s, {wheel.effort['at_once']} files at a "
            f"time, at most {wheel.effort['peak_bytes'] / 1e9:.1f} GB of memory each"
        )
    return lines


def _build_login_node_wheel(root: Path, folder: Path) -> Result:
    """Write the wheel that starts runs from a login node."""
    data = login_node_wheel.build_wheel(root)
    path = folder.absolute() / login_node_wheel.NAME
    write_atomic(path, data)
    digest = hashlib.sha256(data).hexdigest()
    return Result(
        {"output": str(path), "sha256": digest, "bytes": len(data)},
        f"{path}: {len(data) / 1e6:.1f} MB, sha256 {digest}, for Python 3.9 and later",
    )


def _copy_wheel(wheel: Path, folder: Path) -> Path:
    """Copy the wheel into a folder of the user and return its path there.

    A copy that fails leaves no partial file.
    """
    target = folder.absolute() / wheel.name
    with replace_file(target, None) as new:
        shutil.copyfile(wheel, new)
    return target
