"""Tags: which there are, and how the first build of a day comes to own its nightly tag although no registry can compare and swap.

Before the tag nightly-DATE is put, a publisher puts a claim, a tag of its own for its digest, and then lists all tags. It goes on only if no other
digest has a standing claim on that date. Of two that do so at once, whoever claims second sees the first one's claim; if both see each other, the
one with the larger digest withdraws its claim, and the other waits for that. So two digests never both go on. Claims are kept, withdrawn ones too.
It takes a registry whose list of tags shows a tag as soon as it was put; one whose list lags is noticed by our own claim.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import TYPE_CHECKING

from builder import log
from builder.errors import FatalError
from builder.image import oci, pull, registry
from builder.image.send import Meter, has, send
from builder.publish.attach import EMPTY, EMPTY_KIND, known

if TYPE_CHECKING:
    from builder.image.transport import Connection

VERIFIED = "latest-verified"
_NIGHTLY = re.compile(r"nightly-([0-9]{4}-[0-9]{2}-[0-9]{2})")
_CLAIM = "application/vnd.rosetta.claim.v1+json"
_STATE, _DIGEST = "io.rosetta.claim.state", "io.rosetta.claim.digest"
_PATIENCE = 30  # times to ask, a second apart, whether another publisher has finished


class TakenError(FatalError):
    """Another build owns the tag."""


def nightly(date: str) -> str:
    """The tag of a day, YYYY-MM-DD in UTC."""
    return f"nightly-{date}"


def listed(connection: Connection) -> list[str]:
    """All tags of the repository; none where it is not there yet."""
    found: list[str] = []
    page = connection.url("tags/list?n=1000")
    for _ in range(1000):

        def ask(page: str = page) -> tuple[bytes, str]:
            answer = connection.call("GET", page, (200, 404), follow=True, stream=True)
            if answer.status_code == 404:
                answer.close()
                return b'{"tags": []}', ""
            link = re.match(r"\s*<([^>]+)>\s*;\s*rel=\"?next", answer.headers.get("Link", ""))
            return connection.document(answer), connection.absolute(link[1], page) if link else ""

        raw, following = connection.again("listing the tags", ask)
        found += _tags(raw, connection)
        if not following or urllib.parse.urlsplit(following) == urllib.parse.urlsplit(page):
            return found
        page = following
    raise FatalError("the list of its tags does not end", str(connection.reference), "its administrator can mend that")


def own(connection: Connection, date: str, index: bytes) -> None:
    """Let nightly-DATE point to this index. Raises TakenError where another digest owns the day; nothing is moved then."""
    digest, name = oci.sha256(index), nightly(date)
    if not _taken(connection, name, digest):
        _put_claim(connection, date, digest, "standing")
        try:
            _alone(connection, date, digest)
        except TakenError:
            _put_claim(connection, date, digest, "withdrawn")
            raise
    registry.tag(connection, name, index)


def _alone(connection: Connection, date: str, digest: str) -> None:
    """Wait until no other digest has a standing claim on the date; TakenError where ours has to stand back."""
    name = nightly(date)
    for attempt in range(_PATIENCE):
        others = _standing(connection, date, digest)
        if _taken(connection, name, digest) or not others:  # asked after the list: a claim that is no longer seen has left its tag
            return
        if others[0] < digest:
            raise TakenError(f"{name} is being published as {others[0][:19]}… by another", str(connection.reference), _instead(others[0]))
        if attempt == 0:
            log.info(f"waiting for another publisher of {name}, {others[0][:19]}…")
        connection.wait(1.0)
    raise TakenError(f"{name} is claimed for {others[0][:19]}… and does not come", str(connection.reference), _instead(others[0]))


def withdraw(connection: Connection, date: str, digest: str) -> None:
    """Take back the claim of a publisher that is gone for good; a tag that it put stays."""
    if _claim_tag(date, digest) not in listed(connection):
        raise FatalError(f"has no claim of {digest[:19]}… on {nightly(date)}", str(connection.reference), "check the digest and the date")
    _put_claim(connection, date, digest, "withdrawn")


def newest(connection: Connection) -> str:
    """The date of the newest nightly there is; empty where there is none."""
    return max((found[1] for each in listed(connection) if (found := _NIGHTLY.fullmatch(each))), default="")


def _taken(connection: Connection, name: str, digest: str) -> bool:
    """Is the tag there and ours? TakenError where it is another's."""
    there = known(connection, name)
    if there and there.digest != digest:
        raise TakenError(f"{name} is {there.digest[:19]}… already, and stays it", str(connection.reference), "the first build of a day owns its tag: publish tomorrow, or move another tag with --tag")
    return there is not None


def _instead(digest: str) -> str:
    return f"let that publisher finish; if it is gone for good, run again with --withdraw {digest}"


def _claim_tag(date: str, digest: str) -> str:
    return f"claim-{date}-{digest[7:39]}"


def _put_claim(connection: Connection, date: str, digest: str, state: str) -> None:
    noted = {_STATE: state, _DIGEST: digest, "io.rosetta.claim.date": date}
    empty = oci.descriptor(EMPTY_KIND, EMPTY)
    document = oci.canonical({"schemaVersion": 2, "mediaType": oci.MANIFEST, "artifactType": _CLAIM, "config": empty, "layers": [empty], "annotations": noted})
    if not has(connection, oci.sha256(EMPTY), len(EMPTY)):
        with Meter(f"claim on {nightly(date)}", 0) as meter:
            send(connection, oci.sha256(EMPTY), len(EMPTY), EMPTY, "", meter)
    registry.tag(connection, _claim_tag(date, digest), document)


def _standing(connection: Connection, date: str, digest: str) -> list[str]:
    """The other digests that have a standing claim on a date."""
    claims = [each for each in listed(connection) if each.startswith(f"claim-{date}-")]
    if _claim_tag(date, digest) not in claims:
        raise FatalError("its list of tags lacks one that was just put", str(connection.reference), "two publishers cannot be kept apart there: use a registry whose list is current")
    found = []
    for tag in claims:
        noted = pull.document(connection, tag).json().get("annotations") or {}
        if noted.get(_STATE) == "standing" and noted.get(_DIGEST) != digest:
            found.append(str(noted.get(_DIGEST)))
    return sorted(found)


def _tags(raw: bytes, connection: Connection) -> list[str]:
    try:
        return [str(each) for each in json.loads(raw)["tags"] or []]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FatalError("its list of tags is none", str(connection.reference), "check the name and the proxy settings") from error
