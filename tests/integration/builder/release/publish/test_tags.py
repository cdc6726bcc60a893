"""Which tags move, which stay, and that the first build of a day owns its tag however many publish at once."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

import pytest

from builder.images.oci import layer, oci_documents, reference
from builder.images.registry import image_push
from builder.images.registry.transport import Connection
from builder.release.publish import tags
from builder.release.publish.tags import Position, TagTakenError
from tests.support import errors, image_registry, published_project
from tests.support.published_project import DAY, Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.core.cache import Cache
    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry

NEXT = "2026-01-03"
NAME = "team/thing"


def test_the_first_build_of_a_day_owns_its_tag(project: Project, served: Served) -> None:
    one, two = project.layout("one"), project.layout("two")
    for _ in range(2):  # the same digest again is fine
        assert project.publish(served, one)[0] == 0
    status, document = project.publish(served, two)
    assert status == 2
    assert f"nightly-{DAY} is already {project.digest(one)[:19]}…" in document["error"]["what"]
    assert {served.tag(NAME, tag) for tag in (f"nightly-{DAY}", "latest")} == {project.digest(one)}
    words = (
        document["error"]["do"]
        .partition("build.py publish ")[2]
        .replace("FILE", f"{project.keys['ours']}.pem")
        .split()
    )
    assert (
        project.run("publish", *words, key="")[0] == 0
    )  # the command that the message names brings a fix of the same day to latest
    assert served.tag(NAME, "latest") == project.digest(two)
    assert project.run("verify-published", f"{served.host}/{NAME}:latest", "--quick")[0] == 0
    assert project.publish(served, two, date=NEXT)[0] == 0
    assert (served.tag(NAME, f"nightly-{DAY}"), served.tag(NAME, f"nightly-{NEXT}")) == (
        project.digest(one),
        project.digest(two),
    )
    assert served.tag(NAME, "latest") == project.digest(two)


def test_latest_does_not_go_back_but_by_digest(project: Project, served: Served) -> None:
    one, two = project.layout("one"), project.layout("two")
    assert project.publish(served, one, date=NEXT)[0] == 0
    status, document = project.publish(served, two)
    assert status == 0
    assert (document["result"]["tags"], document["result"]["held"]) == (
        [f"nightly-{DAY}"],
        ["latest"],
    )
    assert served.tag(NAME, "latest") == project.digest(one)

    back = (
        "publish",
        "--to",
        f"{served.host}/{NAME}",
        "--digest",
        project.digest(two),
        "--tag",
        "latest",
    )
    assert project.run(*back, "--dry-run")[0] == 0
    assert served.tag(NAME, "latest") == project.digest(one)
    status, document = project.run(*back)
    assert status == 0, document
    assert document["result"]["previous"] == {"latest": project.digest(one)}
    assert served.tag(NAME, "latest") == project.digest(two)


def test_only_what_this_key_signed_comes_back(project: Project, served: Served) -> None:
    one, two = project.layout("one"), project.layout("two")
    assert project.publish(served, one)[0] == 0
    assert project.publish(served, two, date=NEXT)[0] == 0
    status, document = project.run(
        "publish",
        "--to",
        f"{served.host}/{NAME}",
        "--digest",
        project.digest(one),
        "--tag",
        "latest",
        key="theirs",
    )
    assert status == 2
    assert "index: signature" in document["error"]["what"]
    assert served.tag(NAME, "latest") == project.digest(two)


@pytest.fixture(name="registry_with_two")
def registry_with_two_(cache: Cache, served: Served) -> Iterator[tuple[Connection, bytes, bytes]]:
    """Two indexes in one repository, the first with the smaller digest, and no tag on either."""
    with Connection(reference.parse_reference(f"{served.host}/{NAME}"), "pull,push") as connection:
        made = [image_registry.make_image(cache, top=top, size=3200) for top in ("one", "two")]
        for each in made:
            image_push.upload_image(connection, functools.partial(layer.blob_path, cache), each)
        first, second = sorted((each.document for each in made), key=oci_documents.compute_digest)
        yield connection, first, second


def test_two_at_once_and_only_one_wins(
    registry_with_two: tuple[Connection, bytes, bytes], served: Served
) -> None:
    connection, first, second = registry_with_two
    for day in range(1, 21):
        date, outcome = f"2025-12-{day:02}", dict[bytes, str]()
        start = threading.Barrier(2)

        def one(
            index: bytes,
            date: str = date,
            start: threading.Barrier = start,
            outcome: dict[bytes, str] = outcome,
        ) -> None:
            start.wait()
            try:
                tags.put_nightly_tag(connection, Position(date), index)
                outcome[index] = "won"
            except TagTakenError as problem:
                outcome[index] = problem.what

        threads = [threading.Thread(target=one, args=(each,)) for each in (first, second)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        won = [index for index, what in outcome.items() if what == "won"]
        assert len(won) == 1, outcome
        assert served.tag(NAME, f"nightly-{date}") == oci_documents.compute_digest(won[0])
        (said,) = (what for what in outcome.values() if what != "won")
        assert f"nightly-{date}" in said


@pytest.mark.parametrize("early", ["first", "second"])
def test_another_comes_between_any_two_requests(
    registry_with_two: tuple[Connection, bytes, bytes], served: Served, early: str
) -> None:
    """One publisher starts and finishes before request number `at` of the other: one digest owns the day, whichever it is."""
    connection, *both = registry_with_two
    mine, theirs = both if early == "first" else reversed(both)
    for at in range(31):
        if not _between(connection, served, f"2025-10-{at + 1:02}", at, mine, theirs):
            assert at > 8  # so many requests did it take
            return
    pytest.fail("it never came to an end")


def _between(
    connection: Connection, served: Served, date: str, at: int, mine: bytes, theirs: bytes
) -> bool:
    """Was there a request number `at`?"""
    count, within = 0, False
    outcome: dict[bytes, str] = {}

    def own(index: bytes) -> None:
        try:
            tags.put_nightly_tag(connection, Position(date), index)
            outcome[index] = "won"
        except TagTakenError as problem:
            outcome[index] = problem.what

    def before(_method: str, _path: str) -> None:
        nonlocal count, within
        if not within:
            if count == at:
                within = True
                thread = threading.Thread(target=own, args=(theirs,))
                thread.start()
                thread.join()
            count += 1

    served.before = before
    own(mine)
    served.before = lambda _method, _path: None
    won = [index for index, what in outcome.items() if what == "won"]
    assert len(won) <= 1, (at, outcome)
    if not won:  # the other waited for us in vain, since we could not go on meanwhile: it stood back, and we for it
        tags.put_nightly_tag(connection, Position(date), mine)
        won = [mine]
    assert served.tag(NAME, f"nightly-{date}") == oci_documents.compute_digest(won[0]), at
    return within


def test_a_claim_that_a_dead_publisher_left_is_named_and_can_be_withdrawn(
    served: Served, registry_with_two: tuple[Connection, bytes, bytes]
) -> None:
    connection, first, second = registry_with_two
    for mine, theirs in ((first, second), (second, first)):
        date = "2025-12-01" if mine is first else "2025-12-02"
        digest = oci_documents.compute_digest(theirs)
        tags._put_claim(connection, Position(date), digest)
        with pytest.raises(TagTakenError) as problem:
            tags.put_nightly_tag(connection, Position(date), mine)
        assert digest in problem.value.do
        assert served.tag(NAME, f"nightly-{date}") == ""
        tags.withdraw_claims(connection, Position(date), digest)
        tags.put_nightly_tag(connection, Position(date), mine)
        assert served.tag(NAME, f"nightly-{date}") == oci_documents.compute_digest(mine)
        with errors.expect_user_error(errors.EXISTS, value=f"nightly-{date}", error=TagTakenError):
            tags.put_nightly_tag(connection, Position(date), theirs)
    with errors.expect_user_error(
        errors.MISSING, value=oci_documents.compute_digest(first), names="2025-12-03"
    ):
        tags.withdraw_claims(
            connection, Position("2025-12-03"), oci_documents.compute_digest(first)
        )


def test_the_rerun_of_a_dead_publisher_goes_on(
    served: Served, registry_with_two: tuple[Connection, bytes, bytes]
) -> None:
    connection, first, _ = registry_with_two
    tags._put_claim(connection, Position("2025-12-01"), oci_documents.compute_digest(first))
    tags.put_nightly_tag(connection, Position("2025-12-01"), first)
    assert served.tag(NAME, "nightly-2025-12-01") == oci_documents.compute_digest(first)


def test_a_claim_that_was_taken_back_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
    served: Served,
    registry_with_two: tuple[Connection, bytes, bytes],
) -> None:
    connection, first, second = registry_with_two
    tags._put_claim(
        connection, Position("2025-12-01"), oci_documents.compute_digest(second)
    )  # first waits for it, and is withdrawn meanwhile
    monkeypatch.setattr(
        Connection,
        "wait",
        lambda _, __: tags.withdraw_claims(
            connection, Position("2025-12-01"), oci_documents.compute_digest(first)
        ),
    )
    with errors.expect_user_error(errors.CONFLICT, value="nightly-2025-12-01", error=TagTakenError):
        tags.put_nightly_tag(connection, Position("2025-12-01"), first)
    assert served.tag(NAME, "nightly-2025-12-01") == ""


def test_a_run_of_the_same_digest_does_not_take_anothers_claim_back(
    served: Served, registry_with_two: tuple[Connection, bytes, bytes]
) -> None:
    """It may have gone on already, and be about to put the tag."""
    connection, first, second = registry_with_two
    date = "2025-12-01"
    going_on = tags._put_claim(connection, Position(date), oci_documents.compute_digest(second))
    tags._wait_for_day(connection, Position(date), oci_documents.compute_digest(second), going_on)
    tags._put_claim(connection, Position(date), oci_documents.compute_digest(first))
    with errors.expect_user_error(errors.IN_USE, value="nightly-2025-12-01", error=TagTakenError):
        tags.put_nightly_tag(connection, Position(date), second)
    with errors.expect_user_error(
        errors.UNREACHABLE, value="nightly-2025-12-01", error=TagTakenError
    ):
        tags.put_nightly_tag(connection, Position(date), first)
    assert served.tag(NAME, f"nightly-{date}") == ""


def test_a_list_of_tags_that_lags_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    served: Served,
    registry_with_two: tuple[Connection, bytes, bytes],
) -> None:
    connection, first, _ = registry_with_two
    monkeypatch.setattr(tags, "list_tags", lambda _: ["latest"])
    with errors.expect_user_error(errors.MISSING, where=NAME, remedy="registry"):
        tags.put_nightly_tag(connection, Position("2025-12-01"), first)
    assert served.tag(NAME, "nightly-2025-12-01") == ""


@pytest.mark.parametrize("deletes", [True, False])
def test_a_claim_goes_where_the_registry_lets_it(
    project: Project, tmp_path: Path, deletes: bool
) -> None:
    """And none but one's own: another's stands."""
    with published_project.serve_registry("memory", tmp_path) as served:
        served.answer.__self__.deletes = deletes  # type: ignore[attr-defined]
        other = f"claim-{NEXT}-{'f' * 64}-00000000"
        with Connection(
            reference.parse_reference(f"{served.host}/{NAME}"), "pull,push"
        ) as connection:
            tags._put_empty_tag(connection, other)
            assert project.publish(served, project.layout("one"))[0] == 0
            claims = {name for name in tags.list_tags(connection) if name.startswith("claim-")}
        assert other in claims
        assert len(claims) == (1 if deletes else 2)
