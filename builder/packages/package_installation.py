"""The stage that turns a lock into an environment: installed by hash, with bytecode, checked, and
kept under its key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder import __version__
from builder.core import bytecode, log
from builder.core.cache import Cache, stage_key
from builder.packages import (
    dependency_check,
    lock_file,
    pure_python_wheels,
    sdist_building,
    uv,
    wheel_record,
)
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.manifest import Manifest
    from builder.packages.debian_resolution import Replacement
    from builder.packages.python_interpreter import Interpreter


@dataclass(frozen=True)
class Packages:
    """What is to be installed: one distribution's lock, for one accelerator, on one Python of this
    machine.
    """

    distribution: str
    line: str
    accelerator: str
    architecture: str
    python: Interpreter
    lock: Path
    build_lock: Path
    manifest: Manifest
    extra: tuple[
        lock_file.Pin, ...
    ] = ()  # locked beside the distribution: what Transformer Engine adds
    wheels: tuple[tuple[Path, str], ...] = ()  # made by us before, with their sha256
    replaced: tuple[
        Replacement, ...
    ] = ()  # locked Debian packages that those wheels were compiled with newer versions of

    @property
    def digest(self) -> str:
        """Sha256 of the lock."""
        return lock_file.hash_lock(self.lock)

    def pins(self) -> list[lock_file.Pin]:
        """Return what of the lock holds for this Python and machine."""
        here = lock_file.marker_environment(
            self.python.version, self.python.full, self.architecture
        )
        pins = [pin for pin in lock_file.read_lock(self.lock) if pin.applies_to(here)]
        known = {pin.name for pin in pins}
        return [
            *pins,
            *(pin for pin in self.extra if pin.name not in known and pin.applies_to(here)),
        ]

    def inputs(self) -> dict[str, Any]:
        """All that decides what is installed, but for the Python's place on this machine."""
        return {
            "lock": self.digest,
            "python": self.python.full,
            "architecture": self.architecture,
            "builder": __version__,
            "sdists": [entry.model_dump() for entry in self.manifest.sdists],
            "strip": [entry.model_dump() for entry in self.manifest.strip],
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


def ensure_environment(cache: Cache, packages: Packages, *, offline: bool) -> Path:
    """Return an environment in the cache, for programs of the builder; made if the cache lacks
    it.
    """
    return cache.ensure_folder(
        "env",
        packages.key,
        lambda folder: make_environment(cache, packages, folder, offline=offline),
        contents=False,
    )


def make_environment(cache: Cache, packages: Packages, folder: Path, *, offline: bool) -> None:
    """Make the environment (a relocatable venv) in `folder`, which is empty or not there."""
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
    for name in (
        ".gitignore",
        ".lock",
        "CACHEDIR.TAG",
    ):  # uv's: a backup must not pass over an environment
        (folder / name).unlink(missing_ok=True)
    dependency_check.require_explained(folder / "bin" / "python", packages.manifest, packages.line)


def find_site_packages(environment_: Path) -> Path:
    """Return the site-packages folder of a venv."""
    found = sorted(environment_.glob("lib/python3.*/site-packages"))
    if len(found) != 1:
        raise UserError("is not a whole environment", str(environment_), "delete it and run again")
    return found[0]


def install_packages(
    cache: Cache,
    packages: Packages,
    folder: Path,
    *target: str,
    builder: Interpreter,
    offline: bool,
) -> None:
    """Put all packages into `folder`, the place that uv's arguments `target` name; sdists are built
    by the Python `builder`, which runs here.
    """
    pins = packages.pins()
    if not pins:
        raise UserError(
            "holds no package for this Python and machine",
            str(packages.lock),
            "make it: python build.py lock",
        )
    unbuilt = {entry.name for entry in packages.manifest.sdists}
    stripped = {
        entry.name
        for entry in packages.manifest.strip
        if packages.architecture in entry.architectures
    }
    where = f"{packages.distribution}-{packages.accelerator}"
    with log.stage(
        f"install {len(pins) + len(packages.wheels)} packages ({where}, {packages.architecture})"
    ):
        requirements = folder / "rosetta-requirements.txt"
        requirements.write_text(
            "".join(pin.requirement_lines() for pin in pins if pin.name not in unbuilt | stripped),
            encoding="utf-8",
        )
        uv.run(
            "pip",
            "sync",
            "--quiet",
            *target,
            "--require-hashes",
            "--only-binary",
            ":all:",
            str(requirements),
            offline=offline,
            where=where,
        )
        requirements.unlink()
        built = [
            sdist_building.ensure_wheel(cache, pin, builder, packages.build_lock, offline=offline)
            for pin in pins
            if pin.name in unbuilt
        ]
        built += [
            pure_python_wheels.ensure_wheel(cache, pin, packages.python, offline=offline)
            for pin in pins
            if pin.name in stripped
        ]
        built += [path for path, _ in packages.wheels]
        if built:
            # By name and --find-links, so that no path of this machine ends in the packages'
            # metadata.
            links = [part for wheel in built for part in ("--find-links", str(wheel.parent))]
            names = ["==".join(wheel.name.split("-")[:2]) for wheel in built]
            uv.run(
                "pip",
                "install",
                "--quiet",
                *target,
                "--no-deps",
                "--no-index",
                "--offline",
                *links,
                *names,
                where=where,
            )
        site = folder if target[0] == "--target" else find_site_packages(folder)
        fetched = [pin for pin in pins if pin.name not in unbuilt | stripped]
        _replace_edited(site, fetched, requirements, target, offline=offline, where=where)


def _replace_edited(
    site: Path,
    pins: list[lock_file.Pin],
    requirements: Path,
    target: tuple[str, ...],
    *,
    offline: bool,
    where: str,
) -> None:
    """Compare every installed file with its wheel's RECORD; what uv's cache has in an edited form
    is fetched again.

    Other environments may be hard links into uv's cache, so that a file edited in one of them is
    edited there.
    """
    edited = wheel_record.find_edited_files(site)
    if not edited:
        return
    lines = [pin.requirement_lines() for pin in pins if pin.name in edited]
    if offline or len(lines) < len(edited):
        wheel_record.require_unedited(site, where)
    log.warn(
        f"uv's cache holds files that were edited: {wheel_record.describe_edits(edited)}; fetched "
        f"again past that cache, to mend it: {wheel_record.clean_command(edited)}"
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
