"""What two builds differ in, and what lies between them: values only, nothing is built."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.cache import Cache
from builder.packages.lock_file import Pin
from builder.release.bisect.build_contents import Build, SourceContents
from builder.release.bisect.build_mixing import mix_build
from builder.release.bisect.changes import ChangeList, add_rosetta_commits, list_changes
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
    return patch_file.render_patch(
        "rosetta <rosetta@localhost>", "up: a patch", FIELDS, text.encode().partition(b"---\n")[2]
    )


def _source(*patches: str, name: str = "up", **changes: Any) -> SourceContents:
    return replace(
        SourceContents(name, WHEEL, tuple((each, (_patch(each),)) for each in patches), ()),
        **changes,
    )


def _pins(**versions: str) -> tuple[Pin, ...]:
    return tuple(Pin(name, version, "", ("0" * 64,)) for name, version in versions.items())


def _build(*parts: SourceContents, pins: tuple[Pin, ...] = (), **changes: Any) -> Build:
    line = {"name": "line", "python": "3.11", "pythons": ["3.11"], "architectures": ["amd64"]}
    return replace(
        Build(
            "thing",
            "cpu",
            line,
            {},
            parts,
            "".join(pin.requirement_lines() for pin in pins),
            pins,
            "",
        ),
        **changes,
    )


def _list_changes(good: Build, bad: Build) -> ChangeList:
    with contextlib.ExitStack() as stack:
        return list_changes(
            good, bad, lambda pin: pin.applies_to(HERE), Access(Cache(Path("/nowhere"))), stack
        )


def _mix(change_list: ChangeList, *positions: int) -> Build:
    return mix_build(change_list, frozenset(positions))


def _names(build: Build) -> list[str]:
    return [name for name, _ in build.sources[0].patches]


def test_the_ends_are_themselves_and_equal_ones_differ_in_nothing() -> None:
    good, bad = _build(_source("a"), pins=_pins(x="1")), _build(_source("b"), pins=_pins(x="2"))
    change_list = _list_changes(good, bad)
    assert (_mix(change_list), _mix(change_list, *range(len(change_list.changes)))) == (good, bad)
    assert _list_changes(good, good).changes == ()


def test_a_patch_stands_where_its_own_series_has_it() -> None:
    change_list = _list_changes(
        _build(_source("a", "gone", "b")), _build(_source("new", "a", "b", "last"))
    )
    assert [str(change) for change in change_list.changes] == [
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
    assert {chosen: _names(_mix(change_list, *chosen)) for chosen in mixes} == mixes


def test_the_order_of_patches_is_a_change_of_its_own() -> None:
    change_list = _list_changes(_build(_source("a", "b", "c")), _build(_source("c", "a", "b", "d")))
    assert [change.kind for change in change_list.changes] == ["patch", "patch"]
    assert "order" in change_list.changes[0].description
    assert (change_list.changes[1].name, change_list.changes[1].description.split()[-1]) == (
        "d",
        "added",
    )
    assert (_names(_mix(change_list, 1)), _names(_mix(change_list, 0))) == (
        ["a", "b", "d", "c"],
        ["c", "a", "b"],
    )


def test_a_patch_made_anew_has_both_versions_the_nearer_first() -> None:
    old, new = _patch("hey"), _patch("hey", "# the thing")
    good, bad = (
        _build(_source(patches=(("greet", (raw,)),), entry=WHEEL | {"sha256": digit * 64}))
        for raw, digit in ((old, "0"), (new, "1"))
    )
    extra = (*bad.sources[0].patches, ("more", (_patch("more"),)))
    change_list = _list_changes(
        good, replace(bad, sources=(replace(bad.sources[0], patches=extra),))
    )
    assert [change.kind for change in change_list.changes] == ["move", "patch"]
    assert _mix(change_list, 0).sources[0].patches == (("greet", (new, old)),)
    assert _mix(change_list, 1).sources[0].patches[0] == ("greet", (old, new))


def test_what_a_file_of_ours_replaces_is_no_change() -> None:
    one = OverlayFile("a.py", "100644", "1" * 40, "2" * 40, b"x")
    good, bad = (
        _build(_source(overlay=(each, *more)))
        for each, more in ((one, ()), (replace(one, replaces=None), (replace(one, path="b.py"),)))
    )
    change_list = _list_changes(good, bad)
    assert [change.name for change in change_list.changes] == ["b.py"]
    assert good.key == _build(_source(overlay=(replace(one, replaces=None),))).key != bad.key


def test_a_source_comes_and_goes_as_a_whole() -> None:
    good, bad = (
        _build(_source(name="a"), _source(name="b")),
        _build(_source(name="b"), _source(name="c")),
    )
    change_list = _list_changes(good, bad)
    assert [(change.kind, change.name) for change in change_list.changes] == [
        ("source", "a"),
        ("source", "c"),
    ]
    assert [change.description.split()[-1] for change in change_list.changes] == [
        "removed",
        "added",
    ]
    assert [
        [source.name for source in _mix(change_list, position).sources] for position in (0, 1)
    ] == [
        ["b"],
        ["a", "b", "c"],
    ]


def test_a_package_of_another_machine_is_no_change() -> None:
    arm = Pin("x", "1", "platform_machine == 'aarch64'", ("0" * 64,))
    good = _build(_source(), pins=(*_pins(y="1", z="1"), arm))
    change_list = _list_changes(
        good, _build(_source(), pins=(*_pins(y="2", z="2"), replace(arm, version="2")))
    )
    assert [change.description for change in change_list.changes] == ["y 1 -> 2", "z 1 -> 2"]
    assert {(pin.name, pin.version) for pin in _mix(change_list, 0).pins} == {
        ("x", "1"),
        ("y", "2"),
        ("z", "1"),
    }


def test_packages_that_come_and_go() -> None:
    change_list = _list_changes(
        _build(_source(), pins=_pins(a="1", b="1")), _build(_source(), pins=_pins(b="1", c="1"))
    )
    assert [(change.kind, change.name) for change in change_list.changes] == [
        ("package", "a"),
        ("package", "c"),
    ]
    assert change_list.changes[0].description.startswith("a 1 -> ")
    assert change_list.changes[1].description.endswith(" -> 1")
    assert [pin.name for pin in _mix(change_list, 1).pins] == ["a", "b", "c"]
    assert _mix(change_list, 0).lock == "".join(pin.requirement_lines() for pin in _pins(b="1"))


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
        _build(_source(), pins=_pins(**versions), rules=each)
        for versions, each in zip(({"a": "1", "b": "1"}, {"a": "2", "b": "2"}), rules, strict=True)
    )
    assert [
        each.get("pin") or each["drop"]
        for each in _mix(_list_changes(good, bad), 0).rules["overrides"]
    ] == ["X==2", "y"]


def test_our_commits_come_with_those_before_them() -> None:
    good, bad = (
        _build(_source("a"), rosetta_commit="1" * 40),
        _build(_source("b"), rosetta_commit="9" * 40),
    )
    log = [Cause(digit * 40, "me", "2026-01-01", f"step {digit}") for digit in "234"]
    change_list = add_rosetta_commits(_list_changes(good, bad), log)
    assert [change.kind for change in change_list.changes] == [
        "patch",
        "patch",
        "rosetta",
        "rosetta",
        "rosetta",
    ]
    assert (_mix(change_list, 2, 3).rosetta_commit, _mix(change_list, 0).rosetta_commit) == (
        "3" * 40,
        "1" * 40,
    )
    assert (change_list.with_prerequisites(4), change_list.with_prerequisites(0)) == (
        frozenset({2, 3, 4}),
        frozenset({0}),
    )


def test_our_commits_that_are_no_line_are_one_change_and_none_is_none() -> None:
    good, bad = (
        _build(_source("a"), rosetta_commit="1" * 40),
        _build(_source("b"), rosetta_commit="9" * 40),
    )
    whole = add_rosetta_commits(_list_changes(good, bad), None)
    assert (whole.changes[-1].kind, _mix(whole, len(whole.changes) - 1).rosetta_commit) == (
        "rosetta",
        "9" * 40,
    )
    assert "one by one" in whole.notes[-1]
    assert _mix(add_rosetta_commits(_list_changes(good, bad), []), 0, 1).rosetta_commit == "1" * 40


def test_builds_that_cannot_differ_have_one_key() -> None:
    good = _build(_source("a"), pins=_pins(x="1"))
    assert good.key == replace(good, pins=()).key, "the text of the lock says it all"
    keys = {
        good.key,
        replace(good, lock="").key,
        replace(good, build_tools_lock="y").key,
        replace(good, rosetta_commit="1").key,
        _build(_source("b")).key,
        good.sources_only().key,
    }
    assert len(keys) == 6
