"""Upload one blob to a registry, in one request or in chunks if the registry takes no large one."""

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

    import requests

    from builder.images.registry.transport import Connection

CHUNK = 32 << 20  # bytes of a chunk, if a registry does not take a blob in one request


def has_blob(connection: Connection, digest: str, size: int) -> bool:
    """Return whether the repository has a blob.

    Args:
        connection: A connection to the repository.
        digest: The blob's digest, "sha256:<hex>".
        size: The blob's size in bytes.

    Raises:
        UserError: What the registry has under this digest cannot be the blob.
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
            _require_blob(connection, answer, digest, size)
            return True

    return bool(connection.retry(f"asking for blob {digest[7:19]}…", ask))


def _require_blob(
    connection: Connection, answer: requests.Response, digest: str, size: int
) -> None:
    """Raise UserError if the headers of an answer do not describe this blob.

    Registries may leave out the digest or the length, but not both.
    """
    answered_digest = answer.headers.get("Docker-Content-Digest", "")
    length = answer.headers.get("Content-Length", "")
    if answered_digest in ("", digest) and (
        length == str(size) or (answered_digest and not length)
    ):
        return
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        content = "a web page (a login page or a proxy's answer?)"
    else:
        content = f"{length or 'an unknown number of'} bytes in place of {size}"
    raise UserError(
        f"asked for blob {digest[7:19]}… the registry gives {content}",
        str(connection.reference),
        "check the name and the proxy settings",
    )


class Meter:
    """A progress display in whole megabytes that several threads may advance.

    Use it as a context.
    """

    def __init__(self, name: str, total: int) -> None:
        self._progress = log.progress(name, total // 1_000_000, "MB")
        self._lock = threading.Lock()
        self._bytes = 0

    def __enter__(self) -> Self:
        self._advance = self._progress.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:  # noqa: PYI036 - handed on as it is
        self._progress.__exit__(*exception)

    def add(self, count: int) -> None:
        """Count bytes as transferred; a negative count takes bytes of a failed attempt back."""
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

    Args:
        connection: A connection to the repository.
        digest: The blob's digest, "sha256:<hex>".
        size: The blob's size in bytes.
        source: A file with the blob, or the blob itself.
        mount_from: A repository of the same registry that may have the blob; "" for none.
        meter: Counts the bytes that were sent.

    Returns:
        True if the blob was sent, False if the registry mounted it from `mount_from`.
    """
    upload = _BlobUpload(connection, digest, size, source, mount_from, meter)
    return bool(connection.retry(f"sending blob {digest[7:19]}…", upload.attempt))


class _TooLargeError(Exception):
    """The registry answered 413: the body of the request is too large."""


class _RefusedError(Exception):
    """The registry says that what it received is not the blob."""


class _BlobUpload:
    """The upload of one blob, with what its earlier attempts showed about the registry."""

    def __init__(
        self,
        connection: Connection,
        digest: str,
        size: int,
        source: Path | bytes,
        mount_from: str,
        meter: Meter,
    ) -> None:
        self._connection = connection
        self._digest = digest
        self._size = size
        self._source = source
        self._mount_from = mount_from
        self._meter = meter
        self._attempts = 0
        self._in_one_request = True
        self._sent = 0  # bytes, in the current attempt

    def attempt(self) -> bool:
        """Try to bring the blob into the repository once.

        Returns:
            True if the blob was sent, False if the registry mounted it.

        Raises:
            TransientError: Another attempt may work.
            UserError: The local blob is damaged, or the registry takes no request of this size.
        """
        try:
            return self._upload()
        except _TooLargeError as error:
            if not self._in_one_request or self._size <= CHUNK:
                raise UserError(
                    "the registry does not take a body of " + format_size(min(self._size, CHUNK)),
                    str(self._connection.reference),
                    "ask the administrator of the registry",
                ) from error
            self._in_one_request = False
            raise TransientError("the registry does not take it in one body", 0) from error
        except _RefusedError as error:
            _verify_source(self._source, self._digest)
            raise TransientError(str(error)) from error

    def _upload(self) -> bool:
        self._attempts += 1
        if self._attempts > 1 and has_blob(self._connection, self._digest, self._size):
            return True  # the blob had arrived, and only the answer was lost
        started = self._start()
        if started is None:
            return False
        location, chunk_size = started
        # A registry, or the proxy before it, that does not take a large body answers 413 or just
        # cuts the connection.
        if self._attempts > 2 and self._size > CHUNK:
            self._in_one_request = False
        self._sent = 0
        try:
            self._send(location, chunk_size)
        except BaseException:
            self._meter.add(-self._sent)
            raise
        if self._sent < self._size:
            self._meter.add(self._size - self._sent)
        return True

    def _start(self) -> tuple[str, int] | None:
        """Open an upload, on the first attempt as a request to mount the blob.

        Returns:
            The address to send to, and the size of chunks in bytes; None if the blob was mounted.
        """
        url = self._connection.url("blobs/uploads/")
        statuses: tuple[int, ...] = (202,)
        if self._mount_from and self._attempts == 1:
            query = {"mount": self._digest, "from": self._mount_from}
            url += "?" + urllib.parse.urlencode(query)
            statuses = (201, 202)
        with self._connection.request("POST", url, statuses) as answer:
            if answer.status_code == 201:
                return None
            location = self._connection.resolve_location(answer.headers.get("Location", ""), url)
            minimum = answer.headers.get("OCI-Chunk-Min-Length", "")
        if re.fullmatch("[0-9]{1,12}", minimum):
            return location, max(CHUNK, int(minimum))
        return location, CHUNK

    def _send(self, location: str, chunk_size: int) -> None:
        with _open_source(self._source) as stream:
            if self._in_one_request:
                self._finish(location, stream)
            else:
                self._finish(self._send_chunks(location, stream, chunk_size), None)

    def _send_chunks(self, location: str, stream: BinaryIO, chunk_size: int) -> str:
        """Send the blob in chunks; return the address that ends the upload."""
        for start in range(0, self._size, chunk_size):
            length = min(chunk_size, self._size - start)
            with self._connection.request(
                "PATCH",
                location,
                (202, 404, 413, 416),
                body=self._make_body(stream, start, length),
                headers={
                    "Content-Type": "application/octet-stream",
                    "Content-Range": f"{start}-{start + length - 1}",
                },
            ) as answer:
                if answer.status_code == 413:
                    raise _TooLargeError
                if answer.status_code != 202:
                    raise _RefusedError(f"the registry answered {answer.status_code} to a chunk")
                location = self._connection.resolve_location(
                    answer.headers.get("Location", location), location
                )
        return location

    def _finish(self, location: str, stream: BinaryIO | None) -> None:
        """Send the PUT that ends the upload; it has the whole blob if `stream` is given."""
        separator = "&" if urllib.parse.urlsplit(location).query else "?"
        query = urllib.parse.urlencode({"digest": self._digest})
        with self._connection.request(
            "PUT",
            location + separator + query,
            (201, 400, 404, 413, 416),
            body=self._make_body(stream, 0, self._size) if stream else None,
            headers={"Content-Type": "application/octet-stream"},
        ) as answer:
            if answer.status_code == 413:
                raise _TooLargeError
            if answer.status_code != 201:
                raise _RefusedError(
                    f"the registry answered {answer.status_code} to the end of the upload"
                )
            digest = answer.headers.get("Docker-Content-Digest", self._digest)
            if digest != self._digest:
                raise _RefusedError(f"the registry computed the digest {digest[:19]}… for it")

    def _make_body(self, stream: BinaryIO, start: int, length: int) -> Callable[[], _BodyPart]:
        """Return a function that makes the body of a request, again for each time it is sent."""
        read = 0

        def count(number: int) -> None:
            nonlocal read
            read += number
            self._count(number)

        def make() -> _BodyPart:
            count(-read)  # sent again: nothing of it has arrived
            stream.seek(start)
            return _BodyPart(stream, length, count)

        return make

    def _count(self, number: int) -> None:
        self._connection.raise_if_stopped()
        self._sent += number
        self._meter.add(number)


class _BodyPart:
    """A part of a stream as the body of a request; reports how many bytes were read."""

    def __init__(self, stream: BinaryIO, size: int, report: Callable[[int], None]) -> None:
        self._stream = stream
        self._size = size
        self._left = size
        self._report = report

    def __len__(self) -> int:
        return self._size

    def read(self, limit: int = -1) -> bytes:
        """Return the next bytes of the part, at most `limit`; all that are left if it is -1."""
        data = self._stream.read(self._left if limit < 0 else min(limit, self._left))
        self._left -= len(data)
        self._report(len(data))
        return data


def _open_source(source: Path | bytes) -> io.BytesIO | io.BufferedReader:
    return io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")


def _verify_source(source: Path | bytes, digest: str) -> None:
    """Raise UserError if a local blob does not have its digest."""
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
