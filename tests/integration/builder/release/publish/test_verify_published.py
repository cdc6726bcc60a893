"""verify-published on the command line: what it refuses before it asks anyone, and how it says what it found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder import cli
from tests.support import errors, published_project
from tests.support.published_project import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.registry


@pytest.mark.parametrize(
    ("reference", "more", "kind", "where"),
    [
        ("team/thing", (), errors.MISSING, "team/thing"),
        ("team/thing:latest", ("--offline",), errors.CONFLICT, "verify-published"),
        ("team/thing@sha256:0", (), errors.INVALID, "sha256:0"),
    ],
)
def test_bad_requests(
    project: Project, tmp_path: Path, reference: str, more: tuple[str, ...], kind: str, where: str
) -> None:
    with published_project.serve_registry("memory", tmp_path) as served:
        status, document = project.run("verify-published", f"{served.host}/{reference}", *more)
        assert status == 2
        errors.check_error(errors.from_document(document), kind, where=where)
        assert served.log == []


def test_a_private_key_is_no_public_one(project: Project) -> None:
    status, document = project.run(
        "verify-published", "127.0.0.1:1/a:b", "--key", f"{project.keys['ours']}.pem", key=""
    )
    assert status == 2
    assert "-pubout" in document["error"]["do"]


def test_a_line_for_each_check(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with published_project.serve_registry("memory", tmp_path) as served:
        assert project.publish(served, project.layout())[0] == 0
        capsys.readouterr()
        name = f"{served.host}/team/thing:latest"
        assert cli.main(["verify-published", name, "--key", f"{project.keys['theirs']}.pub"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        "FAILED  index: signature: the signature was not made by this key, or was changed since"
        in lines
    )
    assert "ok      linux/arm64: image" in lines
    assert (
        lines[-1]
        == f"{name} is {project.digest(project.layout())}: refused, index: signature: the signature was not made by this key, or was changed since"
    )
