"""Find the engines of this machine, make small bases, and search all bytes of an image."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import zlib
from typing import TYPE_CHECKING

import pytest

from builder.core.cache import Cache, stage_key
from builder.images.engines import container_engine, engine_program
from builder.images.oci import blob_compression, layer, layout, oci_documents
from builder.images.oci.tar_entry import Entry, make_file, make_folder
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from builder.images.engines.container_engine import Engine
    from builder.images.engines.image_archive import ExportedImage
    from builder.images.oci.layer import Layer

HERE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def need_engine(name: str, *, builds: bool = False) -> Engine:
    """The engine of this name; the test is skipped where it does not answer, or cannot build."""
    try:
        found = container_engine.choose_engine(name)
        if (
            builds
            and name == "docker"
            and "--secret"
            not in engine_program.run_program(
                "docker", "build", "--help", env={"DOCKER_BUILDKIT": "1"}, check=False
            ).stdout
        ):
            pytest.skip("NOT CHECKED: this docker has no BuildKit")
        return found
    except UserError as error:
        pytest.skip(f"NOT CHECKED: no {name} answers here ({error.what})")


def make_base_layer(
    cache: Cache,
    *extra: Entry,
    programs: Iterable[str] = (
        "sh",
        "cat",
        "cp",
        "mkdir",
        "rm",
        "mv",
        "ln",
        "ls",
        "env",
        "id",
        "date",
        "touch",
        "sed",
        "chmod",
    ),
) -> Layer:
    """Return a layer with a shell, some programs of this machine, their libraries and `extra`."""
    found: dict[str, Entry] = {}
    for name in programs:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"NOT CHECKED: this machine has no {name}")
        found[f"usr/bin/{name}"] = _make_copied_entry(path, f"usr/bin/{name}")
        shown = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+)", shown):
            found[library.lstrip("/")] = _make_copied_entry(library, library.lstrip("/"))
    found["bin/sh"] = _make_copied_entry("/bin/sh", "bin/sh")
    for entry in (
        make_folder("tmp", 0o1777),
        make_folder("root", 0o700),
        make_folder("run"),
        make_folder("etc"),
        make_file("etc/os-release", 'ID=debian\nVERSION_CODENAME="forky"\n'),
        *extra,
    ):
        found[entry.path] = entry
    key = stage_key("test-base", {"entries": [repr(found[path]) for path in sorted(found)]})
    return layer.write_layer(cache, key, "base", "gzip", lambda: list(found.values()))


def _make_copied_entry(path: str, name: str) -> Entry:
    real = os.path.realpath(path)
    return Entry(name, "file", 0o755, source=real, size=os.path.getsize(real))


def iterate_all_bytes(exported: ExportedImage) -> Iterator[tuple[str, bytes]]:
    """Yield all bytes of an image with their place: files, unpacked layers, unpacked gzip files."""

    with tarfile.open(exported.archive) as archive:
        for member in archive:
            yield f"header of {member.name}", json.dumps(member.get_info(), default=str).encode()
            if content := archive.extractfile(member):
                yield member.name, content.read()
    for number, open_ in enumerate(exported.layers):
        with open_() as packed, blob_compression.decompress_stream(packed) as plain:
            data = plain.read()
        yield f"layer {number}", data
        for found in re.finditer(rb"\x1f\x8b\x08", data):
            yield f"gzip in layer {number}", _inflate_gzip_member(data, found.start())


def _inflate_gzip_member(data: bytes, at: int) -> bytes:
    """What a gzip member that begins there holds; as much of it as is sound."""
    member, out = zlib.decompressobj(wbits=31), []
    try:
        while not member.eof and at < len(data):
            out.append(member.decompress(data[at : at + 65536]))
            at += 65536
    except zlib.error:
        pass
    return b"".join(out)


def find_markers(exported: ExportedImage, markers: Iterable[str]) -> list[str]:
    """Where an image has any of these markers."""
    return [
        f"{marker} in {place}"
        for place, data in iterate_all_bytes(exported)
        for marker in markers
        if marker.encode() in data
    ]


def read_layer_content(cache: Cache, made: Layer) -> dict[str, tuple[int, bytes]]:
    """Mode and content (or target of a link) of each entry of a layer but folders."""

    found = {}
    with (
        open(layer.blob_path(cache, made.digest), "rb") as packed,
        blob_compression.decompress_stream(packed) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        for member in archive:
            if not member.isdir():
                data = archive.extractfile(member) if member.isreg() else None
                found[member.name] = (
                    member.mode,
                    data.read() if data else member.linkname.encode(),
                )
    return found


def copy_dockerfile_context(
    root: Path, target: Path, script: str = "", *, before: str = ""
) -> Path:
    """A copy of our Dockerfile.base and docker/; with another install-packages where `script` is one, `before` ahead of the RUN step."""
    shutil.copytree(root / "docker", target / "docker")
    text = (root / "Dockerfile.base").read_text(encoding="utf-8")
    (target / "Dockerfile.base").write_text(
        text.replace("RUN --mount", f"{before}\nRUN --mount", 1), encoding="utf-8"
    )
    if script:
        (target / "docker/install-packages").write_text(script, encoding="utf-8")
    return target


def import_layout(found: Engine, folder: Path, tag: str, architecture: str) -> None:
    """Bring one architecture of an image layout into an engine."""
    scratch = Cache(folder.with_name(f"{folder.name}-taken"))
    read = layout.read_layout(folder)
    (image,) = (each for each in read.index.images if each.architecture == architecture)

    def taken(each: Layer) -> Layer:
        return layer.rewrite_layer(
            scratch,
            each.diff_id,
            each.name,
            "gzip",
            lambda: open(layout.blob_path(folder, each), "rb"),
        )

    layers = [taken(each) for each in image.layers]
    document = json.loads(image.config)
    found.load(
        scratch,
        oci_documents.make_index(
            [
                oci_documents.make_image(
                    architecture, layers, document["created"], document["config"], {}
                )
            ],
            {},
        ),
        tag,
    )
