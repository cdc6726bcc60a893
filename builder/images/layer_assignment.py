"""Which file of an environment lies in which layer: what changes seldom lies low, and distributions
share what their locks have in common.
"""

from __future__ import annotations

import csv
import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from builder import __version__
from builder.core.cache import stage_key
from builder.images.image_environment import PREFIX
from builder.images.oci.tar_file import walk_folder
from builder.packages import lock_file, package_installation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.images.oci.tar_entry import Entry
    from builder.packages.package_installation import Packages

# From the bottom up, above the base and its OS packages, below the patched sources and rosetta.
ORDER = ("cuda", "jax", "tensorflow", "python", "own")
_GROUPS = (
    ("cuda", re.compile(r"nvidia-.*")),
    ("jax", re.compile(r"jax|jaxlib|jax-cuda\d+-(plugin|pjrt)|transformer-engine.*")),
    ("tensorflow", re.compile(r"tensorflow|tensorflow-(cpu|text|serving-api)|keras|libclang")),
)
_PYC = re.compile(r"(.*/)?__pycache__/([^/]+)\.cpython-\d+\.pyc")


def assign_projects(wanted: Packages) -> dict[str, str]:
    """Project -> the layer it lies in. `own` holds what another distribution of the line does not
    have, or has otherwise.

    What Transformer Engine brings lies with it, so that all other layers are the same with it and
    without.
    """
    shared, extra = _find_shared_pins(wanted), set(wanted.extra) - set(lock_file.read(wanted.lock))
    found = {}
    for pin in wanted.pins():
        named = next((layer for layer, pattern in _GROUPS if pattern.fullmatch(pin.name)), "python")
        found[pin.name] = (
            "jax" if pin in extra or named == "jax" else named if pin in shared else "own"
        )
    for path, _ in wanted.wheels:
        found[path.name.split("-")[0].lower().replace("_", "-")] = "jax"
    return found


def _find_shared_pins(wanted: Packages) -> set[lock_file.Pin]:
    """Return the pins that every distribution of the line has for this accelerator."""
    here = lock_file.environment_of(wanted.python.version, wanted.python.full, wanted.architecture)
    pins = set(wanted.pins())
    for name, other in wanted.manifest.distributions.items():
        if (
            name != wanted.distribution
            and other.line == wanted.line
            and wanted.accelerator in other.accelerators
            and wanted.architecture in other.architectures
        ):
            lock = wanted.lock.with_name(f"{name}-{wanted.accelerator}.txt")
            pins &= {pin for pin in lock_file.read(lock) if pin.holds(here)}
    return pins


def compute_layer_keys(wanted: Packages) -> dict[str, str]:
    """Layer -> the key of its content, for the layers that are not empty: nothing that another
    layer or distribution has enters it.
    """
    where, inputs = assign_projects(wanted), wanted.inputs()
    general = {
        name: inputs[name] for name in ("python", "architecture", "sdists", "strip", "build")
    } | {"builder": __version__, "prefix": PREFIX, "layout": 3}
    result = {}
    for layer in ORDER:
        pins = sorted([pin.text, *pin.hashes] for pin in wanted.pins() if where[pin.name] == layer)
        wheels = [digest for _, digest in wanted.wheels] if layer == "jax" else []
        if pins or wheels or layer == "python":  # python also has the virtual environment itself
            result[layer] = stage_key(
                "layer", {**general, "name": layer, "pins": pins, "wheels": wheels}
            )
    return result


def split_environment(environment: Path, wanted: Packages) -> dict[str, list[Entry]]:
    """Return the files of a finished environment by layer, with their places in the image."""
    where = assign_projects(wanted)
    owners = _find_owners(package_installation.site_packages(environment), where)
    result: dict[str, list[Entry]] = {layer: [] for layer in ORDER}
    for entry in walk_folder(environment, ""):
        if entry.kind == "dir":
            continue  # folders come of themselves
        path = entry.path
        if match := _PYC.fullmatch(path):
            path = f"{match[1] or ''}{match[2]}.py"
        layer = owners.get(path, "python")
        result[layer].append(entry)
    return result


def _find_owners(site: Path, where: Mapping[str, str]) -> dict[str, str]:
    """Path below the environment -> layer. A file that two wheels bring lies in the lower one's."""
    inside = f"lib/{site.parent.name}/site-packages"
    found: dict[str, str] = {}
    for info in sorted(site.glob("*.dist-info")):
        project = info.name.removesuffix(".dist-info").rpartition("-")[0]
        layer = where[re.sub(r"[-_.]+", "-", project).lower()]
        with open(info / "RECORD", encoding="utf-8", newline="") as record:
            for row in csv.reader(record):
                if row:
                    path = posixpath.normpath(f"{inside}/{row[0]}")
                    known = found.get(path)
                    found[path] = layer if known is None else min(known, layer, key=ORDER.index)
    return found


def add_prefix(entries: list[Entry], prefix: str = PREFIX) -> Iterator[Entry]:
    """Return the same entries below `prefix`."""
    return (replace(each, path=f"{prefix}/{each.path}") for each in entries)
