"""What changed between two published images: pins with upstream's log, patches, packages; as JSON and in Markdown."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from builder.release.publish import image_comparison
from builder.upstream import checkout
from tests.support import errors, git_repository, published_project
from tests.support.published_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry


@pytest.fixture(name="local")
def local_(tmp_path: Path) -> Iterator[Served]:
    with published_project.serve_registry("memory", tmp_path) as served:
        yield served


def _upstream(folder: Path) -> list[str]:
    repository = git_repository.init_repository(folder / "mirrors/thing.git")
    commits: list[str] = []
    for number, message in enumerate(("first", "second: faster", "third: *not* [markup](x)")):
        tree = git_repository.make_tree(
            repository, {"thing/__init__.py": f"x = {number}\n".encode()}
        )
        commits.append(
            git_repository.write_commit(repository, tree, *commits[-1:], message=message)
        )
    git_repository.set_branch(repository, commits[-1])
    return commits


def test_between_two_nightlies(project: Project, local: Served, tmp_path: Path) -> None:
    first, second, third = _upstream(tmp_path)
    project.commit = first
    project.lock({"helper": "1.0", "other": "2.0"})
    old = project.layout("one")
    assert project.publish(local, old, date="2026-01-01")[0] == 0
    project.commit = third
    project.lock({"helper": "1.1", "fresh": "3.0"})
    project.base(libc6="2.42-1", bash="5.2-1")
    patch = project.folder / "patches/thing/greet.patch"
    patch.write_text(
        patch.read_text().replace("the test needs a change that can be seen", "because")
    )
    new = project.layout("two")
    assert project.publish(local, new)[0] == 0

    names = [f"{local.host}/team/thing:{tag}" for tag in ("nightly-2026-01-01", "latest")]
    status, document = project.run("changelog", *names, "--mirror", str(tmp_path / "mirrors"))
    assert status == 0, document
    found: dict[str, Any] = document["result"]
    source = found["sources"]["thing"]
    assert (source["from"], source["to"], source["patches"]) == (
        first,
        third,
        {"added": [], "removed": [], "changed": ["greet"]},
    )
    assert [(each["commit"], each["subject"]) for each in source["log"]] == [
        (third, "third: *not* [markup](x)"),
        (second, "second: faster"),
    ]
    assert found["python"] == [
        {"name": "fresh", "from": [], "to": ["3.0"]},
        {"name": "helper", "from": ["1.0"], "to": ["1.1"]},
        {"name": "other", "from": ["2.0"], "to": []},
    ]
    assert [each["name"] for each in found["system"]] == ["libc6"]
    shown = image_comparison.comparison_as_markdown(found)
    assert f"* `{first[:12]}` -> `{third[:12]}`" in shown
    assert r"third: \*not\* \[markup\](x)" in shown
    assert "* helper: 1.0 -> 1.1" in shown
    assert "* libc6: 2.41-1 (amd64), 2.41-1 (arm64) -> 2.42-1 (amd64), 2.42-1 (arm64)" in shown

    found = project.run("changelog", *names)[1]["result"]
    assert found["sources"]["thing"]["log"] is None
    assert "--mirror DIR" in image_comparison.comparison_as_markdown(found)
    found = project.run("changelog", names[1], names[1])[1]["result"]
    assert "Nothing changed." in image_comparison.comparison_as_markdown(found)
    status, document = project.run("changelog", *names, key="theirs")
    assert status == 2
    error = errors.from_document(document)
    errors.check_error(error, errors.MISSING, where=f"{local.host}/team/thing:", remedy="this key")


def test_a_change_of_rosetta_alone(
    project: Project, local: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named by its commit; where nothing names a difference, equal is not said."""
    states = [
        {"commit": "a" * 40, "url": "", "clean": True},
        {"commit": "b" * 40, "url": "https://host.example/rosetta", "clean": True},
        {"commit": "b" * 40, "url": "", "clean": False},
    ]
    for number, state in enumerate([*states, states[-1]]):
        monkeypatch.setattr(checkout, "describe_checkout", lambda _, state=state: state)
        assert (
            project.publish(
                local, project.layout(f"build {number}"), date=f"2026-01-0{number + 1}"
            )[0]
            == 0
        )
    names = [f"{local.host}/team/thing:nightly-2026-01-0{number + 1}" for number in range(4)]
    shown = [
        image_comparison.comparison_as_markdown(project.run("changelog", *pair)[1]["result"])
        for pair in pairwise(names)
    ]
    assert f"## rosetta\n\n* `{'a' * 40}` -> `{'b' * 40}`" in shown[0]
    assert f"-> `{'b' * 40} with changes that are not committed`" in shown[1]
    assert shown[2].endswith("rosetta's commit are the same.")
    assert "Nothing of it changed" not in "".join(shown)


def test_what_was_not_published_here(project: Project, local: Served) -> None:
    assert project.publish(local, project.layout())[0] == 0
    status, document = project.run(
        "changelog", f"{local.host}/team/thing:latest", f"{local.host}/team/thing", key=""
    )
    assert status == 2
    error = errors.from_document(document)
    errors.check_error(error, errors.MISSING, where="team/thing", remedy="HOST/NAME:TAG")


@pytest.mark.parametrize("commit", ["--output=/tmp/x", "abc", ""])
def test_a_commit_that_is_none(commit: str) -> None:
    ancestor = {"version": commit, "externalReferences": [{"url": "https://x"}], "properties": []}
    said = {
        "components": [{"bom-ref": "source:a", "name": "a", "pedigree": {"ancestors": [ancestor]}}]
    }
    with errors.expect_user_error(errors.INVALID, where="name", remedy="build.py publish"):
        image_comparison.parse_sbom("name", "sha256:0", said)
