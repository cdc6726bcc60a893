"""Make an image: a base per architecture, the locked packages split by churn, the patched sources
and rosetta; each layer written once.
"""

from __future__ import annotations

import functools
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.cache import Cache, stage_key
from builder.images import image_environment, image_settings, layer_assignment
from builder.images.base import base_image, interpreter
from builder.images.oci import layer, oci_documents
from builder.images.oci.tar_entry import make_file
from builder.images.oci.tar_file import walk_folder
from builder.packages import environment_parts, package_installation
from builder.upstream import source, source_lock, source_tree
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.images.base.base_image import Base
    from builder.images.oci.layer import Layer
    from builder.images.oci.tar_entry import Entry
    from builder.packages.environment_parts import Tree
    from builder.packages.package_installation import Packages
    from builder.upstream.source import Access
    from builder.upstream.source_tree import PatchedSource


@dataclass(frozen=True)
class ImageRequest:
    """What decides an image, before anything is done."""

    context: Context
    manifest: Manifest
    distribution: str
    accelerator: str
    architectures: tuple[str, ...]
    transformer_engine: bool
    compression: str
    base: str = ""
    engine: str = ""
    layers: Cache | None = None  # where layers are kept, if not in the context's cache
    # It stays on this machine: current Debian packages may replace locked ones that are gone.
    local: bool = False

    @property
    def cache(self) -> Cache:
        """The cache of the context."""
        return self.context.cache


@dataclass(frozen=True)
class BuiltImage:
    """An image of one or more architectures, every blob of it in the cache."""

    index: oci_documents.Index
    records: dict[str, dict[str, Any]]  # architecture -> its lock.json


def check_request(request: ImageRequest) -> None:
    """Refuse what the manifest does not list."""
    entry = request.manifest.distribution(request.distribution)
    if request.accelerator not in entry.accelerators:
        raise UserError(
            f"{request.distribution} is not built for {request.accelerator}",
            "--accelerator",
            f"one of: {', '.join(entry.accelerators)}",
        )
    for architecture in request.architectures:
        if architecture not in entry.architectures:
            known = ",".join(f"linux/{each}" for each in entry.architectures)
            raise UserError(
                f"{request.distribution} is not built for linux/{architecture}",
                "--platform",
                f"give {known}, or leave it out for all of them",
            )


@dataclass(frozen=True)
class ResolvedImage:
    """A request with everything it stands on: nothing of the image is made yet."""

    request: ImageRequest
    access: Access
    sources: dict[str, PatchedSource]
    bases: dict[str, Base]
    packages: dict[str, Packages]  # by architecture

    def record(self, architecture: str) -> dict[str, Any]:
        """lock.json, but for the layers."""
        base, wanted = self.bases[architecture], self.packages[architecture]
        te: dict[str, Any] | None = (
            {"version": wanted.wheels[0][0].name.split("-")[1], "wheel_sha256": wanted.wheels[0][1]}
            if wanted.wheels
            else None
        )
        if te and wanted.replaced:
            te["replaced"] = [asdict(package) for package in wanted.replaced]
        known: dict[str, Any] = {
            **environment_parts.make_record(wanted, self.sources),
            "transformer_engine": te,
        }
        if te is None:
            known["transformer_engine_reason"] = (
                "it needs CUDA"
                if wanted.accelerator == "cpu"
                else "built with --transformer-engine no"
            )
        described: dict[str, Any] = {
            "name": base.name,
            "digest": base.digest,
            "python": base.python_full,
            "glibc": base.glibc,
        }
        if base.replaced:
            described["replaced"] = [asdict(package) for package in base.replaced]
        return known | {"base": described}


def count_replaced(record: dict[str, Any]) -> int:
    """Return for how many locked Debian packages an image took newer versions, by its lock.json."""
    described = (record.get("base"), record.get("transformer_engine"))
    return sum(len(part.get("replaced", ())) for part in described if isinstance(part, dict))


def list_steps(request: ImageRequest) -> list[dict[str, Any]]:
    """Return the stages of this build, and whether each is done; nothing is fetched, patched or
    made.
    """
    check_request(request)
    access = source.access(request.context, request.manifest)
    entry = request.manifest.distribution(request.distribution)
    found = [
        {
            "stage": f"patch {name}",
            "done": source_tree.stamp(request.manifest.source(name), access).is_file(),
        }
        for name in entry.sources
    ]
    try:
        made = base_image.resolve_bases(
            request.context,
            request.manifest,
            entry.line,
            request.base,
            request.architectures,
            request.engine,
            request.compression,
            make=False,
        )
    except base_image.NotMadeError:
        made = {}
    for architecture in request.architectures:
        found.append({"stage": f"base for linux/{architecture}", "done": architecture in made})
        if request.transformer_engine and architecture in made:
            from builder.packages.transformer_engine import addition

            ready = addition.is_built(
                request.context,
                request.manifest,
                entry.line,
                request.accelerator,
                architecture,
                made[architecture].python,
            )
            found.append({"stage": f"Transformer Engine for linux/{architecture}", "done": ready})
        if made and all(step["done"] for step in found):
            wanted = _select_packages(
                request,
                made[architecture],
                interpreter.ensure_interpreter(request.cache, made),
                architecture,
            )
            for name, key in layer_assignment.compute_layer_keys(wanted).items():
                found.append(
                    {
                        "stage": f"layer {name} for linux/{architecture}",
                        "done": layer.find_layer(request.cache, key, name, request.compression)
                        is not None,
                    }
                )
        else:
            found.append({"stage": f"layers for linux/{architecture}", "done": False})
    return found


def resolve_image(request: ImageRequest) -> ResolvedImage:
    """Prepare the patched sources, the bases and the packages."""
    check_request(request)
    access = source.access(request.context, request.manifest)
    entry = request.manifest.distribution(request.distribution)
    sources = {
        name: source_tree.patched(request.manifest.source(name), access) for name in entry.sources
    }
    for state in sources.values():
        source_lock.check(request.manifest, state)
    found = base_image.resolve_bases(
        request.context,
        request.manifest,
        entry.line,
        request.base,
        request.architectures,
        request.engine,
        request.compression,
        allow_current=request.local,
    )
    python = interpreter.ensure_interpreter(request.cache, found)
    return ResolvedImage(
        request,
        access,
        sources,
        found,
        {
            each: _select_packages(request, found[each], python, each)
            for each in request.architectures
        },
    )


def build_image(request: ImageRequest) -> BuiltImage:
    """Make what the cache lacks; the same inputs give the same index on every machine."""
    resolved = resolve_image(request)
    made = {
        architecture: _build_architecture(resolved, architecture)
        for architecture in request.architectures
    }
    records = {architecture: record for architecture, (_, record) in made.items()}
    return BuiltImage(
        oci_documents.make_index(
            [image for image, _ in made.values()],
            image_settings.make_annotations(next(iter(records.values()))),
        ),
        records,
    )


def _select_packages(request: ImageRequest, base: Base, python: Any, architecture: str) -> Packages:
    """Return the packages of one architecture; they are for the base's Python, whichever this
    machine has.
    """
    locks = request.manifest.folder("locks")
    line = request.manifest.distribution(request.distribution).line
    lock = locks / f"{request.distribution}-{request.accelerator}.txt"
    wanted = package_installation.Packages(
        request.distribution,
        line,
        request.accelerator,
        architecture,
        python,
        lock,
        locks / "build.txt",
        request.manifest,
    )
    if not request.transformer_engine:
        return wanted
    from builder.packages.transformer_engine import addition

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
            f"its Transformer Engine was built for glibc {added.glibc}, the base has {base.glibc}",
            base.name,
            "give another --base, or --transformer-engine no",
        )
    return replace(
        wanted,
        extra=tuple(added.pins),
        wheels=((added.wheel, added.sha256),),
        replaced=added.replaced,
    )


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _build_architecture(
    resolved: ResolvedImage, architecture: str
) -> tuple[oci_documents.Image, dict[str, Any]]:
    """One architecture, and its lock.json."""
    request, base, wanted = (
        resolved.request,
        resolved.bases[architecture],
        resolved.packages[architecture],
    )
    cache = request.layers or request.cache
    below = [*base.layers]
    trees = environment_parts.list_trees(
        request.manifest, resolved.sources, resolved.access, wanted.python
    )

    @functools.cache  # its contents are compared once
    def environment() -> Path:
        made = image_environment.ensure_environment(
            request.cache, wanted, offline=resolved.access.offline
        )
        environment_parts.refuse_shadowed_modules(
            package_installation.find_site_packages(made), trees, wanted.lock.name
        )
        return made

    def add(name: str, key: str, entries: Callable[[], Iterable[Entry]]) -> Layer:
        return layer.write_layer(cache, key, name, request.compression, entries)

    parted: dict[str, list[Entry]] = {}

    def part_of(name: str) -> Iterator[Entry]:
        if not parted:
            parted.update(layer_assignment.split_environment(environment(), wanted))
        return layer_assignment.add_prefix(parted[name])

    with log.stage(
        f"layers of {request.distribution}-{request.accelerator} for {wanted.architecture}"
    ):
        for name, key in layer_assignment.compute_layer_keys(wanted).items():
            below.append(add(name, key, lambda name=name: part_of(name)))  # type: ignore[misc]
        below.append(_add_sources_layer(wanted, trees, add))
        rows = [
            {"name": each.name, "diff_id": each.diff_id, "digest": each.digest, "size": each.size}
            for each in below
        ]
        record = {
            **resolved.record(architecture),
            "compression": request.compression,
            "layers": rows,
        }
        top = _add_rosetta_layer(request, wanted, record, trees, environment, add)
    settings = image_settings.make_settings(record, base.env)
    return oci_documents.make_image(
        wanted.architecture,
        [*below, top],
        image_settings.format_creation_time(record),
        settings,
        image_settings.make_annotations(record),
    ), record


def _add_sources_layer(wanted: Packages, trees: Sequence[Tree], add: Callable[..., Layer]) -> Layer:
    """Yield the patched trees, and what puts them on sys.path."""
    paths = environment_parts.path_file_text([each.folder for each in trees])
    inputs = {
        "trees": {each.folder: each.key for each in trees},
        "python": wanted.python.full,
        "prefix": image_environment.PREFIX,
        "paths": paths,
    }

    def entries() -> Iterator[Entry]:
        for each in trees:
            yield from walk_folder(each.path(), f"opt/{each.folder}")
        yield make_file(
            f"{image_environment.PREFIX}/lib/python{wanted.python.version}/site-packages/rosetta-sources.pth",
            paths,
        )

    return add("sources", stage_key("layer", {"name": "sources", **inputs}), entries)


def _add_rosetta_layer(
    request: ImageRequest,
    wanted: Packages,
    record: dict[str, Any],
    trees: Sequence[Tree],
    environment: Callable[[], Path],
    add: Callable[..., Layer],
) -> Layer:
    """Yield the package rosetta, its programs, and what describes the image."""
    pins = wanted.pins()
    about = environment_parts.record_parts(
        record,
        request.manifest,
        pins,
        lambda _: package_installation.find_site_packages(environment()),
        trees,
    )
    ours = [
        part
        for part in [*environment_parts.rosetta_parts(wanted.python, trees), *about]
        if part.path != "bin"
    ]  # that one is a bare environment's own
    fixed = list(image_settings.list_entries(record, {pin.name: pin.version for pin in pins}))
    inputs = {
        "parts": {part.path: part.key for part in ours},
        "fixed": [[each.path, each.mode, (each.data or b"").decode()] for each in fixed],
    }

    def entries() -> Iterator[Entry]:
        with tempfile.TemporaryDirectory(prefix="rosetta-layer-") as folder:
            for part in ours:
                made = Path(folder, part.path)
                made.parent.mkdir(parents=True, exist_ok=True)
                part.make(made)
            for each in walk_folder(
                folder, ""
            ):  # into memory: the layer is written when this folder is gone
                yield (
                    replace(each, source="", data=Path(each.source).read_bytes())
                    if each.kind == "file"
                    else each
                )
            yield from fixed

    return add("rosetta", stage_key("layer", {"name": "rosetta", **inputs}), entries)
