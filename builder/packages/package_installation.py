"""Install the packages of a lock into an environment, by hash, and check the result."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.core import bytecode, log
from builder.core.cache import Cache, stage_key
from builder.packages import (
    declared_requirements,
    dependency_check,
    file_stripping,
    lock_file,
    pure_python_wheels,
    sdist_building,
    uv,
    wheel_record,
)
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from typing import Self

    from builder.core.manifest import Manifest, Strip
    from builder.packages.debian_resolution import Replacement
    from builder.packages.python_interpreter import Interpreter

_SECONDS_BETWEEN_COUNTS = 0.5


@dataclass(frozen=True)
class Packages:
    """The packages to install for one distribution, accelerator and Python.

    Attributes:
        distribution: The name of the distribution.
        line: The name of its line.
        accelerator: "cpu", "cuda12" or "cuda13".
        architecture: "amd64" or "arm64".
        python: The Python of the environment.
        lock: The lock file.
        build_lock: The lock of the tools that build sdists.
        manifest: Has the overrides, the sdists to build and the wheels to strip.
        extra: Locked packages beside those of the distribution, such as Transformer Engine's.
        wheels: Wheels that the builder made earlier, with their sha256.
        replaced: Locked Debian packages for which `wheels` were compiled with a newer version.
        projects: The projects that are added, each with its locked packages.
    """

    distribution: str
    line: str
    accelerator: str
    architecture: str
    python: Interpreter
    lock: Path
    build_lock: Path
    manifest: Manifest
    extra: tuple[lock_file.Pin, ...] = ()
    wheels: tuple[tuple[Path, str], ...] = ()
    replaced: tuple[Replacement, ...] = ()
    projects: tuple[tuple[str, tuple[lock_file.Pin, ...]], ...] = ()

    @property
    def label(self) -> str:
        """The distribution and the accelerator, as messages name them."""
        return f"{self.distribution}-{self.accelerator}"

    @property
    def digest(self) -> str:
        """The sha256 of the lock."""
        return lock_file.hash_lock(self.lock)

    def project_digests(self) -> dict[str, str | None]:
        """Return the sha256 of the lock of each project; None for a project that has no lock."""
        digests: dict[str, str | None] = {}
        for name, _ in self.projects:
            file = self.manifest.folder(self.manifest.projects[name].lock(name))
            digests[name] = lock_file.hash_lock(file) if file.exists() else None
        return digests

    def pins(self) -> list[lock_file.Pin]:
        """Return the locked packages whose markers match this Python and architecture."""
        environment = lock_file.marker_environment(
            self.python.version, self.python.full, self.architecture
        )
        pins = [pin for pin in lock_file.read_lock(self.lock) if pin.applies_to(environment)]
        names = {pin.name for pin in pins}
        for added_pins in (self.extra, *(project_pins for _, project_pins in self.projects)):
            added = [
                pin for pin in added_pins if pin.name not in names and pin.applies_to(environment)
            ]
            names.update(pin.name for pin in added)
            pins += added
        return pins

    def strips(self) -> list[Strip]:
        """Return the entries of `strip` that change one of the packages."""
        names = {pin.name for pin in self.pins()}
        return [
            entry
            for entry in self.manifest.strips_for_line(self.line)
            if entry.name in names and entry.applies_to(self.architecture)
        ]

    def inputs(self) -> dict[str, Any]:
        """Return everything that affects the installation, except the path of the Python."""
        projects = self.project_digests()
        return {
            **({"projects": projects} if projects else {}),
            "lock": self.digest,
            "python": self.python.full,
            "architecture": self.architecture,
            "builder": __version__,
            "sdists": [entry.model_dump() for entry in self.manifest.sdists],
            "strip": [entry.model_dump(exclude={"why", "lines"}) for entry in self.strips()],
            "overrides": [
                entry.model_dump() for entry in self.manifest.overrides_for_line(self.line)
            ],
            "build": lock_file.hash_lock(self.build_lock),
            "extra": [pin.text for pin in self.extra],
            "wheels": [digest for _, digest in self.wheels],
        }

    @property
    def key(self) -> str:
        """The cache key of the environment of these packages."""
        return stage_key("packages", {**self.inputs(), "path": str(self.python.path)})


def read_projects(
    manifest: Manifest, names: Iterable[str]
) -> tuple[tuple[str, tuple[lock_file.Pin, ...]], ...]:
    """Return projects of the manifest, each with the packages that its lock has.

    A project that requires no package has no lock.

    Raises:
        UserError: The lock of a project that requires packages is missing, or is not valid.
    """
    record = declared_requirements.load_record(manifest.folder(declared_requirements.RECORD))
    projects = []
    for name in names:
        file = manifest.folder(manifest.projects[name].lock(name))
        is_needed = record.get(name, {}).get("requirements") != []
        if is_needed and not file.exists():
            raise UserError(
                f"the lock of the project {name} is missing",
                str(file),
                "make the locks: python build.py lock",
                kind=MISSING,
                value=name,
            )
        projects.append((name, tuple(lock_file.read_lock(file)) if file.exists() else ()))
    return tuple(projects)


def ensure_environment(cache: Cache, packages: Packages, *, offline: bool) -> Path:
    """Return an environment with the packages; make it if the cache lacks it."""
    return cache.ensure_folder(
        "env",
        packages.key,
        lambda folder: make_environment(cache, packages, folder, offline=offline),
        contents=False,
    )


def make_environment(cache: Cache, packages: Packages, folder: Path, *, offline: bool) -> None:
    """Make a relocatable virtual environment in `folder`, which is empty or missing."""
    uv.run(
        "venv",
        "--quiet",
        "--relocatable",
        "--no-project",
        "--allow-existing",
        "--python",
        str(packages.python.path),
        str(folder),
        offline=True,
        where="venv",
    )
    install_packages(
        cache,
        packages,
        folder,
        "--python",
        str(folder / "bin" / "python"),
        builder=packages.python,
        offline=offline,
    )
    bytecode.install_bytecode(cache, packages.python, find_site_packages(folder))
    # uv's files would make a backup skip the environment.
    for name in (".gitignore", ".lock", "CACHEDIR.TAG"):
        (folder / name).unlink(missing_ok=True)
    dependency_check.require_explained(folder / "bin" / "python", packages.manifest, packages.line)


def find_site_packages(environment: Path) -> Path:
    """Return the site-packages folder of a virtual environment."""
    folders = sorted(environment.glob("lib/python3.*/site-packages"))
    if len(folders) != 1:
        raise UserError(
            "is not a complete environment", str(environment), "delete it and run again"
        )
    return folders[0]


def install_packages(
    cache: Cache,
    packages: Packages,
    folder: Path,
    *target: str,
    builder: Interpreter,
    offline: bool,
) -> None:
    """Install all packages into a folder.

    Args:
        cache: Keeps the wheels that are built.
        packages: The packages.
        folder: The virtual environment or the folder for modules.
        *target: The options of uv that name the folder.
        builder: The Python of this machine that builds sdists.
        offline: Fetch nothing from the network.
    """
    pins = packages.pins()
    if not pins:
        raise UserError(
            "has no package for this Python and machine",
            str(packages.lock),
            "make it: python build.py lock",
        )
    from_sdists = {entry.name for entry in packages.manifest.sdists}
    strips = packages.strips()
    pure = {entry.name for entry in strips if not entry.files}
    downloaded = [pin for pin in pins if pin.name not in from_sdists | pure]
    site = folder if target[0] == "--target" else find_site_packages(folder)
    count = len(pins) + len(packages.wheels)
    with (
        log.counted_stage(
            f"install {count} packages ({packages.label}, {packages.architecture})",
            count,
            "packages",
        ) as advance,
        _Meter(site, advance) as meter,
    ):
        requirements = folder / "rosetta-requirements.txt"
        _install_locked(
            downloaded,
            requirements,
            target,
            offline=offline,
            where=packages.label,
            read_line=meter.read_line,
        )
        wheels = [
            sdist_building.ensure_wheel(cache, pin, builder, packages.build_lock, offline=offline)
            for pin in pins
            if pin.name in from_sdists
        ]
        wheels += [
            pure_python_wheels.ensure_wheel(cache, pin, packages.python, offline=offline)
            for pin in pins
            if pin.name in pure
        ]
        wheels += [path for path, _ in packages.wheels]
        _install_wheels(wheels, target, where=packages.label)
        _replace_edited(
            site, downloaded, requirements, target, offline=offline, where=packages.label
        )
        file_stripping.strip_files(site, [entry for entry in strips if entry.files])


def _install_locked(
    pins: list[lock_file.Pin],
    requirements: Path,
    target: tuple[str, ...],
    *,
    offline: bool,
    where: str,
    read_line: Callable[[str], None],
) -> None:
    """Install packages from the package index by hash.

    `read_line` gets each line of uv's report.
    """
    requirements.write_text("".join(pin.requirement_lines() for pin in pins), encoding="utf-8")
    options = ("--require-hashes", "--only-binary", ":all:")
    uv.run(
        "pip",
        "sync",
        *target,
        *options,
        str(requirements),
        offline=offline,
        where=where,
        read_line=read_line,
    )
    requirements.unlink()


class _Meter:
    """Counts the packages that uv has downloaded or installed. Use it as a context.

    uv names large packages when it has downloaded them, and installs all of them at the end.

    Args:
        site: The folder of the installed packages, which is read each half second.
        advance: Called with the number of further packages.
    """

    def __init__(self, site: Path, advance: Callable[[int], None]) -> None:
        self._site = site
        self._advance = advance
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="installation", daemon=True)
        self._downloaded = self._shown = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        if exception[0] is None:
            self._show(self._count_installed())

    def read_line(self, line: str) -> None:
        """Read a line of uv's report."""
        if line.startswith(uv.DOWNLOADED):
            self._downloaded += 1
            self._show(self._downloaded)

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_COUNTS):
            self._show(self._count_installed())

    def _count_installed(self) -> int:
        with os.scandir(self._site) as entries:
            return sum(entry.name.endswith(".dist-info") for entry in entries)

    def _show(self, count: int) -> None:
        with self._lock:
            if count > self._shown:
                self._advance(count - self._shown)
                self._shown = count


def _install_wheels(wheels: list[Path], target: tuple[str, ...], *, where: str) -> None:
    """Install wheels that the builder made.

    uv gets names and --find-links instead of paths, because uv writes the path of a wheel into the
    metadata of the installed package.
    """
    if not wheels:
        return
    links = [option for wheel in wheels for option in ("--find-links", str(wheel.parent))]
    names = ["==".join(wheel.name.split("-")[:2]) for wheel in wheels]
    options = ("--no-deps", "--no-index", "--offline")
    uv.run("pip", "install", "--quiet", *target, *options, *links, *names, where=where)


def _replace_edited(
    site: Path,
    pins: list[lock_file.Pin],
    requirements: Path,
    target: tuple[str, ...],
    *,
    offline: bool,
    where: str,
) -> None:
    """Install packages again if their files differ from the RECORD of their wheels.

    The files of other environments may be hard links into uv's cache. A file that somebody edits in
    such an environment changes in the cache too.
    """
    edited = wheel_record.find_edited_files(site)
    if not edited:
        return
    lines = [pin.requirement_lines() for pin in pins if pin.name in edited]
    if offline or len(lines) < len(edited):
        wheel_record.require_unedited(site, where)
    log.warn(
        f"uv's cache holds files that were edited: {wheel_record.describe_edits(edited)}; the "
        "builder downloads them again without that cache; to repair the cache: "
        f"{wheel_record.make_clean_command(edited)}"
    )
    requirements.write_text("".join(lines), encoding="utf-8")
    options = (
        "--no-cache",
        "--reinstall",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
    )
    uv.run("pip", "install", "--quiet", *target, *options, "-r", str(requirements), where=where)
    requirements.unlink()
    wheel_record.require_unedited(site, where)
