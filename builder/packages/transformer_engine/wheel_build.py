"""The stage that compiles Transformer Engine's bindings for JAX into a wheel, for this architecture
or by cross compiler for the other.

The sdist's own setup.py asks the JAX that runs it for paths and the CUDA version, so it cannot be
driven for another architecture or Python. What it would do is short and stands here: the same
sources, include folders in the same order, macros, link and wheel content.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tarfile
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import archives, log, package_index, subprocesses
from builder.core.cache import Cache, remove_path, stage_key
from builder.packages import python_interpreter, sdist_building, uv, wheel_record
from builder.packages.transformer_engine import (
    compiler,
    header_packages,
    object_files,
    preload_library,
    version_pins,
    wheel_file,
)
from builder.packages.transformer_engine.header_packages import TRIPLETS
from builder.packages.transformer_engine.wheel_file import Target
from rosetta.core.errors import MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from builder.core.manifest import Manifest
    from builder.packages.debian_lock import Deb
    from builder.packages.lock_file import Pin
    from builder.packages.transformer_engine.compiler import Compiler

RECORD = "wheel.json"
# What build_tools/jax.py and pybind11's helpers give the compiler, and what Debian's Python adds
# that matters.
FLAGS = (
    "-O3",
    "-g0",
    "-DNDEBUG",
    "-fwrapv",
    "-fPIC",
    "-std=c++17",
    "-fvisibility=hidden",
    "-DNVTE_WITH_NCCL_EP",
)
# Lazy binding even where a compiler has it otherwise: symbols of CUDA's libraries come from those
# that are loaded before. And libnccl stands beside it.
LINK = (
    "-shared",
    "-s",
    "-Wl,-O1",
    "-Wl,-z,relro",
    "-Wl,-z,lazy",
    "-Wl,--build-id=none",
    "-Wl,--enable-new-dtags",
    "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib",
)


@dataclass(frozen=True)
class Plan:
    """All that decides a wheel but the compiler: the target, the sdist's sha256, the packages it is
    compiled against, the headers of Python.
    """

    target: Target
    sdist: str
    pins: tuple[Pin, ...]
    headers: Deb
    headers_date: str = ""  # of the lock of the headers; decides nothing of the wheel

    @property
    def inputs(self) -> str:
        """The key of it, the same on every machine."""
        return stage_key(
            "te",
            {
                "compiled": self.compiled,
                "link": LINK,
                "loader": preload_library.PLACES[self.target.accelerator],
            },
        )

    @property
    def compiled(self) -> str:
        """The key of what is linked into it."""
        packages = [[pin.name, pin.version, *pin.hashes] for pin in self.pins]
        return stage_key(
            "te-compiled",
            {
                "target": asdict(self.target),
                "sdist": self.sdist,
                "packages": packages,
                "headers": self.headers.sha256,
                "flags": FLAGS,
            },
        )

    @property
    def where(self) -> str:
        """The wheel's target, as error messages name it."""
        return (
            f"{version_pins.SOURCE} {self.target.version} ({self.target.accelerator}, "
            f"{self.target.architecture}, Python {self.target.python})"
        )


@dataclass(frozen=True)
class BuiltWheel:
    """A wheel in the cache.

    `glibc` is the oldest that can load it; `effort` what it took (empty for one made elsewhere).
    """

    path: Path
    sha256: str
    glibc: str
    effort: dict[str, Any]


def make_plan(
    manifest: Manifest, line: str, accelerator: str, architecture: str, python_version: str
) -> Plan:
    """Read what the manifest and the locks say; UserError where it is not for this line,
    accelerator or Python.
    """
    te = version_pins.require_entry(manifest, line, accelerator)
    known = manifest.lines[line].pythons
    if python_version not in known:
        raise UserError(
            f"the line {line!r} has no locks for Python {python_version}",
            "--python",
            f"give one of: {', '.join(known)}",
            kind=UNSUPPORTED,
            value=python_version,
        )
    target = Target(te.version, accelerator, architecture, python_version)
    pins = version_pins.compile_time_pins(manifest, line, accelerator, python_version, architecture)
    return Plan(
        target,
        te.sha256,
        tuple(pins),
        header_packages.require_package(manifest, python_version, architecture),
        header_packages.read_lock(manifest).date,
    )


def wheel_key(wanted: Plan, by: Compiler) -> str:
    """Return the cache key of the wheel that this compiler makes of this plan."""
    return stage_key("te-wheel", {"inputs": wanted.inputs, "compiler": by.identity, "layout": 1})


def find_cached_wheel(cache: Cache, folder: str) -> BuiltWheel | None:
    """Return a wheel that the cache has under this name; None where it has none or a damaged
    one.
    """
    place = cache.path("wheels", folder)
    try:
        known = json.loads((place / RECORD).read_text(encoding="ascii"))
        made = BuiltWheel(place / known["file"], known["sha256"], known["glibc"], known["effort"])
        return made if hashlib.sha256(made.path.read_bytes()).hexdigest() == made.sha256 else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def ensure_wheel(cache: Cache, wanted: Plan, *, offline: bool, at_once: int = 0) -> BuiltWheel:
    """Return the wheel of a plan: from the cache, or compiled now by the machine's compiler,
    `at_once` files at a time (0: what the machine bears).
    """
    by = compiler.find_compiler(wanted.target.architecture)
    name = f"te-{wheel_key(wanted, by)}"
    inputs = {"compiled": wanted.compiled, "compiler": by.identity}
    halfway = f"te-objects-{stage_key('te-objects', inputs)}"

    def make(folder: Path) -> None:
        start = time.monotonic()
        with log.stage(f"fetch what {wanted.where} is compiled from and against"):
            source = _ensure_source(cache, wanted, offline=offline)
            against = _ensure_dependencies(cache, wanted, offline=offline)
            includes = _include_flags(
                source,
                against,
                header_packages.ensure_headers(
                    cache, wanted.headers, wanted.headers_date, offline=offline
                ),
                wanted.target,
            )
        files = sorted((source / "csrc" / "extensions").glob("*.cpp"))
        kept = cache.ensure_folder("wheels", halfway, lambda _: None, grows=True)
        scratch = folder / "scratch"
        scratch.mkdir()
        at_once_ = at_once or object_files.default_job_count()
        with log.stage(f"compile {wanted.where}: {len(files)} files, {at_once_} at a time"):
            made, effort = object_files.compile_all(
                by,
                files,
                [*FLAGS, *_path_map_flags(cache), *includes],
                kept,
                scratch,
                at_once=at_once_,
            )
        module = _link_module(by, made, against, scratch)
        meta = wheel_file.adapt_metadata(
            (source / "PKG-INFO").read_text(encoding="utf-8"), wanted.target.accelerator
        )
        note = {
            "inputs": wanted.inputs,
            "compiler": by.identity,
            "sdist": wanted.sdist,
            "against": [pin.text.partition(" ;")[0] for pin in wanted.pins],
        }
        place, library = preload_library.link_library(
            by, wanted.target.accelerator, against, scratch
        )
        content = {wanted.target.module: module, place: library}
        _refuse_paths(content, cache, wanted.where)
        path = wheel_file.write_wheel(
            folder, wanted.target, content, meta, (source / "LICENSE").read_bytes(), note
        )
        spent = {
            "seconds": round(time.monotonic() - start, 1),
            "peak_bytes": effort.peak,
            "at_once": at_once_,
            "files": effort.seconds,
            "compiler": by.identity,
        }
        write_record(folder, path, wanted.target, spent)
        remove_path(scratch)

    with contextlib.suppress(OSError):
        if made := find_cached_wheel(cache, name):
            return made
    cache.ensure_folder("wheels", name, make)
    if made := find_cached_wheel(cache, name):
        remove_path(cache.path("wheels", halfway))
        return made
    raise UserError(
        "the cached wheel is damaged",
        str(cache.path("wheels", name)),
        "delete that folder and run again",
    )


def write_record(folder: Path, path: Path, target: Target, effort: dict[str, Any]) -> None:
    """Write down beside a wheel what is known of it, for `have`."""
    with zipfile.ZipFile(path) as archive:
        module = archive.read(target.module)
    known = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "glibc": wheel_file.find_required_glibc(module),
        "effort": effort,
    }
    (folder / RECORD).write_text(json.dumps(known, indent=1, sort_keys=True), encoding="ascii")


def _ensure_source(cache: Cache, wanted: Plan, *, offline: bool) -> Path:
    """Return the sdist, unpacked."""

    def make(folder: Path) -> None:
        archive = package_index.fetch_file(
            version_pins.SOURCE,
            wanted.target.version,
            wanted.sdist,
            cache.path("wheels", "sdist"),
            part=".tar.gz",
            offline=offline,
        )
        try:
            with tarfile.open(archive) as tar:
                archives.extract_verified(tar, folder)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise UserError(
                f"does not unpack ({' '.join(str(error).split())[:200]})",
                archive.name,
                "delete it and run again",
            ) from error

    folder = cache.ensure_folder("wheels", f"te-source-{wanted.sdist}", make)
    found = folder / f"{wheel_file.PROJECT}-{wanted.target.version}"
    if not (found / "csrc" / "extensions").is_dir():
        raise UserError(
            "its sdist has no csrc/extensions",
            version_pins.SOURCE,
            (
                "this release is laid out otherwise: see "
                "builder/packages/transformer_engine/wheel_build.py"
            ),
        )
    return found


def _ensure_dependencies(cache: Cache, wanted: Plan, *, offline: bool) -> Path:
    """Return the locked packages it is compiled against, unpacked for the target as they would be
    installed.
    """
    target = wanted.target
    machine = TRIPLETS[target.architecture].partition("-")[0]

    def make(folder: Path) -> None:
        requirements = folder / "requirements.txt"
        requirements.write_text(
            "".join(pin.requirement_lines() for pin in wanted.pins), encoding="utf-8"
        )
        uv.run(
            "pip",
            "install",
            "--quiet",
            "--target",
            str(folder / "site"),
            "--python",
            str(python_interpreter.builder_interpreter().path),
            "--python-version",
            target.python,
            "--python-platform",
            f"{machine}-manylinux_2_28",
            "--no-deps",
            "--require-hashes",
            "--only-binary",
            ":all:",
            "-r",
            str(requirements),
            offline=offline,
            where=wanted.where,
        )
        wheel_record.require_unedited(folder / "site", wanted.where)

    packages = [[pin.name, pin.version, *pin.hashes] for pin in wanted.pins]
    return (
        cache.ensure_folder(
            "env",
            stage_key(
                "te-against",
                {
                    "packages": packages,
                    "python": target.python,
                    "architecture": target.architecture,
                },
            ),
            make,
        )
        / "site"
    )


def _include_flags(source: Path, site: Path, python_headers: Path, target: Target) -> list[str]:
    """Return the include folders, in the order of the package's own build."""
    common = source / "common_headers"
    folders = [
        *sorted(site.glob("nvidia/*/include")),
        site / "include",
        common,
        common / "common",
        common / "common" / "include",
        source / "csrc",
        site / "jaxlib" / "include",
        site / "pybind11" / "include",
        python_headers / "usr" / "include" / f"python{target.python}",
    ]
    if missing := [each for each in folders if not each.is_dir()]:
        raise UserError(
            f"no folder {missing[0].name} is in what it is compiled against",
            str(missing[0].parent),
            "check locks/te-build.in and the te-*.in of the line",
        )
    # Debian's pyconfig.h asks for <TRIPLET/python3.X/pyconfig.h>; the compiler's own C headers come
    # before this one.
    return [
        *(f"-I{each}" for each in folders),
        "-idirafter",
        str(python_headers / "usr" / "include"),
    ]


def _path_map_flags(cache: Cache) -> list[str]:
    """No path of this machine in what is compiled: messages of the code name its files."""
    return [f"-ffile-prefix-map={cache.root}=rosetta"]


def _link_module(by: Compiler, parts: list[Path], site: Path, scratch: Path) -> bytes:
    out = scratch / "module.so"
    nccl = site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    if not nccl.is_file():
        raise UserError(
            "libnccl.so.2 is not in what it is compiled against",
            str(nccl.parent),
            "check the locks: nvidia-nccl is missing",
            kind=MISSING,
        )
    argv = [
        *sdist_building.network_isolation_prefix(),
        by.program,
        *LINK,
        *map(str, parts),
        str(nccl),
        "-o",
        str(out),
    ]
    subprocesses.run_program(
        argv,
        where=version_pins.SOURCE,
        what="does not link",
        do="check the compiler's libraries",
        env=object_files.compiler_environment(scratch),
        cwd=scratch,
    )
    return out.read_bytes()


def _refuse_paths(content: dict[str, bytes], cache: Cache, where: str) -> None:
    for path in {str(cache.root), str(cache.root.resolve()), str(Path.home())} - {"/"}:
        for name, data in content.items():
            if path.encode() + b"/" in data:
                raise UserError(
                    f"{name} names this machine's folder {path}",
                    where,
                    "use a g++ that knows -ffile-prefix-map",
                )
