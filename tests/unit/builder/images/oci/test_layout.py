"""Image layouts: whole or not at all, checked when read, and taken by the tools of others."""

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
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core import archives, cache_inspection
from builder.core.cache import Cache
from builder.images.oci import layer, layout
from rosetta.core.errors import UserError
from tests.support import errors, small_image

ROOT = Path(__file__).parents[5]


def _content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_written_and_read_back(cache: Cache, tmp_path: Path) -> None:
    index = small_image.make_index(cache)
    layout.write_layout(cache, index, tmp_path / "out", name="t5x:latest")
    assert json.loads((tmp_path / "out/oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    top = json.loads((tmp_path / "out/index.json").read_bytes())
    assert top["manifests"] == [
        {
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "digest": index.digest,
            "size": len(index.document),
            "annotations": {"org.opencontainers.image.ref.name": "t5x:latest"},
        }
    ]
    blobs = {path.name for path in (tmp_path / "out/blobs/sha256").iterdir()}
    assert len(blobs) == 4 + 1 + 2 * 2
    for name in blobs:
        assert (
            hashlib.sha256((tmp_path / "out/blobs/sha256" / name).read_bytes()).hexdigest() == name
        )
    back = layout.read_layout(tmp_path / "out")
    assert back.name == "t5x:latest"
    assert back.index.document == index.document
    assert [(each.config, each.manifest) for each in back.index.images] == [
        (each.config, each.manifest) for each in index.images
    ]
    assert [
        [replace(each, unpacked=0, key="") for each in image.layers] for image in index.images
    ] == [list(image.layers) for image in back.index.images]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out"]


def test_blobs_are_copies(cache: Cache, tmp_path: Path) -> None:
    index = small_image.make_index(cache)
    layout.write_layout(cache, index, tmp_path / "out", name="n")
    digest = index.images[0].layers[0].digest
    assert (tmp_path / "out/blobs/sha256" / digest[7:]).read_bytes() == layer.blob_path(
        cache, digest
    ).read_bytes()
    assert not (tmp_path / "out/blobs/sha256" / digest[7:]).samefile(layer.blob_path(cache, digest))


@pytest.mark.parametrize("name", ["out", "out.tar"])
def test_a_flipped_byte_in_the_caches_blob_is_not_written(
    cache: Cache, tmp_path: Path, name: str
) -> None:
    index = small_image.make_index(cache)
    blob = layer.blob_path(cache, index.images[0].layers[0].digest)
    state, data = blob.stat(), bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)
    os.utime(blob, ns=(state.st_atime_ns, state.st_mtime_ns))
    with errors.expect_user_error(errors.DAMAGED, where=blob, remedy="delete"):
        layout.write_layout(cache, index, tmp_path / name, name="n")
    assert not (tmp_path / name).exists()
    assert list(cache_inspection.check_entries(cache)[1]) == [f"blobs/{blob.name}"]
    layout.write_layout(
        cache, small_image.make_index(cache), tmp_path / name, name="n"
    )  # it is made again


def test_written_again_it_is_the_same_and_another_replaces_it(cache: Cache, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    layout.write_layout(cache, small_image.make_index(cache), out, name="n")
    first = _content(out)
    layout.write_layout(cache, small_image.make_index(cache), out, name="n")
    assert _content(out) == first
    layout.write_layout(
        cache, small_image.make_index(cache, ("amd64",), top=b"other"), out, name="n"
    )
    assert len(_content(out)) == 2 + 3 + 3
    assert (
        layout.read_layout(out).index.digest
        == small_image.make_index(cache, ("amd64",), top=b"other").digest
    )


@pytest.mark.parametrize("there", ["files", "layout", "file", "link", "more"])
def test_what_is_not_ours_is_refused_and_kept(cache: Cache, tmp_path: Path, there: str) -> None:
    out = tmp_path / "out"
    index = small_image.make_index(cache)
    if there == "file":
        out.write_text("mine")
    elif there == "link":
        (tmp_path / "real").mkdir()
        out.symlink_to("real")
    else:
        layout.write_layout(cache, index, out, name="n")
        if there == "more":
            (out / "thesis.tex").write_text("mine")
        elif there == "layout":
            (out / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
        else:
            (out / "index.json").unlink()
    before = _content(out) if out.is_dir() else out.read_bytes()
    with errors.expect_user_error(errors.EXISTS, where=out):
        layout.write_layout(cache, index, out, name="n")
    assert (_content(out) if out.is_dir() else out.read_bytes()) == before


def test_a_tar_holds_the_same(cache: Cache, tmp_path: Path) -> None:
    index = small_image.make_index(cache)
    layout.write_layout(cache, index, tmp_path / "out", name="n")
    layout.write_layout(cache, index, tmp_path / "out.tar", name="n")
    first = (tmp_path / "out.tar").read_bytes()
    with tarfile.open(tmp_path / "out.tar") as archive:
        assert archive.getnames()[:2] == ["oci-layout", "index.json"]
        archives.extract_verified(archive, tmp_path / "unpacked")
    assert _content(tmp_path / "unpacked") == _content(tmp_path / "out")
    layout.write_layout(cache, index, tmp_path / "out.tar", name="n")
    assert (tmp_path / "out.tar").read_bytes() == first
    (tmp_path / "mine.tar").write_bytes(b"thesis" * 1000)
    with errors.expect_user_error(errors.EXISTS, where="mine.tar"):
        layout.write_layout(cache, index, tmp_path / "mine.tar", name="n")
    assert (tmp_path / "mine.tar").read_bytes() == b"thesis" * 1000


@pytest.mark.parametrize("name", ["out", "out.tar"])
def test_a_lost_blob_or_a_full_disk_leaves_what_was_there(
    cache: Cache, tmp_path: Path, name: str
) -> None:
    out = tmp_path / name
    layout.write_layout(cache, small_image.make_index(cache), out, name="n")
    before = _content(out) if out.is_dir() else out.read_bytes()
    lost = small_image.make_index(cache, ("amd64",), top=b"lost")
    layer.blob_path(cache, lost.images[0].layers[2].digest).unlink()
    with errors.expect_user_error(
        errors.MISSING, where=lost.images[0].layers[2].digest[7:], remedy="run again"
    ):
        layout.write_layout(cache, lost, out, name="n")
    full = small_image.make_index(cache, ("amd64",), top=b"full")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            layout.write_layout(cache, full, out, name="n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (_content(out) if out.is_dir() else out.read_bytes()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", name]
    layout.write_layout(cache, full, out, name="n")
    assert (_content(out) if out.is_dir() else out.read_bytes()) != before


_KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from builder.core.cache import Cache
from builder.images.oci import layout
from tests.support import small_image
cache = Cache(Path(sys.argv[1]))
index = small_image.make_index(cache, top=b"new")
left = int(sys.argv[3])
for module, name in ((shutil, "copystat"), (os, "rename")):
    def step(*args, real=getattr(module, name), **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)
    setattr(module, name, step)
layout.write_layout(cache, index, Path(sys.argv[2]), name="n")
"""


@pytest.mark.parametrize("steps", [0, 2, 4, 5, 6])
def test_kill_9_at_any_step(cache: Cache, tmp_path: Path, steps: int) -> None:
    """Four copies, then the old one is put aside and the new one takes its place."""
    out = tmp_path / "out"
    layout.write_layout(cache, small_image.make_index(cache), out, name="n")
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(cache.root), str(out), str(steps)],
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == (0 if steps == 6 else -signal.SIGKILL)
    if out.exists():
        assert (
            layout.read_layout(out).index.digest
            == small_image.make_index(cache, top=b"new" if steps == 6 else b"top").digest
        )
    layout.write_layout(cache, small_image.make_index(cache, top=b"new"), out, name="n")
    assert layout.read_layout(out).index.digest == small_image.make_index(cache, top=b"new").digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "out"]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "top", "json", "marks"])
@pytest.mark.parametrize("which", ["index", "manifest", "config", "layer"])
def test_damage_is_noticed(cache: Cache, tmp_path: Path, damage: str, which: str) -> None:
    index = small_image.make_index(cache)
    layout.write_layout(cache, index, tmp_path / "linked", name="n")
    out = tmp_path / "out"
    shutil.copytree(tmp_path / "linked", out)
    image = index.images[1]
    digest = {
        "index": index.digest,
        "manifest": image.digest,
        "config": image.config_digest,
        "layer": image.layers[1].digest,
    }[which]
    blob = out / "blobs/sha256" / digest[7:]
    blob.chmod(0o644)
    data = blob.read_bytes()
    if damage == "flip":
        blob.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    elif damage == "cut":
        blob.write_bytes(data[:-1])
    elif damage == "gone":
        blob.unlink()
    elif damage == "top":
        (out / "index.json").unlink()
    else:
        (out / "index.json").write_text(
            "[" if damage == "json" else '{"manifests": [{"digest": "sha256:../../x", "size": 1}]}'
        )
    with pytest.raises(UserError):
        layout.read_layout(out)
    if which == "layer" and damage in ("flip", "cut", "gone"):
        assert layout.read_layout(out, blobs=False).index.digest == index.digest


def _archived(cache: Cache, name: str, leave_out: tuple[str, ...] = ()) -> bytes:
    out = io.BytesIO()
    layout.write_archive(cache, small_image.make_image(cache), name, out, leave_out)
    return out.getvalue()


def test_an_archive_is_both_forms(cache: Cache) -> None:
    image = small_image.make_image(cache)
    data = _archived(cache, "t5x:cuda13")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        held = {each.name: file.read() for each in archive if (file := archive.extractfile(each))}
    older = json.loads(held["manifest.json"])
    assert older[0]["RepoTags"] == ["t5x:cuda13"]
    assert held[older[0]["Config"]] == image.config
    assert [hashlib.sha256(held[path]).hexdigest() for path in older[0]["Layers"]] == [
        each.digest[7:] for each in image.layers
    ]
    newer = json.loads(held["index.json"])["manifests"][0]
    assert newer["digest"] == image.digest
    assert held[f"blobs/sha256/{image.digest[7:]}"] == image.manifest
    assert newer["annotations"] == {
        "io.containerd.image.name": "docker.io/library/t5x:cuda13",
        "org.opencontainers.image.ref.name": "cuda13",
    }
    assert data == _archived(cache, "t5x:cuda13")
    left_out = image.layers[0].digest
    with tarfile.open(fileobj=io.BytesIO(_archived(cache, "t5x:cuda13", (left_out,)))) as archive:
        assert set(held) - set(archive.getnames()) == {f"blobs/sha256/{left_out[7:]}"}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("t5x:a", "docker.io/library/t5x:a"),
        ("nvidia/t5x:a", "docker.io/nvidia/t5x:a"),
        ("ghcr.io/OWNER/t5x:a", "ghcr.io/OWNER/t5x:a"),
        ("localhost/t5x:a", "localhost/t5x:a"),
        ("host:5000/t5x:a", "host:5000/t5x:a"),
    ],
)
def test_qualified(name: str, full: str) -> None:
    assert layout.qualify_name(name) == full


@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive"])
def test_skopeo_reads_it(cache: Cache, tmp_path: Path, kind: str) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("NOT CHECKED: skopeo is not on this machine")
    index = small_image.make_index(cache)
    out = tmp_path / ("out" if kind == "oci" else "out.tar")
    if kind == "docker-archive":
        out.write_bytes(_archived(cache, "t5x:n"))
    else:
        layout.write_layout(cache, index, out, name="n")
    source = f"{kind}:{out}" if kind == "docker-archive" else f"{kind}:{out}:n"
    for image in index.images[: 1 if kind == "docker-archive" else 2]:
        machine = [
            "skopeo",
            "--override-arch",
            image.architecture,
            *(["--override-variant", "v8"] if image.architecture == "arm64" else []),
        ]
        shown = json.loads(
            subprocess.run(
                [*machine, "inspect", source], check=True, capture_output=True, timeout=60
            ).stdout
        )
        assert shown["Architecture"] == image.architecture
        copied = tmp_path / f"copy-{image.architecture}"
        subprocess.run(
            [*machine, "--insecure-policy", "copy", "-q", source, f"dir:{copied}"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        config = json.loads((copied / "manifest.json").read_bytes())["config"]["digest"]
        assert config == image.config_digest


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_docker_loads_it(cache: Cache, compression: str) -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("NOT CHECKED: no docker daemon answers")
    server = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    if compression == "zstd" and int(server.partition(".")[0]) < 23:
        pytest.skip(f"NOT CHECKED: docker {server.strip()} reads no zstd")
    image = small_image.make_image(cache, compression=compression)
    name = f"rosetta-test-layout:{compression}"
    out = io.BytesIO()
    layout.write_archive(cache, image, name, out)
    try:
        subprocess.run(
            ["docker", "load"], input=out.getvalue(), check=True, capture_output=True, timeout=120
        )
        shown = json.loads(
            subprocess.run(
                ["docker", "image", "inspect", name], check=True, capture_output=True, timeout=60
            ).stdout
        )[0]
        assert shown["RootFS"]["Layers"] == [each.diff_id for each in image.layers]
        assert shown["Config"]["WorkingDir"] == "/work"
        assert shown["Id"] in (
            image.config_digest,
            image.digest,
        )  # the classic store's, containerd's
        other, more = (
            small_image.make_image(cache, compression=compression, top=b"more"),
            io.BytesIO(),
        )
        layout.write_archive(cache, other, name, more, [each.digest for each in image.layers[:2]])
        subprocess.run(
            ["docker", "load"], input=more.getvalue(), check=True, capture_output=True, timeout=120
        )
        shown = json.loads(
            subprocess.run(
                ["docker", "image", "inspect", name], check=True, capture_output=True, timeout=60
            ).stdout
        )[0]
        assert shown["Id"] in (other.config_digest, other.digest)
        made = subprocess.run(
            ["docker", "create", name], check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()
        subprocess.run(["docker", "rm", made], check=True, capture_output=True, timeout=60)
    finally:
        subprocess.run(["docker", "rmi", "-f", name], check=False, capture_output=True, timeout=60)
