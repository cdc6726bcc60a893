"""Signed releases: which tags an image was released as, and whether a newer image was.

A registry lets everyone who may push move a tag to any image, also to an older one that is signed. So
each release is a signed statement on the index: the repository, the tags, and a place in the order of
releases (a date, and a number within it). A tag that never moves marks the place: nightly-DATE, or
moved-DATE-NUMBER where tags moved apart from a nightly. Whoever checks a tag looks at the images of
all later places for one that was released as the same tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.image import registry
from builder.publish import attach, statement, tags, trust
from builder.publish.tags import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.image.pull import Document
    from builder.image.transport import Connection
    from builder.publish.key import Private, Public
    from builder.publish.trust import Trusted


@dataclass(frozen=True)
class Release:
    """What one signed statement says of an image."""

    position: Position
    tags: frozenset[str]


def read_releases(known: Trusted) -> list[Release]:
    """Return the releases among the signed statements on an index, the newest first."""
    releases = []
    for predicate in known.said.get(statement.RELEASE, []):
        position, names = tags.read_position(str(predicate.get("position"))), predicate.get("tags")
        if position and isinstance(names, list):
            releases.append(Release(position, frozenset(map(str, names))))
    return sorted(releases, key=lambda release: release.position, reverse=True)


def find_problem(connection: Connection, digest: str, tag: str, known: Trusted, public: Public, repository: str = "") -> str:
    """Say why an image must not be what a tag stands for; empty where it may.

    `known` are the signed statements on the index with this digest. `repository` is the HOST/NAME
    that all must be signed for, where that is not the connection's own.
    """
    position = next((release.position for release in read_releases(known) if tag in release.tags), None)
    if position is None:
        return f"no signed release of it names the tag {tag!r}"
    if position.tag == tag:
        return ""
    return find_newer(connection, digest, tag, position, public, repository)


def find_newer(connection: Connection, digest: str, tag: str, position: Position, public: Public, repository: str = "") -> str:
    """Name a later image that was released as a tag; empty where there is none.

    A mark of a later place whose image is not signed as that is named too: it was moved, and what it
    stood for can't be known.
    """

    def check_mark(mark: str) -> str:
        later = attach.known(connection, mark)
        if later is None:
            return ""
        if mark == position.tag:
            return "" if later.digest == digest else f"{mark!r}, where it was released, is another image now"
        releases = read_releases(trust.attached(connection, later.digest, public, repository))
        if not any(mark == release.position.tag for release in releases):
            return f"{mark!r} is later than this image, and what it points to is not signed as that"
        if later.digest != digest and any(tag in release.tags and release.position > position for release in releases):
            return f"an older image: {mark!r} ({later.digest[:19]}…) was released as {tag!r} after it"
        return ""

    places = {name: place for name in tags.listed(connection) if (place := tags.read_position(name))}
    marks = sorted((name for name in places if places[name] >= position), key=places.__getitem__, reverse=True)
    problems = connection.each(check_mark, [(mark,) for mark in marks])
    return next(filter(None, problems), "")


def sign_release(connection: Connection, index: Document, position: Position, names: Iterable[str], signer: Private) -> None:
    """Attach the signed statement that an index is released as these tags."""
    repository = connection.reference.repository
    predicate: dict[str, Any] = {"repository": repository, "position": position.tag, "tags": sorted(names)}
    item = statement.attestation(signer, repository, index.digest, statement.RELEASE, predicate)
    attach.attach(connection, attach.Subject(index.media_type, index.data), [item])


def move_tags(connection: Connection, index: Document, names: Sequence[str], signer: Private, today: str) -> dict[str, str]:
    """Release a published index as these tags, and move them.

    The release stands at the place of the image's own newest one. Where a later image has one of the
    tags already, a new place is marked, so that going back is signed too.

    Returns:
        the digest that each tag had before; empty where it is new.
    """
    position = None
    for release in read_releases(trust.attached(connection, index.digest, signer.public)):
        mark = attach.known(connection, release.position.tag)
        if mark and mark.digest == index.digest:
            position = release.position
            break
    if position is None or any(find_newer(connection, index.digest, name, position, signer.public) for name in names):
        places = [place for name in tags.listed(connection) if (place := tags.read_position(name))]
        last = max([*places, Position(today)])
        position = Position(last.date, last.number + 1)
        sign_release(connection, index, position, [position.tag, *names], signer)
        registry.tag(connection, position.tag, index.data)
    else:
        sign_release(connection, index, position, names, signer)
    return {name: registry.tag(connection, name, index.data) for name in names}
