"""A base for images of a test's small distribution: an OCI layout with the running Python in it, and for the other architecture one that only looks so."""

from __future__ import annotations

import functools
import platform
import shutil
import tempfile
from pathlib import Path

import pytest

from builder.core import machine_architecture
from builder.core.cache import Cache
from builder.images.oci import layer, layout, oci_documents
from builder.images.oci.tar_entry import Entry, make_file
from tests.support import debian_packages
from tests.support.small_distribution import Chain

_KEPT = tempfile.TemporaryDirectory(prefix="rosetta-test-base-")
FULL = platform.python_version()
OWN = machine_architecture.ARCHITECTURES.get(platform.machine(), "")
OTHER = {"amd64": "arm64", "arm64": "amd64"}.get(OWN, "")


def _list_probed_files(architecture: str) -> list[Entry]:
    """What is looked at in a base, of an architecture whose programs do not run here."""
    elf = b"\x7fELF".ljust(18, b"\0") + {"amd64": 62, "arm64": 183}[architecture].to_bytes(
        2, "little"
    )
    version = FULL.rpartition(".")[0]
    return [
        make_file(
            "usr/lib/libc.so.6",
            elf + b"..GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n..",
            0o755,
        ),
        make_file(f"usr/bin/python{version}", elf + b"\0" + FULL.encode() + b"\0", 0o755),
        *(make_file(f"usr/lib/python{version}/{name}", b"") for name in debian_packages.STDLIB),
        Entry(f"usr/lib/python{version}/lib-dynload", "dir", 0o755),
    ]


def copy_base(folder: Path) -> Path:
    """The layout in this folder: made once for all tests, so that a test may damage its copy."""
    debian_packages.need_programs("ldd")
    if not OWN or platform.libc_ver()[0] != "glibc":
        pytest.skip("NOT CHECKED: bases are of glibc, on x86_64 or aarch64")
    place = folder / "base-layout"
    if not place.exists():
        shutil.copytree(_make_base_once(), place)
    return place


@functools.cache
def _make_base_once() -> Path:
    """Kept until the tests end."""
    folder = Path(_KEPT.name)
    place, cache = folder / "layout", Cache(folder / "cache")
    if not place.exists():
        made = {
            OWN: layer.write_layer(
                cache, "own", "base", "gzip", debian_packages.list_running_python_files
            ),
            OTHER: layer.write_layer(
                cache, "other", "base", "gzip", lambda: _list_probed_files(OTHER)
            ),
        }
        images = [
            oci_documents.make_image(
                architecture, [each], "2026-01-01T00:00:00Z", {"Env": ["PATH=/usr/bin:/bin"]}, {}
            )
            for architecture, each in made.items()
        ]
        layout.write_layout(cache, oci_documents.make_index(images, {}), place, name="thebase:1")
    return place


def build_image(
    chain: Chain, *more: str, output: str = "", before: tuple[str, ...] = ()
) -> tuple[int, dict[str, object], str]:
    """Run the builder with an image as output; its status, its JSON document and its stderr."""
    manifest = chain.folder / "manifest.yaml"
    text = manifest.read_text()
    if "bases:" not in text:
        text = text.replace(
            "common: locks/line/common.in}", "common: locks/line/common.in, base: any}"
        )
        manifest.write_text(
            text + 'bases:\n  any: {image: "debian:trixie-slim", bootstrap: trixie}\n'
        )
    place = ["--base", f"oci:{copy_base(chain.folder)}"]
    return chain.run(
        "--output", output or f"oci:{chain.folder}/image", *place, *more, before=before
    )
