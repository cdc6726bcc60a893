"""Layers in the cache: made once, the same everywhere, whole after a kill or a full disk."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core import cache_inspection
from builder.core.cache import Cache
from builder.images.oci import blob_compression, layer, tar_file
from builder.images.oci.tar_entry import Entry, make_file, make_link
from tests.support import errors

ROOT = Path(__file__).parents[5]


def _entries() -> list[Entry]:
    return [
        make_file("opt/b/z", b"z"),
        make_file("opt/a", b"a" * 5000, 0o755),
        make_link("opt/b/l", "z"),
    ]


def _members(cache: Cache, made: layer.Layer) -> list[tarfile.TarInfo]:
    with (
        open(layer.blob_path(cache, made.digest), "rb") as stream,
        blob_compression.decompress_stream(stream) as plain,
        tarfile.open(fileobj=io.BytesIO(plain.read())) as archive,
    ):
        return archive.getmembers()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_written_sorted_with_its_parents_and_only_once(cache: Cache, compression: str) -> None:
    made = layer.write_layer(cache, "k", "python", compression, _entries)
    assert [(each.name, each.mode, each.uid, each.mtime) for each in _members(cache, made)] == [
        ("opt", 0o755, 0, 315532800),
        ("opt/a", 0o755, 0, 315532800),
        ("opt/b", 0o755, 0, 315532800),
        ("opt/b/l", 0o777, 0, 315532800),
        ("opt/b/z", 0o644, 0, 315532800),
    ]
    assert made.media_type == f"application/vnd.oci.image.layer.v1.tar+{compression}"
    assert layer.blob_path(cache, made.digest).stat().st_size == made.size

    def never() -> list[Entry]:
        raise AssertionError("it is in the cache")

    assert layer.write_layer(cache, "k", "python", compression, never) == made
    assert layer.find_layer(cache, "other", "python", compression) is None
    assert (
        layer.find_layer(cache, "k", "python", "zstd" if compression == "gzip" else "gzip") is None
    )
    assert layer.find_layer(cache, "k", "os", compression) == replace(made, name="os")


def test_both_compressions_hold_the_same_tar_and_order_does_not_count(
    cache: Cache, tmp_path: Path
) -> None:
    one = layer.write_layer(cache, "k", "x", "gzip", _entries)
    two = layer.write_layer(cache, "k", "x", "zstd", lambda: reversed(_entries()))
    other = layer.write_layer(
        Cache(tmp_path / "elsewhere"), "different key", "x", "gzip", lambda: _entries()[::-1]
    )
    assert one.diff_id == two.diff_id == other.diff_id
    assert one.unpacked == two.unpacked
    assert one.digest == other.digest != two.digest


def test_umask_locale_time_zone_and_cores_do_not_enter(tmp_path: Path) -> None:
    folder = tmp_path / "content"
    for name in ("Zeta", "alpha", "_x", "ümlaut"):
        (folder / name).mkdir(parents=True)
        (folder / name / "f").write_bytes(
            hashlib.shake_256(name.encode()).digest(900_000) + b" " * 900_000
        )
    program = (
        "import os, sys; from pathlib import Path; from builder.core.cache import Cache; from builder.images.oci import layer, tar_file; "
        "cores = os.sched_getaffinity(0); os.sched_setaffinity(0, {min(cores)} if sys.argv[4] == '1' else cores); "
        "print(layer.write_layer(Cache(Path(sys.argv[1])), 'k', 'x', sys.argv[3], lambda: tar_file.walk_folder(sys.argv[2], 'opt')).digest)"
    )
    found: dict[str, set[str]] = {"gzip": set(), "zstd": set()}
    for number, (umask, extra) in enumerate(
        (
            (0o077, {"TZ": "Asia/Tokyo", "LC_ALL": "C"}),
            (0, {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "7"}),
        )
    ):
        for compression, digests in found.items():
            argv = [
                sys.executable,
                "-c",
                program,
                str(tmp_path / f"cache{number}"),
                str(folder),
                compression,
                str(number),
            ]
            done = subprocess.run(
                argv,
                cwd=ROOT,
                env=os.environ | extra,
                umask=umask,
                capture_output=True,
                text=True,
                check=True,
            )
            digests.add(done.stdout.strip())
        for path in folder.rglob("*"):
            os.utime(path, (number, number))
            path.chmod(0o700 if path.is_dir() else 0o600)
    assert {kind: len(digests) for kind, digests in found.items()} == {"gzip": 1, "zstd": 1}


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "../a", "a/../b", "a\0b"])
def test_paths_that_are_none(cache: Cache, path: str) -> None:
    with errors.expect_user_error(errors.INVALID, value=path):
        layer.write_layer(cache, "k", "x", "gzip", lambda: [make_file(path, b"")])
    assert list(cache.path("blobs").iterdir()) == []
    assert list(cache.path("layers").iterdir()) == []


def test_a_path_twice(cache: Cache) -> None:
    with errors.expect_user_error(errors.CONFLICT, value="a"):
        layer.write_layer(
            cache, "k", "x", "gzip", lambda: [make_file("a", b"1"), make_file("a", b"2")]
        )
    twice = [Entry("a", "dir", 0o755), Entry("a", "dir", 0o755), make_file("a/b", b"")]
    assert len(_members(cache, layer.write_layer(cache, "k", "x", "gzip", lambda: twice))) == 2


@pytest.mark.parametrize("damage", ["gone", "short", "edited", "record", "format"])
def test_what_is_damaged_is_made_again(cache: Cache, damage: str) -> None:
    made = layer.write_layer(cache, "k", "x", "gzip", _entries)
    blob, record = layer.blob_path(cache, made.digest), cache.path("layers", "k.gzip.json")
    whole = blob.read_bytes()
    if damage == "gone":
        blob.unlink()
    elif damage in ("short", "edited"):
        blob.chmod(0o644)
        blob.write_bytes(whole[:-1] if damage == "short" else whole[:-1] + b"!")
    elif damage == "record":
        record.write_text('{"format": 1, "digest": ["')
    else:
        record.write_text(
            json.dumps(json.loads(record.read_text()) | {"format": 0, "digest": "sha256:00"})
        )
    calls = []

    def again() -> list[Entry]:
        calls.append(1)
        return _entries()

    assert layer.write_layer(cache, "k", "x", "gzip", again) == made
    assert calls == [1]
    assert blob.read_bytes() == whole


def test_two_keys_with_the_same_content_do_not_disturb_each_other(cache: Cache) -> None:
    one = layer.write_layer(cache, "one", "x", "gzip", _entries)
    two = layer.write_layer(cache, "two", "x", "gzip", _entries)
    assert one.digest == two.digest
    assert layer.find_layer(cache, "one", "x", "gzip") == one
    assert layer.find_layer(cache, "two", "x", "gzip") == two


def test_a_full_disk_leaves_nothing(cache: Cache) -> None:
    big = make_file("big", hashlib.shake_256(b"noise").digest(3 << 20))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1 << 20, before[1])
    )  # what a full disk looks like to a writer
    try:
        with pytest.raises(OSError, match="File too large"):
            layer.write_layer(cache, "k", "x", "zstd", lambda: [big])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(cache.path("blobs").iterdir()) == []
    assert list(cache.path("layers").iterdir()) == []
    assert layer.write_layer(cache, "k", "x", "zstd", lambda: [big]).unpacked == (3 << 20) + 1536


_SLOW = """
import sys, time
from pathlib import Path
from builder.core.cache import Cache
from builder.images.oci import layer
from builder.images.oci.tar_entry import make_file
def entries():
    yield make_file("a", b"1")
    print("begun", flush=True)
    time.sleep(float(sys.argv[2]))
    yield make_file("b", b"2")
print(layer.write_layer(Cache(Path(sys.argv[1])), "k", "x", "gzip", entries).digest, flush=True)
"""


def _start(cache: Cache, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SLOW, str(cache.root), str(seconds)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )


def test_kill_9_in_the_middle_and_a_rerun(cache: Cache) -> None:
    with _start(cache, 60) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGKILL)
    assert list(cache.path("layers").iterdir()) == []
    assert [path.name for path in cache.path("blobs").iterdir()] == [".tmp-k.gzip"]
    with _start(cache, 0) as process:
        digest = process.communicate()[0].split()[-1]
    assert [path.name for path in cache.path("blobs").iterdir()] == ["sha256"]
    assert [path.name for path in cache.path("blobs", "sha256").iterdir()] == [
        digest.removeprefix("sha256:")
    ]


def test_two_at_once_make_it_once(cache: Cache) -> None:
    with _start(cache, 1.0) as first, _start(cache, 1.0) as second:
        said = [process.communicate()[0].split() for process in (first, second)]
    assert sorted(len(words) for words in said) == [1, 2]
    assert said[0][-1] == said[1][-1]


@pytest.mark.parametrize("packed", ["plain", "gzip", "zstd"])
def test_from_tar_keeps_what_counts(cache: Cache, tmp_path: Path, packed: str) -> None:
    foreign = io.BytesIO()
    with tarfile.open(fileobj=foreign, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, more in (
            (
                "usr/bin/new",
                tarfile.REGTYPE,
                {
                    "mode": 0o4755,
                    "uid": 7,
                    "gid": 8,
                    "uname": "someone",
                    "pax_headers": {"SCHILY.xattr.security.capability": "\x01\x02\udcff"},
                },
            ),
            ("usr/bin/hard", tarfile.LNKTYPE, {"linkname": "usr/bin/new"}),
            ("usr/.wh.gone", tarfile.REGTYPE, {}),
            ("tmp", tarfile.DIRTYPE, {"mode": 0o1777}),
            ("var/log/noise", tarfile.REGTYPE, {}),
            ("dev/null", tarfile.CHRTYPE, {"devmajor": 1, "devminor": 3}),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.mtime = kind, time.time()
            for key, value in more.items():
                setattr(info, key, value)
            archive.addfile(info)
    source = tmp_path / "foreign.tar"
    source.write_bytes(foreign.getvalue())
    if packed != "plain":
        with (
            open(source, "rb") as plain,
            open(tmp_path / "packed", "wb") as out,
            blob_compression.Compressor(out, packed) as sink,
        ):
            sink.write(plain.read())
            sink.finish()
        source = tmp_path / "packed"
    made = layer.rewrite_layer(
        cache,
        "k",
        "os",
        "zstd",
        lambda: io.BytesIO(source.read_bytes()),
        lambda entries: [entry for entry in entries if not entry.path.startswith("var/log")],
    )
    with (
        open(layer.blob_path(cache, made.digest), "rb") as stream,
        blob_compression.decompress_stream(stream) as unpacked,
    ):
        found = {entry.path: entry for entry, _ in tar_file.read_tar(unpacked)}
    assert sorted(found) == ["dev/null", "tmp", "usr/.wh.gone", "usr/bin/hard", "usr/bin/new"]
    assert (
        found["usr/bin/hard"].kind,
        found["usr/bin/hard"].uid,
        found["usr/bin/hard"].gid,
        found["usr/bin/hard"].mode,
    ) == ("file", 7, 8, 0o4755)
    assert found["usr/bin/hard"].xattrs == (("security.capability", b"\x01\x02\xff"),)
    assert (found["usr/bin/new"].kind, found["usr/bin/new"].target) == ("hard", "usr/bin/hard")
    assert (found["tmp"].mode, found["dev/null"].device) == (0o1777, (1, 3))
    assert b"someone" not in b"".join(
        path.read_bytes() for path in cache.path("blobs", "sha256").iterdir()
    )
    assert [path.name for path in cache.path("blobs").iterdir()] == ["sha256"]

    def never() -> io.BytesIO:
        raise AssertionError("it is in the cache")

    assert layer.rewrite_layer(cache, "k", "os", "zstd", never) == made


def test_a_broken_tar_leaves_nothing(cache: Cache) -> None:
    with errors.expect_user_error(errors.DAMAGED, names="tar"):
        layer.rewrite_layer(cache, "k", "os", "zstd", lambda: io.BytesIO(b"no tar " * 500))
    assert list(cache.path("blobs").iterdir()) == []


@pytest.mark.parametrize(("packed", "damage"), [("gzip", "cut"), ("gzip", "flip"), ("zstd", "cut")])
def test_a_damaged_blob_leaves_nothing(cache: Cache, packed: str, damage: str) -> None:
    made = layer.write_layer(
        cache,
        "k",
        "x",
        packed,
        lambda: [make_file("a", hashlib.shake_256(b"noise").digest(3 << 20))],
    )
    data = layer.blob_path(cache, made.digest).read_bytes()
    broken = data[: len(data) // 2] if damage == "cut" else data[:200] + bytes(200) + data[400:]
    with errors.expect_user_error(errors.DAMAGED, remedy="run again"):
        layer.rewrite_layer(cache, "other", "os", packed, lambda: io.BytesIO(broken))
    assert [path.name for path in cache.path("blobs").iterdir()] == ["sha256"]
    assert [path.name for path in cache.path("layers").iterdir()] == [f"k.{packed}.json"]


def test_a_full_disk_is_not_taken_for_a_damaged_blob(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"\x1f\x8b" + bytes(100))
    with (
        open(tmp_path / "blob", "rb") as stream,
        pytest.raises(OSError, match="No space left"),
        blob_compression.decompress_stream(stream),
    ):
        raise OSError(28, "No space left on device")


def test_prune_takes_old_records_and_blobs_without_one(cache: Cache) -> None:
    old = layer.write_layer(cache, "old", "x", "gzip", lambda: [make_file("a", b"old")])
    shared = layer.write_layer(cache, "shared-old", "x", "gzip", _entries)
    fresh = layer.write_layer(cache, "fresh", "x", "gzip", _entries)
    assert shared.digest == fresh.digest
    long_ago = time.time() - 40 * 86400
    for key in ("old", "shared-old"):
        os.utime(cache.path("layers", f"{key}.gzip.json"), (long_ago, long_ago))
    shutil.copyfile(
        layer.blob_path(cache, fresh.digest), layer.blob_path(cache, "sha256:" + "0" * 64)
    )
    cache.path("blobs", ".tmp-killed.gzip").write_text("half")
    wanted = {
        "layers/old.gzip.json",
        "layers/shared-old.gzip.json",
        f"blobs/{old.digest[7:]}",
        "blobs/" + "0" * 64,
        "blobs/.tmp-killed.gzip",
    }
    assert (
        set(cache_inspection.prune_entries(cache, days=30, sources=False, dry_run=True)) == wanted
    )
    assert layer.blob_path(cache, old.digest).exists()
    assert (
        set(cache_inspection.prune_entries(cache, days=30, sources=False, dry_run=False)) == wanted
    )
    assert layer.find_layer(cache, "old", "x", "gzip") is None
    assert layer.find_layer(cache, "fresh", "x", "gzip") == fresh
    assert [path.name for path in cache.path("blobs", "sha256").iterdir()] == [fresh.digest[7:]]
    assert cache_inspection.measure_usage(cache.root)["blobs"] > 0
    assert cache_inspection.prune_entries(cache, days=30, sources=False, dry_run=False) == {}


def test_using_a_layer_keeps_it_from_being_pruned(cache: Cache) -> None:
    made = layer.write_layer(cache, "k", "x", "gzip", _entries)
    long_ago = time.time() - 40 * 86400
    os.utime(cache.path("layers", "k.gzip.json"), (long_ago, long_ago))
    assert layer.write_layer(cache, "k", "x", "gzip", _entries) == made
    assert cache_inspection.prune_entries(cache, days=30, sources=False, dry_run=False) == {}
