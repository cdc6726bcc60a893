"""The locks of a line: what each of them is resolved from, and how it is written."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    from builder.packages.lock_file import Pin
    from builder.packages.upstream_requirements import Declared


@dataclass(frozen=True)
class PlannedLock:
    """One lock: its path in the repository, what it holds, and the key of everything that decides
    it.
    """

    path: str
    request: Request
    key: str


@dataclass(frozen=True)
class Plan:
    """The locks of a line: the joint request first, then each lock as a part of it, then those that
    go beside them and must fit.
    """

    line: str
    joint: Request
    wanted: tuple[PlannedLock, ...]
    beside: tuple[PlannedLock, ...] = ()

    @property
    def all(self) -> tuple[PlannedLock, ...]:
        """All locks of the line."""
        return (*self.wanted, *self.beside)


def plan_locks(loaded: Manifest, line: str, found: Mapping[str, Declared]) -> Plan:
    """Return the requests of a line, read from its *.in files."""
    entry, rules = loaded.lines[line], resolution.rules_for_line(loaded, line)
    common = read_requirements(loaded.folder(entry.common))
    distributions = {name: each for name, each in loaded.distributions.items() if each.line == line}
    accelerated = {
        accelerator: common
        if accelerator == "cpu"
        else (
            *common,
            *read_requirements(loaded.folder(entry.common).with_name(f"{accelerator}.in")),
        )
        for accelerator in sorted(
            {accelerator for each in distributions.values() for accelerator in each.accelerators}
        )
    }
    everywhere = environment_markers.list_environments(
        entry.pythons,
        {architecture for each in distributions.values() for architecture in each.architectures},
    )
    everything = tuple(requirement for each in accelerated.values() for requirement in each)
    parts = [
        (
            entry.common.removesuffix(".in") + ".txt",
            tuple(dict.fromkeys((*common, *everything))),
            everywhere,
        )
    ]
    for name, each in distributions.items():
        ours = (
            read_requirements(file) if (file := loaded.folder(f"locks/{name}.in")).exists() else ()
        )
        theirs = tuple(
            requirement for source in each.sources for requirement in found[source].requirements
        )
        for accelerator in each.accelerators:
            needs = tuple(dict.fromkeys((*accelerated[accelerator], *ours, *theirs)))
            parts.append(
                (
                    f"locks/{name}-{accelerator}.txt",
                    needs,
                    environment_markers.list_environments(entry.pythons, each.architectures),
                )
            )
    joint = Request(
        tuple(dict.fromkeys(requirement for _, needs, _ in parts for requirement in needs)),
        rules,
        everywhere,
        f"line {line}",
    )
    wanted = []
    for path, needs, environments in parts:
        request = Request(needs, rules, environments, path)
        wanted.append(
            PlannedLock(
                path,
                request,
                stage_key(
                    "lock", {"path": path, "joint": joint.key_inputs(), "own": request.key_inputs()}
                ),
            )
        )
    beside = []
    for path, needs in version_pins.list_requirements(loaded, line, read_requirements).items():
        request = Request(needs, rules, everywhere, path)
        beside.append(
            PlannedLock(
                path,
                request,
                stage_key(
                    "lock", {"path": path, "fits": joint.key_inputs(), "own": request.key_inputs()}
                ),
            )
        )
    return Plan(line, joint, tuple(wanted), tuple(beside))


def read_requirements(file: Path) -> tuple[str, ...]:
    """Return the requirements of an *.in file: one a line, with comments."""
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
        str(upstream_requirements.parse_requirement(text_, f"{file.name}:{number}", ""))
        for number, text_ in upstream_requirements.parse_requirements_file(text, file.name)
    )


def resolve_locks(
    loaded: Manifest, each: Plan, upgrade: Sequence[str] = (), *, offline: bool = False
) -> dict[str, list[Pin]]:
    """Resolve the pins of every lock of a line, by path; keep present versions that still fit."""
    now = {
        pin.text: pin
        for wanted in each.wanted
        for pin in read_existing_pins(loaded.root / wanted.path)
    }
    preferred = [] if "all" in upgrade else [pin for pin in now.values() if pin.name not in upgrade]
    with log.stage(f"resolve line {each.line}"):
        constraints = resolution.resolve_jointly(each.joint, preferred, offline=offline)
        pins = {
            wanted.path: resolution.resolve_lock(wanted.request, constraints, offline=offline)
            for wanted in each.wanted
        }
        for wanted in each.beside:
            kept = (
                []
                if "all" in upgrade
                else [
                    pin
                    for pin in read_existing_pins(loaded.root / wanted.path)
                    if pin.name not in upgrade
                ]
            )
            fitting = resolution.resolve_jointly(
                wanted.request, kept, constraints=constraints, offline=offline
            )
            pins[wanted.path] = resolution.resolve_lock(wanted.request, fitting, offline=offline)
    return pins


def read_existing_pins(file: Path) -> list[Pin]:
    """Return the pins of a lock as it is; none if it is missing or broken."""
    try:
        return lock_file.read_lock(file)
    except UserError:
        return []


def render_lock(pins: Iterable[Pin], key: str) -> str:
    """Return a lock's text: no URL, no path, nothing of the machine that made it."""
    version = uv.run("--version").stdout.split()[1]
    body = "".join(pin.requirement_lines() for pin in pins)
    head = (
        f"# Machine-owned: made by `python build.py lock`, not to be edited.\n# uv {version}\n# "
        f"inputs: {key}\n"
    )
    return f"{head}# pins: {hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def write_changed(file: Path, text: str) -> None:
    """Write unless only the version of uv differs."""
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    if re.sub(r"(?m)^# uv .*\n", "", old) != re.sub(r"(?m)^# uv .*\n", "", text):
        write_atomic(file, text)
