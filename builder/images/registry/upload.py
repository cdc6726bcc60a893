"""One blob on its way into a registry: in one body, or in pieces where the registry does not take
it so.
"""

from __future__ import annotations

import hashlib
import io
import re
import threading
import urllib.parse
from typing import TYPE_CHECKING, Any, Self

from builder.core import log
from builder.images.registry.transport import TransientError
from rosetta.core.errors import DAMAGED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    from builder.images.registry.transport import Connection

CHUNK = 32 << 20  # bytes of a piece, where a registry does not take a blob in one


def has_blob(connection: Connection, digest: str, size: int) -> bool:
    """Return whether the repository holds this blob.

    Raises UserError where what it holds cannot be it.
    """

    def ask() -> bool:
        with connection.request(
            "HEAD",
            connection.url(f"blobs/{digest}"),
            (200, 404),
            headers={"Accept-Encoding": "identity"},
            follow=True,
        ) as answer:
            if answer.status_code == 404:
                return False
            said, length = (
                answer.headers.get("Docker-Content-Digest", ""),
                answer.headers.get("Content-Length", ""),
            )
            if (said and said != digest) or (length != str(size) and (length or not said)):
                page = answer.headers.get("Content-Type", "").startswith("text/html")
                what = (
                    "a web page (a login page or a proxy's answer?)"
                    if page
                    else f"{length or 'an unknown number of'} bytes in place of {size}"
                )
                raise UserError(
                    f"asked for blob {digest[7:19]}… the registry gives {what}",
                    str(connection.reference),
                    "check the name and the proxy settings",
                )
            return True

    return bool(connection.retry(f"asking for blob {digest[7:19]}…", ask))


class _BodyPart:
    """A stretch of a file or of bytes, as the body of a request; tells the meter what was read of
    it.
    """

    def __init__(self, stream: BinaryIO, size: int, meter: Callable[[int], None]) -> None:
        self._stream, self._left, self._size, self._meter = stream, size, size, meter

    def __len__(self) -> int:
        return self._size

    def read(self, wanted: int = -1) -> bytes:
        data = self._stream.read(self._left if wanted < 0 else min(wanted, self._left))
        self._left -= len(data)
        self._meter(len(data))
        return data


class Meter:
    """Progress in whole megabytes, from several threads."""

    def __init__(self, name: str, total: int) -> None:
        self._progress = log.progress(name, total // 1_000_000, "MB")
        self._lock = threading.Lock()
        self._bytes = 0

    def __enter__(self) -> Self:
        self._advance = self._progress.__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:  # noqa: PYI036 - handed on as it is
        self._progress.__exit__(*problem)

    def add(self, count: int) -> None:
        with self._lock:
            before, self._bytes = self._bytes, self._bytes + count
            if steps := self._bytes // 1_000_000 - before // 1_000_000:
                self._advance(steps)


def send_blob(
    connection: Connection,
    digest: str,
    size: int,
    source: Path | bytes,
    mount_from: str,
    meter: Meter,
) -> bool:
    """Bring one blob into the repository.

    True if it was sent, False if it was mounted from `mount_from`.
    """
    attempts = 0
    whole = True

    def once() -> bool:
        nonlocal attempts, whole
        attempts += 1
        if attempts > 1 and has_blob(connection, digest, size):
            return True  # it had arrived, and only the answer was lost
        start = connection.url("blobs/uploads/")
        asked = (
            start + "?" + urllib.parse.urlencode({"mount": digest, "from": mount_from})
            if mount_from and attempts == 1
            else start
        )
        with connection.request("POST", asked, (201, 202) if asked != start else (202,)) as answer:
            if answer.status_code == 201:
                return False
            place = connection.resolve_location(answer.headers.get("Location", ""), asked)
            least = answer.headers.get("OCI-Chunk-Min-Length", "")
        # A registry, or the proxy before it, that does not take a large body says so with 413 or
        # just cuts the connection.
        whole = whole and not (attempts > 2 and size > CHUNK)
        sent = [0]

        def count(number: int) -> None:
            connection.raise_if_stopped()
            sent[0] += number
            meter.add(number)

        with _open_source(source) as stream:
            try:
                if not whole:
                    place = _send_pieces(
                        connection,
                        place,
                        stream,
                        size,
                        max(CHUNK, int(least) if re.fullmatch("[0-9]{1,12}", least) else 0),
                        count,
                    )
                _finish_upload(connection, place, digest, stream if whole else None, size, count)
            except BaseException:
                meter.add(-sent[0])
                raise
            if sent[0] < size:
                meter.add(size - sent[0])
        return True

    def checked() -> bool:
        nonlocal whole
        try:
            return once()
        except _TooLargeError as problem:
            if not whole or size <= CHUNK:
                raise UserError(
                    f"the registry does not take a body of {format_size(min(size, CHUNK))}",
                    str(connection.reference),
                    "its administrator can mend that",
                ) from problem
            whole = False
            raise TransientError("the registry does not take it in one body", 0) from problem
        except _RefusedError as problem:
            _verify_source(source, digest)
            raise TransientError(str(problem)) from problem

    return bool(connection.retry(f"sending blob {digest[7:19]}…", checked))


class _TooLargeError(Exception):
    """The registry answered 413."""


class _RefusedError(Exception):
    """The registry says that what came is not the blob."""


def _finish_upload(
    connection: Connection,
    place: str,
    digest: str,
    stream: BinaryIO | None,
    size: int,
    count: Callable[[int], None],
) -> None:
    """Send the PUT that ends an upload, with the whole blob if `stream` is given."""
    url = (
        place
        + ("&" if urllib.parse.urlsplit(place).query else "?")
        + urllib.parse.urlencode({"digest": digest})
    )
    headers = {"Content-Type": "application/octet-stream"}
    with connection.request(
        "PUT",
        url,
        (201, 400, 404, 413, 416),
        body=_count_body(stream, 0, size, count) if stream else None,
        headers=headers,
    ) as answer:
        if answer.status_code == 413:
            raise _TooLargeError
        said = answer.headers.get("Docker-Content-Digest", digest)
        if answer.status_code != 201:
            raise _RefusedError(
                f"the registry answered {answer.status_code} to the end of the upload"
            )
        if said != digest:
            raise _RefusedError(f"the registry made {said[:19]}… of it")


def _send_pieces(
    connection: Connection,
    place: str,
    stream: BinaryIO,
    size: int,
    step: int,
    count: Callable[[int], None],
) -> str:
    """Send a blob in pieces; returns the address that ends the upload."""
    for start in range(0, size, step):
        length = min(step, size - start)
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{start}-{start + length - 1}",
        }
        with connection.request(
            "PATCH",
            place,
            (202, 404, 413, 416),
            body=_count_body(stream, start, length, count),
            headers=headers,
        ) as answer:
            if answer.status_code == 413:
                raise _TooLargeError
            if answer.status_code != 202:
                raise _RefusedError(f"the registry answered {answer.status_code} to a piece")
            place = connection.resolve_location(answer.headers.get("Location", place), place)
    return place


def _count_body(
    stream: BinaryIO, start: int, length: int, count: Callable[[int], None]
) -> Callable[[], _BodyPart]:
    counted = 0

    def tally(number: int) -> None:
        nonlocal counted
        counted += number
        count(number)

    def body() -> _BodyPart:
        tally(-counted)  # sent again: nothing of it has arrived
        stream.seek(start)
        return _BodyPart(stream, length, tally)

    return body


def _open_source(source: Path | bytes) -> io.BytesIO | io.BufferedReader:
    return io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")


def _verify_source(source: Path | bytes, digest: str) -> None:
    """UserError if a blob of ours is not what its digest says."""
    with _open_source(source) as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != digest[7:]:
            raise UserError(
                f"blob {digest[7:19]}… is damaged",
                "" if isinstance(source, bytes) else str(source),
                "delete that file and build again",
                kind=DAMAGED,
            )


def format_size(count: int) -> str:
    """Return a number of bytes as text in MB or GB."""
    return f"{count / 1e9:,.1f} GB" if count >= 10**9 else f"{count / 1e6:,.1f} MB"
