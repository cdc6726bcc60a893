"""Tags: which there are, and how the first build of a day comes to own its nightly tag although the
protocol of registries has no compare-and-swap.

Before the tag nightly-DATE is put, a publisher puts a claim, a tag with date and digest in its
name, and then lists all tags. It goes on only if no other digest has a standing claim on that date.
Of two that do so at once, whoever claims second sees the first one's claim; if both see each other,
the one with the larger digest withdraws its claim, and the other waits for that. So two digests
never both go on.

Only names count, and no claim is ever moved: claim-DATE-HEX-RUN stands until
claim-DATE-HEX-RUN-withdrawn is there, and each run has its own. A run whose tag is there removes
its own claim, where the registry can do that: from then on the tag itself tells others that the day
is taken. It takes a registry whose list of tags shows a tag as soon as it was put; one whose list
lags is noticed by our own claim.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.core import log
from builder.images.oci import oci_documents
from builder.images.registry import image_push
from builder.images.registry.transport import TransientError
from builder.images.registry.upload import Meter, has_blob, send_blob
from builder.release.publish import registry_listing
from builder.release.publish.attachments import EMPTY, EMPTY_KIND, known
from rosetta.core.errors import CONFLICT, EXISTS, IN_USE, MISSING, UNREACHABLE, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from builder.images.registry.transport import Connection

VERIFIED = "latest-verified"
_NIGHTLY = re.compile(r"nightly-([0-9]{4}-[0-9]{2}-[0-9]{2})")
_MOVED = re.compile(r"moved-([0-9]{4}-[0-9]{2}-[0-9]{2})-([1-9][0-9]{0,5})")
_PLACE = re.compile(r"(?:nightly|moved)-[0-9].*")  # what looks like the tag of a place
_FIRST_DAY = "2020-01-01"  # nothing was released before
_CLAIM = "application/vnd.rosetta.claim.v1+json"
_NAME = re.compile(r"claim-([0-9]{4}-[0-9]{2}-[0-9]{2})-([0-9a-f]{64})-([0-9a-f]{8})")
_WITHDRAWN = "-withdrawn"
_PATIENCE = 30  # times to ask, a second apart, whether another publisher has finished


@dataclass(frozen=True, order=True)
class Position:
    """The place of a release among those of its repository: a nightly is the first of its day."""

    date: str
    number: int = 0

    @property
    def tag(self) -> str:
        """The tag that marks this place; it never moves."""
        return f"moved-{self.date}-{self.number}" if self.number else nightly(self.date)


def read_position(tag: str) -> Position | None:
    """Return the place that a tag marks; None for a tag that marks none."""
    if date := day(tag):
        return Position(date)
    match = _MOVED.fullmatch(tag)
    return Position(match[1], int(match[2])) if match and is_release_day(match[1]) else None


def looks_like_position(tag: str) -> bool:
    """Say whether a tag is spelt like one that marks a place, also where it marks none."""
    return bool(_PLACE.fullmatch(tag))


def read_today() -> str:
    """Return the present day in UTC, YYYY-MM-DD."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")


def is_day(text: str) -> bool:
    """Say whether a text is a day of the calendar, YYYY-MM-DD."""
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def is_release_day(text: str) -> bool:
    """Say whether a text is a day on which an image can have been released, today or later
    included.
    """
    return is_day(text) and text >= _FIRST_DAY


class TakenError(UserError):
    """Another build owns the tag."""


def nightly(date: str) -> str:
    """Return the tag of a day, YYYY-MM-DD in UTC."""
    return f"nightly-{date}"


def day(tag: str) -> str:
    """Return the day of a nightly's tag; empty for any other tag."""
    found = _NIGHTLY.fullmatch(tag)
    return found[1] if found and is_release_day(found[1]) else ""


def listed(connection: Connection) -> list[str]:
    """All tags of the repository; none where it is not there yet."""
    return [
        str(each)
        for each in registry_listing.rows(connection, "tags/list?n=1000", "tags", absent=(404,))
        or []
    ]


def own(
    connection: Connection, date: str, index: bytes, prepare: Callable[[], None] | None = None
) -> None:
    """Let nightly-DATE point to this index.

    `prepare` is called when the day is ours, before its tag is there.

    Raises:
        TakenError: another digest owns the day; nothing is moved then.
    """
    digest, name, claim = oci_documents.compute_digest(index), nightly(date), ""
    if not _taken(connection, name, digest):
        claim = _claim(connection, date, digest)
        try:
            _alone(connection, date, digest, claim)
        except TakenError:
            _put(connection, claim + _WITHDRAWN)
            raise
    if prepare:
        prepare()
    image_push.move_tag(connection, name, index)
    if claim:
        _remove_claim(connection, claim)


def _alone(connection: Connection, date: str, digest: str, claim: str) -> None:
    """Wait until no other digest has a standing claim on the date; TakenError where ours has to
    stand back.
    """
    name = nightly(date)
    for attempt in range(_PATIENCE):
        tags = listed(connection)
        if claim not in tags:
            raise UserError(
                "its list of tags lacks one that was just put",
                str(connection.reference),
                "two publishers cannot be kept apart there: use a registry whose list is current",
                kind=MISSING,
                value=claim,
            )
        if claim + _WITHDRAWN in tags:
            raise TakenError(
                f"our claim on {name} was taken back by another",
                str(connection.reference),
                "run again if nobody else publishes",
                kind=CONFLICT,
                value=name,
            )
        others = sorted(_standing(tags, date).keys() - {digest})
        if (
            _taken(connection, name, digest) or not others
        ):  # asked after the list: the tag of one that went on is there before its claim could go
            return
        if others[0] < digest:
            raise TakenError(
                f"{name} is being published as {others[0][:19]}… by another",
                str(connection.reference),
                _instead(others[0]),
                kind=IN_USE,
                value=name,
            )
        if attempt == 0:
            log.info(f"waiting for another publisher of {name}, {others[0][:19]}…")
        connection.wait(1.0)
    raise TakenError(
        f"{name} is claimed for {others[0][:19]}… and does not come",
        str(connection.reference),
        _instead(others[0]),
        kind=UNREACHABLE,
        value=name,
    )


def withdraw(connection: Connection, date: str, digest: str) -> None:
    """Take back the claims of a publisher that is gone for good. A tag that it put stays."""
    claims = _standing(listed(connection), date).get(digest, [])
    if not claims:
        raise UserError(
            f"has no claim of {digest[:19]}… on {nightly(date)}",
            str(connection.reference),
            "check the digest and the date",
            kind=MISSING,
            value=digest,
        )
    for claim in claims:
        _put(connection, claim + _WITHDRAWN)


def newest(connection: Connection, today: str) -> str:
    """Return the date of the newest nightly up to today; empty where there is none."""
    dates = [day(tag) for tag in listed(connection)]
    return max((date for date in dates if date <= today), default="")


def _taken(connection: Connection, name: str, digest: str) -> bool:
    """Is the tag there and ours? TakenError where it is another's."""
    there = known(connection, name)
    if there and there.digest != digest:
        raise TakenError(
            f"{name} is {there.digest[:19]}… already, and never moves",
            str(connection.reference),
            (
                "publish tomorrow, or move other tags to this image now, as it is there and "
                f"signed: python build.py publish --to {connection.reference.repository} --digest "
                f"{digest} --tag latest --key FILE"
            ),
            kind=EXISTS,
            value=name,
        )
    return there is not None


def _instead(digest: str) -> str:
    return f"let that publisher finish; if it is gone for good, run again with --withdraw {digest}"


def _claim(connection: Connection, date: str, digest: str) -> str:
    """Put a claim of this run."""
    claim = f"claim-{date}-{digest[7:]}-{secrets.token_hex(4)}"
    _put(connection, claim)
    return claim


def _put(connection: Connection, tag: str) -> None:
    """Put a tag of which only the name counts."""
    document = _claim_document(tag)
    if not has_blob(connection, oci_documents.compute_digest(EMPTY), len(EMPTY)):
        with Meter(tag, 0) as meter:
            send_blob(connection, oci_documents.compute_digest(EMPTY), len(EMPTY), EMPTY, "", meter)
    image_push.move_tag(connection, tag, document)


def _claim_document(tag: str) -> bytes:
    """Return the document of a claim, which no other tag points to: it can be removed by its
    digest.
    """
    empty = oci_documents.make_descriptor(EMPTY_KIND, EMPTY)
    noted = {"io.rosetta.claim": tag}
    return oci_documents.encode_json(
        {
            "schemaVersion": 2,
            "mediaType": oci_documents.MANIFEST,
            "artifactType": _CLAIM,
            "config": empty,
            "layers": [empty],
            "annotations": noted,
        }
    )


def _remove_claim(connection: Connection, claim: str) -> None:
    """Remove a claim that has done its work; many registries refuse that, and then it stays."""
    digest = oci_documents.compute_digest(_claim_document(claim))
    with (
        contextlib.suppress(UserError, TransientError),
        connection.request("DELETE", connection.url(f"manifests/{digest}"), range(200, 300)),
    ):
        pass


def _standing(tags: Collection[str], date: str) -> dict[str, list[str]]:
    """Return the digests that have a standing claim on a date, with its tags."""
    found: dict[str, list[str]] = {}
    for each in tags:
        if (claim := _NAME.fullmatch(each)) and claim[1] == date and each + _WITHDRAWN not in tags:
            found.setdefault(f"sha256:{claim[2]}", []).append(each)
    return found
