"""Signed releases: which tags an image was released as, and whether a newer image was.

In a registry, everyone who may push can move a tag to any image, also to an older image that is
signed. So each release is a signed statement about an index: the repository, the tags, and the
position in the order of releases (a date, and a number within the date). A tag that never moves
marks the position: nightly-DATE, or moved-DATE-NUMBER if tags moved apart from a nightly image. To
verify a tag, the images at all later positions are searched for one that was released as that tag.

Each variant (image_variants) has an order of releases of its own, and all its tags end with its
suffix. So an image is never released as a tag of another variant.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.images.registry import download, image_push
from builder.release.publish import attachments, image_variants, signed_statements, tags
from builder.release.publish.tags import Position
from builder.release.publish.verification import read_trusted_statements
from rosetta.core.errors import CONFLICT, FAILED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from builder.images.registry.download import Document
    from builder.images.registry.transport import Connection
    from builder.release.publish.signing_key import PrivateKey, PublicKey
    from builder.release.publish.verification import TrustedStatements

_MAX_SHOWN = 5  # tags that are disregarded, of which each has a line
_DELETE = "if no publisher of yours put the tag that prevents this, delete it and run again"


@dataclass(frozen=True)
class Release:
    """A signed release of an image."""

    position: Position
    tags: frozenset[str]


def read_releases(statements: TrustedStatements) -> list[Release]:
    """Return the releases among the trusted statements of an index, the newest first."""
    releases = []
    for predicate in statements.predicates.get(signed_statements.RELEASE, []):
        position = tags.parse_position(str(predicate.get("position")))
        names = predicate.get("tags")
        if position and isinstance(names, list):
            releases.append(Release(position, frozenset(map(str, names))))
    return sorted(releases, key=lambda release: release.position, reverse=True)


def is_past(position: Position, today: str) -> bool:
    """Return whether a position is not in the future. Clocks may differ by a day."""
    tomorrow = dt.date.fromisoformat(today) + dt.timedelta(days=1)
    return position.date <= tomorrow.isoformat()


@dataclass(frozen=True)
class ReleaseReader:
    """Reads the releases of a repository that a key signed.

    Attributes:
        connection: The connection to the repository.
        key: The key.
        repository: The HOST/NAME that everything must be signed for. Default: the repository of
            the connection.
    """

    connection: Connection
    key: PublicKey
    repository: str = ""

    def read_statements(self, digest: str) -> TrustedStatements:
        """Return what the key signed among the attachments of an index."""
        return read_trusted_statements(self.connection, digest, self.key, self.repository)

    def find_problem(self, digest: str, tag: str, statements: TrustedStatements) -> str:
        """Return why a tag must not point to an image, or "" if it may.

        Args:
            digest: The digest of the index.
            tag: The tag.
            statements: The trusted statements of the index.
        """
        positions = [
            release.position for release in read_releases(statements) if tag in release.tags
        ]
        if not positions:
            return f"no signed release of it names the tag {tag!r}"
        today = tags.read_today()
        past_positions = [position for position in positions if is_past(position, today)]
        if not past_positions:
            return f"its release as {tag!r} is dated {positions[-1].date}, which is after today"
        if past_positions[0].tag == tag:
            return ""
        return self.find_newer(digest, tag, past_positions[0])

    def find_newer(self, digest: str, tag: str, position: Position) -> str:
        """Return which later image was released as a tag, or "" if none was.

        A tag that marks a later position is also reported if its image is not signed as that
        position. Such a tag was moved, and its former image is unknown. If it is dated after today,
        it is ignored: no release can have put it. A signed one counts on any day, so that a slow
        clock does not hide a release.

        Args:
            digest: The digest of the index.
            tag: The tag.
            position: The position at which the index was released as the tag.
        """
        today = tags.read_today()
        marks = _list_positions(self.connection)
        later = [
            mark
            for mark, marked in marks.items()
            if marked.suffix == position.suffix and marked >= position
        ]
        later.sort(key=marks.__getitem__, reverse=True)
        problems = self.connection.map_threads(
            lambda mark: self._find_problem_of_mark(digest, tag, position, mark, today),
            [(mark,) for mark in later],
        )
        return next(filter(None, problems), "")

    def _find_problem_of_mark(
        self, digest: str, tag: str, position: Position, mark: str, today: str
    ) -> str:
        """Return why the tag of a later position forbids a release, or "" if it does not.

        Args:
            digest: The digest of the index.
            tag: The tag that the index was released as.
            position: The position at which the index was released as the tag.
            mark: The tag of the later position, or of the same one.
            today: The present day, YYYY-MM-DD in UTC.
        """
        document = attachments.find_document(self.connection, mark)
        if document is None:
            return ""
        if mark == position.tag:
            is_moved = document.digest != digest
            return f"{mark!r}, its own position, is another image now" if is_moved else ""
        releases = self._read_releases_at(document.digest, mark)
        if not releases:
            marked = tags.parse_position(mark)
            if marked and marked.date > today:
                return ""
            return f"{mark!r} is later than this image, and its image is not signed as that"
        is_newer = any(tag in release.tags and release.position > position for release in releases)
        if is_newer and document.digest != digest:
            newer = f"{mark!r} ({document.digest[:19]}…)"
            return f"an older image: {newer} was released as {tag!r} after it"
        return ""

    def find_strays(self) -> list[str]:
        """Return the tags that look like marks of positions and are not.

        A tag is a stray if it is not of a day up to today, and its image is not signed as that
        position.
        """
        today = tags.read_today()
        candidates = {
            name: tags.parse_position(name)
            for name in tags.list_tags(self.connection)
            if tags.looks_like_position(name)
        }
        future = [
            name
            for name, position in candidates.items()
            if position is None or position.date > today
        ]
        are_strays = self.connection.map_threads(
            lambda name: candidates[name] is None or not self.is_signed(name),
            [(name,) for name in future],
        )
        return sorted(name for name, is_stray in zip(future, are_strays, strict=True) if is_stray)

    def is_signed(self, mark: str) -> bool:
        """Return whether a tag points to an image that was released at the position it marks."""
        document = attachments.find_document(self.connection, mark)
        return document is not None and bool(self._read_releases_at(document.digest, mark))

    def _read_releases_at(self, digest: str, mark: str) -> list[Release]:
        """Return the signed releases of an image, if one of them is at the position of a tag."""
        releases = read_releases(self.read_statements(digest))
        return releases if any(mark == release.position.tag for release in releases) else []


def warn_of_strays(strays: Sequence[str]) -> None:
    """Print a line for each tag that is disregarded, the first few of many."""
    for name in strays[:_MAX_SHOWN]:
        log.warn(
            f"the tag {name!r} is not of a day up to today, and not a release: the tag is "
            "disregarded; delete it"
        )
    if len(strays) > _MAX_SHOWN:
        log.warn(f"{len(strays) - _MAX_SHOWN} more such tags are disregarded")


def _list_positions(connection: Connection) -> dict[str, Position]:
    """Return the tags that mark positions, with these positions."""
    positions = {name: tags.parse_position(name) for name in tags.list_tags(connection)}
    return {name: position for name, position in positions.items() if position}


def sign_release(
    connection: Connection,
    index: Document,
    position: Position,
    names: Iterable[str],
    key: PrivateKey,
) -> None:
    """Attach a signed statement to an index: it is released at a position as some tags.

    Args:
        connection: The connection to the repository.
        index: The index.
        position: The position.
        names: The tags.
        key: The key to sign with.
    """
    repository = connection.reference.repository
    predicate: dict[str, Any] = {
        "repository": repository,
        "position": position.tag,
        "tags": sorted(names),
    }
    forms = signed_statements.sign_statement(
        key, repository, index.digest, signed_statements.RELEASE, predicate
    )
    attachments.attach(connection, attachments.Subject(index.media_type, index.data), forms)


def move_tags(
    connection: Connection, index: Document, names: Sequence[str], key: PrivateKey, today: str
) -> dict[str, str]:
    """Release a published index as some tags, and move the tags.

    The release is at the position of the newest release of the index. If a later image was
    released as one of the tags, the release gets a new position, so that going back is signed as
    well. The new position follows all positions up to today that the key signed. So tags that
    others put do not change it.

    Args:
        connection: The connection to the repository.
        index: The index.
        names: The tags, all of the variant of the index.
        key: The key to sign with.
        today: The present day, YYYY-MM-DD in UTC.

    Returns:
        The digest that each tag had before, or "" for a new tag.

    Raises:
        UserError: a tag would not verify, or does not verify after it was moved.
    """
    if not names:
        return {}
    reader = ReleaseReader(connection, key.public)
    warn_of_strays(reader.find_strays())
    position = _find_own_position(reader, index, today)
    if position is None or any(reader.find_newer(index.digest, name, position) for name in names):
        position = _find_next_position(reader, image_variants.read_suffix(names[0]), today)
        sign_release(connection, index, position, [position.tag, *names], key)
        image_push.move_tag(connection, position.tag, index.data)
    else:
        sign_release(connection, index, position, names, key)
    statements = reader.read_statements(index.digest)
    for name in names:
        if problem := reader.find_problem(index.digest, name, statements):
            raise UserError(
                f"{name} was not moved, because it would not verify: {problem}",
                str(connection.reference),
                _DELETE,
                kind=CONFLICT,
                value=name,
            )
    previous = {name: image_push.move_tag(connection, name, index.data) for name in names}
    check_tags(reader, index, names, statements)
    return previous


def check_tags(
    reader: ReleaseReader, index: Document, names: Sequence[str], statements: TrustedStatements
) -> None:
    """Verify tags that were moved, as anyone with the public key can.

    Args:
        reader: Reads the releases of the repository.
        index: The index that the tags must point to.
        names: The tags.
        statements: The trusted statements of the index.

    Raises:
        UserError: a tag points to another image, or does not verify.
    """
    for name in names:
        document = download.read_document(reader.connection, name)
        if document.digest == index.digest:
            problem = reader.find_problem(index.digest, name, statements)
        else:
            problem = (
                f"the tag now points to {document.digest[:19]}…: another publisher may be at work"
            )
        if problem:
            raise UserError(
                f"{name} was moved, and does not verify: {problem}",
                str(reader.connection.reference),
                _DELETE,
                kind=FAILED,
                value=name,
            )


def _find_own_position(reader: ReleaseReader, index: Document, today: str) -> Position | None:
    """Return the newest position of an index whose tag still points to the index."""
    for release in read_releases(reader.read_statements(index.digest)):
        if is_past(release.position, today):
            mark = attachments.find_document(reader.connection, release.position.tag)
            if mark and mark.digest == index.digest:
                return release.position
    return None


def _find_next_position(reader: ReleaseReader, suffix: str, today: str) -> Position:
    """Return the next position of a variant.

    It follows today's nightly image and all later positions that the key signed.
    """
    first = Position(today, suffix=suffix)
    later = {
        name: position
        for name, position in _list_positions(reader.connection).items()
        if position.suffix == suffix and position > first and is_past(position, today)
    }
    are_signed = reader.connection.map_threads(reader.is_signed, [(name,) for name in later])
    signed = [
        position
        for position, is_signed in zip(later.values(), are_signed, strict=True)
        if is_signed
    ]
    last = max([first, *signed])
    position = Position(last.date, last.number + 1, suffix)
    if tags.parse_position(position.tag) is None:
        raise UserError(
            f"no position is left on {last.date}",
            str(reader.connection.reference),
            "move the tag tomorrow",
        )
    return position
