"""Bake a distribution: resolve, fetch, patch, install by lock and put it together as a bare
environment or an image.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.commands import image_options
from builder.core import log, manifest
from builder.core.command_context import Context, Result
from builder.images import image_target
from builder.packages import python_interpreter
from builder.pipeline import environment_build
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse

    from builder.images.image_build import ImageRequest
    from builder.images.image_target import Output
    from builder.pipeline.environment_build import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "--distribution",
        metavar="NAME",
        default="",
        help="the distribution to bake: t5x, pax or pax-1.4 (required)",
    )
    parser.add_argument(
        "--accelerator",
        default="cpu",
        choices=["cpu", "cuda12", "cuda13"],
        help="CPUs, or GPUs of this CUDA version (default: cpu)",
    )
    parser.add_argument(
        "--output",
        metavar="KIND:PLACE",
        default="",
        help=(
            f"the kind and the place of the output: env:DIR, {image_target.FORMS} (default: "
            "env:build/NAME-ACCELERATOR)"
        ),
    )
    parser.add_argument(
        "--python",
        metavar="VERSION|PATH",
        default="",
        help=(
            "env: the Python of the environment (default: the version that the manifest sets for "
            "the line, or else the newest supported one on this machine)"
        ),
    )
    image_options.add_arguments(parser)
    parser.add_argument(
        "--since",
        metavar="LOCK",
        default="",
        help="bundle: leave out the layers in this lock.json or bundle.json, which the site has",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be done, but do nothing"
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if not arguments.distribution:
        raise UserError(
            "no distribution was named",
            "--distribution",
            f"one of: {', '.join(manifest.load(context.manifest_path).distributions)}",
        )
    if arguments.output and not arguments.output.startswith("env:"):
        return _run_image(context, arguments)
    image_options.refuse_options(arguments)
    plan = environment_build.plan_environment(
        context,
        arguments.distribution,
        arguments.accelerator,
        output_folder(arguments),
        arguments.python,
    )
    if arguments.dry_run:
        return _dry_run(plan)
    data = environment_build.bake_environment(plan)
    shown = ", ".join(data["changed"]) or "nothing had changed"
    sources = "\n".join(
        f"  {each['name']:<12} {each['commit'][:12]} patched {each['patched_commit'][:12]}"
        for each in data["sources"]
    )
    return Result(
        data,
        (
            f"{arguments.distribution} ({arguments.accelerator}, Python {data['python']}) is in "
            f"{data['output']}\n{sources}\n  made: {shown}\n"
            f"next: {python_interpreter.find_command()} {context.root / 'build.py'} "
            f"verify env:{data['output']}"
        ),
    )


def output_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder that --output names."""
    text = arguments.output or f"env:build/{arguments.distribution}-{arguments.accelerator}"
    kind, colon, folder = text.partition(":")
    if kind != "env" or not colon or not folder:
        raise UserError(
            f"{text!r} is no kind of output", "--output", f"give env:DIR, {image_target.FORMS}"
        )
    path = Path(folder).absolute()
    image_target.require_folder_above(path, "--output")
    return path


def _dry_run(plan: Plan) -> Result:
    steps = environment_build.describe_steps(plan)
    data: dict[str, Any] = {
        "distribution": plan.distribution,
        "accelerator": plan.packages.accelerator,
        "python": plan.packages.python.full,
        "output": str(plan.output),
        "steps": steps,
    }
    return Result(data, _list_steps(steps))


def _list_steps(steps: list[dict[str, Any]]) -> str:
    return "\n".join(f"{'done ' if step['done'] else 'to do'}  {step['stage']}" for step in steps)


def _run_image(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command where the output is an image."""
    from builder.pipeline import image_output

    wanted = image_target.parse_output(
        arguments.output, arguments.distribution, arguments.accelerator
    )
    if arguments.python:
        raise UserError(
            "an image has its base's Python",
            "--python",
            "leave it out, or choose the base by --base",
        )
    if arguments.since and wanted.kind != "bundle":
        raise UserError("goes with bundle:DIR", "--since", "leave it out")
    if arguments.compression == "zstd" and wanted.kind in ("bundle", "registry"):
        log.warn("an enroot before 4.0 cannot read zstd layers")
    asked = image_output.make_request(
        context, arguments.distribution, image_options.read(arguments), wanted
    )
    if arguments.dry_run:
        return _dry_run_image(asked, wanted)
    data = image_output.build_and_deliver(asked, wanted, arguments.since) | {
        "output": arguments.output
    }
    return Result(data, _describe_image(data))


def _describe_image(data: dict[str, Any]) -> str:
    """Return what was built, for people."""
    lines = [
        (
            f"{data['distribution']} ({data['accelerator']}) is in {data['output']}, index "
            f"{data['digest']}"
        )
    ]
    for image in data["images"]:
        lines.append(f"  {image['platform']}  {image['size'] / 1e6:,.1f} MB  {image['digest']}")
        lines += [
            (
                f"    {each['name']:<12}{each['size'] / 1e6:>10,.1f} "
                f"MB{each['unpacked'] / 1e6:>10,.1f} MB unpacked"
            )
            for each in image["layers"]
        ]
    return "\n".join([*lines, *data.get("next", [])])


def _dry_run_image(asked: ImageRequest, wanted: Output) -> Result:
    from builder.images import image_build

    steps = image_build.list_steps(asked)
    return Result(
        {
            "distribution": asked.distribution,
            "accelerator": asked.accelerator,
            "output": wanted.kind,
            "steps": steps,
        },
        _list_steps(steps),
    )
