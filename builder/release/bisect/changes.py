"""What differs between a good and a bad build, as one list of changes, and any mixture of the
two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from builder.core.manifest import Override
from builder.release.bisect import upstream_history
from builder.release.bisect.build_contents import Build, Part
from builder.release.bump import trial
from builder.upstream import patch_file

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from builder.packages.lock_file import Pin
    from builder.release.bisect.upstream_history import Step, Way
    from builder.upstream.breakage_search import Cause
    from builder.upstream.source import Access

_ORDER = ""  # the name of the change that is the order of a series
Kind = Literal[
    "source", "commit", "move", "patch", "overlay", "package", "tools", "python", "rosetta"
]


@dataclass(frozen=True)
class Unit:
    """One change.

    `place` is the source it is of, "" for packages and what is ours; `step` is set for a commit of
    an upstream or of ours.
    """

    kind: Kind
    place: str
    name: str
    what: str
    step: Step | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.what}" if self.place else self.what

    def needs(self, earlier: Unit) -> bool:
        """Whether a build that has this change must have an earlier one of the list too: a commit
        has those before it.
        """
        return (
            self.kind == earlier.kind
            and self.kind in ("commit", "rosetta")
            and self.place == earlier.place
        )


@dataclass(frozen=True)
class Between:
    """`units` lead from `good` to `bad`; `notes` say what could not be split further; `ways` are
    the sources' histories.
    """

    good: Build
    bad: Build
    units: tuple[Unit, ...]
    ways: Mapping[str, Way]
    notes: tuple[str, ...]

    def closure(self, index: int) -> frozenset[int]:
        """Return a change, and those that it cannot be without."""
        return frozenset(
            {index, *(each for each in range(index) if self.units[index].needs(self.units[each]))}
        )

    def mix(self, chosen: frozenset[int], at: Mapping[str, str] | None = None) -> Build:
        """Return the good build with these changes of the bad one; with `at`, these sources stand
        on those commits whatever was chosen.
        """
        if not at and len(chosen) in (0, len(self.units)):
            return self.bad if chosen else self.good
        units = [self.units[each] for each in sorted(chosen)]
        names = _mixed(
            [part.name for part in self.good.parts],
            [part.name for part in self.bad.parts],
            _taken(units, "source", ""),
        )
        old, new = ({part.name: part for part in side.parts} for side in (self.good, self.bad))
        parts = tuple(
            self._part(name, old[name], new[name], units, (at or {}).get(name))
            if name in old and name in new
            else {**new, **old}[name]
            for name in names
        )
        kinds = {unit.kind for unit in units}
        tools, line = (
            (self.bad if "tools" in kinds else self.good).tools,
            (self.bad if "python" in kinds else self.good).line,
        )
        rules = {
            key: _joined(self.good.rules.get(key, []), self.bad.rules.get(key, []))
            for key in ("sdists", "strip", "overrides")
        }
        rosetta = next(
            (
                unit.step.state if unit.step else self.bad.ours
                for unit in reversed(units)
                if unit.kind == "rosetta"
            ),
            self.good.ours,
        )
        lock, pins = self._lock(units)
        return replace(
            self.good,
            line=line,
            rules=rules,
            parts=parts,
            lock=lock,
            pins=pins,
            tools=tools,
            ours=rosetta,
        )

    def _part(
        self, name: str, old: Part, new: Part, units: Sequence[Unit], pin: str | None
    ) -> Part:
        mine = [unit for unit in units if unit.place == name]
        entry, there = old.entry, False
        steps = [unit for unit in self.units if unit.place == name and unit.kind == "commit"]
        taken = [unit for unit in mine if unit.kind == "commit"]
        if any(unit.kind == "move" for unit in mine) or (steps and len(taken) == len(steps)):
            entry, there = new.entry, True
        elif taken and taken[-1].step:
            entry = {**old.entry, "commit": taken[-1].step.state}
        if pin:
            entry, there = {**old.entry, "commit": pin}, False
        return Part(
            name,
            entry,
            _patches(old, new, _taken(mine, "patch", name), newer=there),
            _overlay(old, new, _taken(mine, "overlay", name)),
        )

    def _lock(self, units: Iterable[Unit]) -> tuple[str, tuple[Pin, ...]]:
        names, every = (
            {unit.name for unit in some if unit.kind == "package"} for some in (units, self.units)
        )
        if not names:
            return self.good.lock, self.good.pins
        if names == every:
            return self.bad.lock, self.bad.pins
        old, new = (_by_name(side.pins) for side in (self.good, self.bad))
        pins = tuple(
            pin
            for name in sorted(old.keys() | new.keys())
            for pin in (new if name in names else old).get(name, [])
        )
        return "".join(pin.lines() for pin in pins), pins


def between(
    good: Build,
    bad: Build,
    here: Callable[[Pin], bool],
    access: Access,
    stack: contextlib.ExitStack,
) -> Between:
    """Return what leads from `good` to `bad`, sources first. `here` tells which locked packages
    hold on this machine.

    Histories of upstreams stay open until `stack` closes. Commits of rosetta/ are added by
    `with_ours`.
    """
    units: list[Unit] = []
    ways: dict[str, Way] = {}
    notes: list[str] = []
    old, new = ({part.name: part for part in side.parts} for side in (good, bad))
    for name in _merged(list(old), list(new)):
        if name not in old or name not in new:
            units.append(
                Unit(
                    "source",
                    "",
                    name,
                    f"the source {name} {'is new' if name in new else 'is gone'}",
                )
            )
            continue
        units += _pin_units(old[name], new[name], ways, notes, access, stack)
        units += _patch_units(old[name], new[name])
        units += _overlay_units(old[name], new[name])
    if good.line.get("python") != bad.line.get("python"):
        units.append(
            Unit(
                "python",
                "",
                "python",
                f"Python {good.line.get('python')} -> {bad.line.get('python')}",
            )
        )
    if good.tools != bad.tools:
        units.append(
            Unit("tools", "", "locks/build.txt", "the tools that build sdists (locks/build.txt)")
        )
    if good.lock != bad.lock:
        held = [
            {name: frozenset(filter(here, pins)) for name, pins in _by_name(side.pins).items()}
            for side in (good, bad)
        ]
        for name in sorted(held[0].keys() | held[1].keys()):
            one, other = (each.get(name, frozenset()) for each in held)
            if one != other:
                units.append(
                    Unit(
                        "package",
                        "",
                        name,
                        f"{name} {_versions(one) or 'not there'} -> {_versions(other) or 'gone'}",
                    )
                )
    return Between(good, bad, tuple(units), ways, tuple(notes))


def with_ours(found: Between, log: Sequence[Cause] | None) -> Between:
    """`found` with the commits that changed rosetta/ at its end, oldest first; None where they are
    no line: then all of it is one change.
    """
    if log is None:
        added: tuple[Unit, ...] = (Unit("rosetta", "", "rosetta", "rosetta/ as a whole"),)
        return replace(
            found,
            units=found.units + added,
            notes=(
                *found.notes,
                "rosetta: the bad revision does not follow the good one: its commits are not split",
            ),
        )
    if not log:
        return replace(found, bad=replace(found.bad, ours=found.good.ours))
    added = tuple(
        Unit("rosetta", "", one.commit, f"rosetta {one}", upstream_history.Step(one.commit, one))
        for one in log
    )
    return replace(found, units=found.units + added)


def _pin_units(
    old: Part,
    new: Part,
    ways: dict[str, Way],
    notes: list[str],
    access: Access,
    stack: contextlib.ExitStack,
) -> list[Unit]:
    one, other = (
        {key: value for key, value in each.entry.items() if key != "track"} for each in (old, new)
    )
    if one == other:
        return []
    pins = [str(each.get("commit") or each.get("wheel")) for each in (one, other)]
    what = (
        f"{pins[0]} -> {pins[1]}"
        if pins[0] != pins[1]
        else "what is never exported, or its address"
    )
    move = Unit("move", old.name, old.name, what)
    if pins[0] == pins[1] or not one.get("git") or one.get("git") != other.get("git"):
        return [move]
    found = upstream_history.way(old.name, old.entry, new.entry, Path(), access, stack)
    if not found.steps:
        notes.append(f"{old.name}: {found.why}: its commits are not split")
        return [move]
    ways[old.name] = found
    return [commit_unit(old.name, step) for step in found.steps]


def commit_unit(source: str, step: Step) -> Unit:
    """Return the change that a commit of an upstream is."""
    return Unit(
        "commit", source, step.cause.commit, f"{'without ' if step.back else ''}{step.cause}", step
    )


def _patch_units(old: Part, new: Part) -> list[Unit]:
    one, other = dict(old.patches), dict(new.patches)
    units = []
    if [name for name in one if name in other] != [name for name in other if name in one]:
        units.append(Unit("patch", old.name, _ORDER, "the order of its patches"))
    for name in _merged(list(one), list(other)):
        if (
            name in one
            and name in other
            and (one[name] == other[name] or refreshed(name, one[name][0], other[name][0]))
        ):
            continue
        what = (
            "changed" if name in one and name in other else "added" if name in other else "removed"
        )
        units.append(Unit("patch", old.name, name, f"patch {name} {what}"))
    return units


def refreshed(name: str, one: bytes, other: bytes) -> bool:
    """Whether two versions of a patch add and remove the same lines: then they are one patch, made
    for two commits.
    """
    return trial.same_change(
        *(patch_file.parse(Path(f"{name}.patch"), raw) for raw in (one, other))
    )


def _overlay_units(old: Part, new: Part) -> list[Unit]:
    one, other = (
        {file.path: (file.mode, file.blob) for file in each.overlay} for each in (old, new)
    )
    units = []
    for path in sorted(one.keys() | other.keys()):
        if one.get(path) == other.get(path):
            continue
        if path in one and path in other:
            change = "changed"
        else:
            change = "added" if path in other else "removed"
        units.append(Unit("overlay", old.name, path, f"our file {path} {change}"))
    return units


def _patches(
    old: Part, new: Part, chosen: set[str], *, newer: bool
) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    one, other = dict(old.patches), dict(new.patches)
    found = []
    moved = [name for name in one if name in other] != [name for name in other if name in one]
    for name in (
        _merged(list(other), list(one))
        if moved and _ORDER not in chosen
        else _merged(list(one), list(other))
    ):
        have = other if name in chosen else one
        versions = have.get(name, ())
        if (
            name in one
            and name in other
            and name not in chosen
            and refreshed(name, one[name][0], other[name][0])
        ):
            versions = tuple(
                dict.fromkeys((*other[name], *one[name]) if newer else (*one[name], *other[name]))
            )
        if versions:
            found.append((name, versions))
    return tuple(found)


def _overlay(old: Part, new: Part, chosen: set[str]) -> tuple[Any, ...]:
    one, other = ({file.path: file for file in each.overlay} for each in (old, new))
    paths = sorted(one.keys() | other.keys())
    return tuple(have[path] for path in paths if path in (have := other if path in chosen else one))


def _taken(units: Iterable[Unit], kind: Kind, place: str) -> set[str]:
    return {unit.name for unit in units if unit.kind == kind and unit.place == place}


def _merged(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """All names: in the second's order, and what only the first has after what it had before it."""
    found = list(other)
    for index, name in enumerate(one):
        if name not in other:
            found.insert(found.index(one[index - 1]) + 1 if index else 0, name)
    return found


def _mixed(one: Sequence[str], other: Sequence[str], chosen: set[str]) -> list[str]:
    """Return the names of the first, with those changes chosen that lead to the second."""
    return [
        name
        for name in _merged(one, other)
        if name in (other if name in chosen or (name in one and name in other) else one)
    ]


def _joined(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rules of both manifests: they allow, so a mixture needs them all.

    Of two for one project, the second's.
    """
    return list(
        {
            rule["name"] if "name" in rule else Override(**rule).project: rule
            for rule in (*one, *other)
        }.values()
    )


def _by_name(pins: Iterable[Pin]) -> dict[str, list[Pin]]:
    found: dict[str, list[Pin]] = {}
    for pin in pins:
        found.setdefault(pin.name, []).append(pin)
    return found


def _versions(pins: Iterable[Pin]) -> str:
    return ", ".join(sorted({pin.version for pin in pins}))
