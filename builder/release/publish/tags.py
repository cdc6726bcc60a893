"""The tags of a repository, and how one build of a day gets the nightly tag of that day.

Registries have no compare-and-swap. So a publisher first puts a claim, which is a tag with the
date and its digest in its name, and then lists all tags. It continues only if no other digest has
a valid claim on the date. If two publishers claim a date at the same time, the second one sees the
claim of the first. If both see each other's claim, the one with the larger digest withdraws its
claim, and the other one waits for that. So two digests never both continue.

Each variant (image_variants) has nightly tags and claims of its own. Only the names of claims
count, and a claim never moves. The claim claim-DATE-HEX-RUN is valid until there is a tag
claim-DATE-HEX-RUN-withdrawn. Each run has a claim of its own. After the nightly tag
is there, the run deletes its claim if the registry allows that: the nightly tag itself now shows
that the day is taken.

The registry must list a tag as soon as it was put. A publisher whose own claim is not listed stops.
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
from builder.release.publish import image_variants, registry_listing
from builder.release.publish.attachments import EMPTY, EMPTY_KIND, find_document
from rosetta.core.errors import CONFLICT, EXISTS, IN_USE, MISSING, UNREACHABLE, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from builder.images.registry.transport import Connection

VERIFIED = "latest-verified"
_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_NIGHTLY = re.compile(rf"nightly-({_DAY})({image_variants.SUFFIX_PATTERN})?")
_MOVED = re.compile(rf"moved-({_DAY})-([1-9][0-9]{{0,5}})({image_variants.SUFFIX_PATTERN})?")
_LIKE_POSITION = re.compile(r"(?:nightly|moved)-[0-9].*")
_FIRST_DAY = "2020-01-01"  # no image was released before
_CLAIM_TYPE = "application/vnd.rosetta.claim.v1+json"
_CLAIM = re.compile(
    rf"claim-({_DAY}(?:{image_variants.SUFFIX_PATTERN})?)-([0-9a-f]{{64}})-([0-9a-f]{{8}})"
)
_WITHDRAWN = "-withdrawn"
_MAX_WAITS = 30  # how many seconds to wait for another publisher


@dataclass(frozen=True, order=True)
class Position:
    """The position of a release among the releases of its variant in a repository.

    Attributes:
        date: The day, as YYYY-MM-DD in UTC.
        number: The number within the day. The nightly image is number 0.
        suffix: The suffix of the variant's tags. Positions of two variants have no order.
    """

    date: str
    number: int = 0
    suffix: str = ""

    @property
    def tag(self) -> str:
        """The tag that marks this position and never moves."""
        start = f"moved-{self.date}-{self.number}" if self.number else f"nightly-{self.date}"
        return start + self.suffix


def parse_position(tag: str) -> Position | None:
    """Return the position that a tag marks, or None if it marks none."""
    if match := _NIGHTLY.fullmatch(tag):
        position = Position(match[1], suffix=match[2] or "")
    elif match := _MOVED.fullmatch(tag):
        position = Position(match[1], int(match[2]), match[3] or "")
    else:
        return None
    return position if is_release_day(position.date) else None


def parse_nightly(tag: str) -> Position | None:
    """Return the position that a nightly tag marks, or None for any other tag."""
    position = parse_position(tag)
    return position if position and not position.number else None


def looks_like_position(tag: str) -> bool:
    """Return whether a tag looks like one that marks a position, even if it marks none."""
    return bool(_LIKE_POSITION.fullmatch(tag))


def read_today() -> str:
    """Return the present day in UTC, YYYY-MM-DD."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")


def is_day(text: str) -> bool:
    """Return whether a text is a day of the calendar, YYYY-MM-DD."""
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def is_release_day(text: str) -> bool:
    """Return whether an image can be released on a day, which may be in the future."""
    return is_day(text) and text >= _FIRST_DAY


class TagTakenError(UserError):
    """Another build has the nightly tag, or is about to get it."""


def list_tags(connection: Connection) -> list[str]:
    """Return all tags of the repository; none if the repository does not exist."""
    tags = registry_listing.read_list(
        connection, "tags/list?n=1000", "tags", absent_statuses=(404,)
    )
    return [str(tag) for tag in tags or []]


def put_nightly_tag(
    connection: Connection,
    position: Position,
    index: bytes,
    prepare: Callable[[], None] | None = None,
) -> None:
    """Put the nightly tag of a day and a variant, if no other build has it.

    Args:
        connection: The connection to the repository.
        position: The position that the nightly tag marks.
        index: The index to tag.
        prepare: Is called when the day is ours, before the tag is put.

    Raises:
        TagTakenError: another digest has the day. No tag was moved then.
    """
    digest, name, claim = oci_documents.compute_digest(index), position.tag, ""
    if not _is_ours(connection, name, digest):
        claim = _put_claim(connection, position, digest)
        try:
            _wait_for_day(connection, position, digest, claim)
        except TagTakenError:
            _put_empty_tag(connection, claim + _WITHDRAWN)
            raise
    if prepare:
        prepare()
    image_push.move_tag(connection, name, index)
    if claim:
        _delete_claim(connection, claim)


def _wait_for_day(connection: Connection, position: Position, digest: str, claim: str) -> None:
    """Wait until no other digest has a valid claim on the day of a nightly image.

    Raises:
        TagTakenError: our claim must be withdrawn.
    """
    name = position.tag
    for attempt in range(_MAX_WAITS):
        other = _find_rival(connection, position, digest, claim)
        if not other:
            return
        if other < digest:
            raise TagTakenError(
                f"{name} is being published as {other[:19]}… by another publisher",
                str(connection.reference),
                _wait_or_withdraw(other),
                kind=IN_USE,
                value=name,
            )
        if attempt == 0:
            log.info(f"waiting for another publisher of {name}, {other[:19]}…")
        connection.wait(1.0)
    raise TagTakenError(
        f"{name} is claimed for {other[:19]}…, which has not been published",
        str(connection.reference),
        _wait_or_withdraw(other),
        kind=UNREACHABLE,
        value=name,
    )


def _find_rival(connection: Connection, position: Position, digest: str, claim: str) -> str:
    """Return the smallest other digest with a valid claim on a day, or "" if the day is ours.

    Raises:
        UserError: the registry does not list our claim, or someone has withdrawn it.
        TagTakenError: another digest has the nightly tag.
    """
    name = position.tag
    tags = list_tags(connection)
    if claim not in tags:
        raise UserError(
            "its list of tags does not have one that was just put",
            str(connection.reference),
            "this registry cannot keep two publishers apart: use one whose list is current",
            kind=MISSING,
            value=claim,
        )
    if claim + _WITHDRAWN in tags:
        raise TagTakenError(
            f"our claim on {name} was withdrawn by another publisher",
            str(connection.reference),
            "run again if nobody else publishes",
            kind=CONFLICT,
            value=name,
        )
    others = sorted(_valid_claims(tags, position).keys() - {digest})
    # The tag is looked for after the list was read: a publisher puts it before its claim goes.
    if _is_ours(connection, name, digest) or not others:
        return ""
    return others[0]


def withdraw_claims(connection: Connection, position: Position, digest: str) -> None:
    """Withdraw the claims of a publisher that will not come back. Its other tags stay.

    Raises:
        UserError: there is no such claim.
    """
    claims = _valid_claims(list_tags(connection), position).get(digest, [])
    if not claims:
        raise UserError(
            f"has no claim of {digest[:19]}… on {position.tag}",
            str(connection.reference),
            "check the digest and the date",
            kind=MISSING,
            value=digest,
        )
    for claim in claims:
        _put_empty_tag(connection, claim + _WITHDRAWN)


def find_newest_nightly(connection: Connection, suffix: str, today: str) -> str:
    """Return the day of a variant's newest nightly image up to today, or "" if there is none."""
    positions = [parse_nightly(tag) for tag in list_tags(connection)]
    dates = [position.date for position in positions if position and position.suffix == suffix]
    return max((date for date in dates if date <= today), default="")


def _is_ours(connection: Connection, name: str, digest: str) -> bool:
    """Return whether a nightly tag is there.

    Raises:
        TagTakenError: the tag is there for another digest.
    """
    document = find_document(connection, name)
    if document and document.digest != digest:
        raise TagTakenError(
            f"{name} is already {document.digest[:19]}…, and never moves",
            str(connection.reference),
            "publish tomorrow, or move other tags to this image now, which is uploaded and "
            f"signed: python build.py publish --to {connection.reference.repository} --digest "
            f"{digest} --tag latest --key FILE",
            kind=EXISTS,
            value=name,
        )
    return document is not None


def _wait_or_withdraw(digest: str) -> str:
    return (
        f"let that publisher finish; if it will not come back, run again with --withdraw {digest}"
    )


def _put_claim(connection: Connection, position: Position, digest: str) -> str:
    """Put a claim of this run, and return its tag."""
    claim = f"claim-{position.date}{position.suffix}-{digest[7:]}-{secrets.token_hex(4)}"
    _put_empty_tag(connection, claim)
    return claim


def _put_empty_tag(connection: Connection, tag: str) -> None:
    """Put a tag of which only the name matters."""
    digest = oci_documents.compute_digest(EMPTY)
    if not has_blob(connection, digest, len(EMPTY)):
        with Meter(tag, 0) as meter:
            send_blob(connection, digest, len(EMPTY), EMPTY, "", meter)
    image_push.move_tag(connection, tag, _claim_document(tag))


def _claim_document(tag: str) -> bytes:
    """Return the document of a claim. No other tag has it, so it can be deleted by its digest."""
    empty = oci_documents.make_descriptor(EMPTY_KIND, EMPTY)
    return oci_documents.encode_json(
        {
            "schemaVersion": 2,
            "mediaType": oci_documents.MANIFEST,
            "artifactType": _CLAIM_TYPE,
            "config": empty,
            "layers": [empty],
            "annotations": {"io.rosetta.claim": tag},
        }
    )


def _delete_claim(connection: Connection, claim: str) -> None:
    """Delete a claim. Many registries do not allow that, and then the claim stays."""
    digest = oci_documents.compute_digest(_claim_document(claim))
    with (
        contextlib.suppress(UserError, TransientError),
        connection.request("DELETE", connection.url(f"manifests/{digest}"), range(200, 300)),
    ):
        pass


def _valid_claims(tags: Collection[str], position: Position) -> dict[str, list[str]]:
    """Return the valid claims on a nightly tag, by the digest that they claim the tag for."""
    day = position.date + position.suffix
    claims: dict[str, list[str]] = {}
    for tag in tags:
        match = _CLAIM.fullmatch(tag)
        if match and match[1] == day and tag + _WITHDRAWN not in tags:
            claims.setdefault(f"sha256:{match[2]}", []).append(tag)
    return claims
