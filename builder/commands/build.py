"""The command `build`: build a distribution as a bare environment or as an image.

Modules that read the manifest are imported where they are needed: an image on a known foundation
needs none of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.commands import image_options
from builder.core import log
from builder.core.accelerators import ACCELERATORS
from builder.core.command_context import Context, Result
from builder.images import image_target
from builder.packages import python_interpreter
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
        help="the distribution to build: t5x, pax, t5x-next, pax-next, pax-1.4 (required)",
    )
    parser.add_argument(
        "--accelerator",
        default="cpu",
        choices=ACCELERATORS,
        help="CPUs, or GPUs of this CUDA version (default: cpu)",
    )
    parser.add_argument(
        "--output",
        metavar="KIND:PLACE",
        default="",
        help=(
            f"the kind and the place of the output: env:DIR, {image_target.FORMS} (default: "
            "env:build/NAME-ACCELERATOR, and the names of the projects)"
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
    parser.add_argument(
        "--with",
        metavar="PROJECT",
        action="append",
        default=[],
        dest="projects",
        help="add a project that is built on the distribution (may be repeated)",
    )
    image_options.add_arguments(parser)
    parser.add_argument(
        "--since",
        metavar="LOCK",
        default="",
        help=(
            "bundle: leave out the layers that this lock.json or bundle.json names, because the "
            "site has them"
        ),
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be done, but do nothing"
    )


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if not arguments.distribution:
        from builder.core import manifest

        raise UserError(
            "name the distribution to build",
            "--distribution",
            f"one of: {', '.join(manifest.load(context.manifest_path).distributions)}",
        )
    if arguments.output and not arguments.output.startswith("env:"):
        return _build_image(context, arguments)
    return _build_environment(context, arguments)


def _build_environment(context: Context, arguments: argparse.Namespace) -> Result:
    """Build a bare environment, or list the steps of its build."""
    from builder.pipeline import environment_build

    image_options.refuse_image_options(arguments)
    plan = environment_build.plan_environment(
        context,
        arguments.distribution,
        arguments.accelerator,
        parse_output_folder(arguments),
        arguments.python,
        arguments.projects,
    )
    if arguments.dry_run:
        return _list_environment_steps(plan, environment_build.describe_steps(plan))
    data = environment_build.bake_environment(plan)
    return Result(data, _describe_environment(context, arguments, data))


def parse_output_folder(arguments: argparse.Namespace) -> Path:
    """Return the folder of --output env:DIR, or the default folder of the distribution.

    Raises:
        UserError: --output has another form, or the folder cannot be created.
    """
    projects = dict.fromkeys(arguments.projects)
    name = "-".join((arguments.distribution, arguments.accelerator, *projects))
    text = arguments.output or f"env:build/{name}"
    kind, colon, folder = text.partition(":")
    if kind != "env" or not colon or not folder:
        raise UserError(
            f"{text!r} is not a valid kind of output",
            "--output",
            f"give env:DIR, {image_target.FORMS}",
        )
    path = Path(folder).absolute()
    image_target.require_folder_above(path, "--output")
    return path


def _describe_environment(
    context: Context, arguments: argparse.Namespace, data: dict[str, Any]
) -> str:
    """Return for people what is in the environment and how to verify it."""
    changed = ", ".join(data["changed"]) or "nothing, all steps were up to date"
    lines = [
        (
            f"{arguments.distribution} ({arguments.accelerator}, Python {data['python']}) is in "
            f"{data['output']}"
        )
    ]
    for entry in data["sources"]:
        commit, patched_commit = entry["commit"][:12], entry["patched_commit"][:12]
        lines.append(f"  {entry['name']:<12} {commit} patched {patched_commit}")
    lines += [
        f"  made: {changed}",
        (
            f"next: {python_interpreter.find_command()} {context.root / 'build.py'} "
            f"verify env:{data['output']}"
        ),
    ]
    return "\n".join(lines)


def _list_environment_steps(plan: Plan, steps: list[dict[str, Any]]) -> Result:
    """Return the steps of the build of an environment, without doing them."""
    data: dict[str, Any] = {
        "distribution": plan.distribution,
        "accelerator": plan.packages.accelerator,
        "python": plan.packages.python.full,
        "output": str(plan.output),
        "steps": steps,
    }
    return Result(data, _format_steps(steps))


def _format_steps(steps: list[dict[str, Any]]) -> str:
    return "\n".join(f"{'done ' if step['done'] else 'to do'}  {step['stage']}" for step in steps)


def _build_image(context: Context, arguments: argparse.Namespace) -> Result:
    """Build an image and deliver it, or list the steps of its build."""
    from builder.pipeline import image_output

    target = image_target.parse_output(
        arguments.output, arguments.distribution, arguments.accelerator
    )
    if arguments.python:
        raise UserError(
            "an image has the Python of its base",
            "--python",
            "leave it out, or choose the base with --base",
        )
    if arguments.since and target.kind != "bundle":
        raise UserError("is only for --output bundle:DIR", "--since", "leave it out")
    if arguments.compression == "zstd" and target.kind in ("bundle", "registry"):
        log.warn("enroot before 4.0 cannot read zstd layers")
    options = replace(
        image_options.read_image_options(arguments), projects=tuple(arguments.projects)
    )
    if arguments.dry_run:
        request = image_output.make_request(context, arguments.distribution, options, target)
        return _list_image_steps(request, target)
    data = image_output.build_and_deliver(
        context, arguments.distribution, options, target, arguments.since
    )
    data = {**data, "output": arguments.output}
    return Result(data, _describe_image(data))


def _describe_image(data: dict[str, Any]) -> str:
    """Return for people what was built, with the size of each layer."""
    lines = [
        (
            f"{data['distribution']} ({data['accelerator']}) is in {data['output']}, index "
            f"{data['digest']}"
        )
    ]
    for image in data["images"]:
        lines.append(f"  {image['platform']}  {image['size'] / 1e6:,.1f} MB  {image['digest']}")
        lines += [_describe_layer(layer) for layer in image["layers"]]
    return "\n".join([*lines, *data.get("next", [])])


def _describe_layer(layer: dict[str, Any]) -> str:
    size, unpacked_size = layer["size"] / 1e6, layer["unpacked"] / 1e6
    return f"    {layer['name']:<12}{size:>10,.1f} MB{unpacked_size:>10,.1f} MB unpacked"


def _list_image_steps(request: ImageRequest, target: Output) -> Result:
    """Return the steps of the build of an image, without doing them."""
    from builder.images import image_build

    steps = image_build.list_steps(request)
    data = {
        "distribution": request.distribution,
        "accelerator": request.accelerator,
        "output": target.kind,
        "steps": steps,
    }
    return Result(data, _format_steps(steps))
