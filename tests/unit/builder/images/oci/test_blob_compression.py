"""Blobs: the same bytes on any number of cores, and readable by everyone."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard

from builder.images.oci import blob_compression

MIB = 1 << 20


def _data(size: int) -> bytes:
    """Half of it compressible, the same each time."""
    noise = hashlib.shake_256(b"noise").digest(500 * (size // 1004 + 1))
    return b"".join(noise[at : at + 500] + b"rosetta " * 63 for at in range(0, len(noise), 500))[
        :size
    ]


def _pack(
    data: bytes, compression: str, workers: int = 0, piece: int = 0
) -> tuple[bytes, blob_compression.BlobSums]:
    out = io.BytesIO()
    with blob_compression.Compressor(out, compression, workers) as sink:
        for start in range(0, len(data), piece or max(len(data), 1)):
            sink.write(data[start : start + (piece or len(data))])
        sums = sink.finish()
    return out.getvalue(), sums


def _unpack(packed: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.decompress(packed)
    with zstandard.ZstdDecompressor().stream_reader(
        io.BytesIO(packed), read_across_frames=True
    ) as plain:
        return plain.read()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 5 * MIB + 77])
def test_round_trip_and_sums(compression: str, size: int) -> None:
    data = _data(size)
    packed, sums = _pack(data, compression)
    assert _unpack(packed, compression) == data
    assert sums == blob_compression.BlobSums(
        f"sha256:{hashlib.sha256(data).hexdigest()}",
        size,
        f"sha256:{hashlib.sha256(packed).hexdigest()}",
        len(packed),
    )


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_neither_cores_nor_pieces_change_the_bytes(compression: str) -> None:
    data = _data(9 * MIB + 5)
    made = {
        _pack(data, compression, workers, piece)[0]
        for workers, piece in ((1, 0), (2, 0), (3, 777), (40, 1 << 16), (2, 3 * MIB + 1))
    }
    assert len(made) == 1


def test_the_bytes_are_those_of_the_format() -> None:
    """A new libdeflate or zstd that packs otherwise changes every digest: that needs compress.FORMAT counted up, and these lines."""
    data = _data(3 * MIB)
    assert blob_compression.FORMAT == 3
    assert (
        _pack(data, "gzip")[1].digest
        == "sha256:e50984a7d59e3cf36680b8aa8a911165879e2d4753b949f0c1c3a36921cf5c30"
    )
    assert (
        _pack(data, "zstd")[1].digest
        == "sha256:457c221f02c69e8c1ae4cb7ea1def8ea7a744f289f264c05ca70316a01a2d336"
    )


def test_a_gzip_blob_has_no_time_and_no_name() -> None:
    packed, _ = _pack(b"x", "gzip")
    assert packed[:4] == b"\x1f\x8b\x08\x00"
    assert packed[4:8] == bytes(4)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_the_programs_of_that_name_read_it(compression: str, tmp_path: Path) -> None:
    if shutil.which(compression) is None:
        pytest.skip(f"NOT CHECKED: {compression} is not on this machine")
    data = _data(5 * MIB)
    blob = tmp_path / "blob.gz"
    blob.write_bytes(_pack(data, compression)[0])
    assert subprocess.run([compression, "-t", "-q", str(blob)], check=False).returncode == 0
    with open(blob, "rb") as stream:
        assert (
            subprocess.run(
                [compression, "-dc"], stdin=stream, check=True, capture_output=True
            ).stdout
            == data
        )
    blob.write_bytes(_pack(data, compression)[0][:-9])
    assert (
        subprocess.run(
            [compression, "-t", "-q", str(blob)], check=False, capture_output=True
        ).returncode
        != 0
    )


def test_a_reader_that_takes_member_after_member() -> None:
    """As Go's does, and old enroot's tar."""
    data = _data(3 * MIB)
    rest, found, members = _pack(data, "gzip")[0], b"", 0
    while rest:
        one = zlib.decompressobj(wbits=31)
        found += one.decompress(rest)
        assert one.eof
        rest, members = one.unused_data, members + 1
    assert found == data
    assert members == 3


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_files_are_copied_whole_or_say_how_much_came(compression: str, tmp_path: Path) -> None:
    data = _data(4 * MIB + 3)
    (tmp_path / "f").write_bytes(data)
    out = io.BytesIO()
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)
    with blob_compression.Compressor(out, compression, 2) as sink:
        sink.write(b"head")
        assert sink.copy(descriptor, len(data) + 100) == len(data)
        sink.write(b"tail")
        sink.finish()
    os.close(descriptor)
    assert _unpack(out.getvalue(), compression) == b"head" + data + b"tail"


class _Full(io.RawIOBase):
    def write(self, _: object) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_full_disk_ends_it(compression: str) -> None:
    out: Any = _Full()
    with (
        blob_compression.Compressor(out, compression, 2) as sink,
        pytest.raises(OSError, match="No space left"),
    ):
        sink.write(_data(40 * MIB))


@pytest.mark.parametrize("compression", ["gzip", "zstd", "plain"])
def test_reader_knows_each_by_its_first_bytes(compression: str, tmp_path: Path) -> None:
    data = _data(3 * MIB)
    (tmp_path / "blob").write_bytes(data if compression == "plain" else _pack(data, compression)[0])
    with (
        open(tmp_path / "blob", "rb") as stream,
        blob_compression.decompress_stream(stream) as plain,
    ):
        assert plain.read() == data
    with (
        io.BytesIO((tmp_path / "blob").read_bytes()) as memory,
        blob_compression.decompress_stream(memory) as plain,
    ):
        assert plain.read() == data
