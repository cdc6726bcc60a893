"""What an image stands on, as layers of ours with known facts: a registry's image or the engine's
own, or Debian from its packages.
"""

from __future__ import annotations

import json
import platform
import re
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log, machine_architecture
from builder.core.cache import Cache, stage_key
from builder.core.cache_records import read_stamp, write_stamp
from builder.images.base import bytecode_stamps, debian_bootstrap, requirements
from builder.images.base.requirements import BaseFacts
from builder.images.engines import container_engine, dockerfile_step, layer_normalisation
from builder.images.oci import layer, layout
from builder.packages import debian_lock, debian_resolution
from rosetta.core.errors import DIFFERS, INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builder.core.command_context import Context
    from builder.core.manifest import Manifest
    from builder.images.engines.container_engine import Engine
    from builder.images.oci.layer import Layer
    from builder.packages.debian_lock import BaseLock
    from builder.packages.debian_resolution import Replacement

_EMPTY_TAR_SIZE = 1024  # bytes of a tar that holds nothing
_KEPT_ENV = re.compile(
    r"(?!PATH=|NVIDIA_|PYTHON|PIP_|XLA_|JAX_|TF_|NCCL_)\w+=.*"
)  # ENV of a base that may stay: what is ours to set, or the launcher's, may not


@dataclass(frozen=True)
class Base:
    """A base of one architecture.

    `digest` is that of the image, or what stands for it: the sha256 of its package list.
    """

    architecture: str
    name: str  # "debian:trixie-slim", what --base gave, or "bootstrap:trixie"
    digest: str
    layers: tuple[Layer, ...]  # bottom up: "base" (one or more), then "os"
    env: tuple[str, ...]
    python: str
    python_full: str
    glibc: str
    replaced: tuple[Replacement, ...] = ()  # locked packages that Debian has superseded


class NotMadeError(UserError):
    """A base that the cache does not have, where nothing was to be made."""


@dataclass(frozen=True)
class _BaseRequest:
    """One base to be had, for one architecture."""

    context: Context
    manifest: Manifest
    name: str
    architecture: str
    engine: str
    compression: str
    pythons: tuple[str, ...]
    make: bool = True
    current: bool = False  # today's packages in place of the locked ones

    @property
    def cache(self) -> Cache:
        return self.context.cache

    @property
    def lock(self) -> BaseLock:
        return debian_lock.load(self.manifest, self.name, self.architecture)


def resolve_bases(
    context: Context,
    manifest: Manifest,
    line: str,
    asked: str,
    architectures: Sequence[str],
    engine: str,
    compression: str,
    *,
    make: bool = True,
    allow_current: bool = False,
) -> dict[str, Base]:
    """Return the base of a line's images, per architecture, made or fetched where the cache lacks
    it; and that of this machine, whose Python compiles for all.

    Without `make` it is NotMadeError where one would have to be made. `asked`: "" for what
    locks/base-*.json says, "bootstrap" for Debian's packages, else an image. `engine`: "docker",
    "buildah", or "" for the first that answers. With `allow_current`, today's packages are taken
    where Debian has superseded a locked one, for all architectures alike.
    """
    entry = manifest.lines[line]
    if entry.base is None:
        raise UserError(
            "has no base, so there are no images of it",
            f"line {line}",
            f"name one in the manifest: {', '.join(manifest.bases)}",
            kind=MISSING,
        )
    here = machine_architecture.ARCHITECTURES.get(platform.machine(), "")
    wanted = [*architectures] if here in architectures or not here else [*architectures, here]
    others = sorted(entry.pythons, key=lambda each: int(each[2:]), reverse=True)
    pythons = tuple(dict.fromkeys([entry.python, *others]))
    requests = [
        _BaseRequest(context, manifest, entry.base, each, engine, compression, pythons, make)
        for each in wanted
    ]
    try:
        found = {each.architecture: _resolve_base(each, asked) for each in requests}
    except debian_lock.SupersededError as error:
        if not allow_current:
            raise
        log.info(f"{error.where}: {error.what}")
        found = {
            each.architecture: _resolve_base(replace(each, current=True), asked)
            for each in requests
        }
    if unlike := {base.python_full for base in found.values()} - {
        found[architectures[0]].python_full
    }:
        raise UserError(
            (
                f"the base has Python {found[architectures[0]].python_full} and "
                f"{', '.join(unlike)} on different architectures"
            ),
            asked or entry.base,
            "give a --base that has the same everywhere",
            kind=DIFFERS,
        )
    return found


def _resolve_base(request: _BaseRequest, asked: str) -> Base:
    image, lock = request.manifest.bases[request.name].image, request.lock
    recorded = dict(lock.images)
    if asked.startswith("oci:"):
        return _resolve_layout(request, Path(asked.removeprefix("oci:")).absolute())
    if asked == "bootstrap" or (not asked and (lock.packages or image not in recorded)):
        if not lock.packages:
            if not asked and (found := _resolve_unlocked(request, image)):
                return found
            if not request.make:
                raise NotMadeError("no packages are locked for the base yet", request.name)
            lock = debian_resolution.record(
                request.manifest,
                request.name,
                request.architecture,
                offline=request.context.offline,
            )
        return _resolve_bootstrap(request, lock)
    return _resolve_image(request, asked or image, recorded.get(asked or image, ""))


def _resolve_bootstrap(request: _BaseRequest, lock: BaseLock) -> Base:
    name = f"bootstrap:{lock.suite}"
    replaced: tuple[Replacement, ...] = ()
    if request.current:
        lock, replaced = debian_resolution.resolve_current(request.manifest, lock)
        _report_replaced(lock, replaced)
    if not request.make and not debian_bootstrap.has_layers(request.cache, lock, debian_lock.ROOT):
        raise NotMadeError("the base is not made yet", name)
    made = debian_bootstrap.make_layers(
        request.cache, lock, debian_lock.ROOT, request.compression, offline=request.context.offline
    )
    return replace(_describe_base(request, name, lock.digest, made, ()), replaced=replaced)


def _report_replaced(lock: BaseLock, replaced: Sequence[Replacement]) -> None:
    versions = ", ".join(
        f"{package.name} {package.locked or 'none'} -> {package.taken or 'none'}"
        for package in replaced
    )
    log.warn(
        f"Debian has superseded locked packages of {lock.suite} for {lock.architecture}; this "
        "local build takes the current versions "
        f"and records them in lock.json: {versions}"
    )


def _resolve_layout(request: _BaseRequest, place: Path) -> Base:
    """Return an OCI layout as it is: no engine adds anything to it."""
    read = layout.read_layout(place, blobs=False)
    found = next(
        (image for image in read.index.images if image.architecture == request.architecture), None
    )
    if found is None:
        raise UserError(
            f"holds no image for {request.architecture}",
            str(place),
            "give another --base or --platform",
        )

    def taken(each: Layer) -> Layer:
        return layer.rewrite_layer(
            request.cache,
            _compute_layer_key(each.diff_id),
            "base",
            request.compression,
            lambda: open(layout.blob_path(place, each), "rb"),
            change=bytecode_stamps.tie_to_hashes,
        )

    if not request.make and not all(
        debian_bootstrap.has_layer(request.cache, _compute_layer_key(each.diff_id))
        for each in found.layers
    ):
        raise NotMadeError("the base is not taken in yet", str(place))
    made = [taken(each) for each in found.layers]
    settings = json.loads(found.config).get("config") or {}
    return _describe_base(
        request, read.name or "an OCI layout", found.digest, made, settings.get("Env") or ()
    )


def _resolve_unlocked(request: _BaseRequest, image: str) -> Base | None:
    """Where nothing is locked yet: the manifest's image, if an engine is here and has it or can
    fetch it.
    """
    engine = (
        None
        if request.context.offline or not request.make
        else container_engine.find_engine(request.engine)
    )
    if engine is None:
        log.info(
            f"{image} cannot be had without an engine: the base is made from Debian's packages"
        )
        return None
    try:
        _ask_digest(engine, image, request.architecture)
    except UserError as error:
        log.info(f"{image} cannot be had ({error.what}): the base is made from Debian's packages")
        return None
    return _resolve_image(request, image, "")


def _resolve_image(request: _BaseRequest, reference: str, digest: str) -> Base:
    """Return an image of a registry or of the engine, with what Dockerfile.base adds.

    A known digest needs no engine where the cache has the result.
    """
    pinned = re.fullmatch(r"(.+?)(?::[\w.-]+)?@(sha256:[0-9a-f]{64})", reference)
    if reference.startswith("-") or not re.fullmatch(r"[\w.][\w./:@-]*", reference):
        raise UserError(
            f"{reference[:80]!r} is no name of an image",
            "--base",
            "give bootstrap, NAME:TAG, NAME@sha256:DIGEST or oci:DIR",
            kind=INVALID,
            value=reference[:80],
        )
    digest = pinned[2] if pinned else digest
    repository = pinned[1] if pinned else re.sub(r":[\w.-]+$", "", reference)
    if digest and (known := _find_built(request, digest)):
        return _describe_base(request, reference, digest, *known)
    if not request.make:
        raise NotMadeError("the base is not made yet", reference)
    if request.context.offline:
        raise UserError(
            "the base is not in the cache", reference, "run once without --offline", kind=MISSING
        )
    engine = container_engine.choose_engine(request.engine)
    on = f"{repository}@{digest}" if digest else reference
    if not digest:
        digest, local = _ask_digest(engine, reference, request.architecture)
        on = reference if local else f"{repository}@{digest}"
        if known := _find_built(request, digest):
            return _describe_base(request, reference, digest, *known)
        if local:
            log.info(
                f"{reference} is an image of {engine.name}'s own: no other machine can make "
                "the same"
            )
        elif reference == request.manifest.bases[request.name].image:
            debian_resolution.write(
                request.manifest,
                replace(
                    request.lock,
                    images=(
                        (reference, digest),
                        *(pair for pair in request.lock.images if pair[0] != reference),
                    ),
                ),
            )
        else:
            log.info(f"{reference} is {digest} today: give --base {on} to have the same again")
    return _describe_base(request, reference, digest, *_build_base(request, engine, on, digest))


def _ask_digest(engine: Engine, reference: str, architecture: str) -> tuple[str, bool]:
    """Return the digest of an image, and whether no registry knows it."""
    tag = f"{container_engine.TEMPORARY_NAME}:ask-{secrets.token_hex(8)}"
    try:
        pulled = engine.pull(reference, architecture, tag)
        return pulled.digest, pulled.local
    finally:
        engine.remove([tag])


def _compute_layer_key(diff_id: str) -> str:
    """Return the key of another's layer, written again our way."""
    return stage_key("image-layer", {"diff_id": diff_id, "bytecode": bytecode_stamps.RULES_VERSION})


def _compute_base_key(request: _BaseRequest, digest: str) -> str:
    return stage_key(
        "base",
        {
            "image": digest,
            "architecture": request.architecture,
            "recipe": dockerfile_step.hash_recipe(debian_lock.ROOT),
            "version": 1,
            "bytecode": bytecode_stamps.RULES_VERSION,
        },
    )


def _build_base(
    request: _BaseRequest, engine: Engine, on: str, digest: str
) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Return the layers of the image, written again our way, and that of Dockerfile.base; and the
    image's ENV.
    """
    cache, key = request.cache, _compute_base_key(request, digest)
    with dockerfile_step.build_base(
        engine, cache, debian_lock.ROOT, on, request.architecture
    ) as exported:
        keys = [_compute_layer_key(diff_id) for diff_id in exported.diff_ids[: exported.base_count]]
        below = [
            layer.rewrite_layer(
                cache,
                each,
                "base",
                request.compression,
                opened,
                change=bytecode_stamps.tie_to_hashes,
            )
            for each, opened in zip(keys, exported.layers, strict=False)
        ]
        above = layer_normalisation.make_os_layer(
            cache, stage_key("os", {"base": key}), request.compression, exported
        )
        env = exported.env
    layers = (*below, *([above] if above.unpacked > _EMPTY_TAR_SIZE else []))
    record = {"layers": [[each.name, each.key] for each in layers], "env": env}
    write_stamp(cache.path("stamps", f"base-{key}.json"), record)
    return layers, env


def _find_built(
    request: _BaseRequest, digest: str
) -> tuple[tuple[Layer, ...], tuple[str, ...]] | None:
    """Return what `_built` gave before, if the cache still has all of it, be it in the other
    compression.
    """
    cache = request.cache
    record = read_stamp(cache.path("stamps", f"base-{_compute_base_key(request, digest)}.json"))
    if record is None:
        return None
    try:
        found = [
            debian_bootstrap.find_or_recompress(cache, key, name, request.compression)
            for name, key in record["layers"]
        ]
        layers = tuple(each for each in found if each is not None)
        return (layers, tuple(record["env"])) if len(layers) == len(found) else None
    except (ValueError, KeyError, TypeError):
        return None


def _describe_base(
    request: _BaseRequest, name: str, digest: str, layers: Sequence[Layer], env: Sequence[str]
) -> Base:
    """With its facts: from the cache, else from a look into the layers."""
    cache = request.cache
    file = cache.path(
        "stamps",
        "facts-"
        + stage_key(
            "facts",
            {
                "layers": [each.diff_id for each in layers],
                "pythons": request.pythons,
                "glibc": requirements.MINIMUM_GLIBC,
            },
        )
        + ".json",
    )
    try:
        facts = BaseFacts(**(read_stamp(file) or {}))
    except TypeError:
        shown = requirements.scan_layers([layer.blob_path(cache, each.digest) for each in layers])
        facts = requirements.find_facts(shown, name, request.architecture, request.pythons)
        write_stamp(file, asdict(facts))
    kept: Any = tuple(line for line in env if _KEPT_ENV.fullmatch(line))
    return Base(
        request.architecture,
        name,
        digest,
        tuple(layers),
        kept,
        facts.python,
        facts.python_full,
        facts.glibc,
    )
