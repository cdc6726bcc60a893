"""Resolution with the real uv against an index on the loopback address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.packages import environment_markers, resolution
from builder.packages.lock_file import Pin
from builder.packages.resolution import Request, Rules
from rosetta.core.errors import UserError
from tests.support import errors
from tests.support.package_archives import publish_sdist, publish_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.package_index import Index

pytestmark = pytest.mark.slow

GRID = environment_markers.list_environments(["3.11", "3.12"], ["amd64", "arm64"])
X86, ARM = "manylinux2014_x86_64", "manylinux2014_aarch64"


def _request(*requirements: str, rules: Rules | None = None) -> Request:
    return Request(requirements, rules or Rules(), GRID, "line test")


def _locked(request: Request, preferred: tuple[Pin, ...] = ()) -> list[Pin]:
    return resolution.resolve_lock(request, resolution.resolve_jointly(request, preferred))


def _texts(pins: list[Pin]) -> list[str]:
    return [pin.text for pin in pins]


def test_only_the_files_that_are_installed_have_their_hash(index: Index, tmp_path: Path) -> None:
    pure = publish_wheel(index, tmp_path, "pure", "1", "fast")
    wanted = {
        publish_wheel(index, tmp_path, "fast", "2", tag=f"cp{python}-cp{python}-{platform}")
        for python in ("311", "312")
        for platform in (X86, ARM)
    }
    for tag in (
        "cp313-cp313-" + X86,
        "cp311-cp311-macosx_11_0_arm64",
        "cp311-cp311-musllinux_1_2_x86_64",
        "cp311-cp311-manylinux_2_35_x86_64",
    ):
        publish_wheel(index, tmp_path, "fast", "2", tag=tag)
    publish_sdist(index, tmp_path, "fast", "2")
    assert _locked(_request("pure")) == [
        Pin("fast", "2", "", tuple(sorted(wanted))),
        Pin("pure", "1", "", (pure,)),
    ]


def test_one_version_for_all_and_markers_only_where_they_say_something(
    index: Index, tmp_path: Path
) -> None:
    publish_wheel(
        index,
        tmp_path,
        "a",
        "1",
        "on-arm ; platform_machine == 'aarch64'",
        "old ; python_version < '3.12'",
        "windows ; sys_platform == 'win32'",
        "b<2",
    )
    for name in ("on-arm", "old", "windows"):
        publish_wheel(index, tmp_path, name, "1")
    publish_wheel(index, tmp_path, "b", "1")
    publish_wheel(index, tmp_path, "b", "2")
    assert _texts(_locked(_request("a", "b"))) == [
        "a==1",
        "b==1",
        'old==1 ; python_version < "3.12"',
        'on-arm==1 ; platform_machine == "aarch64"',
    ]


def test_one_version_rather_than_the_newest_for_each_python(index: Index, tmp_path: Path) -> None:
    publish_wheel(index, tmp_path, "a", "1")
    publish_wheel(index, tmp_path, "a", "2", "python>=3.12")
    assert _texts(_locked(_request("a"))) == ["a==1"]


def test_versions_at_hand_are_kept_where_they_fit(index: Index, tmp_path: Path) -> None:
    for version in ("1", "2", "3"):
        publish_wheel(index, tmp_path, "a", version)
    assert _texts(_locked(_request("a"))) == ["a==3"]
    kept = (Pin("a", "2", "", ("0" * 64,)),)
    assert _texts(_locked(_request("a"), kept)) == ["a==2"]
    assert _texts(_locked(_request("a>2"), kept)) == ["a==3"]


def test_a_missing_wheel_names_project_python_and_machine(index: Index, tmp_path: Path) -> None:
    publish_wheel(index, tmp_path, "a", "1", "one", "two")
    publish_wheel(index, tmp_path, "one", "1", tag="cp311-abi3-" + X86)
    publish_wheel(index, tmp_path, "two", "1", tag="cp311-cp311-" + ARM)
    publish_wheel(index, tmp_path, "two", "1", tag="cp311-abi3-" + X86)
    with errors.expect_user_error(
        errors.UNSUPPORTED,
        where="line test",
        names=("one 1 ", "3.11 on aarch64, ", "; two 1 ", "3.12 on aarch64"),
    ):
        _locked(_request("a"))


def test_a_drop_with_a_marker_keeps_it_where_it_exists(index: Index, tmp_path: Path) -> None:
    publish_wheel(index, tmp_path, "a", "1", "one")
    publish_wheel(index, tmp_path, "one", "1", tag="cp311-abi3-" + X86)
    rules = Rules(overrides=("one ; platform_machine == 'x86_64'",))
    assert _texts(_locked(_request("a", rules=rules))) == [
        "a==1",
        'one==1 ; platform_machine == "x86_64"',
    ]


def test_a_drop_with_a_marker_keeps_what_is_asked_for_here(index: Index, tmp_path: Path) -> None:
    publish_wheel(index, tmp_path, "a", "1", "one>=2")
    for version in ("1", "1.5", "2"):
        publish_wheel(index, tmp_path, "one", version)
    rules = Rules(overrides=("one ; platform_machine == 'x86_64'",))
    assert _texts(_locked(_request("a", "one<1.2", rules=rules))) == [
        "a==1",
        'one==1 ; platform_machine == "x86_64"',
    ]


def test_a_whole_drop_holds_for_our_own_requirements_too(index: Index, tmp_path: Path) -> None:
    publish_wheel(index, tmp_path, "a", "1", "gone>=7")
    assert _texts(_locked(_request("a", "Gone==1", rules=Rules(drops=("gone",))))) == ["a==1"]


def test_a_pin_stands_for_what_others_ask(index: Index, tmp_path: Path) -> None:
    publish_wheel(index, tmp_path, "a", "1", "one>=2")
    publish_wheel(index, tmp_path, "one", "1")
    with errors.expect_user_error(errors.CONFLICT, where="line test", names="one>=2"):
        _locked(_request("a"))
    assert _texts(_locked(_request("a", rules=Rules(overrides=("one==1",))))) == ["a==1", "one==1"]


@pytest.mark.parametrize("form", ["tar.gz", "zip"])
def test_sdists_only_where_they_are_listed(index: Index, tmp_path: Path, form: str) -> None:
    digest = publish_sdist(index, tmp_path, "source-only", "2", form=form)
    with pytest.raises(UserError, match="source-only"):
        _locked(_request("source-only"))
    assert _locked(_request("source-only", rules=Rules(sdists=("source-only",)))) == [
        Pin("source-only", "2", "", (digest,))
    ]


@pytest.mark.parametrize(
    ("requirements", "kind", "named", "remedy"),
    [
        (
            ["source-only"],
            errors.UNSUPPORTED,
            "source-only",
            "sdists:",
        ),
        (
            ["source-only==2"],
            errors.UNSUPPORTED,
            "source-only",
            "sdists:",
        ),
        (
            ["asks-for-source"],
            errors.UNSUPPORTED,
            "source-only",
            "sdists:",
        ),
        (
            ["newer-has-no-wheel>=2"],
            errors.UNSUPPORTED,
            "newer-has-no-wheel",
            "sdists:",
        ),
        (["nosuch"], errors.MISSING, "'nosuch'", "name"),
        (
            ["asks-for-nothing"],
            errors.MISSING,
            "'nosuch-dependency'",
            "name",
        ),
        (
            ["one==7"],
            errors.MISSING,
            "'one==7'",
            "version",
        ),
        (
            ["one>=2"],
            errors.CONFLICT,
            "only one==1",
            "change a locks/*.in",
        ),
        (["one>=1", "one<1"], errors.CONFLICT, "one", "change a locks/*.in"),
    ],
)
def test_what_has_no_solution_says_why(
    index: Index, tmp_path: Path, requirements: list[str], kind: str, named: str, remedy: str
) -> None:
    publish_sdist(index, tmp_path, "source-only", "2")
    publish_sdist(index, tmp_path, "newer-has-no-wheel", "2")
    publish_wheel(index, tmp_path, "newer-has-no-wheel", "1")
    publish_wheel(index, tmp_path, "asks-for-source", "1", "source-only")
    publish_wheel(index, tmp_path, "asks-for-nothing", "1", "nosuch-dependency>=2")
    publish_wheel(index, tmp_path, "one", "1")
    with errors.expect_user_error(kind, where="line test", names=named, remedy=remedy) as caught:
        _locked(_request(*requirements))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("status", [401, 403])
def test_an_index_that_refuses_the_user_has_not_lost_the_package(index: Index, status: int) -> None:
    index.fault = str(status)
    with errors.expect_user_error(errors.DENIED, names=str(status), remedy="password"):
        _locked(_request("private"))


def test_a_stripped_project_takes_the_other_architectures_wheels(
    index: Index, tmp_path: Path
) -> None:
    wanted = {
        publish_wheel(index, tmp_path, "one", "1", tag=f"cp{python}-cp{python}-{X86}")
        for python in ("311", "312")
    }
    with errors.expect_user_error(
        errors.UNSUPPORTED, where="line test", names=("one 1 ", "3.11 on aarch64")
    ):
        _locked(_request("one"))
    assert _locked(_request("one", rules=Rules(strips=(("one", "arm64"),)))) == [
        Pin("one", "1", "", tuple(sorted(wanted)))
    ]


def test_a_part_has_the_versions_of_the_whole(index: Index, tmp_path: Path) -> None:
    publish_wheel(index, tmp_path, "a", "1", "shared")
    publish_wheel(index, tmp_path, "b", "1", "shared<2")
    publish_wheel(index, tmp_path, "shared", "1")
    publish_wheel(index, tmp_path, "shared", "2")
    whole = resolution.resolve_jointly(_request("a", "b"), ())
    assert _texts(resolution.resolve_lock(_request("a"), whole)) == ["a==1", "shared==1"]
    assert _texts(_locked(_request("a"))) == ["a==1", "shared==2"]


def test_the_users_uv_settings_play_no_part(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_wheel(index, tmp_path, "a", "1")
    publish_wheel(index, tmp_path, "a", "2")
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv/uv.toml").write_text('constraint-dependencies = ["a<2"]\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "c.txt").write_text("a<2\n")
    monkeypatch.setenv("UV_CONSTRAINT", str(tmp_path / "c.txt"))
    assert _texts(_locked(_request("a"))) == ["a==2"]


def test_rules_of_a_line(tmp_path: Path) -> None:
    from builder.core import manifest

    (tmp_path / "manifest.yaml").write_text(f"""version: 1
sources: {{t: {{wheel: t==1, sha256: "{"a" * 64}", patches: patches/t}}}}
lines: {{l: {{python: "3.11", pythons: ["3.11"], common: l.in}}, o: {{python: "3.11", pythons: ["3.11"], common: o.in}}}}
distributions: {{t: {{line: l, sources: [t], accelerators: [cpu], architectures: [amd64]}}}}
overrides:
  - {{drop: b, why: "a good reason"}}
  - {{drop: a, unless: "python_version < '3.12'", lines: [l], why: "a good reason"}}
  - {{pin: "c==1", lines: [o], why: "a good reason"}}
sdists: [{{name: s, why: "a good reason"}}]
strip: [{{name: p, architectures: [arm64], why: "a good reason"}}]
""")
    loaded = manifest.load(tmp_path / "manifest.yaml")
    assert resolution.rules_for_line(loaded, "l") == Rules(
        ("b",), ("a ; python_version < '3.12'",), ("s",), (("p", "arm64"),)
    )
    assert resolution.rules_for_line(loaded, "o") == Rules(
        ("b",), ("c==1",), ("s",), (("p", "arm64"),)
    )
    assert resolution.rules_for_line(loaded, "o", without=loaded.overrides[0]).drops == ()
