"""Bring a finished image to where --output says: what the place cannot take is refused before
anything is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.images.engines import engine as engines
from builder.images.oci import layout, reference
from builder.packages import python_interpreter
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.images.image_build import Built, Request
    from builder.images.image_target import Output


def destination(wanted: Output, request: Request, since: str) -> Callable[[Built], dict[str, Any]]:
    """Return a function that takes the image there and says what it did."""
    kinds: dict[str, Callable[[], Callable[[Built], dict[str, Any]]]] = {
        "image": lambda: _engine(wanted, request),
        "oci": lambda: _layout(wanted, request),
        "bundle": lambda: _bundle(wanted, request, since),
        "registry": lambda: _registry(wanted, request),
    }
    return kinds[wanted.kind]()


def _place(wanted: Output, request: Request) -> Path:
    if wanted.path is None:
        raise UserError("needs a path", "--output", f"give {wanted.kind}:PATH")
    if wanted.path.resolve().is_relative_to(request.cache.root.resolve()):
        raise UserError(
            "lies inside the builder's cache, where it would be pruned",
            str(wanted.path),
            f"give another --output {wanted.kind}:PATH",
        )
    return wanted.path


def _engine(wanted: Output, request: Request) -> Callable[[Built], dict[str, Any]]:
    engine = engines.choose(request.engine)

    def load(built: Built) -> dict[str, Any]:
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


def _layout(wanted: Output, request: Request) -> Callable[[Built], dict[str, Any]]:
    place = _place(wanted, request)
    layout.refuse(place)

    def write(built: Built) -> dict[str, Any]:
        if not layout.is_current(request.cache, built.index, place, wanted.name):
            with log.stage(f"write {place}"):
                layout.write(request.cache, built.index, place, name=wanted.name)
        return {"path": str(place)}

    return write


def _bundle(wanted: Output, request: Request, since: str) -> Callable[[Built], dict[str, Any]]:
    from builder.images import offline_bundle

    place = _place(wanted, request)
    known = offline_bundle.known(since) if since else None
    offline_bundle.refuse(place)

    def write(built: Built) -> dict[str, Any]:
        with log.stage(f"write {place}"):
            return offline_bundle.write(
                request.cache,
                built.index,
                place,
                name=wanted.name,
                records=built.records,
                since=known,
            )

    return write


def _registry(wanted: Output, request: Request) -> Callable[[Built], dict[str, Any]]:
    from builder.images.registry import registry

    if request.context.offline:
        raise UserError(
            "a registry cannot be reached with --offline", "--output", "leave one of the two out"
        )
    reference.parse(wanted.name)

    def push(built: Built) -> dict[str, Any]:
        with log.stage(f"push {wanted.name}"):
            done = registry.push(request.cache, built.index, wanted.name)
        return {
            "name": done.reference,
            "total": done.total,
            "moved": done.moved,
            "mounted": done.mounted,
            "previous": done.previous,
            "next": [str(done)],
        }

    return push
