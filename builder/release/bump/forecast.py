"""Try distributions at the tips of their upstreams with the newest JAX of the package index.

For each distribution, the packages are resolved, an environment is baked, and all its modules are
imported. This happens in a copy, so nothing in the checkout changes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.core import log, machine_architecture, manifest
from builder.core.cache import stage_key
from builder.packages import (
    declared_requirements,
    environment_markers,
    line_locks,
    python_interpreter,
    resolution,
)
from builder.packages.resolution import Request, Rules
from builder.pipeline import environment_build, verification
from builder.release.counted_nouns import format_count
from builder.upstream import source
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.packages.environment_markers import Environment
    from builder.packages.lock_file import Pin

JAX_PROJECTS = ("jax", "jaxlib")
_MAX_SHOWN = 20  # the most lines for packages and for modules in the text; --json has all of them


def run_forecast(
    context: Context, names: Iterable[str], folder: Path, requested_python: str
) -> dict[str, dict[str, Any]]:
    """Try distributions with the newest JAX.

    Args:
        context: The context of a copy whose manifest has its pins at the tips.
        names: The distributions to try.
        folder: Where to put the environments, which stay there.
        requested_python: The version or the path of the Python to use, or "" for the version that
            the manifest sets for the line, or else the newest supported one on this machine.

    Returns:
        The result of each distribution, by its name: see `_try_distribution`. If a distribution
        could not be tried, its result has only "ok" and "problem".
    """
    copied_manifest = manifest.load(context.manifest_path)
    results = {}
    for name in names:
        with log.stage(f"{name} on the newest JAX"):
            try:
                target = _choose_target(copied_manifest, name, requested_python)
                results[name] = _try_distribution(context, copied_manifest, target, folder / name)
            except UserError as error:
                results[name] = {"ok": False, "problem": str(error)}
    return results


@dataclass(frozen=True)
class _Target:
    """A distribution and where it is tried.

    Attributes:
        name: The name of the distribution.
        line: The name of its line.
        requested_python: The version or the path of the Python that the user named, or "".
        python: The version of the Python.
        architecture: The architecture of this machine.
    """

    name: str
    line: str
    requested_python: str
    python: str
    architecture: str


def _choose_target(copied_manifest: Manifest, name: str, requested_python: str) -> _Target:
    """Return on which Python and architecture to try a distribution.

    Raises:
        UserError: The distribution is not built for the CPU, or no such Python is installed.
    """
    distribution = copied_manifest.distribution(name)
    if "cpu" not in distribution.accelerators:
        raise UserError(
            "is not built for the CPU, and the forecast uses the CPU",
            name,
            "build it with the pins at the tips, and verify it on its accelerator",
        )
    line = copied_manifest.lines[distribution.line]
    python = python_interpreter.find_interpreter(
        line.pythons, line.python, requested_python
    ).version
    architecture = machine_architecture.detect_architecture()
    return _Target(name, distribution.line, requested_python, python, architecture)


def _try_distribution(
    context: Context, copied_manifest: Manifest, target: _Target, output: Path
) -> dict[str, Any]:
    """Resolve, bake and import a distribution with the newest JAX.

    Returns:
        The result as JSON. "pinned" is the locked version of JAX, "jax" the version that was
        tried, and "newest" the newest one for each Python version of the line. "lifted" has the
        projects whose exact versions were not required, and "changed" the packages that differ from
        the lock. "imports" is None if the packages could not be resolved.
    """
    newest_jax = {
        python: find_newest_jax(python, target.architecture, offline=context.offline)
        for python in copied_manifest.lines[target.line].pythons
    }
    lock_path = f"locks/{target.name}-cpu.txt"
    request = _find_request(context, copied_manifest, target.line, lock_path)
    lock_file = copied_manifest.root / request.where
    old_pins = line_locks.read_existing_pins(lock_file)
    environments = environment_markers.list_environments([target.python], [target.architecture])
    result: dict[str, Any] = {
        "python": target.python,
        "pinned": next((pin.version for pin in old_pins if pin.name == "jax"), None),
        "jax": newest_jax[target.python],
        "newest": newest_jax,
        "lifted": [],
        "changed": [],
        "imports": None,
        "problem": None,
        "ok": False,
    }
    try:
        pins, result["lifted"] = resolve_with_jax(
            replace(request, environments=environments),
            newest_jax[target.python],
            old_pins,
            offline=context.offline,
        )
    except UserError as error:
        return {**result, "problem": str(error)}
    result["changed"] = list_changed_packages(old_pins, pins, environments[0])
    write_atomic(
        lock_file, line_locks.render_lock(pins, stage_key("forecast", request.key_inputs()))
    )
    baked = environment_build.bake_environment(
        environment_build.plan_environment(
            context, target.name, "cpu", output, target.requested_python
        )
    )
    result["imports"] = _import_all_modules(output)
    return {
        **result,
        "sources": {entry["name"]: entry["commit"] for entry in baked["sources"]},
        "environment": str(output),
        "ok": not result["imports"]["failed"],
    }


def find_newest_jax(python: str, architecture: str, *, offline: bool) -> str:
    """Return the newest release of JAX in the package index for a version of Python."""
    request = Request(
        ("jax",),
        Rules(),
        environment_markers.list_environments([python], [architecture]),
        f"the newest JAX for Python {python}",
    )
    resolved = [
        Requirement(line) for line in resolution.resolve_jointly(request, (), offline=offline)
    ]
    (jax,) = (requirement for requirement in resolved if requirement.name == "jax")
    (exact_version,) = jax.specifier  # ==VERSION
    return str(exact_version.version)


def _find_request(
    context: Context, copied_manifest: Manifest, line: str, lock_path: str
) -> Request:
    """Return the request that a lock is resolved from, with the requirements at the new pins.

    Args:
        context: The context of the copy.
        copied_manifest: The manifest of the copy.
        line: The name of the line.
        lock_path: The path of the lock, from the manifest's folder.
    """
    source_names: dict[str, None] = {}  # ordered, each once
    for distribution in copied_manifest.distributions.values():
        if distribution.line == line:
            source_names |= dict.fromkeys(distribution.sources)
    record_file = copied_manifest.folder(declared_requirements.RECORD)
    sources = declared_requirements.read_sources(
        copied_manifest,
        source.configure_access(context, copied_manifest),
        source_names,
        declared_requirements.load_record(record_file),
    )
    locks = line_locks.plan_locks(copied_manifest, line, sources.declared).joint_locks
    return next(lock.request for lock in locks if lock.path == lock_path)


def resolve_with_jax(
    request: Request, jax: str, old_pins: Iterable[Pin], *, offline: bool
) -> tuple[list[Pin], list[str]]:
    """Resolve packages with a version of JAX.

    Packages keep their locked version if possible. If the request has no solution, it is resolved
    again without the exact versions that it requires (`PROJECT==VERSION`).

    Args:
        request: The requirements.
        jax: The version of JAX.
        old_pins: The packages of the present lock.
        offline: Whether the package index must not be asked.

    Returns:
        The packages, and the projects whose exact versions were not required.

    Raises:
        UserError: there is no solution even so.
    """
    preferred = [pin for pin in old_pins if pin.name not in JAX_PROJECTS]
    strict = replace(request, requirements=lift_versions(request.requirements, jax, JAX_PROJECTS))
    try:
        constraints = resolution.resolve_jointly(strict, preferred, offline=offline)
        return resolution.resolve_lock(strict, constraints, offline=offline), []
    except UserError:
        exact_projects = _list_exact_projects(request.requirements)
        if not exact_projects:
            raise
    unpinned = lift_versions(request.requirements, jax, (*JAX_PROJECTS, *exact_projects))
    loose = replace(request, requirements=unpinned)
    preferred = [pin for pin in preferred if pin.name not in exact_projects]
    constraints = resolution.resolve_jointly(loose, preferred, offline=offline)
    return resolution.resolve_lock(loose, constraints, offline=offline), exact_projects


def _list_exact_projects(requirements: Iterable[str]) -> list[str]:
    """Return the projects, other than JAX, that the requirements pin to an exact version."""
    projects = []
    for line in requirements:
        requirement = Requirement(line)
        name = str(canonicalize_name(requirement.name))
        if name not in JAX_PROJECTS and re.fullmatch(r"==[^*]+", str(requirement.specifier)):
            projects.append(name)
    return projects


def lift_versions(
    requirements: Iterable[str], jax: str, projects: Iterable[str]
) -> tuple[str, ...]:
    """Return requirements that allow any version of some projects, and one version of JAX.

    Args:
        requirements: The requirements.
        jax: The version of JAX.
        projects: The projects whose versions are no longer restricted.
    """
    lifted = [f"jax=={jax}"]
    without_version = set(projects)
    for line in requirements:
        requirement = Requirement(line)
        if canonicalize_name(requirement.name) in without_version:
            requirement.specifier = SpecifierSet()
        lifted.append(str(requirement))
    return tuple(dict.fromkeys(lifted))


def list_changed_packages(
    old_pins: Iterable[Pin], new_pins: Iterable[Pin], environment: Environment
) -> list[str]:
    """Return a line for each package of an environment whose version differs, as "NAME OLD -> NEW".

    "none" stands for the version of a package that was added or removed.
    """
    old, new = _map_versions(old_pins, environment), _map_versions(new_pins, environment)
    return [
        f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _map_versions(pins: Iterable[Pin], environment: Environment) -> dict[str, str]:
    return {
        pin.name: pin.version
        for pin in pins
        if environment_markers.marker_applies(pin.marker, environment)
    }


def _import_all_modules(environment: Path) -> dict[str, Any]:
    """Import every module of an environment.

    Returns:
        "modules": the number of modules; "failed": the reason for each module that failed.
    """
    imports = verification.run_selftest(environment, "--imports-only")["imports"]
    return {"modules": imports["modules"], "failed": dict(imports["failed"])}


def forecast_as_text(results: dict[str, dict[str, Any]]) -> str:
    """Return the results of `run_forecast` for a terminal."""
    lines: list[str] = []
    for name, result in results.items():
        if "jax" in result:
            lines += _result_lines(name, result)
        else:
            lines.append(f"{name}: not tried: {result['problem']}")
    return "\n".join(lines)


def _result_lines(name: str, result: dict[str, Any]) -> list[str]:
    lines = [
        f"{name} on JAX {result['jax']} (pinned: {result['pinned']}), Python {result['python']}: "
        + _summarize_result(result)
    ]
    for python, jax in result["newest"].items():
        if Version(jax) > Version(result["jax"]):
            lines.append(f"  Python {python} has JAX {jax}: try it with --python {python}")
    if result["lifted"]:
        lines.append(f"  exact versions not required: {', '.join(result['lifted'])}")
    lines += _shorten_list([f"  {change}" for change in result["changed"]], "packages")
    failed = result["imports"]["failed"] if result["imports"] else {}
    failures = [f"  fails: {module}: {reason}" for module, reason in failed.items()]
    lines += _shorten_list(failures, "modules")
    return lines


def _summarize_result(result: dict[str, Any]) -> str:
    if result["imports"] is None:
        return f"does not resolve: {result['problem']}"
    modules, failed = result["imports"]["modules"], len(result["imports"]["failed"])
    return f"{format_count(modules, 'module')}, imports that failed: {failed or 'none'}"


def _shorten_list(lines: Sequence[str], noun: str) -> list[str]:
    """Return at most `_MAX_SHOWN` lines, and a line with the number of the others."""
    shown = list(lines[:_MAX_SHOWN])
    if len(lines) > _MAX_SHOWN:
        shown.append(f"  and {len(lines) - _MAX_SHOWN} more {noun}")
    return shown
