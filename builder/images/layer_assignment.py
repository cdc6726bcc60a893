"""Assign the files of an environment to layers.

What changes seldom is in a low layer, and the distributions of a line share the layers of what
their locks have in common. The many small packages are divided among several layers by the hash of
their names, so that a new version of one package changes one of these layers.
"""

from __future__ import annotations

import csv
import posixpath
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from builder import __version__
from builder.core import hash_buckets
from builder.core.cache import stage_key
from builder.images.image_environment import PREFIX
from builder.images.oci.tar_file import walk_folder
from builder.packages import lock_file, package_installation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.images.oci.tar_entry import Entry
    from builder.packages.package_installation import Packages

PYTHON_LAYERS = tuple(f"python-{number}" for number in range(1, hash_buckets.COUNT + 1))
# The layers of the locked packages, from the bottom up.
ORDER = ("cuda", "jax", "tensorflow", *PYTHON_LAYERS, "own")
PACKAGE_LAYERS = tuple(f"rosetta-{number}" for number in range(1, hash_buckets.COUNT + 1))
# All layers above the base and its OS packages, from the bottom up.
LAYERS = (*ORDER, "sources", "licences", "programs", *PACKAGE_LAYERS, "record")
_VENV_LAYER = PYTHON_LAYERS[0]  # also has the files of the virtual environment itself
_GROUPS = (
    ("cuda", re.compile(r"nvidia-.*")),
    ("jax", re.compile(r"jax|jaxlib|jax-cuda\d+-(plugin|pjrt)|transformer-engine.*")),
    ("tensorflow", re.compile(r"tensorflow|tensorflow-(cpu|text|serving-api)|keras|libclang")),
)
_PYC = re.compile(r"(.*/)?__pycache__/([^/]+)\.cpython-\d+\.pyc")


def find_group(layer: str) -> str:
    """Return the name that the parts of a divided layer share: "python" for "python-3"."""
    return re.sub(r"-\d+$", "", layer)


def assign_projects(packages: Packages) -> dict[str, str]:
    """Return the layer of each project.

    The layer "own" has what another distribution of the line lacks, or has in another version.
    What Transformer Engine needs is in the layer of Transformer Engine, so that all other layers
    are the same with it and without it.
    """
    shared = _find_shared_pins(packages)
    added = set(packages.extra) - set(lock_file.read_lock(packages.lock))
    layers = {}
    for pin in packages.pins():
        group = _find_group(pin.name)
        if pin in added or group == "jax":
            layers[pin.name] = "jax"
        elif pin in shared:
            layers[pin.name] = group
        else:
            layers[pin.name] = "own"
    for wheel, _ in packages.wheels:
        layers[wheel.name.split("-")[0].lower().replace("_", "-")] = "jax"
    return layers


def _find_group(project: str) -> str:
    for layer, pattern in _GROUPS:
        if pattern.fullmatch(project):
            return layer
    return PYTHON_LAYERS[hash_buckets.choose_bucket(project) - 1]


def _find_shared_pins(packages: Packages) -> set[lock_file.Pin]:
    """Return the pins that every distribution of the line has for this accelerator."""
    python = packages.python
    environment = lock_file.marker_environment(python.version, python.full, packages.architecture)
    pins = set(packages.pins())
    for name, other in packages.manifest.distributions.items():
        if (
            name != packages.distribution
            and other.line == packages.line
            and packages.accelerator in other.accelerators
            and packages.architecture in other.architectures
        ):
            lock = packages.lock.with_name(f"{name}-{packages.accelerator}.txt")
            pins &= {pin for pin in lock_file.read_lock(lock) if pin.applies_to(environment)}
    return pins


def compute_layer_keys(packages: Packages) -> dict[str, str]:
    """Return the key of each layer that is not empty.

    A key does not depend on what other layers or distributions have.
    """
    assigned, inputs = assign_projects(packages), packages.inputs()
    common_inputs = {
        name: inputs[name] for name in ("python", "architecture", "sdists", "build")
    } | {"builder": __version__, "prefix": PREFIX, "layout": 3}
    keys = {}
    for layer in ORDER:
        pins = sorted(
            [pin.text, *pin.hashes] for pin in packages.pins() if assigned[pin.name] == layer
        )
        wheels = [digest for _, digest in packages.wheels] if layer == "jax" else []
        if pins or wheels or layer == _VENV_LAYER:
            strips = [strip for strip in inputs["strip"] if assigned[strip["name"]] == layer]
            layer_inputs = {"name": layer, "pins": pins, "wheels": wheels, "strip": strips}
            keys[layer] = stage_key("layer", {**common_inputs, **layer_inputs})
    return keys


def split_environment(environment: Path, packages: Packages) -> dict[str, list[Entry]]:
    """Return the files of a finished environment by layer, with paths below the environment."""
    owners = _find_owners(
        package_installation.find_site_packages(environment), assign_projects(packages)
    )
    entries: dict[str, list[Entry]] = {layer: [] for layer in ORDER}
    for entry in walk_folder(environment, ""):
        if entry.kind == "dir":
            continue  # a layer adds the folders of its files
        path = entry.path
        if match := _PYC.fullmatch(path):  # bytecode is in the layer of its source
            path = f"{match[1] or ''}{match[2]}.py"
        entries[owners.get(path, _VENV_LAYER)].append(entry)
    return entries


def _find_owners(site_packages: Path, assigned: Mapping[str, str]) -> dict[str, str]:
    """Return the layer of each path below the environment, by the RECORD of each package.

    A file that two packages bring is in the lower layer.
    """
    inside = f"lib/{site_packages.parent.name}/site-packages"
    owners: dict[str, str] = {}
    for info in sorted(site_packages.glob("*.dist-info")):
        project = info.name.removesuffix(".dist-info").rpartition("-")[0]
        layer = assigned[re.sub(r"[-_.]+", "-", project).lower()]
        with open(info / "RECORD", encoding="utf-8", newline="") as record:
            for row in csv.reader(record):
                if row:
                    path = posixpath.normpath(f"{inside}/{row[0]}")
                    owners[path] = min(owners.get(path, layer), layer, key=ORDER.index)
    return owners


def add_prefix(entries: list[Entry], prefix: str = PREFIX) -> Iterator[Entry]:
    """Return entries with a folder before their paths."""
    return (replace(entry, path=f"{prefix}/{entry.path}") for entry in entries)
