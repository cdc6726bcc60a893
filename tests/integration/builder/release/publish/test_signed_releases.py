"""A tag stands for the newest image that was signed as it, in the repository it was signed for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder import cli
from builder.images.oci import layout, reference
from builder.images.registry import download, image_push
from builder.images.registry.transport import Connection
from builder.release.publish import attachments, signed_releases, signing_key, tags, verification
from tests.support import errors, published_project
from tests.support.published_project import DAY, Project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry

NAME = "team/thing"
DAYS = ("2026-01-01", DAY)


class Repository:
    """Two images that were published on two days, and someone who may push."""

    def __init__(self, project: Project, served: Served) -> None:
        self.project, self.served = project, served
        self.places = [project.layout("one"), project.layout("two")]
        self.old, self.new = (project.digest(place) for place in self.places)
        for date, place in zip(DAYS, self.places, strict=True):
            assert project.publish(served, place, date=date)[0] == 0

    def point(self, tag: str, digest: str) -> None:
        """Move a tag as anyone who may push can."""
        with Connection(
            reference.parse_reference(f"{self.served.host}/{NAME}"), "pull,push"
        ) as connection:
            image_push.move_tag(connection, tag, download.read_document(connection, digest).data)

    def verify(self, which: str, *more: str, name: str = NAME) -> tuple[int, dict[str, Any], str]:
        """Verify; the status, the document and the first problem."""
        status, document = self.project.run(
            "verify-published", f"{self.served.host}/{name}{which}", *more
        )
        checks = document["result"]["checks"] if document["result"] else []
        problems = [f"{row['what']}: {row['problem']}" for row in checks if not row["ok"]]
        return status, document, problems[0] if problems else ""

    def restore(self, digest: str, *names: str) -> None:
        words = [word for name in names for word in ("--tag", name)]
        status, document = self.project.run(
            "publish", "--to", f"{self.served.host}/{NAME}", "--digest", digest, *words
        )
        assert status == 0, document


@pytest.fixture
def repository(project: Project, tmp_path: Path) -> Iterator[Repository]:
    project.architectures = ("amd64",)
    project.lock({"helper": "1.0"})
    project.layout = lambda top="one": Project.layout(project, top, ("amd64",))  # type: ignore[method-assign, assignment, misc]
    with published_project.serve_registry("memory", tmp_path) as served:
        yield Repository(project, served)


@pytest.mark.parametrize("tag", ["latest", f"nightly-{DAY}", "latest-verified", "v1"])
def test_an_older_image_under_a_tag_is_refused(repository: Repository, tag: str) -> None:
    repository.point(tag, repository.old)
    status, _, problem = repository.verify(f":{tag}", "--quick")
    assert (status, bool(problem)) == (1, True)
    if tag == "latest":
        assert f"an older image: 'nightly-{DAY}'" in problem


def test_a_newer_mark_that_was_moved_back_does_not_hide_the_older_image(
    repository: Repository,
) -> None:
    repository.point("latest", repository.old)
    repository.point(f"nightly-{DAY}", repository.old)
    assert "is not signed as that" in repository.verify(":latest")[2]


def test_going_back_is_signed(repository: Repository) -> None:
    """After a legitimate move back the image that was newer is the wrong one, until it is published again."""
    assert repository.verify(":latest")[0] == 0
    for digest, other in ((repository.old, repository.new), (repository.new, repository.old)):
        repository.restore(digest, "latest")
        assert repository.verify(":latest") == (0, repository.verify(":latest")[1], "")
        repository.point("latest", other)
        assert "an older image" in repository.verify(":latest")[2]
        repository.point("latest", digest)
    marks = [name for name in _all_tags(repository) if name.startswith("moved-")]
    assert len(marks) == 2
    repository.restore(repository.new, "latest")  # the same again marks nothing new
    assert [name for name in _all_tags(repository) if name.startswith("moved-")] == marks


def _all_tags(repository: Repository) -> list[str]:
    with Connection(
        reference.parse_reference(f"{repository.served.host}/{NAME}"), "pull"
    ) as connection:
        return tags.list_tags(connection)


def test_tags_that_a_publish_or_promote_moves_are_signed(repository: Repository) -> None:
    project, served = repository.project, repository.served
    result = project.folder / "result.json"
    for digest in (repository.new, repository.old):
        result.write_text(json.dumps(published_project.make_suite_result(digest)))
        status, document = project.run(
            "promote", f"{served.host}/{NAME}@{digest}", "--suite", "s", "--result", str(result)
        )
        assert status == 0, document
        assert repository.verify(":latest-verified")[2] == ""
    repository.point("latest-verified", repository.new)
    assert "an older image" in repository.verify(":latest-verified")[2]
    third = project.layout("three")
    status, document = project.run(
        "publish", third, "--to", f"{served.host}/{NAME}", "--date", "2025-12-31", "--tag", "v1"
    )
    assert status == 0, document
    assert repository.verify(":v1")[2] == ""
    assert repository.verify(":latest")[2] == ""


def test_an_image_of_another_repository_is_refused(repository: Repository) -> None:
    """All of it is copied, as a mirror or someone who may push does it."""
    source, copy = f"{repository.served.host}/{NAME}", f"{repository.served.host}/mirror/thing"
    kept = repository.served.answer.__self__  # type: ignore[attr-defined]
    for (name, which), value in list(kept.blobs.items()):
        if name == NAME:
            kept.blobs[("mirror/thing", which)] = value
    for (name, which), value in list(kept.manifests.items()):
        if name == NAME:
            kept.manifests[("mirror/thing", which)] = value
    for which in (":latest", f"@{repository.new}"):
        status, _, problem = repository.verify(which, name="mirror/thing")
        assert (status, problem) == (
            1,
            f"index: signature: the signature was signed for another repository, {source!r}",
        )
        assert repository.verify(which, "--signed-for", source, name="mirror/thing")[2] == ""
    status, document = repository.project.run(
        "verify-published", f"{copy}:latest", "--signed-for", f"{source}:x"
    )
    assert (status, document["error"]["where"]) == (2, "--signed-for")


@pytest.mark.parametrize(
    ("oldest", "status"),
    [
        *[
            ("2026-01-02", 0),
            ("2025-12-31", 0),
            ("0001-01-01", 0),
            ("2026-01-03", 1),
            ("2098-01-01", 1),
        ],
        *[
            ("yesterday", 2),
            ("2026-1-2", 2),
            ("0000-00-00", 2),
            ("2025-02-31", 2),
            ("20260102", 2),
            ("2026-W01-5", 2),
        ],
    ],
)
def test_the_oldest_day_to_accept(repository: Repository, oldest: str, status: int) -> None:
    assert (
        repository.project.run(
            "verify-published", f"{repository.served.host}/{NAME}:latest", "--not-before", oldest
        )[0]
        == status
    )


STRAYS = (
    *[
        "nightly-2099-01-01",
        "moved-2099-01-01-1",
        "moved-9999-99-99-999999",
        "nightly-2026-02-31",
        "nightly-0000-00-00",
    ],
    *["moved-2026-01-03-9999999", "nightly-9999-12-31", "moved-9999-12-31-999999"],
)


@pytest.mark.parametrize("stray", STRAYS)
def test_a_tag_of_no_day_up_to_today_has_no_part(
    repository: Repository, capsys: pytest.CaptureFixture[str], stray: str
) -> None:
    """Whoever may push, without the key, neither stops `latest` nor brings an image into the future."""
    repository.point(stray, repository.old)
    status, document, problem = repository.verify(":latest", "--quick")
    assert (status, problem, document["result"]["disregarded_tags"]) == (0, "", [stray])
    assert repr(stray) in capsys.readouterr().err
    repository.restore(repository.old, "latest")
    assert repr(stray) in capsys.readouterr().err
    assert repository.verify(":latest", "--quick")[2] == ""
    released = f"moved-{tags.read_today()}-1"
    assert released in _all_tags(repository)
    status, _, problem = repository.verify(":latest", "--quick", "--not-before", "2098-01-01")
    assert (status, problem) == (
        1,
        f"index: age: the image was last released on {tags.read_today()}",
    )
    assert repository.verify(f":{stray}", "--quick")[0] == 1


def test_a_stray_nightly_does_not_hold_latest(repository: Repository) -> None:
    repository.point("nightly-2099-01-01", repository.old)
    third = repository.project.layout("three")
    status, document = repository.project.publish(repository.served, third, date="2026-01-03")
    assert (status, document["result"]["held"]) == (0, [])
    assert repository.verify(":latest", "--quick")[2] == ""


def test_a_mark_of_today_without_a_signature_is_not_counted_from(repository: Repository) -> None:
    """The last number of a day leaves no next one; what a reader would refuse is not called published."""
    mark = f"moved-{tags.read_today()}-999999"
    repository.point(mark, repository.old)
    status, document = repository.project.run(
        "publish",
        "--to",
        f"{repository.served.host}/{NAME}",
        "--digest",
        repository.old,
        "--tag",
        "latest",
    )
    assert (status, repository.served.tag(NAME, "latest")) == (2, repository.new)
    error = errors.from_document(document)
    errors.check_error(error, errors.CONFLICT, value="latest", names=repr(mark), remedy="delete")


def test_a_tag_that_another_moves_meanwhile_is_not_called_published(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = image_push.move_tag

    def move_and_lose(connection: Connection, name: str, data: bytes) -> str:
        previous = move(connection, name, data)
        if name == "latest":
            move(connection, name, download.read_document(connection, repository.new).data)
        return previous

    monkeypatch.setattr(image_push, "move_tag", move_and_lose)
    status, document = repository.project.run(
        "publish",
        "--to",
        f"{repository.served.host}/{NAME}",
        "--digest",
        repository.old,
        "--tag",
        "latest",
    )
    assert (status, document["ok"]) == (2, False)
    errors.check_error(errors.from_document(document), errors.FAILED, value="latest")


def test_a_release_that_was_signed_in_the_future(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of the image's age, and still counts against an older image: a clock may be slow."""
    monkeypatch.setattr(tags, "read_today", lambda: "2099-01-01")
    repository.restore(repository.old, "latest", "v1")
    assert repository.verify(":latest", "--quick", "--not-before", "2098-01-01")[2] == ""
    monkeypatch.setattr(tags, "read_today", lambda: "2098-12-31")  # a day of skew
    assert repository.verify(":latest", "--quick", "--not-before", "2098-01-01")[2] == ""
    monkeypatch.setattr(tags, "read_today", lambda: "2026-01-04")
    assert (
        repository.verify(":v1", "--quick")[2]
        == "index: tag v1: its release as 'v1' is dated 2099-01-01, which is after today"
    )
    assert (
        repository.verify(f"@{repository.old}", "--quick", "--not-before", "2026-01-02")[2]
        == "index: age: the image was last released on 2026-01-01"
    )
    repository.point("latest", repository.new)
    assert "an older image: 'moved-2099-01-01-1'" in repository.verify(":latest", "--quick")[2]


def test_what_was_published_before_releases_were_signed(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its digest it is fine; a tag needs a release, which `publish --digest` signs."""
    project, served = repository.project, repository.served
    monkeypatch.setattr(signed_releases, "sign_release", lambda *_: None)
    monkeypatch.setattr(signed_releases.ReleaseReader, "find_problem", lambda *_: "")
    place = project.layout("old way")
    assert project.publish(served, place, date="2026-01-04")[0] == 0
    monkeypatch.undo()
    assert repository.verify(f"@{project.digest(place)}")[2] == ""
    assert (
        repository.verify(":latest")[2]
        == "index: tag latest: no signed release of it names the tag 'latest'"
    )
    repository.restore(project.digest(place), "latest")
    assert repository.verify(":latest")[2] == ""


def test_what_the_image_is(repository: Repository, capsys: pytest.CaptureFixture[str]) -> None:
    _, document, _ = repository.verify(":latest")
    image = document["result"]["image"]
    assert (image["distribution"], image["accelerator"], image["line"], image["platforms"]) == (
        "thing",
        "cuda13",
        "line",
        ["linux/amd64"],
    )
    assert image["versions"]["thing"] == published_project.COMMIT
    assert sorted(release["tags"] for release in image["releases"]) == [
        ["latest"],
        [f"nightly-{DAY}"],
    ]
    assert {release["date"] for release in image["releases"]} == {DAY}
    capsys.readouterr()
    name = f"{repository.served.host}/{NAME}:latest"
    assert (
        cli.main(["verify-published", name, "--key", f"{repository.project.keys['ours']}.pub"]) == 0
    )
    text = capsys.readouterr().out
    assert "image: thing for cuda13 (line line), linux/amd64" in text
    assert f"released {DAY}: latest" in text


def test_releases_are_attached_to_the_index_only(repository: Repository) -> None:
    public = signing_key.read_public_key(f"{repository.project.keys['ours']}.pub")
    index = layout.read_layout(Path(repository.places[0].removeprefix("oci:"))).index
    with Connection(
        reference.parse_reference(f"{repository.served.host}/{NAME}"), "pull"
    ) as connection:
        known = verification.read_trusted_statements(connection, index.digest, public)
        assert {
            tag for release in signed_releases.read_releases(known) for tag in release.tags
        } == {
            "latest",
            f"nightly-{DAYS[0]}",
        }
        assert attachments.find_document(connection, "nightly-2020-01-01") is None
