"""A stream of bytes into a blob, on all cores: cut into blocks of one size, each compressed by
itself, so the bytes do not depend on how many cores there are.

gzip: each block is a member; libdeflate, whose output is the same on every processor. zstd: each
block is a frame.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import threading
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self, cast

import deflate
import zstandard

from rosetta.core.errors import DAMAGED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

FORMAT = 2  # counts up whenever the same input gives other bytes than before
MEDIA_TYPES = {
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}
_BLOCK_SIZES = {"gzip": 1 << 20, "zstd": 2 << 20}  # part of the format
_MAXIMUM_WORKERS = 16  # workers: bounds the memory to some 60 MB
_local = threading.local()


@dataclass(frozen=True)
class BlobSums:
    """Both sides of a blob: what went in and what came out.

    Digests as "sha256:<hex>", sizes in bytes.
    """

    diff_id: str
    unpacked: int
    digest: str
    size: int


# Of libdeflate: a real image is within 5% of its wheels; with 1 it is not, and 6 takes a fifth
# longer for another percent.
_GZIP_LEVEL = 4


def _compress_gzip(block: memoryview) -> bytes | bytearray:
    return deflate.gzip_compress(block, _GZIP_LEVEL)


def _compress_zstd(block: memoryview) -> bytes | bytearray:
    own = getattr(_local, "zstd", None)
    if own is None:
        own = _local.zstd = zstandard.ZstdCompressor(level=1)
    packed: bytes = own.compress(block)
    return packed


_COMPRESS_FUNCTIONS = {"gzip": _compress_gzip, "zstd": _compress_zstd}


class Compressor:
    """A sink for builder.images.oci.tar_file: takes bytes, writes the blob to `out`.

    Use it as a context; `finish()` returns the sums.
    """

    def __init__(self, out: IO[bytes], compression: str, workers: int = 0) -> None:
        count = min(workers or len(os.sched_getaffinity(0)), _MAXIMUM_WORKERS)
        self._out = out
        self._compress = _COMPRESS_FUNCTIONS[compression]
        self._block = _BLOCK_SIZES[compression]
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="compress")
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self._flight: deque[tuple[memoryview, int, Future[bytes | bytearray], Future[None]]] = (
            deque()
        )
        self._depth = count + 2
        self._spare: list[memoryview] = []
        self._view = memoryview(bytearray(self._block))
        self._at = 0
        self._plain, self._packed = hashlib.sha256(), hashlib.sha256()
        self._unpacked = self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._pool, self._hasher):
            pool.shutdown(cancel_futures=True)

    def write(self, data: bytes) -> None:
        size = len(data)
        if size < self._block - self._at:
            end = self._at + size
            self._view[self._at : end] = data
            self._at = end
            return
        rest = memoryview(data)
        while size := len(rest):
            take = min(size, self._block - self._at)
            self._view[self._at : self._at + take] = rest[:take]
            self._advance(take)
            rest = rest[take:]

    def copy(self, descriptor: int, size: int) -> int:
        """Take `size` bytes of an open file, or what is left of it; returns how many came."""
        left = size
        while left:
            got = os.readv(
                descriptor, [self._view[self._at : self._at + min(left, self._block - self._at)]]
            )
            if not got:
                break
            self._advance(got)
            left -= got
        return size - left

    def _advance(self, size: int) -> None:
        self._at += size
        if self._at == self._block:
            self._submit()

    def _submit(self) -> None:
        block = self._view[: self._at]
        self._flight.append(
            (
                self._view,
                self._at,
                self._pool.submit(self._compress, block),
                self._hasher.submit(self._plain.update, block),
            )
        )
        while len(self._flight) >= self._depth or (
            self._flight and self._flight[0][2].done() and self._flight[0][3].done()
        ):
            self._drain()
        self._view = self._spare.pop() if self._spare else memoryview(bytearray(self._block))
        self._at = 0

    def _drain(self) -> None:
        view, size, packing, hashing = self._flight.popleft()
        packed = packing.result()
        hashing.result()
        self._packed.update(packed)
        self._out.write(packed)
        self._unpacked += size
        self._size += len(packed)
        self._spare.append(view)

    def finish(self) -> BlobSums:
        """Write what is left; nothing may be written afterwards."""
        if self._at or not (self._flight or self._unpacked):
            self._submit()
        while self._flight:
            self._drain()
        return BlobSums(
            f"sha256:{self._plain.hexdigest()}",
            self._unpacked,
            f"sha256:{self._packed.hexdigest()}",
            self._size,
        )


@contextlib.contextmanager
def decompress_stream(stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield the plain bytes of a stream that is gzip, zstd or plain by its first bytes; the stream
    must have `peek` or be seekable.

    Raises UserError, inside the context, where what is packed is damaged.
    """
    peek = getattr(stream, "peek", None)
    if peek is not None:
        first = peek(4)[:4]
    else:
        first = stream.read(4)
        stream.seek(-len(first), os.SEEK_CUR)
    try:
        if first[:2] == b"\x1f\x8b":
            with gzip.open(stream) as plain:
                yield cast("IO[bytes]", plain)
        elif first == b"\x28\xb5\x2f\xfd":
            with zstandard.ZstdDecompressor().stream_reader(
                stream, read_across_frames=True, closefd=False
            ) as plain:
                yield plain
        else:
            yield stream
    except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError, EOFError) as error:
        raise UserError(
            f"a layer cannot be unpacked ({error})",
            str(getattr(stream, "name", "")),
            "run again; if it happens again, the storage it comes from is damaged",
            kind=DAMAGED,
        ) from error
