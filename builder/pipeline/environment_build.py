"""Bake an environment: check the request, then make what is not made yet."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log, machine_architecture, manifest
from builder.core.cache import stage_key
from builder.core.file_copies import copy_tree
from builder.packages import (
    environment_assembly,
    environment_parts,
    package_installation,
    python_interpreter,
)
from builder.upstream import source, source_lock, source_tree
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.packages.environment_assembly import Part
    from builder.packages.environment_parts import Tree
    from builder.upstream.source import Access
    from builder.upstream.source_tree import PatchedSource


@dataclass(frozen=True)
class Plan:
    """Everything that decides a build, before anything is done."""

    distribution: str
    manifest: manifest.Manifest
    packages: package_installation.Packages
    access: Access
    output: Path


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
    architecture = machine_architecture.here()
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


def describe_steps(plan_: Plan) -> list[dict[str, Any]]:
    """Return the stages of a build, and which of them are done, for a dry run."""
    environment_assembly.refuse(plan_.output, plan_.distribution)
    steps: list[dict[str, Any]] = []
    for name in plan_.manifest.distribution(plan_.distribution).sources:
        entry = plan_.manifest.source(name)
        steps.append(
            {"stage": f"patch {name}", "done": source_tree.stamp(entry, plan_.access).is_file()}
        )
    known = _parts(plan_, _patched(plan_)) if all(step["done"] for step in steps) else []
    current = bool(known) and environment_assembly.is_current(plan_.output, known)
    steps.append(
        {
            "stage": f"install {plan_.packages.lock.name}",
            "done": bool(known) and environment_assembly.holds(plan_.output, known[0]),
        }
    )
    steps.append({"stage": f"put together {plan_.output}", "done": current})
    return steps


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
