"""Images go into a registry and come back: the same tests on the registry of a few lines and on a real one, whole and with every fault."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from builder.images.oci import layer, layout, oci_documents
from builder.images.registry import download, image_push, upload
from rosetta.core.errors import UserError
from tests.support import errors, image_registry
from tests.support.image_registry import Fault, Served
from tests.support.registry_fixtures import pauses_, served_

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache

pytestmark = pytest.mark.registry

__all__ = ["pauses_", "served_"]  # fixtures


def test_an_image_goes_there_and_comes_back(cache: Cache, served: Served, tmp_path: Path) -> None:
    index = image_registry.make_image(cache, architectures=("amd64", "arm64"))
    pushed = image_push.push_image(cache, index, f"{served.host}/team/t5x:cuda13")
    assert (pushed.digest, pushed.moved, pushed.previous) == (index.digest, pushed.total, "")
    assert served.tag("team/t5x", "cuda13") == index.digest
    assert served.sent("PUT")[-1] == "/v2/team/t5x/manifests/cuda13"
    assert (
        sum(path.count("blobs/uploads") for path in served.sent("POST")) == 7
    )  # the base's layer is in both and goes once

    assert (
        download.pull_image(f"{served.host}/team/t5x:cuda13", tmp_path / "back", layers=True).digest
        == index.digest
    )
    back = layout.read_layout(tmp_path / "back")
    assert back.index.document == index.document
    assert [image.config for image in back.index.images] == [image.config for image in index.images]
    found = image_registry.pull_manifest(f"{served.host}/team/t5x@{index.digest}")
    assert (found.data, found.media_type) == (index.document, oci_documents.INDEX)


def test_only_what_is_missing_moves(cache: Cache, served: Served) -> None:
    name = f"{served.host}/t5x:nightly"
    first = image_registry.make_image(cache, size=3_000_000)
    image_push.push_image(cache, first, name)
    second = image_registry.make_image(cache, size=3_000_000, top="two")
    pushed = image_push.push_image(cache, second, name)
    assert (served.tag("t5x", "nightly"), pushed.previous) == (second.digest, first.digest)
    assert pushed.moved == second.images[0].layers[-1].size + sum(
        map(len, (second.images[0].config, second.images[0].manifest, second.document))
    )
    assert f"of {pushed.total / 1e6:.1f} MB" in str(pushed)

    served.log.clear()
    image_push.push_image(cache, second, name)
    assert not [path for path in served.sent("PUT") if "uploads" in path]
    assert served.sent("POST") == []


def test_blobs_of_a_repository_beside_are_mounted(cache: Cache, served: Served) -> None:
    index = image_registry.make_image(cache)
    image_push.push_image(cache, index, f"{served.host}/base:1")
    served.log.clear()
    pushed = image_push.push_image(cache, index, f"{served.host}/other:1", "base")
    assert pushed.mounted == sum(each.size for each in index.images[0].layers) + len(
        index.images[0].config
    )
    assert not [path for path in served.sent("PUT") if "uploads" in path]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("500", "PUT", "uploads", skip=1, times=99),
        Fault("500", "POST", skip=2, times=99),
        Fault("500", "PUT", "manifests/sha256", skip=1, times=99),
        Fault("cut", "PUT", "uploads", skip=1, times=99),
        Fault("corrupt", "PUT", "uploads", skip=1, times=99),
        Fault("lose", "PUT", "uploads", skip=3),
        Fault("html", "HEAD", "blobs", skip=1, times=99),
        Fault("html", "POST", times=99),
        Fault("html", "PUT", "manifests", times=99),
        Fault("429", "PUT", "uploads", retry_after="100000"),
        Fault("500", "GET", "manifests", times=99),
        Fault("corrupt", "GET", "manifests/sha256", times=99),
        Fault("corrupt", "GET", "blobs/sha256", times=99),
        Fault("401", "POST", times=99),
        Fault("503", "HEAD", "blobs", times=99),
        Fault("413", "PUT", "uploads", times=99),
        Fault("404", "PUT", "manifests/sha256"),
    ],
    ids=lambda fault: f"{fault.kind} to {fault.method} {fault.path}",
)
def test_a_failed_push_moves_no_tag_and_the_next_one_moves_the_rest(
    cache: Cache, served: Served, fault: Fault
) -> None:
    name = f"{served.host}/team/t5x:latest"
    old = image_registry.make_image(cache, top="old")
    image_push.push_image(cache, old, name)
    new = image_registry.make_image(
        cache, top="new", size=200_000, architectures=("amd64", "arm64")
    )
    served.faults.append(Fault(**vars(fault)))
    with pytest.raises(UserError) as problem:
        image_push.push_image(cache, new, name)
    assert served.tag("team/t5x", "latest") == old.digest
    assert "\n" not in str(problem.value)
    assert served.host in str(problem.value)
    assert "secret-state" not in str(problem.value)

    served.faults.clear()
    arrived = image_push.push_image(cache, new, name)
    assert served.tag("team/t5x", "latest") == new.digest
    assert arrived.moved <= arrived.total
    if fault.method in ("GET", "PUT") and "manifests" in fault.path:
        assert arrived.moved == sum(len(image.manifest) for image in new.images) + len(
            new.document
        )  # the blobs had arrived


@pytest.mark.parametrize(
    "fault",
    [
        Fault("500", "PUT", "uploads", times=2),
        Fault("503", "POST", times=3),
        Fault("cut", "PUT", "uploads", times=2),
        Fault("corrupt", "PUT", "uploads"),
        Fault("500", "PUT", "manifests", times=3),
        Fault("other digest", "PUT", "manifests/sha256"),
        Fault("other digest", "PUT", "manifests/latest"),
        Fault("truncate", "GET", "manifests"),
        Fault("cut", "HEAD", "blobs"),
        Fault("corrupt", "GET", "manifests/sha256"),
        Fault("cut", "GET", "manifests"),
        Fault("500", "PUT", "manifests/latest", times=2),
    ],
    ids=lambda fault: f"{fault.kind} to {fault.method} {fault.path}",
)
def test_what_passes_by_is_tried_again(
    cache: Cache, served: Served, fault: Fault, pauses: list[float]
) -> None:
    served.faults.append(Fault(**vars(fault)))
    index = image_registry.make_image(cache)
    image_push.push_image(cache, index, f"{served.host}/t5x:latest")
    assert served.tag("t5x", "latest") == index.digest
    assert served.faults[0].times == 0
    assert pauses


def test_a_blob_that_is_lost_after_all_was_accepted_is_noticed(
    cache: Cache, served: Served
) -> None:
    name = f"{served.host}/t5x:latest"
    old, new = (
        image_registry.make_image(cache, top="old"),
        image_registry.make_image(cache, top="new"),
    )
    image_push.push_image(cache, old, name)
    lost = new.images[0].layers[-1].digest
    served.before = lambda method, _path: (
        served.lose(lost[7:])
        if method == "HEAD" and new.digest in str(served.sent("PUT"))
        else None
    )
    with errors.expect_user_error(errors.FAILED, value=lost):
        image_push.push_image(cache, new, name)
    assert served.tag("t5x", "latest") == old.digest
    served.before = lambda _method, _path: None
    assert (
        image_push.push_image(cache, new, name).digest == served.tag("t5x", "latest") == new.digest
    )
    assert served.sent("PUT")[-1].endswith("/latest")


_PUSHER = """
import sys
from pathlib import Path
from builder.core.cache import Cache
from builder.images.registry import image_push
from tests.support import image_registry
cache = Cache(Path(sys.argv[1]))
image_push.push_image(cache, image_registry.make_image(cache, top="new"), sys.argv[2])
"""


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "uploads"), ("PUT", "manifests/sha256"), ("PUT", "manifests/latest")],
)
def test_a_killed_push_moves_no_tag(cache: Cache, served: Served, method: str, path: str) -> None:
    name = f"{served.host}/t5x:latest"
    old, new = (
        image_registry.make_image(cache, top="old"),
        image_registry.make_image(cache, top="new"),
    )
    image_push.push_image(cache, old, name)
    with subprocess.Popen(
        [sys.executable, "-c", _PUSHER, str(cache.root), name], stderr=subprocess.DEVNULL
    ) as started:

        def before(came: str, target: str) -> None:
            if came == method and path in target:
                started.kill()
                started.wait()

        served.before = before
        assert started.wait() == -signal.SIGKILL
    served.before = lambda _method, _path: None
    if path != "manifests/latest":  # the request that moves the tag was already under way
        assert served.tag("t5x", "latest") == old.digest
    image_push.push_image(cache, new, name)
    assert served.tag("t5x", "latest") == new.digest


def test_retry_after_is_honoured(cache: Cache, served: Served, pauses: list[float]) -> None:
    served.faults.append(Fault("429", "PUT", "uploads", retry_after="17"))
    image_push.push_image(cache, image_registry.make_image(cache), f"{served.host}/t5x:latest")
    assert pauses == [17.0]


def test_a_registry_that_does_not_take_large_bodies_gets_pieces(
    cache: Cache, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "CHUNK", 100_000)
    served.faults.append(Fault("413", "PUT", "uploads", larger=400_000, times=9))
    index = image_registry.make_image(cache, size=450_000)
    pushed = image_push.push_image(cache, index, f"{served.host}/t5x:latest")
    assert pushed.moved == pushed.total
    assert served.tag("t5x", "latest") == index.digest
    assert [size for method, _, size, _ in served.log if method == "PATCH"][:4] == [100_000] * 4


def test_a_damaged_blob_of_ours_is_named(cache: Cache, served: Served) -> None:
    index = image_registry.make_image(cache)
    damaged = layer.blob_path(cache, index.images[0].layers[1].digest)
    data = bytearray(damaged.read_bytes())
    data[1000] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(data)
    with errors.expect_user_error(errors.DAMAGED, where=damaged):
        image_push.push_image(cache, index, f"{served.host}/t5x:latest")
    assert served.tag("t5x", "latest") == ""


def test_a_blob_comes_whole_or_not_at_all(cache: Cache, served: Served, tmp_path: Path) -> None:
    index = image_registry.make_image(cache)
    name = f"{served.host}/t5x:latest"
    image_push.push_image(cache, index, name)
    wanted = index.images[0].layers[1]
    served.faults += [Fault("truncate", "GET", "blobs"), Fault("corrupt", "GET", "blobs")]
    download.download_blob(name, wanted.digest, wanted.size, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == layer.blob_path(cache, wanted.digest).read_bytes()
    served.faults += [Fault("corrupt", "GET", "blobs", times=99)]
    with pytest.raises(UserError):
        download.download_blob(name, wanted.digest, wanted.size, tmp_path / "bad")
    assert sorted(each.name for each in tmp_path.iterdir() if "b" in each.name[:5]) == ["blob"]


def test_two_pushes_at_once_end_right(cache: Cache, served: Served) -> None:
    first, second = (
        image_registry.make_image(cache, top="a"),
        image_registry.make_image(cache, top="b"),
    )
    problems: list[BaseException] = []

    def one(index: oci_documents.Index) -> None:
        try:
            image_push.push_image(
                cache, index, f"{served.host}/t5x:{'a' if index is first else 'b'}"
            )
        except BaseException as problem:  # noqa: BLE001 - it is looked at below
            problems.append(problem)

    threads = [threading.Thread(target=one, args=(index,)) for index in (first, second)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert problems == []
    assert (served.tag("t5x", "a"), served.tag("t5x", "b")) == (first.digest, second.digest)


def test_what_is_no_image_is_said_so(served: Served) -> None:
    with errors.expect_user_error(errors.FAILED, value=404):
        image_registry.pull_manifest(f"{served.host}/nothing:here")
    served.faults.append(Fault("html", "GET", times=9))
    with errors.expect_user_error(errors.INVALID, names="web page"):
        image_registry.pull_manifest(f"{served.host}/nothing:here")


def test_nothing_listens(cache: Cache) -> None:
    with (
        image_registry.closed_port() as port,
        errors.expect_user_error(errors.UNREACHABLE, where=f"127.0.0.1:{port}") as problem,
    ):
        image_push.push_image(
            cache, image_registry.make_image(cache), f"127.0.0.1:{port}/t5x:latest"
        )
    assert "\n" not in str(problem.value)
