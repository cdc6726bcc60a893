"""Plan, resolve and write the locks of a line."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.cache import stage_key
from builder.packages import (
    environment_markers,
    lock_file,
    resolution,
    upstream_requirements,
    uv,
)
from builder.packages.resolution import Request
from builder.packages.transformer_engine import version_pins
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.core.manifest import Manifest
    from builder.packages.environment_markers import Environment
    from builder.packages.lock_file import Pin
    from builder.packages.resolution import Rules
    from builder.packages.upstream_requirements import Declared


@dataclass(frozen=True)
class PlannedLock:
    """A lock to make: its path in the repository, the request that it answers, and the key over
    everything that decides its content.
    """

    path: str
    request: Request
    key: str


@dataclass(frozen=True)
class Plan:
    """The locks of a line.

    Attributes:
        line: The name of the line.
        joint: The request for the requirements of all locks together.
        joint_locks: The locks that are a part of the joint resolution.
        fitted_locks: The locks that are resolved afterwards, constrained by the joint resolution.
        project_locks: The locks of projects, which are constrained in the same way, and together.
    """

    line: str
    joint: Request
    joint_locks: tuple[PlannedLock, ...]
    fitted_locks: tuple[PlannedLock, ...] = ()
    project_locks: tuple[PlannedLock, ...] = ()

    @property
    def all_locks(self) -> tuple[PlannedLock, ...]:
        """All locks of the line."""
        return (*self.joint_locks, *self.fitted_locks, *self.project_locks)


def plan_locks(manifest: Manifest, line: str, declared: Mapping[str, Declared]) -> Plan:
    """Return the locks of a line, with their requests.

    Args:
        manifest: The manifest. Its folder has the `*.in` files of the line.
        line: The name of the line.
        declared: What each source of the line's distributions declares, by the source's name.
    """
    rules = resolution.rules_for_line(manifest, line)
    distributions = [entry for entry in manifest.distributions.values() if entry.line == line]
    architectures = {name for entry in distributions for name in entry.architectures}
    environments = environment_markers.list_environments(
        manifest.lines[line].pythons, architectures
    )
    requests = _request_locks(manifest, line, declared, rules, environments)
    joint = Request(
        _join_requirements(*(request.requirements for request in requests)),
        rules,
        environments,
        f"line {line}",
    )
    joint_locks = [
        _plan_lock(request, {"joint": joint.key_inputs(), "own": request.key_inputs()})
        for request in requests
    ]
    additional = version_pins.list_requirements(manifest, line, read_requirements)
    fitted_locks = []
    for path, requirements in additional.items():
        request = Request(requirements, rules, environments, path)
        inputs = {"fits": joint.key_inputs(), "own": request.key_inputs()}
        fitted_locks.append(_plan_lock(request, inputs))
    project_requests = _make_project_requests(manifest, line, declared, rules)
    together = [request.key_inputs() for request in project_requests]
    project_locks = [
        _plan_lock(
            request,
            {"fits": joint.key_inputs(), "together": together, "own": request.key_inputs()},
        )
        for request in project_requests
    ]
    return Plan(line, joint, tuple(joint_locks), tuple(fitted_locks), tuple(project_locks))


def _make_project_requests(
    manifest: Manifest, line: str, declared: Mapping[str, Declared], rules: Rules
) -> list[Request]:
    """Return the requests of the projects of a line whose sources declare requirements."""
    requests = []
    for name, project in manifest.projects.items():
        distribution = manifest.distribution(project.distribution)
        if distribution.line == line and declared[name].requirements:
            environments = environment_markers.list_environments(
                manifest.lines[line].pythons, distribution.architectures
            )
            requests.append(
                Request(declared[name].requirements, rules, environments, project.lock(name))
            )
    return requests


def _plan_lock(request: Request, inputs: dict[str, Any]) -> PlannedLock:
    path = request.where
    return PlannedLock(path, request, stage_key("lock", {"path": path, **inputs}))


def _request_locks(
    manifest: Manifest,
    line: str,
    declared: Mapping[str, Declared],
    rules: Rules,
    environments: tuple[Environment, ...],
) -> list[Request]:
    """Return the requests of the common lock and of the lock of each distribution.

    The path of a lock is the `where` of its request.
    """
    common = read_requirements(manifest.folder(manifest.lines[line].common))
    by_accelerator = _read_accelerator_requirements(manifest, line, common)
    common_path = manifest.lines[line].lock
    requests = [
        Request(
            _join_requirements(common, *by_accelerator.values()),
            rules,
            environments,
            common_path,
        )
    ]
    for name, distribution in manifest.distributions.items():
        if distribution.line != line:
            continue
        pythons = manifest.lines[line].pythons
        own_environments = environment_markers.list_environments(
            pythons, distribution.architectures
        )
        own_requirements = _read_own_requirements(manifest, name)
        source_requirements = [declared[source].requirements for source in distribution.sources]
        for accelerator in distribution.accelerators:
            requirements = _join_requirements(
                by_accelerator[accelerator], own_requirements, *source_requirements
            )
            path = f"locks/{name}-{accelerator}.txt"
            requests.append(Request(requirements, rules, own_environments, path))
    return requests


def _read_own_requirements(manifest: Manifest, name: str) -> tuple[str, ...]:
    """Return what a distribution needs beyond what its sources declare."""
    if named_file := manifest.distribution(name).requirements:
        return read_requirements(manifest.folder(named_file))
    file = manifest.folder(f"locks/{name}.in")
    return read_requirements(file) if file.exists() else ()


def _read_accelerator_requirements(
    manifest: Manifest, line: str, common: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Return what every distribution of a line requires on each accelerator, sorted by its name:
    the common requirements and, on a GPU, those of `ACCELERATOR.in`.
    """
    common_file = manifest.folder(manifest.lines[line].common)
    accelerators = {
        accelerator
        for distribution in manifest.distributions.values()
        if distribution.line == line
        for accelerator in distribution.accelerators
    }
    requirements: dict[str, tuple[str, ...]] = {}
    for accelerator in sorted(accelerators):
        requirements[accelerator] = common
        if accelerator != "cpu":
            own_requirements = read_requirements(common_file.with_name(f"{accelerator}.in"))
            requirements[accelerator] = (*common, *own_requirements)
    return requirements


def _join_requirements(*lists: Iterable[str]) -> tuple[str, ...]:
    """Return the requirements of several lists, each once, in their first order."""
    return tuple(dict.fromkeys(itertools.chain.from_iterable(lists)))


def read_requirements(file: Path) -> tuple[str, ...]:
    """Return the requirements of an `*.in` file, which has one on each line, and comments."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(
            f"cannot be read ({reason})",
            str(file),
            "write it: one requirement a line",
            kind=MISSING,
        ) from error
    return tuple(
        str(upstream_requirements.parse_requirement(line, f"{file.name}:{number}", ""))
        for number, line in upstream_requirements.parse_requirements_file(text, file.name)
    )


def resolve_locks(
    manifest: Manifest, plan: Plan, upgrade: Sequence[str] = (), *, offline: bool = False
) -> dict[str, list[Pin]]:
    """Return the pins of every lock of a line, by its path.

    A version that a lock has today is kept if it still fits. In an upgrade, the locks of projects
    are left out, with a warning, if their packages do not fit the new ones of the line.

    Args:
        manifest: The manifest that the plan was made from.
        plan: The locks of the line.
        upgrade: The projects whose versions are chosen anew, or "all".
        offline: Use only what uv has in its cache.
    """
    with log.stage(f"resolve line {plan.line}"):
        old_pins = {
            pin.text: pin
            for lock in plan.joint_locks
            for pin in _preferred_pins(manifest.root / lock.path, upgrade)
        }
        constraints = resolution.resolve_jointly(plan.joint, old_pins.values(), offline=offline)
        pins = {
            lock.path: resolution.resolve_lock(lock.request, constraints, offline=offline)
            for lock in plan.joint_locks
        }
        for lock in plan.fitted_locks:
            fitting = resolution.resolve_jointly(
                lock.request,
                _preferred_pins(manifest.root / lock.path, upgrade),
                constraints=constraints,
                offline=offline,
            )
            pins[lock.path] = resolution.resolve_lock(lock.request, fitting, offline=offline)
        try:
            projects = _resolve_projects(manifest, plan, constraints, upgrade, offline=offline)
        except UserError as error:
            if not upgrade:
                raise
            log.warn(f"the locks of the projects of {plan.line} are held: {error}")
            return pins
        return pins | _leave_out_distribution(manifest, projects, pins)


def _resolve_projects(
    manifest: Manifest,
    plan: Plan,
    constraints: Sequence[str],
    upgrade: Sequence[str],
    *,
    offline: bool,
) -> dict[str, list[Pin]]:
    """Return the pins of the locks of projects; one version of each package suits all of them."""
    locks = plan.project_locks
    if not locks:
        return {}
    requirements = _join_requirements(*(lock.request.requirements for lock in locks))
    preferred = {
        pin.text: pin
        for lock in locks
        for pin in _preferred_pins(manifest.root / lock.path, upgrade)
    }
    together = replace(
        locks[0].request, requirements=requirements, where=f"projects of {plan.line}"
    )
    fitting = resolution.resolve_jointly(
        together, preferred.values(), constraints=constraints, offline=offline
    )
    return {
        lock.path: resolution.resolve_lock(lock.request, fitting, offline=offline) for lock in locks
    }


def _leave_out_distribution(
    manifest: Manifest, projects: Mapping[str, list[Pin]], pins: Mapping[str, list[Pin]]
) -> dict[str, list[Pin]]:
    """Return the pins of projects without those of every lock of their distribution.

    Args:
        manifest: The manifest.
        projects: The pins of the locks of projects, by the path.
        pins: The pins of the other locks of the line, by the path.
    """
    added = {}
    for name, project in manifest.projects.items():
        if (path := project.lock(name)) in projects:
            accelerators = manifest.distribution(project.distribution).accelerators
            locks = [
                f"locks/{project.distribution}-{accelerator}.txt" for accelerator in accelerators
            ]
            shared = set.intersection(*({pin.name for pin in pins[lock]} for lock in locks))
            added[path] = [pin for pin in projects[path] if pin.name not in shared]
    return added


def _preferred_pins(file: Path, upgrade: Sequence[str]) -> list[Pin]:
    """Return the pins of a lock as it is, without those that are to be upgraded."""
    if "all" in upgrade:
        return []
    return [pin for pin in read_existing_pins(file) if pin.name not in upgrade]


def read_existing_pins(file: Path) -> list[Pin]:
    """Return the pins of a lock as it is, or none if the file is missing or damaged."""
    try:
        return lock_file.read_lock(file)
    except UserError:
        return []


def render_lock(pins: Iterable[Pin], key: str) -> str:
    """Return the text of a lock. It has no URL, no path and nothing else of this machine.

    Args:
        pins: The pins of the lock, sorted.
        key: The key over everything that decides the lock, see `PlannedLock`.
    """
    version = uv.run("--version").stdout.split()[1]
    body = "".join(pin.requirement_lines() for pin in pins)
    head = (
        f"# Machine-owned: made by `python build.py lock`, not to be edited.\n# uv {version}\n# "
        f"inputs: {key}\n"
    )
    return f"{head}# pins: {hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def write_changed(file: Path, text: str) -> None:
    """Write a lock, unless it differs from the file only in the version of uv."""
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    if re.sub(r"(?m)^# uv .*\n", "", old) != re.sub(r"(?m)^# uv .*\n", "", text):
        write_atomic(file, text)
