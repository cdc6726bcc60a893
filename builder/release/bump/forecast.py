"""Try distributions at the tips of their upstreams with the newest JAX of the package index.

The packages are resolved, baked and imported in a copy, so nothing in the checkout changes.
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

JAX = ("jax", "jaxlib")
_MAX_SHOWN = 20  # changed packages, and modules that fail, in the text; --json has all


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
        The result of each distribution, by its name.
    """
    copy = manifest.load(context.manifest_path)
    results = {}
    for name in names:
        with log.stage(f"{name} on the newest JAX"):
            try:
                target = _choose_target(copy, name, requested_python)
                results[name] = _try_distribution(context, copy, target, folder / name)
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


def _choose_target(copy: Manifest, name: str, requested_python: str) -> _Target:
    distribution = copy.distribution(name)
    if "cpu" not in distribution.accelerators:
        raise UserError(
            "is not built for the CPU, and the forecast uses the CPU",
            name,
            "build it with the pins at the tips, and verify it on its accelerator",
        )
    line = copy.lines[distribution.line]
    python = python_interpreter.find_interpreter(
        line.pythons, line.python, requested_python
    ).version
    architecture = machine_architecture.detect_architecture()
    return _Target(name, distribution.line, requested_python, python, architecture)


def _try_distribution(
    context: Context, copy: Manifest, target: _Target, output: Path
) -> dict[str, Any]:
    """Resolve, bake and import a distribution with the newest JAX."""
    newest = {
        python: find_newest_jax(python, target.architecture, offline=context.offline)
        for python in copy.lines[target.line].pythons
    }
    request = _read_request(context, copy, target.line, f"locks/{target.name}-cpu.txt")
    lock = copy.root / request.where
    old_pins = line_locks.read_existing_pins(lock)
    environments = environment_markers.list_environments([target.python], [target.architecture])
    result: dict[str, Any] = {
        "python": target.python,
        "pinned": next((pin.version for pin in old_pins if pin.name == "jax"), None),
        "jax": newest[target.python],
        "newest": newest,
        "lifted": [],
        "changed": [],
        "imports": None,
        "problem": None,
        "ok": False,
    }
    try:
        pins, result["lifted"] = resolve_with_jax(
            replace(request, environments=environments),
            newest[target.python],
            old_pins,
            offline=context.offline,
        )
    except UserError as error:
        return {**result, "problem": str(error)}
    result["changed"] = list_changed_packages(old_pins, pins, environments[0])
    write_atomic(lock, line_locks.render_lock(pins, stage_key("forecast", request.key_inputs())))
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
    return str(next(iter(jax.specifier)).version)


def _read_request(context: Context, copy: Manifest, line: str, lock: str) -> Request:
    """Return what a lock is resolved from, with the requirements of the sources at their new pins.

    Args:
        context: The context of the copy.
        copy: The manifest of the copy.
        line: The name of the line.
        lock: The path of the lock, from the manifest's folder.
    """
    names: dict[str, None] = {}
    for distribution in copy.distributions.values():
        if distribution.line == line:
            names |= dict.fromkeys(distribution.sources)
    sources = declared_requirements.read_sources(
        copy,
        source.configure_access(context, copy),
        names,
        declared_requirements.load_record(copy.folder(declared_requirements.RECORD)),
    )
    locks = line_locks.plan_locks(copy, line, sources.declared).joint_locks
    return next(wanted.request for wanted in locks if wanted.path == lock)


def resolve_with_jax(
    request: Request, jax: str, old_pins: Iterable[Pin], *, offline: bool
) -> tuple[list[Pin], list[str]]:
    """Resolve packages with a version of JAX.

    Packages keep their version if possible. If there is no solution with the exact versions that
    the request asks for, these are lifted.

    Args:
        request: The requirements.
        jax: The version of JAX.
        old_pins: The packages of the present lock.
        offline: Whether the package index must not be asked.

    Returns:
        The packages, and the projects whose exact versions were lifted.

    Raises:
        UserError: there is no solution.
    """
    preferred = [pin for pin in old_pins if pin.name not in JAX]
    strict = replace(request, requirements=lift_versions(request.requirements, jax, JAX))
    try:
        constraints = resolution.resolve_jointly(strict, preferred, offline=offline)
        return resolution.resolve_lock(strict, constraints, offline=offline), []
    except UserError:
        exact = _list_exact_projects(request.requirements)
        if not exact:
            raise
    loose = replace(request, requirements=lift_versions(request.requirements, jax, (*JAX, *exact)))
    preferred = [pin for pin in preferred if pin.name not in exact]
    constraints = resolution.resolve_jointly(loose, preferred, offline=offline)
    return resolution.resolve_lock(loose, constraints, offline=offline), exact


def _list_exact_projects(requirements: Iterable[str]) -> list[str]:
    """Return the projects, other than JAX, that are required in an exact version."""
    projects = []
    for line in requirements:
        requirement = Requirement(line)
        name = str(canonicalize_name(requirement.name))
        if name not in JAX and re.fullmatch(r"==[^*]+", str(requirement.specifier)):
            projects.append(name)
    return projects


def lift_versions(
    requirements: Iterable[str], jax: str, projects: Iterable[str]
) -> tuple[str, ...]:
    """Return requirements without the versions of some projects, and with a version of JAX."""
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
    """Return which packages of an environment are added, removed, or have another version."""
    old, new = _versions_in(old_pins, environment), _versions_in(new_pins, environment)
    return [
        f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _versions_in(pins: Iterable[Pin], environment: Environment) -> dict[str, str]:
    return {
        pin.name: pin.version
        for pin in pins
        if environment_markers.marker_applies(pin.marker, environment)
    }


def _import_all_modules(environment: Path) -> dict[str, Any]:
    """Import every module of an environment; return their number, and why which of them failed."""
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
        lines.append(f"  exact versions that were lifted: {', '.join(result['lifted'])}")
    lines += _shorten_list([f"  {change}" for change in result["changed"]], "packages")
    failed = result["imports"]["failed"] if result["imports"] else {}
    failures = [f"  fails: {module}: {reason}" for module, reason in failed.items()]
    lines += _shorten_list(failures, "modules")
    return lines


def _summarize_result(result: dict[str, Any]) -> str:
    if result["imports"] is None:
        return f"does not resolve: {result['problem']}"
    modules, failed = result["imports"]["modules"], len(result["imports"]["failed"])
    return f"{format_count(modules, 'module')}, {failed or 'none'} failed to be imported"


def _shorten_list(lines: Sequence[str], noun: str) -> list[str]:
    """Return the first lines, and how many more there are."""
    shown = list(lines[:_MAX_SHOWN])
    if len(lines) > _MAX_SHOWN:
        shown.append(f"  and {len(lines) - _MAX_SHOWN} more {noun}")
    return shown
