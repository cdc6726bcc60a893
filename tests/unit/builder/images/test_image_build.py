"""An image of the small distribution, whole: real git, real uv, the running Python as its base; both architectures, without an engine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.core import archives
from builder.images.layer_assignment import LAYERS, PACKAGE_LAYERS, PYTHON_LAYERS
from builder.images.oci import blob_compression, layout
from tests.support import errors, image_bases, small_distribution
from tests.support.image_bases import OTHER, OWN, build_image
from tests.support.package_index import serve_index
from tests.support.small_distribution import ROOT, Chain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.images.oci.layout import Layout
    from builder.images.oci.oci_documents import Image

pytestmark = pytest.mark.slow

# The distribution's two packages, `helper` and `fromsource`, are in one layer by their hashes.
NAMES = [
    "base",
    "python-1",
    "python-3",
    "sources",
    "licences",
    "programs",
    *PACKAGE_LAYERS,
    "record",
]


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with serve_index() as index:
        made = small_distribution.make_distribution(tmp_path, index)
        image_bases.copy_base(tmp_path)
        yield made


def _read(chain: Chain, name: str = "image") -> Layout:
    return layout.read_layout(chain.folder / name)


def _image(read: Layout, architecture: str = OWN) -> Image:
    return next(image for image in read.index.images if image.architecture == architecture)


def _members(
    read: Layout, image: Image, layers: tuple[str, ...] = ()
) -> dict[str, tuple[str, tarfile.TarInfo, bytes]]:
    """Path -> the layer it is in, its header, its content."""
    found = {}
    for one in image.layers:
        if layers and one.name not in layers:
            continue
        with (
            open(layout.blob_path(read.folder, one), "rb") as packed,
            blob_compression.decompress_stream(packed) as plain,
            tarfile.open(fileobj=plain, mode="r|") as archive,
        ):
            for member in archive:
                file = archive.extractfile(member) if member.isreg() else None
                found[member.name] = (one.name, member, file.read() if file else b"")
    return found


def _digest(chain: Chain, *more: str) -> str:
    status, document, stderr = build_image(chain, *more)
    assert status == 0, stderr
    result: dict[str, Any] = document["result"]  # type: ignore[assignment]
    return str(result["digest"])


def test_both_architectures_in_one_index(chain: Chain) -> None:
    digest = _digest(chain)
    read = _read(chain)
    assert read.index.digest == digest
    assert [image.architecture for image in read.index.images] == ["amd64", "arm64"]
    for image in read.index.images:
        assert [one.name for one in image.layers] == NAMES
        members = _members(read, image)
        lock = json.loads(members["opt/rosetta/lock.json"][2])
        assert lock["architecture"] == image.architecture
        assert lock["base"]["name"] == "thebase:1"
        assert [row["diff_id"] for row in lock["layers"]] == [
            one.diff_id for one in image.layers[:-1]
        ]
        assert members["opt/thing/thing/__init__.py"][2].endswith(b'"good morning"\n')
        assert members["opt/rosetta/entrypoint"][1].mode == 0o755
        assert "opt/rosetta/share/bash-completion/completions/rosetta" in members
        config = json.loads(image.config)
        assert config["config"]["Entrypoint"] == ["/opt/rosetta/entrypoint"]
        assert {line.partition("=")[0] for line in config["config"]["Env"]} == {
            "PATH",
            "NVIDIA_VISIBLE_DEVICES",
            "NVIDIA_DRIVER_CAPABILITIES",
            "PYTHONNOUSERSITE",
            "PIP_CONSTRAINT",
        }
        assert config["config"]["Labels"]["io.rosetta.te.version"].startswith("none: ")
    one, other = (_members(read, image, (*PYTHON_LAYERS, "sources")) for image in read.index.images)
    assert one.keys() == other.keys(), "the packages of this test are the same on both"
    assert any(
        name.endswith(
            "__pycache__/helper.cpython-" + small_distribution.HERE.replace(".", "") + ".pyc"
        )
        for name in other
    )


def test_a_project_is_in_the_image_with_its_locked_packages(chain: Chain) -> None:
    small_distribution.add_project(chain, "addon", "more")
    _digest(chain, "--with", "addon")
    read = _read(chain)
    members = _members(read, _image(read))
    assert members["opt/addon/addon/__init__.py"][2] == b'NAME = "addon"\n'
    assert any(path.endswith("site-packages/more.py") for path in members)
    lock = json.loads(members["opt/rosetta/lock.json"][2])
    file = chain.folder / "locks/projects/addon.txt"
    assert lock["projects"] == {"addon": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert list(lock["sources"]) == ["addon", "thing"]


def test_the_environment_stands_where_the_image_has_it(chain: Chain) -> None:
    """Unpacked and started by the base's own loader, the packages, the source and rosetta are found."""
    _digest(chain)
    read = _read(chain)
    members = _members(read, _image(read))
    site = f"opt/rosetta/env/lib/python{small_distribution.HERE}/site-packages"
    assert (
        members["opt/rosetta/env/bin/python"][1].linkname
        == f"/usr/bin/python{small_distribution.HERE}"
    )
    assert {
        f"{site}/helper.py",
        f"{site}/fromsource.py",
        f"{site}/rosetta-sources.pth",
    } <= members.keys()
    root = chain.folder / "root"
    for one in _image(read).layers:
        with (
            open(layout.blob_path(read.folder, one), "rb") as packed,
            blob_compression.decompress_stream(packed) as plain,
            tarfile.open(fileobj=plain, mode="r|") as archive,
        ):
            archives.extract_verified(archive, root, keep_modes=True)
    found = next(path for path in sorted(chain.cache.glob("base/python-*/python")))
    code = f"import site; site.addsitedir({str(root / site)!r}); import thing, helper, fromsource, rosetta; print(thing.GREETING, rosetta.__file__)"
    done = subprocess.run(
        [found, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"good morning {root / 'opt/rosetta/rosetta/__init__.py'}\n"


def test_no_path_of_this_machine_in_any_layer(chain: Chain) -> None:
    _digest(chain)
    read = _read(chain)
    for image in read.index.images:
        members = _members(read, image, LAYERS)
        assert [
            name
            for name, (_, member, data) in members.items()
            if str(chain.folder).encode() in data or str(chain.folder) in member.linkname
        ] == []
        assert {
            (member.uid, member.gid, member.uname, member.mtime)
            for _, member, _ in members.values()
        } == {(0, 0, "", 315532800)}
        assert str(chain.folder).encode() not in image.config + image.manifest


def test_nothing_changed_writes_nothing(chain: Chain) -> None:
    first = _digest(chain)
    before = {
        path: path.stat().st_mtime_ns
        for path in (chain.folder / "image").rglob("*")
        if path.is_file()
    }
    shutil.rmtree(chain.folder / "uv")  # nothing is installed again
    chain.index.files.clear()
    assert _digest(chain, "--offline", "--no-mirror") == first
    assert before == {
        path: path.stat().st_mtime_ns
        for path in (chain.folder / "image").rglob("*")
        if path.is_file()
    }


def test_a_tar_is_not_written_twice(chain: Chain) -> None:
    place = chain.folder / "image.tar"
    status, _, stderr = build_image(chain, output=f"oci:{place}")
    assert status == 0, stderr
    first, state = place.read_bytes(), place.stat()
    status, _, stderr = build_image(chain, output=f"oci:{place}")
    assert (status, place.stat().st_mtime_ns, place.stat().st_ino) == (
        0,
        state.st_mtime_ns,
        state.st_ino,
    ), stderr
    place.write_bytes(first[:-512])
    status, _, stderr = build_image(chain, output=f"oci:{place}")
    assert status == 0, stderr
    assert place.read_bytes() == first


def test_dry_run_says_what_is_done_and_does_nothing(chain: Chain) -> None:
    def steps() -> dict[str, bool]:
        status, document, stderr = build_image(chain, "--dry-run")
        assert status == 0, stderr
        return {step["stage"]: step["done"] for step in document["result"]["steps"]}  # type: ignore[index]

    assert not any(steps().values())
    assert [
        path
        for path in chain.cache.rglob("*")
        if path.is_file() and path.name not in ("CACHEDIR.TAG", "use")
    ] == []
    _digest(chain)
    shutil.rmtree(chain.folder / "image")
    done = steps()
    assert all(done.values())
    assert f"layer python-3 for linux/{OTHER}" in done
    assert not (chain.folder / "image").exists()


def _find_moved_layers(chain: Chain, before: Layout) -> set[str]:
    """Build again; return the names of the layers that a machine with the old image would pull."""
    _digest(chain)
    moved = []
    for image in _read(chain).index.images:
        old_layers = _image(before, image.architecture).layers
        assert [one.name for one in image.layers] == [one.name for one in old_layers]
        old_digests = {one.digest for one in old_layers}
        moved.append({one.name for one in image.layers if one.digest not in old_digests})
    assert moved[0] == moved[1]
    return moved[0]


def test_another_source_changes_its_layer_and_the_record(chain: Chain) -> None:
    _digest(chain)
    before = _read(chain)
    chain.write_patch("good evening")
    assert _find_moved_layers(chain, before) == {"sources", "programs", "record"}


def test_another_version_of_a_package_changes_one_python_layer(chain: Chain) -> None:
    _digest(chain)
    before = _read(chain)
    wheel = small_distribution._write_wheel(
        chain.folder / "helper-1.1-py3-none-any.whl", "helper", "1.1"
    )
    digest = chain.index.add("helper", wheel)
    lock = chain.folder / "locks/thing-cpu.txt"
    pins = lock.read_text().partition("helper==1.0")[0]
    lock.write_text(f"{pins}helper==1.1 \\\n    --hash=sha256:{digest}\n")
    assert _find_moved_layers(chain, before) == {"python-3", "licences", "programs", "record"}


def test_a_file_left_out_of_a_package_is_in_no_layer(chain: Chain) -> None:
    _digest(chain)
    before = _read(chain)
    with open(chain.folder / "manifest.yaml", "a", encoding="utf-8") as manifest:
        manifest.write(
            'strip:\n  - {name: helper, files: ["help*.py"], why: "the test needs an entry"}\n'
        )
    assert _find_moved_layers(chain, before) == {"python-3", "record"}
    read = _read(chain)
    members = _members(read, _image(read), PYTHON_LAYERS)
    site = f"opt/rosetta/env/lib/python{small_distribution.HERE}/site-packages"
    assert not [path for path in members if "/helper." in path]
    assert f"{site}/fromsource.py" in members
    assert b"helper.py" not in members[f"{site}/helper-1.0.dist-info/RECORD"][2]


def test_an_edit_of_a_file_of_rosetta_changes_one_layer_of_the_package(chain: Chain) -> None:
    package = chain.folder / "checkout/rosetta"
    shutil.copytree(ROOT / "rosetta", package, ignore=shutil.ignore_patterns("__pycache__"))
    chain.extra["ROSETTA_BISECT_PACKAGE"] = str(package)
    _digest(chain)
    before = _read(chain)
    sizes = {one.name: one.size for one in _image(before).layers}
    with open(package / "commands/info.py", "a", encoding="utf-8") as file:
        file.write("\n# an edit\n")
    moved = _find_moved_layers(chain, before)
    assert moved == {"rosetta-8", "record"}
    assert sum(sizes[name] for name in moved) < 500_000


def test_an_edit_of_rosetta_is_built_on_the_known_foundation(chain: Chain) -> None:
    """The image is the one that a build from nothing makes."""
    package = chain.folder / "checkout/rosetta"
    shutil.copytree(ROOT / "rosetta", package, ignore=shutil.ignore_patterns("__pycache__"))
    chain.extra["ROSETTA_BISECT_PACKAGE"] = str(package)
    _digest(chain)
    (note,) = (chain.folder / "cache/stamps").glob("foundation-*.json")
    os.utime(note, (0, 0))
    first = note.stat()
    with open(package / "t5x/network.py", "a", encoding="utf-8") as file:
        file.write("\n# an edit\n")
    edited = _digest(chain)
    assert (note.stat().st_ino, note.stat().st_mtime > 0) == (first.st_ino, True)
    shutil.rmtree(chain.folder / "cache")
    assert _digest(chain) == edited
    chain.write_patch("good evening")
    assert _digest(chain) != edited


def test_distributions_of_a_line_share_what_they_have_in_common(chain: Chain) -> None:
    """A second distribution with one package more: all of the first's lower layers are its too, byte for byte, though made in another cache."""
    _digest(chain)
    first = _read(chain)
    extra = small_distribution._write_wheel(
        chain.folder / "extra-1.0-py3-none-any.whl", "extra", "1.0"
    )
    lock = (chain.folder / "locks/thing-cpu.txt").read_text()
    (chain.folder / "locks/more-cpu.txt").write_text(
        f"extra==1.0 \\\n    --hash=sha256:{chain.index.add('extra', extra)}\n{lock}"
    )
    manifest = chain.folder / "manifest.yaml"
    manifest.write_text(
        manifest.read_text().replace(
            "sdists:",
            "  more: {line: line, sources: [thing], accelerators: [cpu], architectures: [amd64, arm64]}\nsdists:",
        )
    )
    chain.extra["ROSETTA_CACHE"] = str(chain.folder / "cache2")
    status, _, stderr = build_image(chain, "--distribution", "more")
    assert status == 0, stderr
    for one in first.index.images:
        other = _image(_read(chain), one.architecture)
        assert [each.name for each in other.layers] == [*NAMES[:3], "own", *NAMES[3:]]
        assert [each.digest for each in other.layers[:3]] == [
            each.digest for each in one.layers[:3]
        ]


def test_the_same_on_another_machine(chain: Chain) -> None:
    first = _digest(chain)
    shutil.rmtree(chain.folder / "image")
    shutil.rmtree(chain.folder / "uv")
    chain.extra |= {
        "ROSETTA_CACHE": str(chain.folder / "elsewhere/cache"),
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
    }
    old = os.umask(0o077)
    try:
        assert _digest(chain) == first
    finally:
        os.umask(old)


def test_compressions_hold_the_same_content(chain: Chain) -> None:
    _digest(chain)
    first = _read(chain)
    status, _, stderr = build_image(
        chain, "--compression", "zstd", output=f"oci:{chain.folder}/other"
    )
    assert status == 0, stderr
    other = _read(chain, "other")
    assert [one.diff_id for one in _image(first).layers[:-1]] == [
        one.diff_id for one in _image(other).layers[:-1]
    ]
    assert {one.media_type.rpartition("+")[2] for one in _image(other).layers} == {"zstd"}


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--platform", "linux/riscv64"), "linux/amd64"),
        (("--platform", "windows/amd64"), "linux/amd64"),
        (("--accelerator", "cuda12"), "cpu"),
        (("--python", "3.11"), "--base"),
        (("--since", "lock.json"), "bundle"),
        (("--transformer-engine", "yes"), "CUDA"),
        (("--base", "oci:nowhere"), "index.json"),
        (("--output", "oci:"), "oci:PATH"),
        (("--output", "image:Big/Name"), "lower-case"),
        (("--output", "registry:nohost:1"), "HOST"),
    ],
)
def test_bad_requests(chain: Chain, more: tuple[str, ...], word: str) -> None:
    status, document, stderr = build_image(chain, *more)
    assert status == 2, stderr
    assert word in json.dumps(document["error"])
    assert "Traceback" not in stderr
    assert not (chain.folder / "image").exists()


def test_zstd_where_it_may_not_be_read_is_said(chain: Chain) -> None:
    place = f"bundle:{chain.folder}/bundle"
    for more, said in ((("--compression", "zstd"), True), ((), False)):
        status, _, stderr = build_image(chain, *more, output=place)
        assert status == 0, stderr
        assert ("cannot read zstd" in stderr) is said


def test_options_of_images_do_not_go_with_an_environment(chain: Chain) -> None:
    status, document, _ = chain.run("--platform", "linux/amd64")
    assert status == 2
    assert "--platform" in document["error"]["where"]


def test_one_architecture_that_fails_leaves_nothing(chain: Chain) -> None:
    manifest = json.loads((chain.folder / "base-layout/index.json").read_text())
    assert manifest
    read = layout.read_layout(chain.folder / "base-layout")
    blob = layout.blob_path(read.folder, _image(read, OTHER).layers[0])
    whole = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(whole[:-1] + b"x")
    status, document, stderr = build_image(chain)
    assert status == 2, stderr
    assert document["result"] is None
    assert not (chain.folder / "image").exists()
    blob.write_bytes(whole)
    _digest(chain)
    assert len(_read(chain).index.images) == 2


def test_a_foreign_folder_is_refused_before_anything_is_made(chain: Chain) -> None:
    (chain.folder / "image").mkdir()
    (chain.folder / "image/mine.txt").write_text("mine")
    status, document, _ = build_image(chain)
    assert status == 2
    error = errors.from_document(document)
    errors.check_error(error, errors.EXISTS, where=chain.folder / "image")
    assert not (chain.cache / "layers").exists()


def test_a_damaged_blob_is_made_again(chain: Chain) -> None:
    first = _digest(chain)
    shutil.rmtree(chain.folder / "image")
    for blob in sorted((chain.cache / "blobs/sha256").iterdir())[:3]:
        blob.chmod(0o644)
        blob.write_bytes(blob.read_bytes()[:-1])
    assert _digest(chain) == first
    _read(chain)


def test_a_full_disk_is_one_line_and_a_rerun_converges(chain: Chain) -> None:
    if os.geteuid():
        pytest.skip("a small file system needs root")
    wanted = _digest(chain)
    shutil.rmtree(chain.folder / "image")
    small = chain.folder / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        status, _, stderr = build_image(chain, output=f"oci:{small}/image")
        assert status == 2
        assert "o space left" in stderr
        assert "Traceback" not in stderr
        assert list(small.iterdir()) == []
        subprocess.run(["mount", "-o", "remount,size=500m", str(small)], check=True)
        status, document, stderr = build_image(chain, output=f"oci:{small}/image")
        assert status == 0, stderr
        assert document["result"]["digest"] == wanted  # type: ignore[index]
        layout.read_layout(small / "image")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_killed_at_any_stage_a_rerun_ends_right(chain: Chain) -> None:
    """SIGKILL at ten points over the whole build: no half layout, and one more run gives what an undisturbed build gives."""
    chain.extra["KILL_AT"] = "0"
    common = (
        "--output",
        f"oci:{chain.folder}/image",
        "--base",
        f"oci:{image_bases.copy_base(chain.folder)}",
    )
    wanted = _digest(chain)
    for folder in (chain.folder / "image", chain.cache):
        shutil.rmtree(folder)
    status, _, stderr = chain.run(*common, program=small_distribution.KILLED)
    assert status == 0, stderr
    total = int(stderr.split()[-1])
    assert total > 10
    for point in sorted({1 + total * part // 10 for part in range(10)}):
        for folder in (chain.folder / "image", chain.cache):
            shutil.rmtree(folder, ignore_errors=True)
        chain.extra["KILL_AT"] = str(point)
        argv = [
            sys.executable,
            "-I",
            "-c",
            small_distribution.KILLED,
            str(ROOT),
            *chain.argv(*common),
        ]
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            env=chain.environment(),
            cwd=chain.folder,
            start_new_session=True,
        )
        assert done.returncode == -signal.SIGKILL, (point, done.stderr)
        assert not (chain.folder / "image").exists()
        chain.extra["KILL_AT"] = "0"
        assert _digest(chain) == wanted, point
        _read(chain)


def test_killed_while_a_layout_is_replaced(chain: Chain) -> None:
    """The place holds the old image or the new one, never a mixture, and a rerun brings the new one."""
    old = _digest(chain)
    chain.write_patch("good night")
    new = ""
    for point in range(1, 400, 12):
        chain.extra["KILL_AT"] = str(point)
        argv = [
            sys.executable,
            "-I",
            "-c",
            small_distribution.KILLED,
            str(ROOT),
            *chain.argv(
                "--output",
                f"oci:{chain.folder}/image",
                "--base",
                f"oci:{image_bases.copy_base(chain.folder)}",
            ),
        ]
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            env=chain.environment(),
            cwd=chain.folder,
            start_new_session=True,
        )
        if (chain.folder / "image").exists():
            new = _read(chain).index.digest
        if done.returncode == 0:
            break
    else:
        pytest.fail("it never came to an end")
    assert _digest(chain) == new != old
    assert [path.name for path in chain.folder.iterdir() if path.name.startswith(".image")] == []
