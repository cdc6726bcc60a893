"""Bring a finished image to where --output says: what the place cannot take is refused before
anything is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.images.engines import container_engine
from builder.images.oci import layout, reference
from builder.packages import python_interpreter
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.images.image_build import BuiltImage, ImageRequest
    from builder.images.image_target import Output


def prepare_delivery(
    wanted: Output, request: ImageRequest, since: str
) -> Callable[[BuiltImage], dict[str, Any]]:
    """Return a function that takes the image there and says what it did."""
    kinds: dict[str, Callable[[], Callable[[BuiltImage], dict[str, Any]]]] = {
        "image": lambda: _prepare_engine(wanted, request),
        "oci": lambda: _prepare_layout(wanted, request),
        "bundle": lambda: _prepare_bundle(wanted, request, since),
        "registry": lambda: _prepare_registry(wanted, request),
    }
    return kinds[wanted.kind]()


def _require_path(wanted: Output, request: ImageRequest) -> Path:
    if wanted.path is None:
        raise UserError("needs a path", "--output", f"give {wanted.kind}:PATH")
    if wanted.path.resolve().is_relative_to(request.cache.root.resolve()):
        raise UserError(
            "lies inside the builder's cache, where it would be pruned",
            str(wanted.path),
            f"give another --output {wanted.kind}:PATH",
        )
    return wanted.path


def _prepare_engine(
    wanted: Output, request: ImageRequest
) -> Callable[[BuiltImage], dict[str, Any]]:
    engine = container_engine.choose_engine(request.engine)

    def load(built: BuiltImage) -> dict[str, Any]:
        with log.stage(f"load {wanted.name} into {engine.name}"):
            name = engine.load(request.cache, built.index, wanted.name)
        return {
            "engine": engine.name,
            "name": name,
            "next": [
                (
                    f"next: {python_interpreter.command()} {request.context.root / 'build.py'} "
                    f"verify image:{name} --engine {engine.name}"
                )
            ],
        }

    return load


def _prepare_layout(
    wanted: Output, request: ImageRequest
) -> Callable[[BuiltImage], dict[str, Any]]:
    place = _require_path(wanted, request)
    layout.require_replaceable(place)

    def write(built: BuiltImage) -> dict[str, Any]:
        if not layout.is_current(request.cache, built.index, place, wanted.name):
            with log.stage(f"write {place}"):
                layout.write_layout(request.cache, built.index, place, name=wanted.name)
        return {"path": str(place)}

    return write


def _prepare_bundle(
    wanted: Output, request: ImageRequest, since: str
) -> Callable[[BuiltImage], dict[str, Any]]:
    from builder.images import offline_bundle

    place = _require_path(wanted, request)
    known = offline_bundle.read_known_layers(since) if since else None
    offline_bundle.require_replaceable(place)

    def write(built: BuiltImage) -> dict[str, Any]:
        with log.stage(f"write {place}"):
            return offline_bundle.write_bundle(
                request.cache,
                built.index,
                place,
                name=wanted.name,
                records=built.records,
                since=known,
            )

    return write


def _prepare_registry(
    wanted: Output, request: ImageRequest
) -> Callable[[BuiltImage], dict[str, Any]]:
    from builder.images.registry import image_push

    if request.context.offline:
        raise UserError(
            "a registry cannot be reached with --offline", "--output", "leave one of the two out"
        )
    reference.parse_reference(wanted.name)

    def push(built: BuiltImage) -> dict[str, Any]:
        with log.stage(f"push {wanted.name}"):
            done = image_push.push_image(request.cache, built.index, wanted.name)
        return {
            "name": done.reference,
            "total": done.total,
            "moved": done.moved,
            "mounted": done.mounted,
            "previous": done.previous,
            "next": [str(done)],
        }

    return push
