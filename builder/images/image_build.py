"""Build an image: bases, locked packages, patched sources and rosetta, as layers of the cache."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.cache import Cache, stage_key
from builder.images import image_environment, image_settings, layer_assignment, top_layers
from builder.images.base import base_image, interpreter
from builder.images.foundation import Foundation, Foundations
from builder.images.oci import layer
from builder.images.oci.tar_entry import make_file
from builder.images.oci.tar_file import walk_folder
from builder.packages import (
    build_record,
    environment_parts,
    known_issues,
    licences,
    package_installation,
)
from builder.packages.transformer_engine import addition
from builder.upstream import source, source_lock, source_tree
from builder.upstream.checkout import UNKNOWN_PUBLISHER, Publisher
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.images.base.base_image import Base
    from builder.images.oci.layer import Layer
    from builder.images.oci.tar_entry import Entry
    from builder.images.top_layers import BuiltImage
    from builder.packages.environment_assembly import Part
    from builder.packages.package_installation import Packages
    from builder.packages.python_interpreter import Interpreter
    from builder.upstream.source import Access
    from builder.upstream.source_tree import PatchedSource


@dataclass(frozen=True)
class ImageRequest:
    """What decides an image."""

    context: Context
    manifest: Manifest
    distribution: str
    accelerator: str
    architectures: tuple[str, ...]
    transformer_engine: bool
    compression: str
    base: str = ""  # the value of --base; empty for the base of the line
    engine: str = ""  # the container engine; empty for the first that answers
    layers: Cache | None = None  # a cache for the layers; None for the context's cache
    # Whether the image is for this machine only. If so, Debian's current packages may replace
    # locked ones that Debian no longer offers.
    local: bool = False
    publisher: Publisher = UNKNOWN_PUBLISHER  # for the labels
    projects: tuple[str, ...] = ()  # each after those that it needs

    @property
    def cache(self) -> Cache:
        """The cache of the context."""
        return self.context.cache

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of the projects, then those of the distribution."""
        return (*self.projects, *self.manifest.distribution(self.distribution).sources)


def check_request(request: ImageRequest) -> None:
    """Raise UserError if the manifest does not list the accelerator or an architecture."""
    entry = request.manifest.distribution(request.distribution)
    if request.accelerator not in entry.accelerators:
        raise UserError(
            f"{request.distribution} is not built for {request.accelerator}",
            "--accelerator",
            f"one of: {', '.join(entry.accelerators)}",
        )
    for architecture in request.architectures:
        if architecture not in entry.architectures:
            offered = ",".join(f"linux/{name}" for name in entry.architectures)
            raise UserError(
                f"{request.distribution} is not built for linux/{architecture}",
                "--platform",
                f"give {offered}, or leave it out for all of them",
            )


@dataclass(frozen=True)
class ResolvedImage:
    """A request with its sources, bases and packages; no layer is made yet."""

    request: ImageRequest
    access: Access
    sources: dict[str, PatchedSource]
    bases: dict[str, Base]
    packages: dict[str, Packages]  # by architecture
    is_locked: bool  # whether locks/sources.json has the sources as they are

    def record(self, architecture: str) -> dict[str, Any]:
        """Return the lock.json of an architecture, without the layers."""
        base, packages = self.bases[architecture], self.packages[architecture]
        record: dict[str, Any] = {
            **build_record.make_record(packages, self.sources),
            "transformer_engine": _record_transformer_engine(packages),
        }
        if not packages.wheels:
            record["transformer_engine_reason"] = (
                "it needs CUDA"
                if packages.accelerator == "cpu"
                else "built with --transformer-engine no"
            )
        record["base"] = {
            "name": base.name,
            "digest": base.digest,
            "python": base.python_full,
            "glibc": base.glibc,
        }
        if base.replaced:
            record["base"]["replaced"] = [asdict(package) for package in base.replaced]
        return record


def _record_transformer_engine(packages: Packages) -> dict[str, Any] | None:
    """Return what lock.json says of Transformer Engine; None without it."""
    if not packages.wheels:
        return None
    wheel, sha256 = packages.wheels[0]
    described: dict[str, Any] = {"version": wheel.name.split("-")[1], "wheel_sha256": sha256}
    if packages.replaced:
        described["replaced"] = [asdict(package) for package in packages.replaced]
    return described


def count_replaced(record: dict[str, Any]) -> int:
    """Return the number of Debian packages that are newer than the locked ones, by lock.json."""
    described = (record.get("base"), record.get("transformer_engine"))
    return sum(len(part.get("replaced", ())) for part in described if isinstance(part, dict))


def list_steps(request: ImageRequest) -> list[dict[str, Any]]:
    """Return the stages of a build, and whether each is done.

    Nothing is downloaded or built. At most, the Python of a finished base is unpacked.
    """
    check_request(request)
    access = source.configure_access(request.context, request.manifest)
    steps = []
    for name in request.sources:
        stamp = source_tree.stamp_path(request.manifest.source(name), access)
        steps.append({"stage": f"patch {name}", "done": stamp.is_file()})
    try:
        bases = _resolve_bases(request, make=False)
    except base_image.BaseNotCachedError:
        bases = {}
    for architecture in request.architectures:
        steps.append({"stage": f"base for linux/{architecture}", "done": architecture in bases})
        if request.transformer_engine and architecture in bases:
            is_built = _has_transformer_engine(request, bases[architecture], architecture)
            steps.append(
                {"stage": f"Transformer Engine for linux/{architecture}", "done": is_built}
            )
        if bases and all(step["done"] for step in steps):
            steps += _list_layer_steps(request, bases, architecture)
        else:
            steps.append({"stage": f"layers for linux/{architecture}", "done": False})
    return steps


def _has_transformer_engine(request: ImageRequest, base: Base, architecture: str) -> bool:
    """Return whether the wheel of Transformer Engine is in the cache."""
    return addition.is_built(
        request.context,
        request.manifest,
        request.manifest.distribution(request.distribution).line,
        request.accelerator,
        architecture,
        base.python,
    )


def _list_layer_steps(
    request: ImageRequest, bases: dict[str, Base], architecture: str
) -> list[dict[str, Any]]:
    python = interpreter.ensure_interpreter(request.cache, bases)
    packages = _prepare_packages(request, bases[architecture], python, architecture)
    steps = []
    for name, key in layer_assignment.compute_layer_keys(packages).items():
        existing_layer = layer.find_layer(request.cache, key, name, request.compression)
        stage = f"layer {name} for linux/{architecture}"
        steps.append({"stage": stage, "done": existing_layer is not None})
    return steps


def _resolve_bases(
    request: ImageRequest, *, make: bool = True, allow_current: bool = False
) -> dict[str, Base]:
    return base_image.resolve_bases(
        request.context,
        request.manifest,
        request.manifest.distribution(request.distribution).line,
        request.base,
        request.architectures,
        request.engine,
        request.compression,
        make=make,
        allow_current=allow_current,
    )


def resolve_image(request: ImageRequest) -> ResolvedImage:
    """Prepare the patched sources, the bases and the packages."""
    check_request(request)
    access = source.configure_access(request.context, request.manifest)
    sources = {
        name: source_tree.patch_source(request.manifest.source(name), access)
        for name in request.sources
    }
    locked = [source_lock.check_record(request.manifest, state) for state in sources.values()]
    bases = _resolve_bases(request, allow_current=request.local)
    python = interpreter.ensure_interpreter(request.cache, bases)
    packages = {
        architecture: _prepare_packages(request, bases[architecture], python, architecture)
        for architecture in request.architectures
    }
    return ResolvedImage(request, access, sources, bases, packages, all(locked))


def build_image(request: ImageRequest) -> BuiltImage:
    """Build an image; equal inputs give the same index on every machine."""
    foundations = make_foundations(request)
    return top_layers.finish_image(request.layers or request.cache, foundations, request.publisher)


def make_foundations(request: ImageRequest) -> Foundations:
    """Return what an image has below the package rosetta; make what the cache lacks."""
    resolved = resolve_image(request)
    foundations = {
        architecture: _make_foundation(resolved, architecture)
        for architecture in request.architectures
    }
    return Foundations(foundations, request.compression, is_locked=resolved.is_locked)


def _prepare_packages(
    request: ImageRequest, base: Base, python: Interpreter, architecture: str
) -> Packages:
    """Return the packages to install for one architecture.

    If the image has Transformer Engine, its wheel is built first unless the cache has the wheel.
    """
    locks = request.manifest.folder("locks")
    line = request.manifest.distribution(request.distribution).line
    packages = package_installation.Packages(
        request.distribution,
        line,
        request.accelerator,
        architecture,
        python,
        locks / f"{request.distribution}-{request.accelerator}.txt",
        locks / "build.txt",
        request.manifest,
        projects=package_installation.read_projects(request.manifest, request.projects),
    )
    if not request.transformer_engine:
        return packages
    added = addition.prepare_addition(
        request.context,
        request.manifest,
        line,
        request.accelerator,
        architecture,
        base.python,
        allow_current=request.local,
    )
    if _parse_version(added.glibc) > _parse_version(base.glibc):
        raise UserError(
            f"Transformer Engine was built for glibc {added.glibc}, but this base has {base.glibc}",
            base.name,
            "give another --base, or build with --transformer-engine no",
        )
    return replace(
        packages,
        extra=tuple(added.pins),
        wheels=((added.wheel, added.sha256),),
        replaced=added.replaced,
    )


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


class _LayerWriter:
    """Writes the layers of one architecture; the environment is made only if a layer needs it."""

    def __init__(self, resolved: ResolvedImage, architecture: str) -> None:
        self.request = resolved.request
        self.packages = resolved.packages[architecture]
        self.trees = environment_parts.list_trees(
            self.request.manifest, resolved.sources, resolved.access, self.packages.python
        )
        self._offline = resolved.access.offline
        self._cache = self.request.layers or self.request.cache

    def write(self, name: str, key: str, entries: Callable[[], Iterable[Entry]]) -> Layer:
        """Return a layer; call `entries` for its content if the cache lacks the layer."""
        return layer.write_layer(self._cache, key, name, self.request.compression, entries)

    def write_parts(self, name: str, parts: list[Part], fixed: Sequence[Entry] = ()) -> Layer:
        """Return a layer of parts, and of further files whose content is in memory."""
        return top_layers.write_parts(self._cache, self.request.compression, name, parts, fixed)

    @functools.cached_property
    def environment(self) -> Path:
        """The folder of the environment. The sources must not hide its packages."""
        folder = image_environment.ensure_environment(
            self.request.cache, self.packages, offline=self._offline
        )
        environment_parts.refuse_shadowed_modules(
            package_installation.find_site_packages(folder), self.trees, self.packages.lock.name
        )
        return folder

    @functools.cached_property
    def _environment_entries(self) -> dict[str, list[Entry]]:
        return layer_assignment.split_environment(self.environment, self.packages)

    def write_environment_layers(self) -> list[Layer]:
        """Return the layers of the locked packages, from the bottom up."""
        layers = []
        for name, key in layer_assignment.compute_layer_keys(self.packages).items():
            entries = functools.partial(self._list_environment_entries, name)
            layers.append(self.write(name, key, entries))
        return layers

    def _list_environment_entries(self, name: str) -> Iterator[Entry]:
        return layer_assignment.add_prefix(self._environment_entries[name])


def _make_foundation(resolved: ResolvedImage, architecture: str) -> Foundation:
    """Return what the image of one architecture has below the package rosetta."""
    request, base = resolved.request, resolved.bases[architecture]
    record = resolved.record(architecture)
    writer = _LayerWriter(resolved, architecture)
    with log.stage(f"layers of {request.distribution}-{request.accelerator} for {architecture}"):
        layers = (
            *base.layers,
            *writer.write_environment_layers(),
            _write_sources_layer(writer),
            _write_licences_layer(writer, record),
            _write_programs_layer(writer, record),
        )
        terms = _list_licences(writer)
    return Foundation(record, layers, base.env, terms, writer.packages.python)


def _list_licences(writer: _LayerWriter) -> tuple[str, ...]:
    """Return the licences of all that is in an image, as parts of an SPDX expression.

    The cache keeps them, because the environment is not there if all layers are in the cache.
    """
    inputs = {
        "rules": licences.SPDX_RULES_VERSION,
        "packages": sorted(f"{pin.name}=={pin.version}" for pin in writer.packages.pins()),
        "wheels": [sha256 for _, sha256 in writer.packages.wheels],
        "trees": {tree.folder: tree.key for tree in writer.trees},
    }
    file = writer.request.cache.path("stamps", f"licences-{stage_key('licences', inputs)}.json")
    if file.is_file():
        return tuple(json.loads(file.read_text(encoding="ascii")))
    declared = licences.list_declared_licences(
        package_installation.find_site_packages(writer.environment),
        {tree.folder: tree.path() for tree in writer.trees},
    )
    terms = licences.list_spdx_terms([*declared, licences.BASE_LICENCES])
    write_atomic(file, json.dumps(terms))
    return terms


def _write_sources_layer(writer: _LayerWriter) -> Layer:
    """Return the layer of the patched sources, and of the file that puts them on sys.path."""
    python, trees = writer.packages.python, writer.trees
    paths = environment_parts.path_file_text([tree.folder for tree in trees])
    inputs = {
        "trees": {tree.folder: tree.key for tree in trees},
        "python": python.full,
        "prefix": image_environment.PREFIX,
        "paths": paths,
    }
    site_packages = f"{image_environment.PREFIX}/lib/python{python.version}/site-packages"

    def list_entries() -> Iterator[Entry]:
        for tree in trees:
            yield from walk_folder(tree.path(), f"opt/{tree.folder}")
        yield make_file(f"{site_packages}/rosetta-sources.pth", paths)

    key = stage_key("layer", {"name": "sources", **inputs})
    return writer.write("sources", key, list_entries)


def _write_licences_layer(writer: _LayerWriter, record: dict[str, Any]) -> Layer:
    """Return the layer of all licence texts."""
    part = environment_parts.licences_part(
        record,
        writer.packages.pins(),
        lambda _: package_installation.find_site_packages(writer.environment),
        writer.trees,
    )
    return writer.write_parts("licences", [part])


def _write_programs_layer(writer: _LayerWriter, record: dict[str, Any]) -> Layer:
    """Return the layer of the programs, and of what describes the image except lock.json."""
    pins = writer.packages.pins()
    parts = [
        environment_parts.programs_part(writer.trees),
        *environment_parts.description_parts(record, writer.request.manifest, pins),
    ]
    versions = {pin.name: pin.version for pin in pins}
    issues = known_issues.select_issues(known_issues.load_issues(), record, versions)
    files = image_settings.list_entries(record, versions, issues)
    return writer.write_parts("programs", parts, list(files))
