"""Bases that are images: by a real engine, from its own storage, from a layout and from a registry on the loopback address."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.core.manifest import Manifest
from builder.images.base import base_image
from builder.images.engines import engine_program
from builder.images.engines.container_engine import Engine
from builder.images.oci import layer, layout, oci_documents
from builder.images.oci.layer import Layer
from builder.images.oci.tar_entry import Entry, make_file, make_folder
from builder.packages import debian_lock
from tests.support import container_engines, debian_packages, image_registry

pytestmark = pytest.mark.engine

ENV = ["PATH=/usr/bin:/bin", "LANG=C.UTF-8", "XLA_FLAGS=x"]
TAG = "localhost/rosetta-test-base:1"


def _system() -> list[Entry]:
    """A base without apt that has all: the step of Dockerfile.base asks for these programs and libraries, and finds them. Its shell is this machine's."""
    needed = re.findall(
        r"(/\S+)",
        subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout,
    )
    real = [
        make_file(name.lstrip("/"), Path(name).read_bytes(), 0o755)
        for name in ["/bin/sh", *sorted(set(needed))]
    ]
    script = make_file(
        "usr/bin/python3",
        "#!/bin/sh\ncase $0 in *ldconfig) echo libibverbs.so.1 librdmacm.so.1 libnuma.so.1;; esac\n",
        0o755,
    )
    found = [entry for entry in debian_packages.list_system_files(libc=b"") if entry.path != "lib"]
    return [
        *found,
        *real,
        *(
            replace(script, path=f"usr/bin/{name}")
            for name in ("python3", "git", "numactl", "ps", "ldconfig")
        ),
        *(make_folder(name) for name in ("dev", "etc", "proc", "root", "run", "sys", "tmp", "var")),
    ]


@pytest.fixture(params=["docker", "buildah"])
def chosen(request: pytest.FixtureRequest) -> Engine:
    debian_packages.need_programs("ldd")
    if os.uname().machine != "x86_64":
        pytest.skip("NOT CHECKED: the image of this test is for x86_64")
    return container_engines.need_engine(request.param, builds=True)


def _resolve(
    cache: Cache, loaded: Manifest, asked: str, name: str, *, offline: bool = False
) -> base_image.Base:
    return base_image.resolve_bases(
        Context(loaded.root, loaded.root / "manifest.yaml", cache, offline),
        loaded,
        "current",
        asked,
        ["amd64"],
        name,
        "gzip",
    )["amd64"]


def _image(cache: Cache) -> tuple[Layer, oci_documents.Index]:
    made = layer.write_layer(cache, "system", "base", "gzip", _system)
    return made, oci_documents.make_index(
        [oci_documents.make_image("amd64", [made], "1980-01-01T00:00:00Z", {"Env": ENV}, {})], {}
    )


def test_an_image_of_the_engines_own(chosen: Engine, cache: Cache, tmp_path: Path) -> None:
    loaded = debian_packages.load_manifest(tmp_path)
    made, index = _image(cache)
    chosen.load(cache, index, TAG)
    try:
        found = _resolve(cache, loaded, TAG, chosen.name)
        assert (found.name, found.python_full, found.env) == (TAG, "3.13.5", ("LANG=C.UTF-8",))
        assert [each.diff_id for each in found.layers] == [made.diff_id]
        assert _resolve(cache, loaded, TAG, chosen.name) == found
    finally:
        chosen.remove([TAG])
    assert not debian_lock.lock_path(loaded, "trixie", "amd64").exists()


def test_a_layout_is_taken_as_it_is(cache: Cache, tmp_path: Path) -> None:
    loaded = debian_packages.load_manifest(tmp_path)
    made = layer.write_layer(cache, "system", "base", "gzip", debian_packages.list_system_files)
    index = oci_documents.make_index(
        [oci_documents.make_image("amd64", [made], "1980-01-01T00:00:00Z", {"Env": ENV}, {})], {}
    )
    layout.write_layout(cache, index, tmp_path / "layout", name="x:1")
    found = _resolve(cache, loaded, f"oci:{tmp_path / 'layout'}", "", offline=True)
    assert (found.name, found.digest, found.env, [each.diff_id for each in found.layers]) == (
        "x:1",
        index.images[0].digest,
        ("LANG=C.UTF-8",),
        [made.diff_id],
    )


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """An empty registry; yields HOST:PORT."""
    with image_registry.serve_docker_registry(tmp_path) as served:
        yield served.host


def test_the_digest_of_a_registrys_image_is_recorded_at_first_use(
    chosen: Engine, cache: Cache, tmp_path: Path, registry: str
) -> None:
    if chosen.name != "docker":
        pytest.skip(
            "NOT CHECKED: this buildah speaks TLS only to a registry that its own settings do not list"
        )
    reference = f"{registry}/debian:trixie-slim"
    text = debian_packages.REAL.read_text(encoding="utf-8").replace("debian:trixie-slim", reference)
    loaded = debian_packages.load_manifest(tmp_path)
    (tmp_path / "manifest.yaml").write_text(text, encoding="utf-8")
    loaded = debian_packages.manifest_of(tmp_path)
    made, index = _image(cache)
    chosen.load(cache, index, reference)
    engine_program.run_program("docker", "push", "--quiet", "--", reference)
    chosen.remove([reference])
    found = _resolve(cache, loaded, "", chosen.name)
    assert (found.name, [each.diff_id for each in found.layers]) == (reference, [made.diff_id])
    lock = debian_lock.load_lock(loaded, "trixie", "amd64")
    assert dict(lock.images) == {reference: found.digest}
    # From then on the record counts, without engine and registry, whatever the tag says.
    assert _resolve(cache, loaded, "", chosen.name, offline=True) == found
    assert (
        _resolve(
            cache, loaded, f"{registry}/debian@{found.digest}", chosen.name, offline=True
        ).layers
        == found.layers
    )
