"""Compress a stream of bytes into a blob on all cores, with the same output on every machine.

The stream is cut into blocks of one size, and each block is compressed by itself, so the number of
cores does not change the bytes. gzip: each block is a member, compressed by libdeflate, whose
output is the same on every processor. zstd: each block is a frame.
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

FORMAT = 3  # increase this number whenever the same input would give other bytes than before
MEDIA_TYPES = {
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}
_BLOCK_SIZES = {"gzip": 1 << 20, "zstd": 2 << 20}  # bytes; part of the format
_MAXIMUM_WORKERS = 16  # bounds the memory to some 60 MB
# The level of libdeflate. At 4, a real image is within 5% of the size of its wheels, which level 1
# misses. Level 6 takes a fifth longer and saves one percent more.
_GZIP_LEVEL = 4
# Level 1 makes an image larger than gzip does. Level 3 is a sixth smaller, and a third slower.
_ZSTD_LEVEL = 3
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_local = threading.local()


@dataclass(frozen=True)
class BlobSums:
    """Digests ("sha256:<hex>") and sizes (in bytes) of a blob, before and after compression."""

    diff_id: str
    unpacked: int
    digest: str
    size: int


def _compress_gzip(block: memoryview) -> bytes | bytearray:
    return deflate.gzip_compress(block, _GZIP_LEVEL)


def _compress_zstd(block: memoryview) -> bytes | bytearray:
    compressor = getattr(_local, "zstd", None)
    if compressor is None:
        compressor = _local.zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    packed: bytes = compressor.compress(block)
    return packed


_COMPRESS_FUNCTIONS = {"gzip": _compress_gzip, "zstd": _compress_zstd}


@dataclass(frozen=True)
class _PendingBlock:
    """A block that is being compressed and hashed, and the buffer that it is in."""

    buffer: memoryview
    size: int
    compressing: Future[bytes | bytearray]
    hashing: Future[None]

    def is_done(self) -> bool:
        return self.compressing.done() and self.hashing.done()


class Compressor:
    """A sink for builder.images.oci.tar_file that compresses what it takes, on all cores.

    Use it as a context.
    """

    def __init__(self, out: IO[bytes], compression: str, workers: int = 0) -> None:
        """Prepare a compressor.

        Args:
            out: The file that the blob is written to.
            compression: "gzip" or "zstd".
            workers: The number of threads; 0 for one on each core. It does not change the output.
        """
        worker_count = min(workers or len(os.sched_getaffinity(0)), _MAXIMUM_WORKERS)
        self._out = out
        self._compress = _COMPRESS_FUNCTIONS[compression]
        self._block_size = _BLOCK_SIZES[compression]
        self._pool = ThreadPoolExecutor(worker_count, thread_name_prefix="compress")
        self._hash_pool = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self._pending: deque[_PendingBlock] = deque()
        self._maximum_pending = worker_count + 2
        self._spare_buffers: list[memoryview] = []
        self._buffer = memoryview(bytearray(self._block_size))
        self._filled = 0  # bytes of the buffer
        self._unpacked_hash = hashlib.sha256()
        self._packed_hash = hashlib.sha256()
        self._unpacked_size = self._packed_size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._pool, self._hash_pool):
            pool.shutdown(cancel_futures=True)

    def write(self, data: bytes) -> None:
        """Add bytes to the blob."""
        size = len(data)
        if size < self._block_size - self._filled:
            end = self._filled + size
            self._buffer[self._filled : end] = data
            self._filled = end
            return
        rest = memoryview(data)
        while size := len(rest):
            part = min(size, self._block_size - self._filled)
            self._buffer[self._filled : self._filled + part] = rest[:part]
            self._advance(part)
            rest = rest[part:]

    def copy(self, descriptor: int, size: int) -> int:
        """Add up to `size` bytes of an open file; return how many bytes the file had."""
        left = size
        while left:
            end = self._filled + min(left, self._block_size - self._filled)
            count = os.readv(descriptor, [self._buffer[self._filled : end]])
            if not count:
                break
            self._advance(count)
            left -= count
        return size - left

    def _advance(self, size: int) -> None:
        """Count bytes that were put into the buffer, and submit the buffer when it is full."""
        self._filled += size
        if self._filled == self._block_size:
            self._submit()

    def _submit(self) -> None:
        """Start to compress the buffer, write finished blocks, and take another buffer."""
        block = self._buffer[: self._filled]
        self._pending.append(
            _PendingBlock(
                self._buffer,
                self._filled,
                self._pool.submit(self._compress, block),
                self._hash_pool.submit(self._unpacked_hash.update, block),
            )
        )
        while len(self._pending) >= self._maximum_pending or (
            self._pending and self._pending[0].is_done()
        ):
            self._write_block()
        if self._spare_buffers:
            self._buffer = self._spare_buffers.pop()
        else:
            self._buffer = memoryview(bytearray(self._block_size))
        self._filled = 0

    def _write_block(self) -> None:
        """Write the oldest pending block, once it is compressed."""
        block = self._pending.popleft()
        packed = block.compressing.result()
        block.hashing.result()
        self._packed_hash.update(packed)
        self._out.write(packed)
        self._unpacked_size += block.size
        self._packed_size += len(packed)
        self._spare_buffers.append(block.buffer)

    def finish(self) -> BlobSums:
        """Write the rest of the blob and return its sums. Nothing may be written afterwards."""
        has_no_block = not (self._pending or self._unpacked_size)
        if self._filled or has_no_block:
            self._submit()
        while self._pending:
            self._write_block()
        return BlobSums(
            f"sha256:{self._unpacked_hash.hexdigest()}",
            self._unpacked_size,
            f"sha256:{self._packed_hash.hexdigest()}",
            self._packed_size,
        )


@contextlib.contextmanager
def decompress_stream(stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield the uncompressed bytes of a stream that is gzip, zstd or uncompressed.

    Args:
        stream: A stream that has `peek` or is seekable. Its first bytes say what it is.

    Raises:
        UserError: The compressed data is damaged. The error is raised inside the context.
    """
    magic = _peek_bytes(stream, 4)
    try:
        if magic.startswith(_GZIP_MAGIC):
            with gzip.open(stream) as plain:
                yield cast("IO[bytes]", plain)
        elif magic == _ZSTD_MAGIC:
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


def _peek_bytes(stream: IO[bytes], count: int) -> bytes:
    """Return the next bytes of a stream, which stay in the stream."""
    peek = getattr(stream, "peek", None)
    if peek is not None:
        return bytes(peek(count)[:count])
    data = stream.read(count)
    stream.seek(-len(data), os.SEEK_CUR)
    return data
