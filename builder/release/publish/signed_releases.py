"""Signed releases: which tags an image was released as, and whether a newer image was.

A registry lets everyone who may push move a tag to any image, also to an older one that is signed.
So each release is a signed statement on the index: the repository, the tags, and a place in the
order of releases (a date, and a number within it). A tag that never moves marks the place:
nightly-DATE, or moved-DATE-NUMBER where tags moved apart from a nightly. Whoever checks a tag looks
at the images of all later places for one that was released as the same tag.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.images.registry import download, image_push
from builder.release.publish import attachments, signed_statements, tags, verification
from builder.release.publish.tags import Position
from rosetta.core.errors import CONFLICT, FAILED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.images.registry.download import Document
    from builder.images.registry.transport import Connection
    from builder.release.publish.signing_key import Private, Public
    from builder.release.publish.verification import Trusted

_SHOWN = 5  # tags that are disregarded, of which each has a line
_DELETE = "delete the tag that stands in the way if no publisher of yours put it, and run again"


@dataclass(frozen=True)
class Release:
    """What one signed statement says of an image."""

    position: Position
    tags: frozenset[str]


def read_releases(known: Trusted) -> list[Release]:
    """Return the releases among the signed statements on an index, the newest first."""
    releases = []
    for predicate in known.said.get(signed_statements.RELEASE, []):
        position, names = tags.read_position(str(predicate.get("position"))), predicate.get("tags")
        if position and isinstance(names, list):
            releases.append(Release(position, frozenset(map(str, names))))
    return sorted(releases, key=lambda release: release.position, reverse=True)


def has_come(position: Position, today: str) -> bool:
    """Say whether a place is not in the future. Clocks may differ by a day."""
    tomorrow = dt.date.fromisoformat(today) + dt.timedelta(days=1)
    return position.date <= tomorrow.isoformat()


def find_problem(
    connection: Connection,
    digest: str,
    tag: str,
    known: Trusted,
    public: Public,
    repository: str = "",
) -> str:
    """Say why an image must not be what a tag stands for; empty where it may.

    `known` are the signed statements on the index with this digest. `repository` is the HOST/NAME
    that all must be signed for, where that is not the connection's own.
    """
    positions = [release.position for release in read_releases(known) if tag in release.tags]
    if not positions:
        return f"no signed release of it names the tag {tag!r}"
    position = next((place for place in positions if has_come(place, tags.read_today())), None)
    if position is None:
        return f"its release as {tag!r} is dated {positions[-1].date}, which is after today"
    if position.tag == tag:
        return ""
    return find_newer(connection, digest, tag, position, public, repository)


def find_newer(
    connection: Connection,
    digest: str,
    tag: str,
    position: Position,
    public: Public,
    repository: str = "",
) -> str:
    """Name a later image that was released as a tag; empty where there is none.

    A mark of a later place whose image is not signed as that is named too: it was moved, and what
    it stood for can't be known. Such a mark of a day after today is passed over: no release can
    have put it. A signed one counts on any day, so that a clock that is slow hides no release.
    """
    today = tags.read_today()
    places = _list_places(connection)

    def check_mark(mark: str) -> str:
        later = attachments.known(connection, mark)
        if later is None:
            return ""
        if mark == position.tag:
            return (
                ""
                if later.digest == digest
                else f"{mark!r}, where it was released, is another image now"
            )
        releases = _read_releases_at(connection, later.digest, mark, public, repository)
        if not releases and places[mark].date > today:
            return ""
        if not releases:
            return f"{mark!r} is later than this image, and what it points to is not signed as that"
        if later.digest != digest and any(
            tag in release.tags and release.position > position for release in releases
        ):
            return (
                f"an older image: {mark!r} ({later.digest[:19]}…) was released as {tag!r} after it"
            )
        return ""

    marks = sorted(
        (name for name in places if places[name] >= position), key=places.__getitem__, reverse=True
    )
    problems = connection.map_threads(check_mark, [(mark,) for mark in marks])
    return next(filter(None, problems), "")


def find_strays(connection: Connection, public: Public, repository: str = "") -> list[str]:
    """Return the tags that look like marks of releases and mark none: not of a day up to today, and
    not signed.
    """
    today = tags.read_today()
    names = [name for name in tags.listed(connection) if tags.looks_like_position(name)]
    places = {name: tags.read_position(name) for name in names}
    late = [name for name, place in places.items() if place is None or place.date > today]
    strays = connection.map_threads(
        lambda name: places[name] is None or not _is_signed(connection, name, public, repository),
        [(name,) for name in late],
    )
    return sorted(name for name, is_stray in zip(late, strays, strict=True) if is_stray)


def warn_of_strays(strays: Sequence[str]) -> None:
    """Print a line for each tag that is passed over, the first few of many."""
    for name in strays[:_SHOWN]:
        log.warn(
            f"the tag {name!r} is not of a day up to today, and no release: it is "
            "disregarded; delete it"
        )
    if len(strays) > _SHOWN:
        log.warn(f"{len(strays) - _SHOWN} more such tags are disregarded")


def _list_places(connection: Connection) -> dict[str, Position]:
    """Return the tags that mark a place, with it."""
    return {name: place for name in tags.listed(connection) if (place := tags.read_position(name))}


def _read_releases_at(
    connection: Connection, digest: str, mark: str, public: Public, repository: str = ""
) -> list[Release]:
    """Return the signed releases of an image if one stands at the place of this mark; none
    otherwise.
    """
    releases = read_releases(verification.attached(connection, digest, public, repository))
    return releases if any(mark == release.position.tag for release in releases) else []


def _is_signed(connection: Connection, mark: str, public: Public, repository: str = "") -> bool:
    """Say whether a mark points to an image that was released at its place."""
    marked = attachments.known(connection, mark)
    return marked is not None and bool(
        _read_releases_at(connection, marked.digest, mark, public, repository)
    )


def sign_release(
    connection: Connection,
    index: Document,
    position: Position,
    names: Iterable[str],
    signer: Private,
) -> None:
    """Attach the signed statement that an index is released as these tags."""
    repository = connection.reference.repository
    predicate: dict[str, Any] = {
        "repository": repository,
        "position": position.tag,
        "tags": sorted(names),
    }
    item = signed_statements.attestation(
        signer, repository, index.digest, signed_statements.RELEASE, predicate
    )
    attachments.attach(connection, attachments.Subject(index.media_type, index.data), [item])


def move_tags(
    connection: Connection, index: Document, names: Sequence[str], signer: Private, today: str
) -> dict[str, str]:
    """Release a published index as these tags, and move them.

    The release stands at the place of the image's own newest one. Where a later image has one of
    the tags already, a new place is marked, so that going back is signed too. It is the next one
    after all that this key has signed up to today: tags that others put have no part in it.

    Returns:
        the digest that each tag had before; empty where it is new.

    Raises:
        UserError: whoever verifies a tag would refuse it.
    """
    warn_of_strays(find_strays(connection, signer.public))
    position = _find_own_place(connection, index, signer.public, today)
    if position is None or any(
        find_newer(connection, index.digest, name, position, signer.public) for name in names
    ):
        position = _find_next_place(connection, signer.public, today)
        sign_release(connection, index, position, [position.tag, *names], signer)
        image_push.move_tag(connection, position.tag, index.data)
    else:
        sign_release(connection, index, position, names, signer)
    known = verification.attached(connection, index.digest, signer.public)
    for name in names:
        if problem := find_problem(connection, index.digest, name, known, signer.public):
            raise UserError(
                f"{name} was not moved, since whoever verifies it would refuse it: {problem}",
                str(connection.reference),
                _DELETE,
                kind=CONFLICT,
                value=name,
            )
    previous = {name: image_push.move_tag(connection, name, index.data) for name in names}
    check_tags(connection, index, names, known, signer.public)
    return previous


def check_tags(
    connection: Connection, index: Document, names: Sequence[str], known: Trusted, public: Public
) -> None:
    """Verify tags that were moved, as whoever has the public key does.

    `known` are the signed statements on the index.

    Raises:
        UserError: one stands for another image, or is refused.
    """
    for name in names:
        there = download.read_document(connection, name)
        problem = find_problem(connection, there.digest, name, known, public)
        if there.digest != index.digest:
            problem = f"it is {there.digest[:19]}… now: another publisher may be at work"
        if problem:
            raise UserError(
                f"{name} was moved, and does not verify: {problem}",
                str(connection.reference),
                _DELETE,
                kind=FAILED,
                value=name,
            )


def _find_own_place(
    connection: Connection, index: Document, public: Public, today: str
) -> Position | None:
    """Return the newest place of an image's releases whose mark still points to it; None where
    there is none.
    """
    for release in read_releases(verification.attached(connection, index.digest, public)):
        mark = (
            attachments.known(connection, release.position.tag)
            if has_come(release.position, today)
            else None
        )
        if mark and mark.digest == index.digest:
            return release.position
    return None


def _find_next_place(connection: Connection, public: Public, today: str) -> Position:
    """Return the place after today's nightly and after all later ones that this key has signed."""
    first = Position(today)
    later = {
        name: place
        for name, place in _list_places(connection).items()
        if place > first and has_come(place, today)
    }
    signed = connection.map_threads(
        lambda name: _is_signed(connection, name, public), [(name,) for name in later]
    )
    last = max(
        [
            first,
            *(place for place, is_signed in zip(later.values(), signed, strict=True) if is_signed),
        ]
    )
    position = Position(last.date, last.number + 1)
    if tags.read_position(position.tag) is None:
        raise UserError(
            f"no place is left on {last.date}", str(connection.reference), "move the tag tomorrow"
        )
    return position
