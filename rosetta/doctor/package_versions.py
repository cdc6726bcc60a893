"""Check that JAX, its CUDA plugins and Transformer Engine fit together, and are the locked ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.doctor.machine import Machine

# The packages whose versions must fit together.
_MATCHED_PACKAGES = re.compile(
    r"jax|jaxlib|jax-cuda\d+-(plugin|pjrt)|nvidia-.*|transformer-engine.*"
)
_REINSTALL = "bake the environment again, or uninstall what was installed on top of it"


def check(machine: Machine) -> Iterator[Finding]:
    """Yield the packages that do not fit together."""
    jax, jaxlib = machine.find_version("jax"), machine.find_version("jaxlib")
    if jax is None and jaxlib is None and not machine.baked:
        yield Finding(
            "no-jax",
            NOTE,
            "JAX is not installed, so that its versions are not checked",
            "this Python",
            "run the `rosetta doctor` of the environment or image that trains",
        )
        return
    if jax is None or jaxlib is None:
        missing = "jax" if jax is None else "jaxlib"
        yield Finding("jax-incomplete", BLOCKER, f"{missing} is missing", "packages", _REINSTALL)
        return
    if _parse_release(jax) < _parse_release(jaxlib):
        yield Finding(
            "jax-older-than-jaxlib",
            BLOCKER,
            f"jax {jax} does not work with the newer jaxlib {jaxlib}",
            "packages",
            _REINSTALL,
        )
    yield from _check_plugins(machine, jaxlib)
    yield from _check_transformer_engine(machine)
    yield from _check_lock(machine)


def _check_lock(machine: Machine) -> Iterator[Finding]:
    """Check that the packages of JAX are installed once, in the versions of the lock."""
    for name, versions in sorted(machine.installed.items()):
        if not _MATCHED_PACKAGES.fullmatch(name):
            continue
        if len(set(versions)) > 1:
            yield Finding(
                "package-twice",
                WARNING,
                f"{name} is installed as {' and as '.join(versions)}; Python imports the first",
                "packages",
                _REINSTALL,
            )
        locked = machine.pinned.get(name, versions[0])
        if locked != versions[0]:
            yield Finding(
                "not-as-locked",
                WARNING,
                f"{name} is {versions[0]}, but the lock has {locked}",
                "packages",
                _REINSTALL,
            )
    locked_packages = [name for name in machine.pinned if _MATCHED_PACKAGES.fullmatch(name)]
    missing = sorted(name for name in locked_packages if name not in machine.installed)
    if missing:
        yield Finding(
            "locked-package-missing",
            BLOCKER,
            f"not installed, although the lock has it: {', '.join(missing)}",
            "packages",
            _REINSTALL,
        )


def _check_plugins(machine: Machine, jaxlib: str) -> Iterator[Finding]:
    """Check that JAX has one complete CUDA plugin of its own version.

    JAX ignores a plugin of another version with a warning, and uses the CPU.
    """
    plugins = {
        name: versions[0]
        for name, versions in machine.installed.items()
        if re.fullmatch(r"jax-cuda\d+-(plugin|pjrt)", name)
    }
    cudas = sorted({name.split("-")[1] for name in plugins})
    for name, version in sorted(plugins.items()):
        if version != jaxlib:
            yield Finding(
                "plugin-version",
                BLOCKER,
                f"{name} {version} does not fit jaxlib {jaxlib}: JAX would not use the GPUs",
                "packages",
                _REINSTALL,
            )
    for cuda in cudas:
        missing = sorted({f"jax-{cuda}-plugin", f"jax-{cuda}-pjrt"} - set(plugins))
        if missing:
            yield Finding(
                "plugin-incomplete",
                BLOCKER,
                f"{missing[0]} is missing: JAX would not use the GPUs",
                "packages",
                _REINSTALL,
            )
    if len(cudas) > 1:
        yield Finding(
            "two-plugins",
            WARNING,
            f"plugins for {' and '.join(cudas)} are installed",
            "packages",
            "uninstall one: only one plugin can use the GPUs",
        )
    if not cudas and machine.device_count and not machine.on_cpu:
        yield Finding(
            "no-plugin",
            BLOCKER,
            "this machine has GPUs, but JAX has no CUDA plugin: a run would use the CPU",
            "packages",
            "use an environment or image for cuda12 or cuda13, or set JAX_PLATFORMS=cpu to run on "
            "the CPU",
        )


def _check_transformer_engine(machine: Machine) -> Iterator[Finding]:
    """Check that the packages of Transformer Engine are of one version, and for the right CUDA."""
    bindings = machine.find_version("transformer-engine-jax")
    if bindings is None:
        return
    libraries = {
        name: versions[0]
        for name, versions in machine.installed.items()
        if re.fullmatch(r"transformer-engine(-cu\d+)?", name)
    }
    for name, version in sorted(libraries.items()):
        if version != bindings:
            yield Finding(
                "te-version",
                BLOCKER,
                f"{name} {version} does not fit transformer-engine-jax {bindings}",
                "packages",
                _REINSTALL,
            )
        cuda = name[-2:]
        if machine.cuda and cuda.isdecimal() and int(cuda) != machine.cuda:
            yield Finding(
                "te-cuda",
                BLOCKER,
                f"{name} is not for CUDA {machine.cuda} of this environment",
                "packages",
                _REINSTALL,
            )


def _parse_release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release; a development version counts as the release it precedes."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in release[0].split(".")) if release else ()
