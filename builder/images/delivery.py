"""Deliver a finished image to the place that --output names.

A place that cannot take the image is refused before anything is built.
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

    from builder.core.command_context import Context
    from builder.images.image_target import Output
    from builder.images.top_layers import BuiltImage

    Deliver = Callable[[BuiltImage], dict[str, Any]]


def prepare_delivery(output: Output, context: Context, engine_name: str, since: str) -> Deliver:
    """Check the place that --output names, and return the function that delivers an image there.

    Args:
        output: The place.
        context: The checkout and its cache, and whether the network may be used.
        engine_name: The container engine; empty for the first that answers.
        since: What a site has already, for a bundle; "" for nothing.

    Returns:
        A function that delivers a built image, and returns what --json reports of it.

    Raises:
        UserError: The place cannot take the image.
    """
    if output.kind == "image":
        return _prepare_engine(output, context, engine_name)
    if output.kind == "oci":
        return _prepare_layout(output, context)
    if output.kind == "bundle":
        return _prepare_bundle(output, context, since)
    return _prepare_registry(output, context)


def _require_path(output: Output, context: Context) -> Path:
    """Return the path of a place. Raises UserError if it has none, or is in the cache."""
    if output.path is None:
        raise UserError("needs a path", "--output", f"give {output.kind}:PATH")
    if output.path.resolve().is_relative_to(context.cache.root.resolve()):
        raise UserError(
            "lies inside the builder's cache, where it would be pruned",
            str(output.path),
            f"give another --output {output.kind}:PATH",
        )
    return output.path


def _prepare_engine(output: Output, context: Context, engine_name: str) -> Deliver:
    engine = container_engine.choose_engine(engine_name)

    def load(built: BuiltImage) -> dict[str, Any]:
        with log.stage(f"load {output.name} into {engine.name}"):
            name = engine.load(context.cache, built.index, output.name)
        program = f"{python_interpreter.find_command()} {context.root / 'build.py'}"
        return {
            "engine": engine.name,
            "name": name,
            "next": [f"next: {program} verify image:{name} --engine {engine.name}"],
        }

    return load


def _prepare_layout(output: Output, context: Context) -> Deliver:
    path = _require_path(output, context)
    layout.require_replaceable(path)

    def write(built: BuiltImage) -> dict[str, Any]:
        if not layout.is_current(context.cache, built.index, path, output.name):
            with log.stage(f"write {path}"):
                layout.write_layout(context.cache, built.index, path, name=output.name)
        return {"path": str(path)}

    return write


def _prepare_bundle(output: Output, context: Context, since: str) -> Deliver:
    from builder.images import offline_bundle

    path = _require_path(output, context)
    known_layers = offline_bundle.read_known_layers(since) if since else None
    offline_bundle.require_replaceable(path)

    def write(built: BuiltImage) -> dict[str, Any]:
        with log.stage(f"write {path}"):
            return offline_bundle.write_bundle(
                context.cache,
                built.index,
                path,
                name=output.name,
                records=built.records,
                since=known_layers,
            )

    return write


def _prepare_registry(output: Output, context: Context) -> Deliver:
    from builder.images.registry import image_push

    if context.offline:
        raise UserError(
            "a registry cannot be reached with --offline", "--output", "leave one of the two out"
        )
    reference.parse_reference(output.name)

    def push(built: BuiltImage) -> dict[str, Any]:
        with log.stage(f"push {output.name}"):
            result = image_push.push_image(context.cache, built.index, output.name)
        return {
            "name": result.reference,
            "total": result.total,
            "moved": result.moved,
            "mounted": result.mounted,
            "previous": result.previous,
            "next": [str(result)],
        }

    return push
