"""Bundles are whole, the same everywhere, and leave out what the site has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.images import offline_bundle
from builder.images.oci import layer, layout
from rosetta.core.errors import UserError
from tests.support import errors, image_registry
from tests.support.image_bundle import (
    NAME,
    find_biggest_blob,
    index_,
    list_names,
    make_older_image,
    read_files,
    run_importer,
    site_,
    write_tool,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.core.cache import Cache
    from builder.images.oci.oci_documents import Index

pytestmark = pytest.mark.engine

__all__ = ["index_", "site_"]  # fixtures


# Writing


def test_a_bundle_is_whole_and_the_same_everywhere(
    cache: Cache, index: Index, tmp_path: Path
) -> None:
    made = offline_bundle.write_bundle(
        cache, index, tmp_path / "one", name=NAME, records={"amd64": {"line": "current"}}
    )
    old = os.umask(0o077)
    try:
        offline_bundle.write_bundle(
            cache, index, tmp_path / "two", name=NAME, records={"amd64": {"line": "current"}}
        )
    finally:
        os.umask(old)
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")
    assert layout.read_layout(tmp_path / "one/image").index.digest == index.digest
    assert layout.read_layout(tmp_path / "one/image").name == NAME
    assert (
        subprocess.run(
            ["sha256sum", "--strict", "--quiet", "-c", "SHA256SUMS"],
            cwd=tmp_path / "one",
            check=False,
        ).returncode
        == 0
    )
    covered = {
        line[66:] for line in (tmp_path / "one/SHA256SUMS").read_text(encoding="ascii").splitlines()
    }
    assert covered == {
        name for name, (_, mode) in read_files(tmp_path / "one").items() if not stat.S_ISDIR(mode)
    } - {"SHA256SUMS"}
    document = json.loads((tmp_path / "one/bundle.json").read_bytes())
    assert (document["index"], document["left_out"], document["images"][0]["lock"]) == (
        index.digest,
        [],
        {"line": "current"},
    )
    assert index.digest in (tmp_path / "one/README.txt").read_text(encoding="utf-8")
    assert "@" not in (tmp_path / "one/README.txt").read_text(encoding="utf-8")

    assert made["path"] == f"{tmp_path}/one"
    assert f"{made['written'] / 1e6:,.1f} MB" in made["next"][0]


def test_the_readme_names_no_other_distribution(cache: Cache, tmp_path: Path) -> None:
    offline_bundle.write_bundle(
        cache, image_registry.make_image(cache), tmp_path / "pax", name="me/pax-1.4:cpu"
    )
    text = (tmp_path / "pax/README.txt").read_text(encoding="utf-8")
    assert (
        "enroot create --name me-pax-1.4-cpu me-pax-1.4-cpu.sqsh && enroot start me-pax-1.4-cpu rosetta info"
        in text
    )
    assert "t5x" not in text


def test_a_bundle_that_is_there_stays_and_a_lost_blob_comes_back(
    cache: Cache, index: Index, tmp_path: Path
) -> None:
    place = tmp_path / "one"
    offline_bundle.write_bundle(cache, index, place, name=NAME)
    before = place.stat().st_ino
    offline_bundle.write_bundle(cache, index, place, name=NAME)
    assert place.stat().st_ino == before
    find_biggest_blob(place).unlink()
    offline_bundle.write_bundle(cache, index, place, name=NAME)
    assert layout.read_layout(place / "image").index.digest == index.digest


def test_a_bundle_replaces_a_bundle_and_nothing_else(
    cache: Cache, index: Index, tmp_path: Path
) -> None:
    place = tmp_path / "out"
    offline_bundle.write_bundle(cache, image_registry.make_image(cache), place, name=NAME)
    offline_bundle.write_bundle(cache, index, place, name=NAME)
    assert json.loads((place / "bundle.json").read_bytes())["index"] == index.digest
    (place / "notes").write_text("mine", encoding="ascii")
    with errors.expect_user_error(errors.EXISTS, where=place):
        offline_bundle.write_bundle(cache, index, place, name=NAME)
    assert (place / "notes").read_text(encoding="ascii") == "mine"
    (tmp_path / "file").write_text("mine", encoding="ascii")
    with errors.expect_user_error(errors.EXISTS, where=tmp_path / "file"):
        offline_bundle.write_bundle(cache, index, tmp_path / "file", name=NAME)


def test_a_damaged_blob_of_the_cache_ends_it_and_leaves_nothing(
    cache: Cache, index: Index, tmp_path: Path
) -> None:
    damaged = layer.blob_path(cache, index.images[0].layers[1].digest)
    data = bytearray(damaged.read_bytes())
    data[5000] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(data)
    (tmp_path / "out").mkdir()
    with errors.expect_user_error(errors.DAMAGED, where=damaged):
        offline_bundle.write_bundle(cache, index, tmp_path / "out/b", name=NAME)
    assert list_names(tmp_path / "out") == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from builder.core.cache import Cache
from builder.images import offline_bundle
from tests.support import image_registry
cache, place, last, seed = Cache(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
index = image_registry.make_image(cache, architectures=("amd64", "arm64"), seed=seed)
real, count = os.rename, 0
def rename(source, target):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
os.rename = rename
offline_bundle.write_bundle(cache, index, place, name="kit/t5x:cuda13")
"""


@pytest.mark.parametrize(
    "last", [1, 2], ids=["before the old one moves", "before the new one is in place"]
)
def test_a_killed_write_is_finished_by_the_next(
    cache: Cache, index: Index, tmp_path: Path, last: int
) -> None:
    place = tmp_path / "out/b"
    place.parent.mkdir()
    offline_bundle.write_bundle(cache, image_registry.make_image(cache), place, name=NAME)
    before = read_files(place)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(cache.root), str(place), str(last), str(tmp_path)],
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert not place.exists() or read_files(place) == before
    offline_bundle.write_bundle(cache, index, place, name=NAME)
    assert json.loads((place / "bundle.json").read_bytes())["index"] == index.digest
    assert [
        name for name in list_names(place.parent) if "rosetta" in name and "lock" not in name
    ] == []


@contextmanager
def small(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes; skips where only root may make one."""
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip(
            "NOT CHECKED: a full disk, for a small file system cannot be mounted here (root may)"
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_noticed_before(
    cache: Cache, index: Index, site: Path, tmp_path: Path
) -> None:
    with small(tmp_path / "full", "400k") as full:
        with errors.expect_user_error(errors.TOO_BIG, names="MB"):
            offline_bundle.write_bundle(cache, index, full / "b", name=NAME)
        assert [each for each in list_names(full) if "lock" not in each] == []
        done = run_importer(site, "oci", str(full / "layout"))
        assert (done.returncode, "MB are needed" in done.stderr) == (1, True)
        assert [each for each in list_names(full) if "lock" not in each] == []


def test_a_disk_that_fills_meanwhile_leaves_nothing(site: Path, tmp_path: Path) -> None:
    with small(tmp_path / "full", "1m") as full:
        hog = write_tool(
            tmp_path / "tools",
            "cp",
            f'[ -e {full}/hog ] || head -c 2M /dev/zero > {full}/hog 2>/dev/null; exec /bin/cp "$@"',
        )
        done = run_importer(site, "oci", str(full / "layout"), path=hog)
        assert done.returncode == 1
        assert "No space left" in done.stderr
        assert list_names(full) == ["hog"]


# What the site has


@pytest.mark.parametrize("kind", ["bundle", "bundle.json", "layout", "lock.json"])
def test_layers_that_the_site_has_stay_out_and_are_brought_back(
    cache: Cache, index: Index, tmp_path: Path, kind: str
) -> None:
    since, having = make_older_image(cache, tmp_path, kind)
    site = tmp_path / "site"
    site.mkdir()
    made = offline_bundle.write_bundle(
        cache, index, site / "bundle", name=NAME, since=offline_bundle.read_known_layers(str(since))
    )
    assert sorted(each["name"] for each in made["left_out"]) == ["base", "python", "python"]
    assert made["written"] < sum(each["size"] for each in made["left_out"])
    for each in made["left_out"]:
        assert not (site / "bundle/image/blobs/sha256" / each["digest"][7:]).exists()
        assert each["digest"] in (site / "bundle/README.txt").read_text(encoding="utf-8")

    done = run_importer(site, "check")
    assert (done.returncode, done.stdout) == (0, f"{NAME} {index.digest}\n")
    assert done.stderr.count("missing: layer") == 4  # the base's of both architectures
    done = run_importer(site, "oci", "out")
    assert done.returncode == 1
    assert all(each["digest"] in done.stderr for each in made["left_out"])
    assert list_names(site) == ["bundle"]

    done = run_importer(site, "--with", str(having), "oci", "out")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert layout.read_layout(site / "out").index.document == index.document
    assert list_names(site) == ["bundle", "out"]


def test_what_the_site_has_is_checked_too(cache: Cache, index: Index, tmp_path: Path) -> None:
    since, having = make_older_image(cache, tmp_path, "bundle")
    copied = tmp_path / "copied"
    shutil.copytree(having, copied)
    (tmp_path / "site").mkdir()
    made = offline_bundle.write_bundle(
        cache,
        index,
        tmp_path / "site/bundle",
        name=NAME,
        since=offline_bundle.read_known_layers(str(since)),
    )
    blob = copied / "image/blobs/sha256" / made["left_out"][0]["digest"][7:]
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    done = run_importer(tmp_path / "site", "--with", str(copied), "oci", "out")
    assert done.returncode == 1
    assert "is damaged" in done.stderr
    assert list_names(tmp_path / "site") == ["bundle"]


def test_nothing_in_common_is_said(
    cache: Cache, index: Index, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "lock.json"
    lock.write_text(
        json.dumps({"layers": [{"name": "base", "digest": f"sha256:{'0' * 64}"}]}), encoding="ascii"
    )
    assert (
        offline_bundle.write_bundle(
            cache,
            index,
            tmp_path / "out",
            name=NAME,
            since=offline_bundle.read_known_layers(str(lock)),
        )["left_out"]
        == []
    )
    assert "layer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"layers": []}',
        '{"layers": [{"digest": "x"}]}',
        '{"bundle": "rosetta", "images": 3}',
        None,
    ],
)
def test_what_says_nothing_of_layers_is_refused(
    cache: Cache, index: Index, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "lock.json").write_text(text, encoding="ascii")
    with pytest.raises(UserError) as problem:
        offline_bundle.write_bundle(
            cache,
            index,
            tmp_path / "out",
            name=NAME,
            since=offline_bundle.read_known_layers(str(tmp_path / "lock.json")),
        )
    assert problem.value.where == str(tmp_path / "lock.json")
    assert not (tmp_path / "out").exists()
