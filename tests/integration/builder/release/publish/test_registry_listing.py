"""Lists of a registry, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.images.oci import oci_documents, reference
from builder.images.registry import image_push
from builder.images.registry.transport import Connection
from builder.release.publish import registry_listing, tags
from rosetta.core.errors import UserError
from tests.support import errors, image_registry
from tests.support.image_registry import Fault
from tests.support.published_project import Listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.image_registry import Served

pytestmark = pytest.mark.registry

EMPTY = oci_documents.encode_json(
    {"schemaVersion": 2, "mediaType": oci_documents.INDEX, "manifests": []}
)


@pytest.fixture(name="local")
def local_() -> Iterator[tuple[Connection, Served]]:
    kept = Listing(page=3)
    with (
        image_registry.serve_answers(kept.answer, kept.lose) as served,
        Connection(
            reference.parse_reference(f"{served.host}/team/thing"), "pull,push"
        ) as connection,
    ):
        yield connection, served


def test_all_pages_are_read(local: tuple[Connection, Served]) -> None:
    connection, served = local
    assert tags.list_tags(connection) == []
    names = [f"t{number}" for number in range(8)]
    for name in names:
        image_push.move_tag(connection, name, EMPTY)
    served.log.clear()
    assert tags.list_tags(connection) == names
    assert len(served.sent("GET")) == 3


def test_a_list_without_an_end(
    local: tuple[Connection, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, served = local
    monkeypatch.setattr(registry_listing, "_MAX_PAGES", 5)
    monkeypatch.setattr(
        served,
        "answer",
        lambda *_: (
            200,
            {"Link": '</v2/team/thing/tags/list?n=1>; rel="next"'},
            b'{"tags": ["a"]}',
        ),
    )
    with errors.expect_user_error(errors.TOO_BIG, where="team/thing", names="tags"):
        tags.list_tags(connection)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"<html>", b'{"tags": 3}'])
def test_what_is_no_list(
    local: tuple[Connection, Served], monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    connection, served = local
    monkeypatch.setattr(served, "answer", lambda *_: (200, {}, body))
    with errors.expect_user_error(errors.INVALID, where="team/thing", value="tags"):
        tags.list_tags(connection)


def test_a_registry_in_trouble_is_not_one_without_tags(local: tuple[Connection, Served]) -> None:
    connection, served = local
    served.faults.append(Fault("503", "GET", "tags", times=9))
    with pytest.raises(UserError, match="503"):
        tags.list_tags(connection)
