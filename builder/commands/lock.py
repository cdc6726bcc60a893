"""Resolve the packages of every line into hashed locks, or check that the locks are those of the
manifest.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log, manifest
from builder.core.cache import stage_key, write_atomic
from builder.core.command_context import Context, Result
from builder.core.manifest import GitSource
from builder.packages import (
    debian_resolution,
    declared_requirements,
    environment_markers,
    lock_check,
    lock_file,
    resolution,
    upstream_requirements,
    uv,
)
from builder.packages.resolution import Request
from builder.packages.transformer_engine import header_packages, version_pins
from builder.upstream import git_server, source, source_lock, tracked_branch
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.core.manifest import Manifest
    from builder.packages.lock_file import Pin
    from builder.packages.upstream_requirements import Declared
    from builder.upstream.source import Access

_TOOL_PYTHONS = (
    "3.11",
    "3.12",
    "3.13",
    "3.14",
)  # the builder runs on any of them, whatever the lines have


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to `parser`."""
    parser.add_argument(
        "lines", nargs="*", metavar="LINE", help="lines of the manifest (default: all)"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; say what is stale and end with status 1 if anything is",
    )
    parser.add_argument(
        "--upgrade",
        action="append",
        default=[],
        metavar="NAME",
        help="let this project move ('all': every one); may be repeated",
    )
    parser.add_argument(
        "--tools",
        action="store_true",
        help="make locks/build.txt and te-build.txt (what sdists are built with) instead",
    )
    parser.add_argument(
        "--builder", action="store_true", help="make locks/builder.txt, the builder's own, instead"
    )
    parser.add_argument(
        "--base",
        action="store_true",
        help="lock today's Debian packages of the bases of these lines instead",
    )


@dataclass(frozen=True)
class Wanted:
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
    wanted: tuple[Wanted, ...]
    beside: tuple[Wanted, ...] = ()

    @property
    def all(self) -> tuple[Wanted, ...]:
        """All locks of the line."""
        return (*self.wanted, *self.beside)


def run(context: Context, arguments: argparse.Namespace) -> Result:
    """Run the command."""
    loaded = manifest.load(context.manifest_path)
    if arguments.tools or arguments.builder:
        return _tools(
            loaded,
            [
                name
                for name, asked in (
                    ("build", arguments.tools),
                    ("te-build", arguments.tools and loaded.transformer_engine),
                    ("builder", arguments.builder),
                )
                if asked
            ],
            context,
        )
    for line in arguments.lines:
        if line not in loaded.lines:
            raise UserError(f"no line {line!r}", "lock", f"one of: {', '.join(loaded.lines)}")
    lines = arguments.lines or list(loaded.lines)
    if arguments.base:
        bases = debian_resolution.relock(
            loaded, lines, offline=context.offline
        ) | header_packages.relock(loaded, offline=context.offline)
        return Result(
            {"locks": bases}, "\n".join(_shown(path, change) for path, change in bases.items())
        )
    known = declared_requirements.load(loaded.folder(declared_requirements.RECORD))
    access = source.access(context, loaded)
    names = [
        name
        for entry in loaded.distributions.values()
        if entry.line in lines
        for name in entry.sources
    ]
    found = declared_requirements.read(loaded, access, dict.fromkeys(names), known)
    plans = [plan(loaded, line, found.declared) for line in lines]
    records = {
        declared_requirements.RECORD: declared_requirements.dump(loaded, known, found.declared),
        source_lock.FILE: source_lock.render(loaded, found.states),
    }
    if arguments.check:
        return _check(loaded, plans, records, found.recorded, access)
    with context.cache.lock("lock"):
        for leftover in (loaded.root / "locks").rglob(".tmp-*"):  # of a run that was killed
            leftover.unlink()
        return _make(loaded, plans, records, arguments.upgrade, offline=context.offline)


def plan(loaded: Manifest, line: str, found: Mapping[str, Declared]) -> Plan:
    """Return the requests of a line, read from its *.in files."""
    entry, rules = loaded.lines[line], resolution.rules(loaded, line)
    common = read_in(loaded.folder(entry.common))
    distributions = {name: each for name, each in loaded.distributions.items() if each.line == line}
    accelerated = {
        accelerator: common
        if accelerator == "cpu"
        else (*common, *read_in(loaded.folder(entry.common).with_name(f"{accelerator}.in")))
        for accelerator in sorted(
            {accelerator for each in distributions.values() for accelerator in each.accelerators}
        )
    }
    everywhere = environment_markers.grid(
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
        ours = read_in(file) if (file := loaded.folder(f"locks/{name}.in")).exists() else ()
        theirs = tuple(
            requirement for source in each.sources for requirement in found[source].requirements
        )
        for accelerator in each.accelerators:
            needs = tuple(dict.fromkeys((*accelerated[accelerator], *ours, *theirs)))
            parts.append(
                (
                    f"locks/{name}-{accelerator}.txt",
                    needs,
                    environment_markers.grid(entry.pythons, each.architectures),
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
            Wanted(
                path,
                request,
                stage_key("lock", {"path": path, "joint": joint.inputs(), "own": request.inputs()}),
            )
        )
    beside = []
    for path, needs in version_pins.requests(loaded, line, read_in).items():
        request = Request(needs, rules, everywhere, path)
        beside.append(
            Wanted(
                path,
                request,
                stage_key("lock", {"path": path, "fits": joint.inputs(), "own": request.inputs()}),
            )
        )
    return Plan(line, joint, tuple(wanted), tuple(beside))


def read_in(file: Path) -> tuple[str, ...]:
    """Return the requirements of an *.in file: one a line, with comments."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UserError(
            f"cannot be read ({reason})", str(file), "write it: one requirement a line"
        ) from error
    return tuple(
        str(upstream_requirements.normal(text_, f"{file.name}:{number}", ""))
        for number, text_ in upstream_requirements.listed(text, file.name)
    )


def _make(
    loaded: Manifest,
    plans: Sequence[Plan],
    records: Mapping[str, str],
    upgrade: Sequence[str],
    *,
    offline: bool,
) -> Result:
    texts = dict(records)
    changes: dict[str, list[str]] = {}
    new = [
        wanted.path
        for each in plans
        for wanted in each.all
        if not (loaded.root / wanted.path).exists()
    ]
    for each in plans:
        for path, pins in resolved(loaded, each, upgrade, offline=offline).items():
            key = next(wanted.key for wanted in each.all if wanted.path == path)
            texts[path] = render(pins, key)
            changes[path] = lock_file.difference(existing(loaded.root / path), pins)
    for path, text in texts.items():
        write_changed(loaded.root / path, text)
    return Result(
        {"locks": changes},
        "\n".join(_shown(path, change, fresh=path in new) for path, change in changes.items()),
    )


def _shown(path: str, change: Sequence[str], *, fresh: bool = False) -> str:
    if fresh:
        return f"{path}: new, {len(change)} packages"
    return (
        f"{path}: {len(change)} changes" + "".join(f"\n  {line}" for line in change)
        if change
        else f"{path}: as it was"
    )


def resolved(
    loaded: Manifest, each: Plan, upgrade: Sequence[str] = (), *, offline: bool = False
) -> dict[str, list[Pin]]:
    """Resolve the pins of every lock of a line, by path; keep present versions that still fit."""
    now = {pin.text: pin for wanted in each.wanted for pin in existing(loaded.root / wanted.path)}
    preferred = [] if "all" in upgrade else [pin for pin in now.values() if pin.name not in upgrade]
    with log.stage(f"resolve line {each.line}"):
        constraints = resolution.joint(each.joint, preferred, offline=offline)
        pins = {
            wanted.path: resolution.locked(wanted.request, constraints, offline=offline)
            for wanted in each.wanted
        }
        for wanted in each.beside:
            kept = (
                []
                if "all" in upgrade
                else [pin for pin in existing(loaded.root / wanted.path) if pin.name not in upgrade]
            )
            fitting = resolution.joint(
                wanted.request, kept, constraints=constraints, offline=offline
            )
            pins[wanted.path] = resolution.locked(wanted.request, fitting, offline=offline)
    return pins


def existing(file: Path) -> list[Pin]:
    """Return the pins of a lock as it is; none if it is missing or broken."""
    try:
        return lock_file.read(file)
    except UserError:
        return []


def render(pins: Iterable[Pin], key: str) -> str:
    """Return a lock's text: no URL, no path, nothing of the machine that made it."""
    version = uv.run("--version").stdout.split()[1]
    body = "".join(pin.lines() for pin in pins)
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


def _check(
    loaded: Manifest,
    plans: Sequence[Plan],
    records: Mapping[str, str],
    recorded: Sequence[str],
    access: Access,
) -> Result:
    problems = (
        lock_check.files(loaded, plans, records)
        + debian_resolution.problems(loaded, [each.line for each in plans])
        + header_packages.problems(loaded)
    )
    lost, unasked = _branches(loaded, access)
    problems += lost
    if not access.offline:
        for each in plans:
            for path, pins in resolved(loaded, each).items():
                problems += [
                    f"{path}: would change: {change}"
                    for change in lock_file.difference(existing(loaded.root / path), pins)
                ]
            problems += lock_check.idle_overrides(loaded, each)
    notes = [
        (
            f"{name}: its source is not at hand, {declared_requirements.RECORD} was taken for "
            "what it declares"
        )
        for name in recorded
    ]
    notes += [*unasked, *(["offline: nothing was resolved anew"] if access.offline else [])]
    counted = sum(len(each.all) for each in plans)
    text = "\n".join(
        [
            *problems,
            *(f"note: {note}" for note in notes),
            f"{counted} locks checked: {len(problems) or 'no'} problem{'s' * (len(problems) != 1)}",
        ]
    )
    data: dict[str, Any] = {
        "problems": problems,
        "notes": notes,
        "locks": [wanted.path for each in plans for wanted in each.all],
    }
    return Result(data, text, ok=not problems)


def _branches(loaded: Manifest, access: Access) -> tuple[list[str], list[str]]:
    """Pins that no longer lie on the branch they claim, or whose branch is gone; and those that
    nobody at hand could say it of.
    """
    lost, unasked = [], []
    for name in loaded.sources:
        entry = loaded.source(name)
        if isinstance(entry, GitSource):
            try:
                tracked_branch.check_on_branch(entry, access)
            except git_server.UnreachableError as error:
                unasked.append(
                    f"{name}: whether its pin lies on {entry.track} could not be told "
                    f"({error.what})"
                )
            except UserError as error:
                lost.append(str(error))
    return lost, unasked


def _tools(loaded: Manifest, names: Sequence[str], context: Context) -> Result:
    changes = {}
    for name in names:
        path = f"locks/{name}.txt"
        request = Request(
            read_in(loaded.folder(f"locks/{name}.in")),
            resolution.Rules(),
            environment_markers.grid(_TOOL_PYTHONS, ("amd64", "arm64")),
            path,
        )
        now = existing(loaded.root / path)
        pins = resolution.locked(
            request,
            resolution.joint(request, now, offline=context.offline),
            offline=context.offline,
        )
        changes[path] = lock_file.difference(now, pins)
        write_changed(
            loaded.root / path,
            render(pins, stage_key("lock", {"path": path, "own": request.inputs()})),
        )
    return Result(
        {"locks": changes}, "\n".join(_shown(path, change) for path, change in changes.items())
    )
