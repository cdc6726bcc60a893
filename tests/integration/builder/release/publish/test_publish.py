"""Publishing as a whole, on registries of a few lines with and without the referrers API and on a real one."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder import __version__
from builder.core.command_context import Result
from builder.images.oci import layout
from builder.images.registry import transport
from builder.release.publish.tags import TagTakenError
from rosetta.core import errors
from rosetta.core.errors import UserError
from tests.support import published_project
from tests.support.image_registry import Fault
from tests.support.published_project import DAY, Project

if TYPE_CHECKING:
    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry


def test_published_and_verified(project: Project, served: Served) -> None:
    place = project.layout()
    status, document = project.publish(served, place)
    assert status == 0, document
    digest = project.digest(place)
    assert document["result"]["digest"] == digest
    assert document["result"]["tags"] == [f"nightly-{DAY}", "latest"]
    assert (
        served.tag("team/thing", f"nightly-{DAY}") == served.tag("team/thing", "latest") == digest
    )
    manifests = [path.rpartition("/")[2] for path in served.sent("PUT") if "manifests" in path]
    assert [name for name in manifests if not name.startswith(("sha256", "claim"))] == [
        f"nightly-{DAY}",
        "latest",
    ]
    assert manifests[-1] == "latest"
    for name in (":latest", f"@{digest}"):
        status, document = project.run("verify-published", f"{served.host}/team/thing{name}")
        assert status == 0, document
        assert [
            row["what"] for row in document["result"]["checks"] if "attachments" not in row["what"]
        ] == [
            *(f"index: {what}" for what in ("signature", "SBOM", "provenance", "platforms")),
            *(
                f"linux/{arch}: {what}"
                for arch in published_project.BOTH
                for what in ("image", "signature", "SBOM", "provenance")
            ),
            *(["index: tag latest"] if name == ":latest" else []),
        ]


class Failing:
    """Fails the request number `at` (from 0), and with `onward` all after it.

    Attributes:
        methods: the HTTP method of each request so far.
    """

    def __init__(self, kind: str, at: int, *, onward: bool) -> None:
        self.kind, self.at, self.onward = kind, at, onward
        self.methods: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, method: str, _path: str, _length: int) -> Fault | None:
        with self._lock:
            number = len(self.methods)
            self.methods.append(method)
        return (
            Fault(self.kind, method)
            if number == self.at or (self.onward and number > self.at)
            else None
        )


def _whole(project: Project, served: Served, name: str) -> list[str]:
    """The tags that may be pulled, each of which must be of an image that is all there, and signed."""
    found = published_project.list_pullable_tags(served, name)
    for tag in found:
        status, document = project.run("verify-published", f"{served.host}/{name}:{tag}")
        assert status == 0, (tag, document)
    return found


def _count_requests(
    project: Project, served: Served, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[int], list[int]]:
    """Publish an image of one platform once, and choose the requests that tests let fail.

    Returns:
        The layout of the image; the numbers of the requests that change the registry; and the
        numbers of all requests of which the test lets one fail. In the registry in memory, these are
        the requests that change something, and the one after each; in the others, which are slow,
        every seventeenth.
    """
    project.architectures = ("amd64",)
    project.lock({"helper": "1.0"})
    place, counted = project.layout(architectures=("amd64",)), Failing("500", -1, onward=False)
    monkeypatch.setattr(served, "fault", counted)
    assert project.publish(served, place, name="count/thing")[0] == 0
    changing = [
        number for number, method in enumerate(counted.methods) if method not in {"GET", "HEAD"}
    ]
    kept = getattr(served.answer, "__self__", None)
    if isinstance(kept, published_project.Listing) and not kept.referrers:
        assert len(changing) > 50
        return place, changing, sorted({number + after for number in changing for after in (0, 1)})
    some = list(range(0, len(counted.methods), 17))
    return place, some, some


def test_every_change_in_turn_is_the_last(
    project: Project, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry goes away at each change in turn: tags are of whole images, the rerun ends right.

    To go away at a request that reads leaves the same registry as to go away at the next change.
    """
    monkeypatch.setattr(transport, "TRIES", 2)
    place, points, _ = _count_requests(project, served, monkeypatch)
    for at in points:
        name = f"down/at-{at}"
        monkeypatch.setattr(served, "fault", Failing("cut" if at % 2 else "500", at, onward=True))
        status, document = project.publish(served, place, name=name)
        assert status == 2, (at, document)
        monkeypatch.setattr(served, "fault", lambda *_: None)
        _whole(project, served, name)
        status, document = project.publish(served, place, name=name)
        assert status == 0, (at, document)
        assert _whole(project, served, name) == ["latest", f"nightly-{DAY}"], at


def test_one_request_after_the_other_fails_once(
    project: Project, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _, points = _count_requests(project, served, monkeypatch)
    for at in points:
        name = f"once/at-{at}"
        monkeypatch.setattr(served, "fault", Failing("500" if at % 2 else "cut", at, onward=False))
        status, document = project.publish(served, place, name=name)
        assert status == 0, (at, document)
        monkeypatch.setattr(served, "fault", lambda *_: None)
        assert _whole(project, served, name) == ["latest", f"nightly-{DAY}"], at


def test_two_publishers_at_once(project: Project, served: Served) -> None:
    """Of two whole runs one wins and moves the tags; the other says so, and what it has sent is not sent again the next day."""
    places = [project.layout("one"), project.layout("two")]
    outcome: dict[str, Result | UserError] = {}
    start = threading.Barrier(2)

    def one(place: str) -> None:
        start.wait()
        try:
            outcome[place] = project.call(
                "publish", place, "--to", f"{served.host}/team/thing", "--date", DAY
            )
        except UserError as problem:
            outcome[place] = problem

    threads = [threading.Thread(target=one, args=(place,)) for place in places]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    (won,) = [place for place, each in outcome.items() if isinstance(each, Result)]
    (lost,) = [place for place in places if place != won]
    said = outcome[lost]
    assert isinstance(said, TagTakenError)
    assert f"nightly-{DAY}" in said.what
    assert {served.tag("team/thing", tag) for tag in (f"nightly-{DAY}", "latest")} == {
        project.digest(won)
    }
    assert _whole(project, served, "team/thing") == ["latest", f"nightly-{DAY}"]
    served.log.clear()
    status, document = project.publish(served, lost, date="2026-01-03")
    assert status == 0, document
    assert served.tag("team/thing", "latest") == project.digest(lost)
    layers = [
        found.digest
        for image in layout.read_layout(Path(lost.removeprefix("oci:"))).index.images
        for found in image.layers
    ]
    assert [
        path for path in served.sent("PUT") if any(digest[7:] in path for digest in layers)
    ] == []


def publish_release(
    project: Project, served: Served, *places: str, version: str = __version__
) -> tuple[int, dict[str, Any]]:
    """Publish layouts as the release of a version."""
    to = f"{served.host}/team/thing"
    return project.run("publish", *places, "--to", to, "--release", f"v{version}")


def test_a_release_has_the_tags_of_its_version_and_no_nightly_tag(
    project: Project, served: Served, tmp_path: Path
) -> None:
    """The layouts of the architectures are in one folder, as a workflow collects them."""
    for architecture in published_project.BOTH:
        place = project.layout(architectures=(architecture,))
        shutil.copytree(place.removeprefix("oci:"), tmp_path / "release" / architecture)
    outputs = tmp_path / "outputs"
    options = ("--step-outputs", str(outputs))
    status, document = publish_release(project, served, f"oci:{tmp_path}/release", *options)
    assert status == 0, document
    digest = document["result"]["digest"]
    assert outputs.read_text() == f"repository={served.host}/team/thing\ndigest={digest}\n"
    series = __version__.rpartition(".")[0]
    tags = [tag.removesuffix("-cpu") for tag in document["result"]["tags"]]
    assert tags == [__version__, series]
    pullable = published_project.list_pullable_tags(served)
    assert not any(tag.startswith(("nightly-", "latest")) for tag in pullable)
    for tag in document["result"]["tags"]:
        status, verified = project.run("verify-published", f"{served.host}/team/thing:{tag}")
        assert status == 0, verified
    again = publish_release(project, served, f"oci:{tmp_path}/release")
    assert again[0] == 0, "the same image may be published again"


def test_the_tag_of_a_version_never_moves(project: Project, served: Served) -> None:
    status, first = publish_release(project, served, project.layout())
    assert status == 0, first
    project.lock({"helper": "1.0", "other": "3.0"})
    status, document = publish_release(project, served, project.layout())
    assert (status, document["error"]["kind"]) == (2, errors.EXISTS)
    for tag in first["result"]["tags"]:
        assert served.tag("team/thing", tag) == first["result"]["digest"]


def test_a_release_of_another_version_is_refused(project: Project, served: Served) -> None:
    status, document = publish_release(project, served, project.layout(), version="0.0.1")
    assert (status, document["error"]["kind"]) == (2, errors.DIFFERS)
    assert not published_project.list_pullable_tags(served)


@pytest.mark.parametrize("option", ["--date", "--tag", "--digest"])
def test_a_release_takes_no_option_of_nightly_images(
    project: Project, served: Served, option: str
) -> None:
    values = {"--date": DAY, "--tag": "mine", "--digest": f"sha256:{'0' * 64}"}
    place = [] if option == "--digest" else [project.layout()]
    more = ["--tag", "mine"] if option == "--digest" else []
    status, document = publish_release(project, served, *place, option, values[option], *more)
    assert (status, document["error"]["kind"]) == (2, errors.CONFLICT)
