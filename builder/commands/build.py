"""Bake a distribution: resolve, fetch, patch, install by lock and put it together as a bare
environment.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log, manifest
from builder.core.cache import stage_key, write_atomic
from builder.core.command_context import Context, Result
from builder.core.file_copies import copy_tree
from builder.images import image_target
from builder.packages import (
    environment_assembly,
    environment_parts,
    package_installation,
    python_interpreter,
)
from builder.pipeline import image_output
from builder.upstream import source, source_lock, source_tree
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse

    from builder.packages.environment_assembly import Part
    from builder.packages.environment_parts import Tree
    from builder.upstream.source import Access
    from builder.upstream.source_tree import PatchedSource

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def here() -> str:
    """Return this machine's architecture, as images name it."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "--distribution", metavar="NAME", default="", help="t5x, pax or pax-1.4 (has to be named)"
    )
    parser.add_argument(
        "--accelerator",
        default="cpu",
        choices=["cpu", "cuda12", "cuda13"],
        help="what it will run on (default: cpu)",
    )
    parser.add_argument(
        "--output",
        metavar="KIND:PLACE",
        default="",
        help=f"env:DIR, {image_target.FORMS} (default: env:build/NAME-ACCELERATOR)",
    )
    parser.add_argument(
        "--python",
        metavar="VERSION|PATH",
        default="",
        help=(
            "env: the Python it stands on (default: the line's own, else the newest at hand that "
            "fits)"
        ),
    )
    image_output.add_arguments(parser)
    parser.add_argument(
        "--since",
        metavar="LOCK",
        default="",
        help="bundle: leave out the layers of this lock.json or bundle.json, which the site has",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")


@dataclass(frozen=True)
class Plan:
    """Everything that decides a build, before anything is done."""

    distribution: str
    manifest: manifest.Manifest
    packages: package_installation.Packages
    access: Access
    output: Path


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    if not arguments.distribution:
        raise UserError(
            "no distribution was named",
            "--distribution",
            f"one of: {', '.join(manifest.load(context.manifest_path).distributions)}",
        )
    if arguments.output and not arguments.output.startswith("env:"):
        return image_output.run(context, arguments)
    image_output.refuse_options(arguments)
    plan_ = plan(
        context,
        arguments.distribution,
        arguments.accelerator,
        output_folder(arguments),
        arguments.python,
    )
    if arguments.dry_run:
        return _dry_run(plan_)
    data = bake_environment(plan_)
    shown = ", ".join(data["changed"]) or "nothing had changed"
    sources = "\n".join(
        f"  {each['name']:<12} {each['commit'][:12]} patched {each['patched_commit'][:12]}"
        for each in data["sources"]
    )
    return Result(
        data,
        (
            f"{arguments.distribution} ({arguments.accelerator}, Python {data['python']}) is in "
            f"{data['output']}\n{sources}\n  made: {shown}\nnext: {python_interpreter.command()} "
            f"{context.root / 'build.py'} verify env:{data['output']}"
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


def plan(
    context: Context, distribution: str, accelerator: str, into: Path, asked_python: str = ""
) -> Plan:
    """Check the request against the manifest and this machine; reads files, changes nothing."""
    loaded = manifest.load(context.manifest_path)
    entry = loaded.distribution(distribution)
    if accelerator not in entry.accelerators:
        raise UserError(
            f"{distribution} is not built for {accelerator}",
            "--accelerator",
            f"one of: {', '.join(entry.accelerators)}",
        )
    architecture = here()
    if platform.system() != "Linux" or architecture not in entry.architectures:
        raise UserError(
            f"{distribution} does not run on {platform.system()} {platform.machine()}",
            "this machine",
            f"it runs on Linux {' and '.join(entry.architectures)}",
        )
    line = loaded.lines[entry.line]
    if into.resolve().is_relative_to(context.cache.root.resolve()):
        raise UserError(
            "lies inside the builder's cache, where it would be pruned",
            str(into),
            "give another --output env:DIR",
        )
    interpreter = python_interpreter.find(line.pythons, line.python, asked_python)
    locks = loaded.folder("locks")
    wanted = package_installation.Packages(
        distribution,
        entry.line,
        accelerator,
        architecture,
        interpreter,
        locks / f"{distribution}-{accelerator}.txt",
        locks / "build.txt",
        loaded,
    )
    return Plan(distribution, loaded, wanted, source.access(context, loaded), into)


def bake_environment(plan_: Plan) -> dict[str, Any]:
    """Do what is not done yet; returns what was built, for --json."""
    sources = _patched(plan_)
    for state in sources.values():
        source_lock.check(plan_.manifest, state)
    wanted, changed = _parts(plan_, sources), list[str]()
    if not environment_assembly.is_current(plan_.output, wanted):
        environment_assembly.refuse(plan_.output, plan_.distribution)
        trees = _exported(plan_, sources)
        with environment_assembly.locked(plan_.output) as place:
            if not environment_assembly.is_current(place, wanted):
                if environment_assembly.holds(place, wanted[0]):
                    environment_parts.refuse_hidden(
                        package_installation.site_packages(place / wanted[0].path),
                        trees,
                        plan_.packages.lock.name,
                    )
                with log.stage(f"put together {plan_.output}"):
                    changed = environment_assembly.assemble(place, wanted)
    return {
        "distribution": plan_.distribution,
        "accelerator": plan_.packages.accelerator,
        "python": plan_.packages.python.full,
        "output": str(plan_.output),
        "packages": plan_.packages.key,
        "sources": [state.as_json() for state in sources.values()],
        "changed": changed,
    }


def _patched(plan_: Plan) -> dict[str, PatchedSource]:
    return {
        name: source_tree.patched(plan_.manifest.source(name), plan_.access)
        for name in plan_.manifest.distribution(plan_.distribution).sources
    }


def _exported(plan_: Plan, sources: dict[str, PatchedSource]) -> list[Tree]:
    """Return the trees, exported into the cache before the output is held."""
    trees = environment_parts.trees(plan_.manifest, sources, plan_.access, plan_.packages.python)
    for each in trees:
        each.path()
    return trees


def _parts(plan_: Plan, sources: dict[str, PatchedSource]) -> list[Part]:
    """Return the parts of the output: packages, patched sources, rosetta, then their
    descriptions.
    """
    wanted = plan_.packages
    trees = environment_parts.trees(plan_.manifest, sources, plan_.access, wanted.python)
    paths = environment_parts.pth([each.folder for each in trees])

    def environment(into: Path) -> None:
        package_installation.make(plan_.access.cache, wanted, into, offline=plan_.access.offline)
        environment_parts.refuse_hidden(
            package_installation.site_packages(into), trees, wanted.lock.name
        )
        write_atomic(package_installation.site_packages(into) / "rosetta-sources.pth", paths)

    def site(into: Path) -> Path:
        return package_installation.site_packages(
            environment_assembly.output_of(into) / "opt/rosetta/env"
        )

    def exported(each: Tree) -> Part:
        return environment_assembly.Part(
            f"opt/{each.folder}",
            stage_key("tree", {"tree": each.key, "python": wanted.python.full}),
            lambda into: copy_tree(each.path(), into),
        )

    return [
        environment_assembly.Part(
            "opt/rosetta/env",
            stage_key("env", {"packages": wanted.key, "paths": paths}),
            environment,
        ),
        *(exported(each) for each in trees),
        *environment_parts.of_rosetta(wanted.python, trees),
        *environment_parts.of_record(
            environment_parts.record(wanted, sources), plan_.manifest, wanted.pins(), site, trees
        ),
    ]


def _dry_run(plan_: Plan) -> Result:
    wanted = plan_.packages
    environment_assembly.refuse(plan_.output, plan_.distribution)
    steps = []
    for name in plan_.manifest.distribution(plan_.distribution).sources:
        entry = plan_.manifest.source(name)
        steps.append(
            {"stage": f"patch {name}", "done": source_tree.stamp(entry, plan_.access).is_file()}
        )
    known = _parts(plan_, _patched(plan_)) if all(step["done"] for step in steps) else []
    current = bool(known) and environment_assembly.is_current(plan_.output, known)
    steps.append(
        {
            "stage": f"install {wanted.lock.name}",
            "done": bool(known) and environment_assembly.holds(plan_.output, known[0]),
        }
    )
    steps.append({"stage": f"put together {plan_.output}", "done": current})
    text = "\n".join(f"{'done ' if step['done'] else 'to do'}  {step['stage']}" for step in steps)
    data: dict[str, Any] = {
        "distribution": plan_.distribution,
        "accelerator": wanted.accelerator,
        "python": wanted.python.full,
        "output": str(plan_.output),
        "steps": steps,
    }
    return Result(data, text)
