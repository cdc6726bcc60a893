"""Compile Transformer Engine's bindings for JAX into a wheel.

The wheel is for this machine's architecture, or for the other one with a cross compiler.

The setup.py of the sdist takes paths and the CUDA version from the JAX that runs it. Therefore it
cannot build for another architecture or Python. This module repeats its few steps: the same
sources, include folders in the same order, macros, link options and wheel content.
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
# The options of build_tools/jax.py and of pybind11's helpers, and those options of Debian's Python
# that change the code.
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
# Lazy binding, whatever the compiler's default is: the symbols of CUDA's libraries come from
# libraries that are loaded earlier. The rpath finds the libnccl of NVIDIA's wheel.
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
    """The inputs of a wheel, without the compiler.

    Attributes:
        target: The version, accelerator, architecture and Python.
        sdist: The sha256 of the sdist.
        pins: The locked packages with the headers and libraries to compile against.
        headers: The Debian package with the headers of Python.
        headers_date: The day of the lock of `headers`, for Debian's snapshot service; not part of
            any key.
    """

    target: Target
    sdist: str
    pins: tuple[Pin, ...]
    headers: Deb
    headers_date: str = ""

    @property
    def inputs(self) -> str:
        """The cache key of all inputs, which is the same on every machine."""
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
        """The cache key of the compiled objects."""
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

    Attributes:
        path: The file.
        sha256: Its hash.
        glibc: The oldest glibc that can load the compiled module, for example "2.34".
        effort: The time and memory of the compilation; empty for an imported wheel.
    """

    path: Path
    sha256: str
    glibc: str
    effort: dict[str, Any]


def make_plan(
    manifest: Manifest, line: str, accelerator: str, architecture: str, python_version: str
) -> Plan:
    """Return the inputs of a wheel, as the manifest and the locks set them.

    Raises:
        UserError: The line, the accelerator or the Python version has no Transformer Engine.
    """
    te = version_pins.require_entry(manifest, line, accelerator)
    locked_versions = manifest.lines[line].pythons
    if python_version not in locked_versions:
        raise UserError(
            f"the line {line!r} has no locks for Python {python_version}",
            "--python",
            f"give one of: {', '.join(locked_versions)}",
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


def wheel_key(plan: Plan, host_compiler: Compiler) -> str:
    """Return the cache key of the wheel that a compiler builds from a plan."""
    return stage_key(
        "te-wheel", {"inputs": plan.inputs, "compiler": host_compiler.identity, "layout": 1}
    )


def find_cached_wheel(cache: Cache, folder: str) -> BuiltWheel | None:
    """Return the wheel in a folder of the cache; None if it is missing or damaged."""
    path = cache.path("wheels", folder)
    try:
        record = json.loads((path / RECORD).read_text(encoding="ascii"))
        wheel = BuiltWheel(
            path / record["file"], record["sha256"], record["glibc"], record["effort"]
        )
        sha256 = hashlib.sha256(wheel.path.read_bytes()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return wheel if sha256 == wheel.sha256 else None


def ensure_wheel(cache: Cache, plan: Plan, *, offline: bool, compiler_count: int = 0) -> BuiltWheel:
    """Return the wheel of a plan; compile it if the cache lacks it.

    Args:
        cache: Keeps the wheel, and the object files of a build that was stopped.
        plan: What the wheel is compiled from and against.
        offline: Fetch nothing from the network.
        compiler_count: The number of compilers that run at the same time; 0 chooses it from the
            cores and the free memory of this machine.

    Raises:
        UserError: There is no suitable compiler, a package cannot be fetched, or the compilation
            fails.
    """
    host_compiler = compiler.find_compiler(plan.target.architecture)
    name = f"te-{wheel_key(plan, host_compiler)}"
    inputs = {"compiled": plan.compiled, "compiler": host_compiler.identity}
    objects_name = f"te-objects-{stage_key('te-objects', inputs)}"
    with contextlib.suppress(OSError):
        if wheel := find_cached_wheel(cache, name):
            return wheel

    def build(folder: Path) -> None:
        job = _Compilation(
            cache,
            plan,
            host_compiler,
            objects_name,
            compiler_count or object_files.default_job_count(),
        )
        _build_wheel(job, folder, offline=offline)

    cache.ensure_folder("wheels", name, build)
    if wheel := find_cached_wheel(cache, name):
        remove_path(cache.path("wheels", objects_name))
        return wheel
    raise UserError(
        "the cached wheel is damaged",
        str(cache.path("wheels", name)),
        "delete that folder and run again",
    )


@dataclass(frozen=True)
class _Compilation:
    """What every step of compiling one wheel needs."""

    cache: Cache
    plan: Plan
    compiler: Compiler
    objects_name: str  # the cache's folder for object files
    compiler_count: int


@dataclass(frozen=True)
class _Inputs:
    """The folders that a wheel is compiled from and against."""

    source: Path  # the unpacked sdist
    site_packages: Path  # the locked packages with the headers and libraries
    include_flags: list[str]


def _build_wheel(job: _Compilation, folder: Path, *, offline: bool) -> None:
    start = time.monotonic()
    plan = job.plan
    with log.stage(f"fetch the inputs of {plan.where}"):
        inputs = _fetch_inputs(job.cache, plan, offline=offline)
    scratch = folder / "scratch"
    scratch.mkdir()
    objects, effort = _compile_sources(job, inputs, scratch)
    path = _pack_wheel(job, inputs, objects, folder, scratch)
    build_record = {
        "seconds": round(time.monotonic() - start, 1),
        "peak_bytes": effort.peak,
        "at_once": job.compiler_count,
        "files": effort.seconds,
        "compiler": job.compiler.identity,
    }
    write_record(folder, path, plan.target, build_record)
    remove_path(scratch)


def _fetch_inputs(cache: Cache, plan: Plan, *, offline: bool) -> _Inputs:
    source = _ensure_source(cache, plan, offline=offline)
    site_packages = _ensure_dependencies(cache, plan, offline=offline)
    python_headers = header_packages.ensure_headers(
        cache, plan.headers, plan.headers_date, offline=offline
    )
    include_flags = _include_flags(source, site_packages, python_headers, plan.target)
    return _Inputs(source, site_packages, include_flags)


def _compile_sources(
    job: _Compilation, inputs: _Inputs, scratch: Path
) -> tuple[list[Path], object_files.Effort]:
    """Compile the C++ files of the sdist; the cache keeps the objects until the wheel is done."""
    sources = sorted((inputs.source / "csrc" / "extensions").glob("*.cpp"))
    objects_folder = job.cache.ensure_folder("wheels", job.objects_name, lambda _: None, grows=True)
    flags = [*FLAGS, *_path_map_flags(job.cache), *inputs.include_flags]
    count = job.compiler_count
    with log.stage(f"compile {job.plan.where}: {len(sources)} files, {count} at a time"):
        return object_files.compile_all(
            job.compiler, sources, flags, objects_folder, scratch, at_once=count
        )


def _pack_wheel(
    job: _Compilation, inputs: _Inputs, objects: list[Path], folder: Path, scratch: Path
) -> Path:
    """Link the objects and write the wheel into `folder`."""
    plan = job.plan
    module = _link_module(job.compiler, objects, inputs.site_packages, scratch)
    library_path, library = preload_library.link_library(
        job.compiler, plan.target.accelerator, inputs.site_packages, scratch
    )
    content = {plan.target.module: module, library_path: library}
    _refuse_paths(content, job.cache, plan.where)
    metadata = wheel_file.adapt_metadata(
        (inputs.source / "PKG-INFO").read_text(encoding="utf-8"), plan.target.accelerator
    )
    note = {
        "inputs": plan.inputs,
        "compiler": job.compiler.identity,
        "sdist": plan.sdist,
        "against": [pin.text.partition(" ;")[0] for pin in plan.pins],
    }
    licence = (inputs.source / "LICENSE").read_bytes()
    return wheel_file.write_wheel(folder, plan.target, content, metadata, licence, note)


def write_record(folder: Path, path: Path, target: Target, effort: dict[str, Any]) -> None:
    """Write the record of a wheel into its folder, for `find_cached_wheel`."""
    with zipfile.ZipFile(path) as archive:
        module = archive.read(target.module)
    record = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "glibc": wheel_file.find_required_glibc(module),
        "effort": effort,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True), encoding="ascii")


def _ensure_source(cache: Cache, plan: Plan, *, offline: bool) -> Path:
    """Return the folder of the unpacked sdist."""

    def unpack(folder: Path) -> None:
        archive = package_index.fetch_file(
            version_pins.SOURCE,
            plan.target.version,
            plan.sdist,
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

    folder = cache.ensure_folder("wheels", f"te-source-{plan.sdist}", unpack)
    source = folder / f"{wheel_file.PROJECT}-{plan.target.version}"
    if not (source / "csrc" / "extensions").is_dir():
        raise UserError(
            "its sdist has no csrc/extensions",
            version_pins.SOURCE,
            (
                "this release has another layout: see "
                "builder/packages/transformer_engine/wheel_build.py"
            ),
        )
    return source


def _ensure_dependencies(cache: Cache, plan: Plan, *, offline: bool) -> Path:
    """Return a site-packages folder, for the target, of the packages to compile against."""
    target = plan.target
    machine = TRIPLETS[target.architecture].partition("-")[0]

    def install(folder: Path) -> None:
        requirements = folder / "requirements.txt"
        requirements.write_text(
            "".join(pin.requirement_lines() for pin in plan.pins), encoding="utf-8"
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
            where=plan.where,
        )
        wheel_record.require_unedited(folder / "site", plan.where)

    packages = [[pin.name, pin.version, *pin.hashes] for pin in plan.pins]
    key = stage_key(
        "te-against",
        {"packages": packages, "python": target.python, "architecture": target.architecture},
    )
    return cache.ensure_folder("env", key, install) / "site"


def _include_flags(source: Path, site: Path, python_headers: Path, target: Target) -> list[str]:
    """Return the compiler's include options, in the order of upstream's build."""
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
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise UserError(
            f"the packages to compile against have no folder {missing[0].name}",
            str(missing[0].parent),
            "check locks/te-build.in and the te-*.in of the line",
        )
    # Debian's pyconfig.h includes <TRIPLET/python3.X/pyconfig.h> from this folder. The compiler's
    # own C headers have to come first.
    return [
        *(f"-I{folder}" for folder in folders),
        "-idirafter",
        str(python_headers / "usr" / "include"),
    ]


def _path_map_flags(cache: Cache) -> list[str]:
    """Return the option that keeps this machine's paths out of the messages in the code."""
    return [f"-ffile-prefix-map={cache.root}=rosetta"]


def _link_module(
    host_compiler: Compiler, objects: list[Path], site_packages: Path, scratch: Path
) -> bytes:
    """Link the objects and libnccl into the extension module; return its bytes."""
    out = scratch / "module.so"
    nccl = site_packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    if not nccl.is_file():
        raise UserError(
            "the packages to compile against have no libnccl.so.2",
            str(nccl.parent),
            "check the locks: nvidia-nccl is missing",
            kind=MISSING,
        )
    argv = [
        *sdist_building.network_isolation_prefix(),
        host_compiler.program,
        *LINK,
        *map(str, objects),
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
