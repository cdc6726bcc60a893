"""The stack at upstream's tips on the newest JAX of the index: resolved, baked and imported in a
copy, so that nothing of ours moves.
"""

from __future__ import annotations

import re
from dataclasses import replace
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
from builder.release.bump.report import count
from builder.upstream import source
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.packages.environment_markers import Environment
    from builder.packages.lock_file import Pin

JAX = ("jax", "jaxlib")
_SHOWN = 20  # changed packages, and modules that fail, in the text; --json has all


def run(
    context: Context, names: Iterable[str], folder: Path, asked_python: str
) -> dict[str, dict[str, Any]]:
    """Try distributions on the newest JAX; by name what came of each.

    Args:
        context: of the copy: its manifest has its pins at the tips already.
        names: distributions of that manifest.
        folder: where environments are put together, to be looked at afterwards.
        asked_python: the Python to stand on, as for a build; "" for the line's own, else the newest
          at hand.
    """
    copy = manifest.load(context.manifest_path)
    found = {}
    for name in names:
        with log.stage(f"{name} on the newest JAX"):
            try:
                found[name] = _tried(context, copy, name, folder / name, asked_python)
            except UserError as error:
                found[name] = {"ok": False, "problem": str(error)}
    return found


def _tried(
    context: Context, copy: Manifest, name: str, output: Path, asked_python: str
) -> dict[str, Any]:
    entry = copy.distribution(name)
    if "cpu" not in entry.accelerators:
        raise UserError(
            "is not built for the CPU, on which this is tried",
            name,
            "build it at the tips, and verify it where its accelerator is",
        )
    line = copy.lines[entry.line]
    architecture = machine_architecture.detect_architecture()
    own = python_interpreter.find(line.pythons, line.python, asked_python).version
    places = environment_markers.grid([own], [architecture])
    by_python = {each: newest(each, architecture, offline=context.offline) for each in line.pythons}
    wanted = _request(context, copy, entry.line, f"locks/{name}-cpu.txt")
    now = line_locks.existing(copy.root / wanted.where)
    pinned = next((pin.version for pin in now if pin.name == "jax"), None)
    data: dict[str, Any] = {
        "python": own,
        "pinned": pinned,
        "jax": by_python[own],
        "newest": by_python,
        "lifted": [],
        "changed": [],
        "imports": None,
        "problem": None,
        "ok": False,
    }
    try:
        pins, data["lifted"] = resolved(
            replace(wanted, environments=places), by_python[own], now, offline=context.offline
        )
    except UserError as error:
        return {**data, "problem": str(error)}
    data["changed"] = changed(now, pins, places[0])
    write_atomic(
        copy.root / wanted.where, line_locks.render(pins, stage_key("forecast", wanted.inputs()))
    )
    made = environment_build.bake_environment(
        environment_build.plan_environment(context, name, "cpu", output, asked_python)
    )
    data["imports"] = imported(output)
    return {
        **data,
        "sources": {each["name"]: each["commit"] for each in made["sources"]},
        "environment": str(output),
        "ok": not data["imports"]["failed"],
    }


def newest(version: str, architecture: str, *, offline: bool) -> str:
    """Return the newest release of JAX that the index has for a Python."""
    (line,) = (
        one
        for one in resolution.joint(
            Request(
                ("jax",),
                Rules(),
                environment_markers.grid([version], [architecture]),
                f"the newest JAX for Python {version}",
            ),
            (),
            offline=offline,
        )
        if Requirement(one).name == "jax"
    )
    return str(next(iter(Requirement(line).specifier)).version)


def _request(context: Context, copy: Manifest, line: str, path: str) -> Request:
    """Return what the lock at `path` is resolved from, with what the sources ask for at the copy's
    pins.
    """
    names = [
        name
        for entry in copy.distributions.values()
        if entry.line == line
        for name in entry.sources
    ]
    read = declared_requirements.read(
        copy,
        source.access(context, copy),
        dict.fromkeys(names),
        declared_requirements.load(copy.folder(declared_requirements.RECORD)),
    )
    return next(
        each.request
        for each in line_locks.plan(copy, line, read.declared).wanted
        if each.path == path
    )


def resolved(
    wanted: Request, jax: str, now: Iterable[Pin], *, offline: bool
) -> tuple[list[Pin], list[str]]:
    """Return the packages with this JAX, and which exact pins of ours had to be lifted for it.

    Raises UserError where nothing fits at all.
    """
    kept = [pin for pin in now if pin.name not in JAX]
    strict = replace(wanted, requirements=lifted(wanted.requirements, jax, JAX))
    try:
        return resolution.locked(
            strict, resolution.joint(strict, kept, offline=offline), offline=offline
        ), []
    except UserError:
        exact = [
            name
            for each in wanted.requirements
            if (name := str(canonicalize_name(Requirement(each).name))) not in JAX
            and re.fullmatch(r"==[^*]+", str(Requirement(each).specifier))
        ]
        if not exact:
            raise
    loose = replace(wanted, requirements=lifted(wanted.requirements, jax, (*JAX, *exact)))
    return resolution.locked(
        loose,
        resolution.joint(loose, [pin for pin in kept if pin.name not in exact], offline=offline),
        offline=offline,
    ), exact


def lifted(requirements: Iterable[str], jax: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the requirements with the versions of some projects left open, and JAX at `jax`."""
    out, left_open = [f"jax=={jax}"], set(names)
    for each in requirements:
        wanted = Requirement(each)
        if canonicalize_name(wanted.name) in left_open:
            wanted.specifier = SpecifierSet()
        out.append(str(wanted))
    return tuple(dict.fromkeys(out))


def changed(old: Iterable[Pin], new: Iterable[Pin], place: Environment) -> list[str]:
    """Return what another version of a package, or another package, would be installed in one
    environment.
    """
    before, after = (
        {pin.name: pin.version for pin in pins if environment_markers.holds(pin.marker, place)}
        for pins in (old, new)
    )
    return [
        f"{name} {before.get(name, 'none')} -> {after.get(name, 'none')}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def imported(environment: Path) -> dict[str, Any]:
    """Return what the environment's own self-test says of its imports: how many modules, and why
    which of them failed.
    """
    found = verification.run_selftest(environment, "--imports-only")["imports"]
    return {"modules": found["modules"], "failed": dict(found["failed"])}


def text(found: dict[str, dict[str, Any]]) -> str:
    """Return the same for people."""
    lines = []
    for name, one in found.items():
        if "jax" not in one:
            lines.append(f"{name}: not tried: {one['problem']}")
            continue
        lines.append(
            f"{name} on JAX {one['jax']} (pinned: {one['pinned']}), Python {one['python']}: "
            f"{_verdict(one)}"
        )
        later = {
            version: jax
            for version, jax in one["newest"].items()
            if Version(jax) > Version(one["jax"])
        }
        lines += [
            f"  Python {version} has JAX {jax}: --python {version} tries that"
            for version, jax in later.items()
        ]
        lines += (
            [f"  for that had to be lifted: {', '.join(one['lifted'])}"] if one["lifted"] else []
        )
        lines += [f"  {change}" for change in one["changed"][:_SHOWN]]
        lines += (
            [f"  and {len(one['changed']) - _SHOWN} more packages"]
            if len(one["changed"]) > _SHOWN
            else []
        )
        failed = one["imports"]["failed"] if one["imports"] else {}
        lines += [f"  fails: {module}: {why}" for module, why in list(failed.items())[:_SHOWN]]
        lines += [f"  and {len(failed) - _SHOWN} more modules"] if len(failed) > _SHOWN else []
    return "\n".join(lines)


def _verdict(one: dict[str, Any]) -> str:
    if one["imports"] is None:
        return f"does not resolve: {one['problem']}"
    failed = len(one["imports"]["failed"])
    return f"{count(one['imports']['modules'], 'module')}, {failed or 'none'} failed to be imported"
