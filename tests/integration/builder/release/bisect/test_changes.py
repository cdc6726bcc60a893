"""What two builds differ in, and what lies between them: values only, nothing is built."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.cache import Cache
from builder.packages.lock_file import Pin
from builder.release.bisect.build_contents import Build, Part
from builder.release.bisect.changes import Between, between, with_ours
from builder.upstream import patch_file
from builder.upstream.breakage_search import Cause
from builder.upstream.overlay import OverlayFile
from builder.upstream.source import Access
from tests.support.patch_series import FIELDS
from tests.support.small_distribution import PATCH

pytestmark = pytest.mark.slow

WHEEL = {"wheel": "up==1.0", "sha256": "0" * 64}
HERE = {"platform_machine": "x86_64"}


def _patch(greeting: str, context: str = "# a thing") -> bytes:
    text = PATCH.format(old="1" * 40, new="2" * 40, greeting=greeting).replace("# a thing", context)
    return patch_file.render(
        "rosetta <rosetta@localhost>", "up: a patch", FIELDS, text.encode().partition(b"---\n")[2]
    )


def _part(*patches: str, name: str = "up", **changes: Any) -> Part:
    return replace(
        Part(name, WHEEL, tuple((each, (_patch(each),)) for each in patches), ()), **changes
    )


def _pins(**versions: str) -> tuple[Pin, ...]:
    return tuple(Pin(name, version, "", ("0" * 64,)) for name, version in versions.items())


def _build(*parts: Part, pins: tuple[Pin, ...] = (), **changes: Any) -> Build:
    line = {"name": "line", "python": "3.11", "pythons": ["3.11"], "architectures": ["amd64"]}
    return replace(
        Build("thing", "cpu", line, {}, parts, "".join(pin.lines() for pin in pins), pins, ""),
        **changes,
    )


def _between(good: Build, bad: Build) -> Between:
    with contextlib.ExitStack() as stack:
        return between(
            good, bad, lambda pin: pin.holds(HERE), Access(Cache(Path("/nowhere"))), stack
        )


def _names(build: Build) -> list[str]:
    return [name for name, _ in build.parts[0].patches]


def test_the_ends_are_themselves_and_equal_ones_differ_in_nothing() -> None:
    good, bad = _build(_part("a"), pins=_pins(x="1")), _build(_part("b"), pins=_pins(x="2"))
    found = _between(good, bad)
    assert (found.mix(frozenset()), found.mix(frozenset(range(len(found.units))))) == (good, bad)
    assert _between(good, good).units == ()


def test_a_patch_stands_where_its_own_series_has_it() -> None:
    found = _between(_build(_part("a", "gone", "b")), _build(_part("new", "a", "b", "last")))
    assert [str(unit) for unit in found.units] == [
        "up: patch new added",
        "up: patch gone removed",
        "up: patch last added",
    ]
    mixes = {
        (): ["a", "gone", "b"],
        (0,): ["new", "a", "gone", "b"],
        (1,): ["a", "b"],
        (0, 2): ["new", "a", "gone", "b", "last"],
    }
    assert {chosen: _names(found.mix(frozenset(chosen))) for chosen in mixes} == mixes


def test_the_order_of_patches_is_a_change_of_its_own() -> None:
    found = _between(_build(_part("a", "b", "c")), _build(_part("c", "a", "b", "d")))
    assert [unit.kind for unit in found.units] == ["patch", "patch"]
    assert "order" in found.units[0].what
    assert (found.units[1].name, found.units[1].what.split()[-1]) == ("d", "added")
    assert (_names(found.mix(frozenset({1}))), _names(found.mix(frozenset({0})))) == (
        ["a", "b", "d", "c"],
        ["c", "a", "b"],
    )


def test_a_patch_made_anew_has_both_versions_the_nearer_first() -> None:
    old, new = _patch("hey"), _patch("hey", "# the thing")
    good, bad = (
        _build(_part(patches=(("greet", (raw,)),), entry=WHEEL | {"sha256": digit * 64}))
        for raw, digit in ((old, "0"), (new, "1"))
    )
    extra = (*bad.parts[0].patches, ("more", (_patch("more"),)))
    found = _between(good, replace(bad, parts=(replace(bad.parts[0], patches=extra),)))
    assert [unit.kind for unit in found.units] == ["move", "patch"]
    assert found.mix(frozenset({0})).parts[0].patches == (("greet", (new, old)),)
    assert found.mix(frozenset({1})).parts[0].patches[0] == ("greet", (old, new))


def test_what_a_file_of_ours_replaces_is_no_change() -> None:
    one = OverlayFile("a.py", "100644", "1" * 40, "2" * 40, b"x")
    good, bad = (
        _build(_part(overlay=(each, *more)))
        for each, more in ((one, ()), (replace(one, replaces=None), (replace(one, path="b.py"),)))
    )
    found = _between(good, bad)
    assert [unit.name for unit in found.units] == ["b.py"]
    assert good.key == _build(_part(overlay=(replace(one, replaces=None),))).key != bad.key


def test_a_source_comes_and_goes_as_a_whole() -> None:
    good, bad = _build(_part(name="a"), _part(name="b")), _build(_part(name="b"), _part(name="c"))
    found = _between(good, bad)
    assert [(unit.kind, unit.name) for unit in found.units] == [("source", "a"), ("source", "c")]
    assert [unit.what.split()[-1] for unit in found.units] == ["gone", "new"]
    assert [[part.name for part in found.mix(frozenset({each})).parts] for each in (0, 1)] == [
        ["b"],
        ["a", "b", "c"],
    ]


def test_a_package_of_another_machine_is_no_change() -> None:
    arm = Pin("x", "1", "platform_machine == 'aarch64'", ("0" * 64,))
    good = _build(_part(), pins=(*_pins(y="1", z="1"), arm))
    found = _between(good, _build(_part(), pins=(*_pins(y="2", z="2"), replace(arm, version="2"))))
    assert [unit.what for unit in found.units] == ["y 1 -> 2", "z 1 -> 2"]
    assert {(pin.name, pin.version) for pin in found.mix(frozenset({0})).pins} == {
        ("x", "1"),
        ("y", "2"),
        ("z", "1"),
    }


def test_packages_that_come_and_go() -> None:
    found = _between(
        _build(_part(), pins=_pins(a="1", b="1")), _build(_part(), pins=_pins(b="1", c="1"))
    )
    assert [(unit.kind, unit.name) for unit in found.units] == [("package", "a"), ("package", "c")]
    assert found.units[0].what.startswith("a 1 -> ")
    assert found.units[1].what.endswith(" -> 1")
    assert [pin.name for pin in found.mix(frozenset({1})).pins] == ["a", "b", "c"]
    assert found.mix(frozenset({0})).lock == "".join(pin.lines() for pin in _pins(b="1"))


def test_a_mixture_has_the_rules_of_both() -> None:
    rules = [
        {"overrides": [{"drop": "x", "why": "a reason of some length"}]},
        {
            "overrides": [
                {"pin": "X==2", "why": "a reason of some length"},
                {"drop": "y", "why": "another one of them"},
            ]
        },
    ]
    good, bad = (
        _build(_part(), pins=_pins(**versions), rules=each)
        for versions, each in zip(({"a": "1", "b": "1"}, {"a": "2", "b": "2"}), rules, strict=True)
    )
    assert [
        each.get("pin") or each["drop"]
        for each in _between(good, bad).mix(frozenset({0})).rules["overrides"]
    ] == ["X==2", "y"]


def test_our_commits_come_with_those_before_them() -> None:
    good, bad = _build(_part("a"), ours="1" * 40), _build(_part("b"), ours="9" * 40)
    log = [Cause(digit * 40, "me", "2026-01-01", f"step {digit}") for digit in "234"]
    found = with_ours(_between(good, bad), log)
    assert [unit.kind for unit in found.units] == [
        "patch",
        "patch",
        "rosetta",
        "rosetta",
        "rosetta",
    ]
    assert (found.mix(frozenset({2, 3})).ours, found.mix(frozenset({0})).ours) == (
        "3" * 40,
        "1" * 40,
    )
    assert (found.closure(4), found.closure(0)) == (frozenset({2, 3, 4}), frozenset({0}))


def test_our_commits_that_are_no_line_are_one_change_and_none_is_none() -> None:
    good, bad = _build(_part("a"), ours="1" * 40), _build(_part("b"), ours="9" * 40)
    whole = with_ours(_between(good, bad), None)
    assert (whole.units[-1].kind, whole.mix(frozenset({len(whole.units) - 1})).ours) == (
        "rosetta",
        "9" * 40,
    )
    assert "not split" in whole.notes[-1]
    assert with_ours(_between(good, bad), []).mix(frozenset({0, 1})).ours == "1" * 40


def test_builds_that_cannot_differ_have_one_key() -> None:
    good = _build(_part("a"), pins=_pins(x="1"))
    assert good.key == replace(good, pins=()).key, "the text of the lock says it all"
    keys = {
        good.key,
        replace(good, lock="").key,
        replace(good, tools="y").key,
        replace(good, ours="1").key,
        _build(_part("b")).key,
        good.sources_only().key,
    }
    assert len(keys) == 6
