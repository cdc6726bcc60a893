"""Bake an environment: check the request, then make the parts that are missing or out of date."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log, machine_architecture, manifest
from builder.core.cache import stage_key
from builder.core.file_copies import copy_tree
from builder.packages import (
    build_record,
    environment_assembly,
    environment_parts,
    package_installation,
    package_parts,
    python_interpreter,
)
from builder.upstream import source, source_lock, source_tree
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.core.manifest import Distribution, Manifest
    from builder.packages.environment_assembly import Part
    from builder.packages.environment_parts import Tree
    from builder.packages.package_installation import Packages
    from builder.upstream.source import Access
    from builder.upstream.source_tree import PatchedSource


@dataclass(frozen=True)
class Plan:
    """Everything that decides the content of an environment, before anything is built."""

    distribution: str
    manifest: Manifest
    packages: Packages
    access: Access
    output: Path

    @property
    def sources(self) -> list[str]:
        """The sources of the projects, then those of the distribution."""
        projects = [name for name, _ in self.packages.projects]
        return [*projects, *self.manifest.distribution(self.distribution).sources]


def plan_environment(
    context: Context,
    distribution: str,
    accelerator: str,
    output: Path,
    asked_python: str = "",
    projects: Sequence[str] = (),
) -> Plan:
    """Check a request against the manifest and this machine. Files are read, none is changed.

    Args:
        context: The context of the command.
        distribution: Its name in the manifest.
        accelerator: `cpu`, `cuda12` or `cuda13`.
        output: The folder that will hold the environment.
        asked_python: The version or the path of the Python to use; empty for the line's default.
        projects: The projects to add.

    Raises:
        UserError: the manifest or this machine does not have what the request asks for.
    """
    loaded = manifest.load(context.manifest_path)
    entry = loaded.distribution(distribution)
    if accelerator not in entry.accelerators:
        raise UserError(
            f"{distribution} is not built for {accelerator}",
            "--accelerator",
            f"one of: {', '.join(entry.accelerators)}",
        )
    architecture = _require_supported_machine(distribution, entry)
    if output.resolve().is_relative_to(context.cache.root.resolve()):
        raise UserError(
            "lies inside the builder's cache, where it would be pruned",
            str(output),
            "give another --output env:DIR",
        )
    chosen_projects = loaded.choose_projects(distribution, projects)
    line = loaded.lines[entry.line]
    locks = loaded.folder("locks")
    packages = package_installation.Packages(
        distribution,
        entry.line,
        accelerator,
        architecture,
        python_interpreter.find_interpreter(line.pythons, line.python, asked_python),
        locks / f"{distribution}-{accelerator}.txt",
        locks / "build.txt",
        loaded,
        projects=package_installation.read_projects(loaded, chosen_projects),
    )
    return Plan(distribution, loaded, packages, source.configure_access(context, loaded), output)


def _require_supported_machine(distribution: str, entry: Distribution) -> str:
    """Return this machine's architecture; raise UserError if the distribution does not run here."""
    architecture = machine_architecture.detect_architecture()
    if platform.system() != "Linux" or architecture not in entry.architectures:
        raise UserError(
            f"{distribution} does not run on {platform.system()} {platform.machine()}",
            "this machine",
            f"it runs on Linux {' and '.join(entry.architectures)}",
        )
    return architecture


def bake_environment(plan: Plan) -> dict[str, Any]:
    """Make the parts of an environment that are missing or out of date.

    Returns:
        A description of the environment and the paths that changed, for --json.
    """
    sources = _patch_sources(plan)
    for patched_source in sources.values():
        source_lock.check_record(plan.manifest, patched_source)
    parts = _list_parts(plan, sources)
    changed: list[str] = []
    if not environment_assembly.is_current(plan.output, parts):
        changed = _assemble_output(plan, sources, parts)
    return {
        "distribution": plan.distribution,
        "accelerator": plan.packages.accelerator,
        "python": plan.packages.python.full,
        "output": str(plan.output),
        "packages": plan.packages.key,
        "sources": [patched_source.as_json() for patched_source in sources.values()],
        "changed": changed,
    }


def _assemble_output(plan: Plan, sources: dict[str, PatchedSource], parts: list[Part]) -> list[str]:
    """Put the parts into the output folder; return the paths that changed."""
    environment_assembly.refuse_foreign_output(plan.output, plan.distribution)
    trees = _export_trees(plan, sources)
    with environment_assembly.lock_output(plan.output) as output:
        if environment_assembly.is_current(output, parts):  # another build was faster
            return []
        packages_part = parts[0]
        if environment_assembly.has_part(output, packages_part):
            environment_parts.refuse_shadowed_modules(
                package_installation.find_site_packages(output / packages_part.path),
                trees,
                plan.packages.lock.name,
            )
        with log.stage(f"put together {plan.output}"):
            return environment_assembly.assemble_parts(output, parts)


def describe_steps(plan: Plan) -> list[dict[str, Any]]:
    """Return the stages of a build, and which of them are done, for a dry run."""
    environment_assembly.refuse_foreign_output(plan.output, plan.distribution)
    steps: list[dict[str, Any]] = []
    for name in plan.sources:
        stamp = source_tree.stamp_path(plan.manifest.source(name), plan.access)
        steps.append({"stage": f"patch {name}", "done": stamp.is_file()})
    are_sources_patched = all(step["done"] for step in steps)
    parts = _list_parts(plan, _patch_sources(plan)) if are_sources_patched else []
    are_packages_installed = bool(parts) and environment_assembly.has_part(plan.output, parts[0])
    is_output_current = bool(parts) and environment_assembly.is_current(plan.output, parts)
    return [
        *steps,
        {"stage": f"install {plan.packages.lock.name}", "done": are_packages_installed},
        {"stage": f"put together {plan.output}", "done": is_output_current},
    ]


def _patch_sources(plan: Plan) -> dict[str, PatchedSource]:
    return {
        name: source_tree.patch_source(plan.manifest.source(name), plan.access)
        for name in plan.sources
    }


def _export_trees(plan: Plan, sources: dict[str, PatchedSource]) -> list[Tree]:
    """Export the patched trees into the cache, before the lock of the output folder is taken."""
    trees = environment_parts.list_trees(plan.manifest, sources, plan.access, plan.packages.python)
    for tree in trees:
        tree.path()
    return trees


def _list_parts(plan: Plan, sources: dict[str, PatchedSource]) -> list[Part]:
    """Return the parts of an environment: packages, patched trees, rosetta, and descriptions."""
    packages = plan.packages
    trees = environment_parts.list_trees(plan.manifest, sources, plan.access, packages.python)
    path_file = environment_parts.path_file_text([tree.folder for tree in trees])

    def install_packages(folder: Path) -> None:
        package_installation.make_environment(
            plan.access.cache, packages, folder, offline=plan.access.offline
        )
        site_packages = package_installation.find_site_packages(folder)
        environment_parts.refuse_shadowed_modules(site_packages, trees, packages.lock.name)
        write_atomic(site_packages / "rosetta-sources.pth", path_file)

    def find_site_packages(part_folder: Path) -> Path:
        output = environment_assembly.output_of(part_folder)
        return package_installation.find_site_packages(output / "opt/rosetta/env")

    packages_part = environment_assembly.Part(
        "opt/rosetta/env",
        stage_key("env", {"packages": packages.key, "paths": path_file}),
        install_packages,
    )
    record = build_record.make_record(packages, sources)
    package = package_parts.read_package()
    pins = packages.pins()
    return [
        packages_part,
        *(_make_tree_part(tree, packages.python.full) for tree in trees),
        package_parts.package_part(package, packages.python),
        environment_parts.programs_part(trees),
        *package_parts.completion_parts(plan.access.cache, package),
        *package_parts.revision_parts(),
        environment_assembly.Part("bin", "link", lambda path: path.symlink_to("opt/rosetta/bin")),
        environment_parts.licences_part(record, pins, find_site_packages, trees),
        *environment_parts.description_parts(record, plan.manifest, pins),
        build_record.record_part(record),
    ]


def _make_tree_part(tree: Tree, python_version: str) -> Part:
    return environment_assembly.Part(
        f"opt/{tree.folder}",
        stage_key("tree", {"tree": tree.key, "python": python_version}),
        lambda folder: copy_tree(tree.path(), folder),
    )
