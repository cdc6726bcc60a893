"""Do JAX, its library, its plugins for CUDA and Transformer Engine belong together, and are they
the locked ones?
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.doctor.finding import BLOCKER, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.doctor.machine import Machine

_MATCHED_PACKAGES = re.compile(
    r"jax|jaxlib|jax-cuda\d+-(plugin|pjrt)|nvidia-.*|transformer-engine.*"
)
_REINSTALL = "bake the environment again, or take out what was installed over it"


def check(machine: Machine) -> Iterator[Finding]:
    """Yield what does not fit together."""
    jaxlib, jax = machine.version("jaxlib"), machine.version("jax")
    if jax is None and jaxlib is None and not machine.baked:
        yield Finding(
            "no-jax",
            NOTE,
            "it has no JAX, so its versions are not checked",
            "this Python",
            "run the `rosetta doctor` of the environment or image that trains",
        )
        return
    if jax is None or jaxlib is None:
        yield Finding(
            "jax-incomplete",
            BLOCKER,
            f"{'jax' if jax is None else 'jaxlib'} is missing",
            "packages",
            _REINSTALL,
        )
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
    for name, found in sorted(machine.installed.items()):
        if not _MATCHED_PACKAGES.fullmatch(name):
            continue
        if len(set(found)) > 1:
            yield Finding(
                "package-twice",
                WARNING,
                f"{name} is there as {' and as '.join(found)}; the first is imported",
                "packages",
                _REINSTALL,
            )
        if machine.pinned.get(name, found[0]) != found[0]:
            yield Finding(
                "not-as-locked",
                WARNING,
                f"{name} is {found[0]}, and the lock has {machine.pinned[name]}",
                "packages",
                _REINSTALL,
            )
    gone = sorted(
        name
        for name in machine.pinned
        if _MATCHED_PACKAGES.fullmatch(name) and name not in machine.installed
    )
    if gone:
        yield Finding(
            "locked-package-missing",
            BLOCKER,
            f"the lock has {', '.join(gone)}, and it is not here",
            "packages",
            _REINSTALL,
        )


def _check_plugins(machine: Machine, jaxlib: str) -> Iterator[Finding]:
    plugins = {
        name: found[0]
        for name, found in machine.installed.items()
        if re.fullmatch(r"jax-cuda\d+-(plugin|pjrt)", name)
    }
    cudas = sorted({name.split("-")[1] for name in plugins})
    # JAX passes over a plugin of another version with a warning, and goes on with the CPU.
    for name, version in sorted(plugins.items()):
        if version != jaxlib:
            yield Finding(
                "plugin-version",
                BLOCKER,
                f"{name} {version} does not belong to jaxlib {jaxlib}: JAX would not see the GPUs",
                "packages",
                _REINSTALL,
            )
    for cuda in cudas:
        half = sorted({f"jax-{cuda}-plugin", f"jax-{cuda}-pjrt"} - set(plugins))
        if half:
            yield Finding(
                "plugin-incomplete",
                BLOCKER,
                f"{half[0]} is missing: JAX would not see the GPUs",
                "packages",
                _REINSTALL,
            )
    if len(cudas) > 1:
        yield Finding(
            "two-plugins",
            WARNING,
            f"there are plugins for {' and '.join(cudas)}",
            "packages",
            "uninstall one: only one can have the GPUs",
        )
    if not cudas and machine.devices and not machine.on_cpu:
        do = (
            "use an environment or image for cuda12 or cuda13, or set JAX_PLATFORMS=cpu to run on "
            "the CPU"
        )
        yield Finding(
            "no-plugin",
            BLOCKER,
            "this machine has GPUs, and JAX has no plugin for CUDA: it would train on the CPU",
            "packages",
            do,
        )


def _check_transformer_engine(machine: Machine) -> Iterator[Finding]:
    bindings = machine.version("transformer-engine-jax")
    if bindings is None:
        return
    others = {
        name: found[0]
        for name, found in machine.installed.items()
        if re.fullmatch(r"transformer-engine(-cu\d+)?", name)
    }
    for name, version in sorted(others.items()):
        if version != bindings:
            yield Finding(
                "te-version",
                BLOCKER,
                f"{name} {version} does not belong to transformer-engine-jax {bindings}",
                "packages",
                _REINSTALL,
            )
        if machine.cuda and name[-2:].isdecimal() and int(name[-2:]) != machine.cuda:
            yield Finding(
                "te-cuda",
                BLOCKER,
                f"{name} is not for CUDA {machine.cuda} of this environment",
                "packages",
                _REINSTALL,
            )


def _parse_release(version: str) -> tuple[int, ...]:
    """Return the numbers of a release; a development release counts as the one it precedes."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
