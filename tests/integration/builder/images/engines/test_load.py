"""Images into real engines: the same image comes out, run as any user, and a load that fails leaves no name behind."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.core.cache import Cache
from builder.images.engines import container_engine, engine_program, image_archive
from builder.images.engines.docker import Docker
from builder.images.oci import layer, oci_documents
from builder.images.oci.tar_entry import make_file
from rosetta.core.errors import UserError
from tests.support import container_engines, errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.images.engines.container_engine import Engine
    from builder.images.oci.oci_documents import Index

pytestmark = pytest.mark.engine

ENGINES = ("docker", "buildah")
ROOT = Path(__file__).parents[5]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


def _index(
    cache: Cache,
    architectures: tuple[str, ...] = (container_engines.HERE,),
    *,
    top: str = "top",
    compression: str = "zstd",
) -> Index:
    base = layer.rewrite_layer(
        cache,
        f"base-{compression}",
        "base",
        compression,
        lambda: open(layer.blob_path(cache, container_engines.make_base_layer(cache).digest), "rb"),  # noqa: SIM115 - from_tar closes it
    )
    images = []
    for architecture in architectures:
        own = layer.write_layer(
            cache,
            f"{top}-{architecture}-{compression}",
            "rosetta",
            compression,
            lambda architecture=architecture: [make_file("opt/top", f"{top} {architecture}\n")],  # type: ignore[misc]
        )
        images.append(
            oci_documents.make_image(
                architecture,
                [base, own],
                "2026-01-02T03:04:05Z",
                {"Cmd": ["cat", "/opt/top"], "Env": ["PATH=/usr/bin"]},
                {},
            )
        )
    return oci_documents.make_index(images, {})


@contextlib.contextmanager
def _tag(used: Engine, text: str) -> Iterator[str]:
    tag = f"localhost/rosetta-test-{os.getpid()}:{text}"
    try:
        yield tag
    finally:
        if used.name == "buildah":
            engine_program.run_program("buildah", "manifest", "rm", tag, check=False)
        used.remove([tag, f"{tag}-amd64", f"{tag}-arm64"])


def _name_temporary_images(cache: Cache, index: Index) -> list[str]:
    """Return the names that an image has while docker (the first) or buildah loads it."""
    return [
        container_engine.name_temporary_image(cache, digest[7:23])
        for digest in (index.digest, *(image.digest for image in index.images))
    ]


def _has_no_temporary_name(used: Engine, cache: Cache, index: Index) -> bool:
    return not any(used.find_digest(name) for name in _name_temporary_images(cache, index))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("compression", ["zstd", "gzip"])
def test_loaded_and_run(shared: Cache, name: str, compression: str) -> None:
    used = container_engines.need_engine(name)
    index = _index(shared, compression=compression)
    with _tag(used, f"run-{compression}") as tag:
        assert used.load(shared, index, tag) == tag
        assert used.find_digest(tag) in {index.images[0].config_digest, index.images[0].digest}
        done = used.run(
            tag,
            [],
            container_engine.RunLimits(user="12345", read_only=True, memory_folders=("/tmp",)),
        )
        assert (done.returncode, done.stdout) == (0, f"top {container_engines.HERE}\n"), done.stderr
        assert used.run(tag, ["sh", "-c", "exit 7"], container_engine.RunLimits()).returncode == 7
        assert (
            used.run(
                tag, ["sh", "-c", "echo x > /opt/x"], container_engine.RunLimits(read_only=True)
            ).returncode
            != 0
        )
        assert (
            used.run(tag, ["id", "-u"], container_engine.RunLimits(user="12345:0")).stdout
            == "12345\n"
        )
        # Again, and with another top: what is below is there already.
        assert used.load(shared, index, tag) == tag
        before = used.find_digest(tag)
        used.load(shared, _index(shared, top="other", compression=compression), tag)
        used.remove([before.removeprefix("sha256:")])
        assert (
            used.run(tag, [], container_engine.RunLimits()).stdout
            == f"other {container_engines.HERE}\n"
        )
    assert _has_no_temporary_name(used, shared, index)


def test_an_image_that_loses_its_name_leaves_dockers_new_store(shared: Cache) -> None:
    used = container_engines.need_engine("docker")
    assert isinstance(used, Docker)
    if not used._daemon.has_containerd_store():
        pytest.skip("NOT CHECKED: this docker has the classic store, where old images stay")
    first, second = _index(shared, top="before"), _index(shared, top="after")
    with _tag(used, "named") as tag:
        used.load(shared, first, tag)
        used.load(shared, second, tag)
        assert used.find_digest(tag) == second.images[0].digest
        assert used.find_digest(first.images[0].digest) == ""


@pytest.mark.parametrize("name", ENGINES)
def test_the_same_image_in_the_other_compression(shared: Cache, tmp_path: Path, name: str) -> None:
    """Its layers are the same unpacked, but none of the blobs is."""
    used = container_engines.need_engine(name)
    with _tag(used, "first") as first, _tag(used, "second") as second:
        used.load(shared, _index(shared, top="both", compression="gzip"), first)
        used.load(shared, _index(shared, top="both", compression="zstd"), second)
        assert (
            used.run(second, [], container_engine.RunLimits()).stdout
            == f"both {container_engines.HERE}\n"
        )
        # Docker's store has to have the blobs too, not only what they unpack to.
        used.save(second, tmp_path / "saved.tar")
        assert image_archive.read_archive(tmp_path / "saved.tar").diff_ids == tuple(
            each.diff_id for each in _index(shared, top="both").images[0].layers
        )


@pytest.mark.parametrize("name", ENGINES)
def test_several_architectures_under_one_name(shared: Cache, name: str) -> None:
    used = container_engines.need_engine(name)
    index = _index(shared, ("amd64", "arm64"), top="several")
    with _tag(used, "several") as tag:
        if isinstance(used, Docker) and not used._daemon.has_containerd_store():
            with errors.expect_user_error(
                errors.UNSUPPORTED, names=("amd64", "arm64"), remedy=("--platform", "oci:")
            ):
                used.load(shared, index, tag)
            assert used.find_digest(tag) == ""
            return
        for _ in range(2):
            used.load(shared, index, tag)
            done = used.run(
                tag, [], container_engine.RunLimits(architecture=container_engines.HERE)
            )
            assert done.stdout == f"several {container_engines.HERE}\n", done.stderr
    assert _has_no_temporary_name(used, shared, index)


@pytest.mark.parametrize("name", ENGINES)
def test_a_blob_that_is_not_what_it_should_be_gives_no_name(tmp_path: Path, name: str) -> None:
    used = container_engines.need_engine(name)
    cache = Cache(tmp_path / "cache")
    index = _index(cache, top="broken")
    blob = layer.blob_path(cache, index.images[0].layers[1].digest)
    data = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(bytes(len(data)))
    with _tag(used, "broken") as tag:
        with pytest.raises(UserError):
            used.load(cache, index, tag)
        assert used.find_digest(tag) == ""
        assert _has_no_temporary_name(used, cache, index)
        blob.write_bytes(data)
        used.load(cache, index, tag)
        assert used.run(tag, [], container_engine.RunLimits()).returncode == 0


@pytest.mark.parametrize("name", ENGINES)
def test_a_kill_leaves_no_name_and_a_rerun_ends_right(
    shared: Cache, tmp_path: Path, name: str
) -> None:
    used = container_engines.need_engine(name)
    big = layer.write_layer(
        shared, "big", "big", "zstd", lambda: [make_file("opt/big", os.urandom(1 << 20) * 100)]
    )
    index = oci_documents.make_index(
        [
            oci_documents.make_image(
                container_engines.HERE,
                [container_engines.make_base_layer(shared), big],
                "2026-01-02T03:04:05Z",
                {"Cmd": ["id", "-u"]},
                {},
            )
        ],
        {},
    )
    script = tmp_path / "load.py"
    script.write_text(
        "import sys, pickle, pathlib\nfrom builder.core.cache import Cache\nfrom builder.images.engines import container_engine\n"
        "index = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\nprint('go', flush=True)\ncontainer_engine.choose_engine(sys.argv[2]).load(Cache(pathlib.Path(sys.argv[3])), index, sys.argv[4])\n"
    )
    (tmp_path / "index").write_bytes(pickle.dumps(index))
    with _tag(used, "killed") as tag:
        for wait in (0.0, 0.15, 0.4):
            process = subprocess.Popen(
                [sys.executable, str(script), str(tmp_path / "index"), name, str(shared.root), tag],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            assert process.stdout
            assert process.stdout.readline() == b"go\n"
            time.sleep(wait)
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
            if used.find_digest(tag):  # it was faster than the signal: then it is whole
                assert used.run(tag, [], container_engine.RunLimits(user="7")).stdout == "7\n"
        used.load(shared, index, tag)
        assert used.run(tag, [], container_engine.RunLimits(user="7")).stdout == "7\n"
    assert _has_no_temporary_name(used, shared, index)


@pytest.mark.parametrize("name", ENGINES)
def test_what_a_killed_run_left_goes_even_where_nothing_is_to_do(shared: Cache, name: str) -> None:
    """Killed between the image's name and the end of its temporary one."""
    used = container_engines.need_engine(name)
    index = _index(shared, top="left")
    with _tag(used, "left") as tag:
        used.load(shared, index, tag)
        for each in _name_temporary_images(shared, index):
            engine_program.run_program(name, "tag", tag, each)
        assert not _has_no_temporary_name(used, shared, index)
        used.load(shared, index, tag)
        assert not used.find_digest(_name_temporary_images(shared, index)[name == "buildah"])
        used.remove(_name_temporary_images(shared, index))


@pytest.mark.parametrize("name", ENGINES)
def test_builds_with_other_caches_load_the_same_image_at_the_same_time(
    tmp_path: Path, name: str
) -> None:
    """The end of a load removes a temporary name, which must not be the one of another load."""
    used = container_engines.need_engine(name)
    caches = [Cache(tmp_path / f"cache{number}") for number in range(3)]
    indexes = [_index(cache, top="contended") for cache in caches]
    assert len({index.digest for index in indexes}) == 1
    with contextlib.ExitStack() as stack:
        tags = [stack.enter_context(_tag(used, f"contended-{number}")) for number in range(3)]
        with ThreadPoolExecutor(len(caches)) as pool:
            loads = [
                pool.submit(used.load, cache, index, tag)
                for cache, index, tag in zip(caches, indexes, tags, strict=True)
            ]
            assert [load.result() for load in loads] == tags
        assert len({used.find_digest(tag) for tag in tags}) == 1
    for cache, index in zip(caches, indexes, strict=True):
        assert _has_no_temporary_name(used, cache, index)


def test_a_program_of_an_engine_ends_with_us(tmp_path: Path) -> None:
    """It would go on, and name an image after the next run was done."""
    held = tmp_path / "held"
    os.mkfifo(held)
    script = "import sys; from builder.images.engines import engine_program; engine_program.run_program('sh', '-c', 'exec 3> \"$0\"; echo go >&3; sleep 20 3>&-; echo it went on >&3', sys.argv[1])"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(held)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with open(held, "rb") as reader:
        assert reader.readline() == b"go\n"
        process.kill()
        process.wait()
        assert reader.read() == b"", "its other end was not closed by a program that ended"


def test_choice() -> None:
    with errors.expect_user_error(errors.UNKNOWN, where="--engine", value="lxc", remedy="docker"):
        container_engine.choose_engine("lxc")


def test_none_at_all_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with errors.expect_user_error(errors.MISSING, where="--engine", remedy="oci:PATH"):
        container_engine.choose_engine()
    assert container_engine.find_engine() is None
    for name in ENGINES:
        with errors.expect_user_error(errors.MISSING, value=name, remedy=f"install {name}"):
            container_engine.find_engine(name)


def test_a_daemon_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not shutil.which("docker"):
        pytest.skip("NOT CHECKED: no docker program here")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with errors.expect_user_error(errors.UNREACHABLE, where="docker", remedy="DOCKER_HOST"):
        container_engine.choose_engine("docker")
