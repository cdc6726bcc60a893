"""A small Transformer Engine: an sdist of two sources, the packages whose headers they include, Debian's headers of Python, and a manifest with locks."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from builder.core import manifest
from builder.core.command_context import Context
from builder.packages.debian_lock import Deb
from builder.packages.lock_file import Pin
from builder.packages.transformer_engine import header_packages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.core.cache import Cache
    from tests.support.package_index import Index

VERSION = "1.2.0"
PKG_INFO = f"""Metadata-Version: 2.4
Name: transformer_engine_jax
Version: {VERSION}
License-File: LICENSE
Requires-Dist: jax
Requires-Dist: transformer_engine_cu12=={VERSION}
"""
# Each header comes from another package: what is not on the include path does not compile.
_INCLUDES = (
    "Python.h",
    "cuda.h",
    "nccl.h",
    "nvtx.h",
    "cudnn_frontend.h",
    "common.h",
    "transformer_engine.h",
    "extensions.h",
    "xla/ffi.h",
    "pybind11/pybind11.h",
)
SOURCES = {
    "one.cpp": "".join(f"#include <{name}>\n" for name in _INCLUDES)
    + 'extern "C" __attribute__((visibility("default"))) const char *where() { return __FILE__; }\n',
    "two.cpp": '#include <string>\nextern "C" int ncclGroupStart();\nnamespace { std::string hidden() { return "x"; } }\nint two() { return ncclGroupStart() + (int)hidden().size(); }\n',
}


@dataclass(frozen=True)
class Te:
    """The repository around it, and the index that has its packages."""

    root: Path
    index: Index

    def manifest(self) -> manifest.Manifest:
        return manifest.load(self.root / "manifest.yaml")

    def context(self, cache: Cache, *, offline: bool = False) -> Context:
        return Context(self.root, self.root / "manifest.yaml", cache, offline)

    def with_headers(self, cache: Cache) -> Cache:
        """The same cache, with the package of headers as if it had been fetched."""
        for file in (self.root / "debs").glob("*.deb"):
            shutil.copy(file, cache.path("debs", file.name))
        return cache


def need_compiler(architecture: str = "amd64") -> None:
    """Skip, loudly, where there is no g++ for that architecture, or no dpkg."""
    for program in ("dpkg-deb", _name_compiler(architecture)):
        if not shutil.which(program):
            pytest.skip(f"NOT CHECKED: no {program} is on PATH")


def _name_compiler(architecture: str) -> str:
    return (
        "g++"
        if {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine()) == architecture
        else f"{header_packages.TRIPLETS[architecture]}-g++"
    )


def make_project(
    root: Path, index: Index, architecture: str = "amd64", sources: Mapping[str, str] = SOURCES
) -> Te:
    """All of it below `root`, its packages on the index."""
    made = root.parent / f"made-{root.name}"
    for folder in (root / "locks/l", root / "debs", root / "patches", made):
        folder.mkdir(parents=True)
    (root / "patches/series").touch()
    machine = header_packages.TRIPLETS[architecture].partition("-")[0]
    tag = f"py3-none-manylinux_2_17_{machine}"
    packages = {
        "jaxlib": (tag, {"jaxlib/include/xla/ffi.h": b""}),
        "nvidia-cuda-runtime": (
            tag,
            {
                "nvidia/cu13/include/cuda.h": b"",
                "nvidia/cu13/lib/libcudart.so.13": _compile_library(
                    made, architecture, "libcudart.so.13", "cudaFree"
                ),
            },
        ),
        "nvidia-nccl-cu13": (
            tag,
            {
                "nvidia/nccl/include/nccl.h": b"",
                "nvidia/nccl/lib/libnccl.so.2": _compile_library(
                    made, architecture, "libnccl.so.2", "ncclGroupStart"
                ),
            },
        ),
        "nvidia-nccl-cu12": (tag, {"nvidia/nccl/include/nccl.h": b"#error CUDA 12\n"}),
        "nvidia-nvtx": (tag, {"nvidia/cu13/include/nvtx.h": b""}),
        "nvidia-cudnn-frontend": (
            tag,
            {"nvidia_cudnn_frontend-1.data/data/include/cudnn_frontend.h": b""},
        ),
        "pybind11": ("py3-none-any", {"pybind11/include/pybind11/pybind11.h": b""}),
        "transformer-engine-cu13": (tag, {"transformer_engine/x": b""}),
    }
    pins = {
        name: Pin(name, "1", "", (index.add(name, _write_wheel(made, name, tag, files)),))
        for name, (tag, files) in packages.items()
    }
    locks = {
        "l/common": ("jaxlib", "nvidia-cuda-runtime", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
        "l/te-cuda13": ("nvidia-cudnn-frontend", "transformer-engine-cu13"),
        "te-build": ("nvidia-nvtx", "pybind11"),
    }
    for path, names in locks.items():
        (root / f"locks/{path}.txt").write_text(
            "".join(pins[name].requirement_lines() for name in names)
        )
    sdist = index.add("transformer-engine-jax", _write_sdist(made, sources))
    deb = _write_deb(root / "debs", made, architecture)
    (root / header_packages.FILE).write_text(
        header_packages.render_lock({("3.13", architecture): deb})
    )
    (root / "manifest.yaml").write_text(f"""version: 1
sources:
  one: {{wheel: one==1.0, sha256: "{"0" * 64}", patches: patches}}
lines:
  l: {{python: "3.13", pythons: ["3.12", "3.13"], common: locks/l/common.in, base: b}}
  other: {{python: "3.13", pythons: ["3.13"], common: locks/l/common.in}}
distributions:
  one: {{line: l, sources: [one], accelerators: [cpu, cuda13], architectures: [{architecture}]}}
bases:
  b: {{image: "debian:x", bootstrap: x}}
transformer-engine: {{version: "{VERSION}", sha256: "{sdist}", lines: [l], accelerators: [cuda13], why: "a test of the build"}}
""")
    return Te(root, index)


def _write_wheel(folder: Path, name: str, tag: str, files: Mapping[str, bytes]) -> Path:
    module = name.replace("-", "_")
    info, path = f"{module}-1.dist-info", folder / f"{module}-1-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, data in files.items():
            archive.writestr(file, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.2\nName: {name}\nVersion: 1\n")
        archive.writestr(
            f"{info}/WHEEL",
            f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {tag}\n",
        )
        rows = [*files, f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
        archive.writestr(f"{info}/RECORD", "".join(f"{row},,\n" for row in rows))
    return path


def _write_sdist(folder: Path, sources: Mapping[str, str]) -> Path:
    top = f"transformer_engine_jax-{VERSION}"
    files = {
        "PKG-INFO": PKG_INFO,
        "LICENSE": "all rights\n",
        "csrc/extensions.h": "",
        "common_headers/common.h": "",
        "common_headers/common/x.h": "",
        "common_headers/common/include/transformer_engine.h": "",
        **{f"csrc/extensions/{name}": text for name, text in sources.items()},
    }
    path = folder / f"{top}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{top}/{file}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def _compile_library(folder: Path, architecture: str, name: str, function: str) -> bytes:
    """A shared library of one function."""
    source, out = folder / f"{name}.c", folder / name
    source.write_text(f'extern "C" int {function}() {{ return 0; }}\n')
    subprocess.run(
        [
            _name_compiler(architecture),
            "-x",
            "c++",
            "-shared",
            "-fPIC",
            f"-Wl,-soname,{name}",
            "-o",
            str(out),
            str(source),
        ],
        check=True,
    )
    return out.read_bytes()


def _write_deb(into: Path, folder: Path, architecture: str) -> Deb:
    """Debian's package of headers, as small as it can be, in `into` under its sha256."""
    tree, triplet = folder / "deb", header_packages.TRIPLETS[architecture]
    files = {
        "DEBIAN/control": f"Package: libpython3.13-dev\nVersion: 3.13.5-1\nArchitecture: {architecture}\nMaintainer: x <x@localhost>\nDescription: x\n",
        "usr/include/python3.13/Python.h": f"#include <{triplet}/python3.13/pyconfig.h>\n",
        f"usr/include/{triplet}/python3.13/pyconfig.h": "",
    }
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    path = folder / "headers.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", str(tree), str(path)],
        check=True,
        capture_output=True,
    )
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    (into / f"{digest}.deb").write_bytes(data)
    name = f"libpython3.13-dev_3.13.5-1_{architecture}.deb"
    return Deb(
        "libpython3.13-dev",
        "3.13.5-1",
        architecture,
        f"pool/main/p/python3.13/{name}",
        digest,
        len(data),
        "os",
    )


def read_build_note(wheel: Path) -> dict[str, object]:
    """What a wheel says of how it was made."""
    with zipfile.ZipFile(wheel) as archive:
        known: dict[str, object] = json.loads(
            archive.read(f"transformer_engine_jax-{VERSION}.dist-info/rosetta-build.json")
        )
    return known
