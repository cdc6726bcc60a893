"""Get the base of an image: its layers, which the cache keeps, and its Python, glibc and ENV.

A base comes from an image of a registry or of a container engine, from an OCI layout, or from
Debian packages that mmdebstrap installs.
"""

from __future__ import annotations

import functools
import json
import platform
import re
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from builder.core import log, machine_architecture
from builder.core.cache import Cache, stage_key
from builder.core.cache_records import read_stamp, write_stamp
from builder.images.base import debian_bootstrap, hash_based_bytecode, requirements
from builder.images.base.requirements import BaseFacts
from builder.images.engines import container_engine, dockerfile_step, layer_normalisation
from builder.images.oci import layer, layout
from builder.packages import debian_lock, debian_resolution
from rosetta.core.errors import DIFFERS, INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.images.engines.container_engine import Engine
    from builder.images.oci.layer import Layer
    from builder.packages.debian_lock import BaseLock
    from builder.packages.debian_resolution import Replacement

_EMPTY_TAR_SIZE = 1024  # bytes of a tar without entries
# ENV of a base that may stay. It leaves out what the image or the launcher sets.
_KEPT_ENV = re.compile(r"(?!PATH=|NVIDIA_|PYTHON|PIP_|XLA_|JAX_|TF_|NCCL_)\w+=.*")


@dataclass(frozen=True)
class Base:
    """A base of one architecture."""

    architecture: str
    name: str  # "debian:trixie-slim", what --base gave, or "bootstrap:trixie"
    digest: str  # of the image, or the sha256 of the list of Debian packages
    layers: tuple[Layer, ...]  # from the bottom up: "base" (one or more), then "os" if it has files
    env: tuple[str, ...]  # those of the image that may stay, as NAME=VALUE
    python: str  # such as "3.13"
    python_full: str  # such as "3.13.5"
    glibc: str  # such as "2.41"
    replaced: tuple[Replacement, ...] = ()  # locked packages that Debian has superseded


class BaseNotCachedError(UserError):
    """The cache does not have a base, and the caller does not allow it to be made."""


@dataclass(frozen=True)
class _BaseRequest:
    """A base of one architecture to resolve; see the arguments of `resolve_bases`."""

    context: Context
    manifest: Manifest
    name: str  # of the base in the manifest
    architecture: str
    engine: str
    compression: str
    pythons: tuple[str, ...]  # accepted versions, the preferred one first
    make: bool = True
    use_current: bool = False  # today's packages in place of the locked ones

    @property
    def cache(self) -> Cache:
        return self.context.cache

    @property
    def lock(self) -> BaseLock:
        return debian_lock.load_lock(self.manifest, self.name, self.architecture)


def resolve_bases(
    context: Context,
    manifest: Manifest,
    line: str,
    choice: str,
    architectures: Sequence[str],
    engine: str,
    compression: str,
    *,
    make: bool = True,
    allow_current: bool = False,
) -> dict[str, Base]:
    """Return the bases of a line's images by architecture; make or fetch what the cache lacks.

    The result also has the base of this machine's architecture, because its Python compiles for
    all architectures.

    Args:
        context: The cache, and whether the network may be used.
        manifest: The manifest.
        line: The line.
        choice: The value of --base: "bootstrap" for Debian packages, "oci:DIR", or the name of an
            image. "" for the packages or the image in locks/base-*.json.
        architectures: The architectures of the image.
        engine: "docker", "buildah", or "" for the first of them that works.
        compression: "gzip" or "zstd".
        make: Whether a base may be made or fetched.
        allow_current: Whether current packages may replace locked ones that Debian has superseded.
            If one architecture needs that, all get current packages.

    Raises:
        BaseNotCachedError: `make` is not set, and a base would have to be made.
        UserError: A base is not available, or the bases have different Pythons.
    """
    entry = manifest.lines[line]
    if entry.base is None:
        raise UserError(
            "has no base, so no image can be built for it",
            f"line {line}",
            f"set its base in the manifest to one of {', '.join(manifest.bases)}",
            kind=MISSING,
        )
    other_pythons = sorted(entry.pythons, key=lambda version: int(version[2:]), reverse=True)
    pythons = tuple(dict.fromkeys([entry.python, *other_pythons]))
    requests = [
        _BaseRequest(
            context, manifest, entry.base, architecture, engine, compression, pythons, make
        )
        for architecture in _add_own_architecture(architectures)
    ]
    try:
        bases = {request.architecture: _resolve_base(request, choice) for request in requests}
    except debian_lock.SupersededError as error:
        if not allow_current:
            raise
        log.info(f"{error.where}: {error.what}")
        requests = [replace(request, use_current=True) for request in requests]
        bases = {request.architecture: _resolve_base(request, choice) for request in requests}
    python = bases[architectures[0]].python_full
    other_versions = {base.python_full for base in bases.values()} - {python}
    if other_versions:
        raise UserError(
            f"the base has Python {python} and {', '.join(other_versions)} on different "
            "architectures",
            choice or entry.base,
            "give a --base that has the same Python on all architectures",
            kind=DIFFERS,
        )
    return bases


def _add_own_architecture(architectures: Sequence[str]) -> list[str]:
    """Return architectures, with this machine's added at the end if it is not one of them."""
    own_architecture = machine_architecture.ARCHITECTURES.get(platform.machine(), "")
    if not own_architecture or own_architecture in architectures:
        return [*architectures]
    return [*architectures, own_architecture]


def _resolve_base(request: _BaseRequest, choice: str) -> Base:
    """Return the base that --base or else the lock chooses.

    Without --base, locked packages come first, then a locked image. If neither is locked, the
    manifest's image is used if an engine can get it, else current Debian packages are locked.
    """
    image, lock = request.manifest.bases[request.name].image, request.lock
    locked_digests = dict(lock.images)
    if choice.startswith("oci:"):
        return _resolve_layout(request, Path(choice.removeprefix("oci:")).absolute())
    if choice == "bootstrap" or (not choice and (lock.packages or image not in locked_digests)):
        if not lock.packages:
            if not choice and (base := _try_image(request, image)):
                return base
            if not request.make:
                raise BaseNotCachedError("the base has no locked packages yet", request.name)
            lock = debian_resolution.update_lock(
                request.manifest,
                request.name,
                request.architecture,
                offline=request.context.offline,
            )
        return _resolve_bootstrap(request, lock)
    reference = choice or image
    return _resolve_image(request, reference, locked_digests.get(reference, ""))


def _resolve_bootstrap(request: _BaseRequest, lock: BaseLock) -> Base:
    """Return the base that mmdebstrap makes from locked or current Debian packages."""
    name = f"bootstrap:{lock.suite}"
    replaced: tuple[Replacement, ...] = ()
    if request.use_current:
        lock, replaced = debian_resolution.resolve_current(request.manifest, lock)
        _report_replaced(lock, replaced)
    if not request.make and not debian_bootstrap.has_layers(request.cache, lock, debian_lock.ROOT):
        raise BaseNotCachedError("the base is not in the cache yet", name)
    layers = debian_bootstrap.make_layers(
        request.cache, lock, debian_lock.ROOT, request.compression, offline=request.context.offline
    )
    return replace(_make_base(request, name, lock.digest, layers, ()), replaced=replaced)


def _report_replaced(lock: BaseLock, replaced: Sequence[Replacement]) -> None:
    versions = ", ".join(
        f"{package.name} {package.locked or 'none'} -> {package.taken or 'none'}"
        for package in replaced
    )
    log.warn(
        f"Debian has superseded locked packages of {lock.suite} for {lock.architecture}; this "
        f"local build uses the current versions and records them in lock.json: {versions}"
    )


def _resolve_layout(request: _BaseRequest, folder: Path) -> Base:
    """Return the image in an OCI layout as a base, without an "os" layer.

    The image must have everything already: Dockerfile.base is not built on it.
    """
    oci_layout = layout.read_layout(folder, blobs=False)
    images = oci_layout.index.images
    image = next((image for image in images if image.architecture == request.architecture), None)
    if image is None:
        raise UserError(
            f"has no image for {request.architecture}",
            str(folder),
            "give another --base or --platform",
        )
    if not request.make and not all(
        debian_bootstrap.has_layer(request.cache, _compute_layer_key(image_layer.diff_id))
        for image_layer in image.layers
    ):
        raise BaseNotCachedError("the layers of the base are not in the cache yet", str(folder))
    layers = [
        _rewrite_base_layer(
            request,
            _compute_layer_key(image_layer.diff_id),
            functools.partial(_open_blob, layout.blob_path(folder, image_layer)),
        )
        for image_layer in image.layers
    ]
    settings = json.loads(image.config).get("config") or {}
    name = oci_layout.name or "an OCI layout"
    return _make_base(request, name, image.digest, layers, settings.get("Env") or ())


def _open_blob(blob: Path) -> IO[bytes]:
    return open(blob, "rb")


def _rewrite_base_layer(
    request: _BaseRequest, key: str, open_tar: Callable[[], IO[bytes]]
) -> Layer:
    """Return a layer of an image that another program made, with hash-based .pyc files.

    Args:
        request: The request.
        key: The key of the rewritten layer in the cache.
        open_tar: Opens the layer as it is in the image.
    """
    return layer.rewrite_layer(
        request.cache,
        key,
        "base",
        request.compression,
        open_tar,
        change=hash_based_bytecode.convert_bytecode,
    )


def _try_image(request: _BaseRequest, image: str) -> Base | None:
    """Return the manifest's image, whose digest is not locked yet; None if it cannot be pulled.

    A dry run and a build without the network pull nothing.
    """
    if not request.make or request.context.offline:
        return None
    engine = container_engine.find_engine(request.engine)
    if engine is None:
        log.info(f"{image} needs a container engine: the base is made from Debian packages instead")
        return None
    try:
        _pull_digest(engine, image, request.architecture)
    except UserError as error:
        log.info(
            f"{image} is not available ({error.what}): the base is made from Debian packages "
            "instead"
        )
        return None
    return _resolve_image(request, image, "")


def _resolve_image(request: _BaseRequest, reference: str, digest: str) -> Base:
    """Return an image of a registry or of the engine, with what Dockerfile.base adds.

    No engine is needed if the digest is known and the cache has the result.

    Args:
        request: The request.
        reference: The name of the image. A digest in it is used instead of the locked one.
        digest: The locked digest, or "".
    """
    if reference.startswith("-") or not re.fullmatch(r"[\w.][\w./:@-]*", reference):
        raise UserError(
            f"{reference[:80]!r} is not a valid name of an image",
            "--base",
            "give bootstrap, NAME:TAG, NAME@sha256:DIGEST or oci:DIR",
            kind=INVALID,
            value=reference[:80],
        )
    match = re.fullmatch(r"(.+?)(?::[\w.-]+)?@(sha256:[0-9a-f]{64})", reference)
    if match:
        repository, digest = match[1], match[2]
    else:
        repository = re.sub(r":[\w.-]+$", "", reference)
    if digest and (cached := _find_cached_base(request, digest)):
        return _make_base(request, reference, digest, *cached)
    if not request.make:
        raise BaseNotCachedError("the base is not in the cache yet", reference)
    if request.context.offline:
        raise UserError(
            "the base is not in the cache", reference, "run once without --offline", kind=MISSING
        )
    engine = container_engine.choose_engine(request.engine)
    if digest:
        image = f"{repository}@{digest}"
    else:
        digest, is_local = _pull_digest(engine, reference, request.architecture)
        image = reference if is_local else f"{repository}@{digest}"
        if cached := _find_cached_base(request, digest):
            return _make_base(request, reference, digest, *cached)
        _record_digest(request, engine, reference, image, digest, is_local=is_local)
    return _make_base(request, reference, digest, *_build_base(request, engine, image, digest))


def _record_digest(
    request: _BaseRequest,
    engine: Engine,
    reference: str,
    pinned_reference: str,
    digest: str,
    *,
    is_local: bool,
) -> None:
    """Lock the digest of an image if it is the manifest's.

    For another image, log how to get the same one again, or that no other machine can get it.
    """
    if is_local:
        log.info(f"{reference} exists only in {engine.name} here: other machines cannot get it")
    elif reference == request.manifest.bases[request.name].image:
        lock = request.lock
        other_images = (pair for pair in lock.images if pair[0] != reference)
        images = ((reference, digest), *other_images)
        debian_resolution.write_lock(request.manifest, replace(lock, images=images))
    else:
        log.info(
            f"{reference} is now {digest}: give --base {pinned_reference} to use the same image "
            "again"
        )


def _pull_digest(engine: Engine, reference: str, architecture: str) -> tuple[str, bool]:
    """Pull an image; return its digest, and whether it is local, that is, in no registry."""
    tag = f"{container_engine.TEMPORARY_NAME}:ask-{secrets.token_hex(8)}"
    try:
        pulled = engine.pull(reference, architecture, tag)
        return pulled.digest, pulled.local
    finally:
        engine.remove([tag])


def _compute_layer_key(diff_id: str) -> str:
    """Return the key of what `_rewrite_base_layer` makes of a layer."""
    return stage_key(
        "image-layer", {"diff_id": diff_id, "bytecode": hash_based_bytecode.RULES_VERSION}
    )


def _compute_base_key(request: _BaseRequest, digest: str) -> str:
    """Return the key of what Dockerfile.base makes of an image."""
    return stage_key(
        "base",
        {
            "image": digest,
            "architecture": request.architecture,
            "recipe": dockerfile_step.hash_recipe(debian_lock.ROOT),
            "version": 1,
            "bytecode": hash_based_bytecode.RULES_VERSION,
        },
    )


def _build_base(
    request: _BaseRequest, engine: Engine, image: str, digest: str
) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Build Dockerfile.base on an image, and record the result for `_find_cached_base`.

    Returns:
        The rewritten layers of the image, then the layer of Dockerfile.base if it has files; and
        the ENV of the image.
    """
    cache, key = request.cache, _compute_base_key(request, digest)
    with dockerfile_step.build_base(
        engine, cache, debian_lock.ROOT, image, request.architecture
    ) as exported:
        layers = [
            _rewrite_base_layer(request, _compute_layer_key(diff_id), open_layer)
            for diff_id, open_layer in zip(
                exported.diff_ids[: exported.base_count], exported.layers, strict=False
            )
        ]
        os_layer = layer_normalisation.make_os_layer(
            cache, stage_key("os", {"base": key}), request.compression, exported
        )
        env = exported.env
    if os_layer.unpacked > _EMPTY_TAR_SIZE:
        layers.append(os_layer)
    record = {"layers": [[base_layer.name, base_layer.key] for base_layer in layers], "env": env}
    write_stamp(cache.path("stamps", f"base-{key}.json"), record)
    return tuple(layers), env


def _find_cached_base(
    request: _BaseRequest, digest: str
) -> tuple[tuple[Layer, ...], tuple[str, ...]] | None:
    """Return what `_build_base` returned before; None if the cache lacks any of it.

    Layers that the cache has in the other compression only are compressed again.
    """
    cache = request.cache
    record = read_stamp(cache.path("stamps", f"base-{_compute_base_key(request, digest)}.json"))
    if record is None:
        return None
    try:
        layers = []
        for name, key in record["layers"]:
            base_layer = debian_bootstrap.find_or_recompress(cache, key, name, request.compression)
            if base_layer is None:
                return None
            layers.append(base_layer)
        return tuple(layers), tuple(record["env"])
    except (ValueError, KeyError, TypeError):
        return None


def _make_base(
    request: _BaseRequest, name: str, digest: str, layers: Sequence[Layer], env: Sequence[str]
) -> Base:
    """Return a base with its Python and its glibc.

    The facts are read from the layers once, and recorded in the cache.
    """
    cache = request.cache
    key = stage_key(
        "facts",
        {
            "layers": [base_layer.diff_id for base_layer in layers],
            "pythons": request.pythons,
            "glibc": requirements.MINIMUM_GLIBC,
        },
    )
    stamp = cache.path("stamps", f"facts-{key}.json")
    try:
        facts = BaseFacts(**(read_stamp(stamp) or {}))
    except TypeError:  # there is no record, or it has other fields
        view = requirements.scan_layers(
            layer.blob_path(cache, base_layer.digest) for base_layer in layers
        )
        facts = requirements.find_facts(view, name, request.architecture, request.pythons)
        write_stamp(stamp, asdict(facts))
    return Base(
        request.architecture,
        name,
        digest,
        tuple(layers),
        tuple(line for line in env if _KEPT_ENV.fullmatch(line)),
        facts.python,
        facts.python_full,
        facts.glibc,
    )
