"""The forecast on the newest JAX: what is resolved, with the real uv on an index of our own, and that nothing of ours moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.core import manifest
from builder.packages import environment_markers
from builder.packages.lock_file import Pin
from builder.packages.resolution import Request, Rules
from builder.release.bump import forecast
from tests.support import errors
from tests.support.bump_history import Story
from tests.support.package_archives import publish_wheel
from tests.support.package_index import Index
from tests.support.patch_series import make_text

pytestmark = pytest.mark.slow

PLACES = environment_markers.list_environments(["3.12"], ["amd64"])
NOW = [
    Pin("jax", "1.0", "", ()),
    Pin("jaxlib", "1.0", "", ()),
    Pin("helper", "1.0", "", ()),
    Pin("gone", "1", "python_version < '3.12'", ()),
]


def _request(*requirements: str) -> Request:
    return Request(requirements, Rules(), PLACES, "locks/thing-cpu.txt")


@pytest.fixture
def projects(index: Index, tmp_path: Path) -> Index:
    """JAX 1 for every Python and JAX 2 for 3.12 and later; a helper that goes with either."""
    for version, requires in (("1.0", ()), ("2.0", ("python>=3.12",))):
        publish_wheel(index, tmp_path, "jaxlib", version, *requires)
        publish_wheel(index, tmp_path, "jax", version, "jaxlib>=1", *requires)
    publish_wheel(index, tmp_path, "helper", "1.0", "jax<2")
    publish_wheel(index, tmp_path, "helper", "2.0", "jax>=1")
    return index


@pytest.mark.usefixtures("projects")
def test_the_newest_jax_depends_on_the_python() -> None:
    assert [
        forecast.find_newest_jax(each, "amd64", offline=False) for each in ("3.11", "3.12")
    ] == [
        "1.0",
        "2.0",
    ]


@pytest.mark.usefixtures("projects")
def test_the_rest_stays_where_it_is_unless_the_new_jax_needs_another() -> None:
    pins, lifted = forecast.resolve_with_jax(
        _request("jax==1.0", "jaxlib==1.0", "helper"), "2.0", NOW, offline=False
    )
    assert ([pin.text for pin in pins], lifted) == (["helper==2.0", "jax==2.0", "jaxlib==2.0"], [])
    assert forecast.list_changed_packages(NOW, pins, PLACES[0]) == [
        "helper 1.0 -> 2.0",
        "jax 1.0 -> 2.0",
        "jaxlib 1.0 -> 2.0",
    ]


@pytest.mark.usefixtures("projects")
def test_a_pin_of_ours_that_stands_in_the_way_is_lifted_and_named() -> None:
    pins, lifted = forecast.resolve_with_jax(
        _request("jax==1.0", "jaxlib==1.0", "helper==1.0"), "2.0", NOW, offline=False
    )
    assert ([pin.text for pin in pins], lifted) == (
        ["helper==2.0", "jax==2.0", "jaxlib==2.0"],
        ["helper"],
    )


@pytest.mark.usefixtures("projects")
def test_what_fits_no_new_jax_at_all_is_said(index: Index, tmp_path: Path) -> None:
    publish_wheel(index, tmp_path, "old", "1.0", "jax<2")
    with errors.expect_user_error(errors.CONFLICT):
        forecast.resolve_with_jax(_request("jax==1.0", "old"), "2.0", NOW, offline=False)


def test_extras_and_markers_outlive_the_lifting() -> None:
    found = forecast.lift_versions(
        [
            "jax[cuda13]==1.0 ; python_version > '3'",
            "tf==2.* ; platform_machine == 'x'",
            "jaxlib==1.0",
        ],
        "2.0",
        ("jax", "jaxlib"),
    )
    assert found == (
        "jax==2.0",
        'jax[cuda13]; python_version > "3"',
        'tf==2.*; platform_machine == "x"',
        "jaxlib",
    )


def _one(**changes: Any) -> dict[str, Any]:
    found = {
        "python": "3.11",
        "pinned": "1.0",
        "jax": "1.0",
        "newest": {"3.11": "1.0", "3.12": "2.0"},
        "lifted": ["orbax"],
        "changed": [f"p{n} 1 -> 2" for n in range(25)],
        "problem": None,
    }
    return {
        **found,
        "imports": {"modules": 90, "failed": {"thing.x": "ImportError: no y"}},
        "ok": False,
        **changes,
    }


def test_the_text_names_what_fails_and_where_a_newer_jax_would_be() -> None:
    said = forecast.forecast_as_text(
        {
            "thing": _one(),
            "other": {"ok": False, "problem": "no Python 3.11 at hand"},
            "third": _one(imports=None, problem="helper wants jax<2"),
        }
    )
    for word in (
        "thing on JAX 1.0 (pinned: 1.0), Python 3.11: 90 modules, imports that failed: 1",
        "--python 3.12",
        "orbax",
        "p19 1 -> 2",
        "and 5 more packages",
        "fails: thing.x: ImportError: no y",
        "other: not tried: no Python 3.11 at hand",
        "does not resolve: helper wants jax<2",
    ):
        assert word in said, word
    assert "p20" not in said


def test_a_copy_is_bumped_and_nothing_of_ours_moves(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.mine(l20="ours\n")
    story.pin()
    tip = story.bench.upstream.commit({"pkg/a.py": make_text(l1="a\nb\n")}, "elsewhere")
    before = story.ours()
    story.manifest.write_text(
        story.manifest.read_text().replace(
            "lines: {}\ndistributions: {}",
            (
                "lines:\n  line: {python: '3.12', pythons: ['3.12'], common: locks/line/common.in}\n"
                "distributions:\n  thing: {line: line, sources: [up], accelerators: [cpu], architectures: [amd64]}"
            ),
        )
    )
    before = story.ours()
    seen: list[Any] = []

    def run(context: Any, names: Any, folder: Path, asked: str) -> dict[str, Any]:
        seen.append(
            (manifest.load(context.manifest_path).sources["up"].commit, list(names), folder, asked)
        )
        return {"thing": _one(ok=asked == "3.12")}

    monkeypatch.setattr(forecast, "run_forecast", run)
    monkeypatch.chdir(story.bench.root)
    status, document = story.json("--forecast", "--jax", "--python", "3.12")
    assert (status, document["result"]["newest_jax"]["thing"]["jax"]) == (0, "1.0")
    assert seen == [(tip, ["thing"], story.bench.root / "build/forecast", "3.12")]
    assert story.ours() == before
    assert story.run("--forecast", "--jax")[0] == 1
    assert story.run("--abort")[0] == 2  # no bump of ours waits


@pytest.mark.parametrize(
    "argv", [("--jax",), ("--forecast", "--python", "3.12"), ("--python", "3.12")]
)
def test_options_that_need_another_are_refused(story: Story, argv: tuple[str, ...]) -> None:
    story.mine(l20="ours\n")
    story.pin()
    status, said = story.run(*argv)
    assert status == 2
    assert "--forecast" in said
