"""Build Dockerfile.base on a base by an engine, and give back what came of it."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from builder.core import log
from builder.core.cache import remove_path, stage_key
from builder.core.file_copies import copy_file
from builder.images.engines import build_secrets, image_archive, layer_normalisation
from builder.images.engines.container_engine import TEMPORARY_NAME, BuildStep
from builder.images.oci import oci_documents
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.engines.container_engine import Engine
    from builder.images.engines.image_archive import ExportedImage
    from builder.images.oci.layer import Layer

DOCKERFILE = "Dockerfile.base"


def hash_recipe(root: Path) -> str:
    """Return what stands for the steps in a key: the sha256 of Dockerfile.base, of all that it
    runs, and of the rules for its result.
    """
    digest = hashlib.sha256(f"{layer_normalisation.RULES_VERSION}\n".encode())
    for file in _list_recipe_files(root):
        data = file.read_bytes()
        digest.update(f"{file.relative_to(root)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _list_recipe_files(root: Path) -> list[Path]:
    files = [
        root / DOCKERFILE,
        *sorted(path for path in (root / "docker").iterdir() if path.is_file()),
    ]
    if missing := next((path for path in files if not path.is_file()), None):
        raise UserError("is missing", str(missing), "git checkout it", kind=MISSING)
    return files


@contextlib.contextmanager
def build_base(
    engine: Engine,
    cache: Cache,
    root: Path,
    on: str | Sequence[Layer],
    architecture: str,
    debs: Path | None = None,
) -> Iterator[ExportedImage]:
    """Yield what `Dockerfile.base` (below `root`, our repository) makes of a base; read it while
    the context lasts.

    `on` is the name of an image (of a registry, best with its digest, or of the engine) or the
    layers of a base of ours. `debs` is a folder with .deb files and their Packages: with it nothing
    of the host's settings reaches the build, and the network is not used. Nothing stays in the
    engine.
    """
    base, result = name_images(root, on, architecture, debs)
    name = result.rpartition("-")[2]
    with contextlib.ExitStack() as stack:
        stack.enter_context(cache.lock(f"engine-{name}"))
        scratch = cache.path("blobs", f".tmp-engine-{name}")
        stack.callback(remove_path, scratch)
        remove_path(scratch)
        scratch.mkdir()
        context = _copy_context(scratch / "context", root, debs)
        given = stack.enter_context(
            build_secrets.write_files({} if debs else build_secrets.collect_secrets())
        )
        try:
            if isinstance(on, str):
                engine.pull(on, architecture, base)
            else:
                image = oci_documents.make_image(architecture, on, "1980-01-01T00:00:00Z", {}, {})
                engine.load(cache, oci_documents.make_index([image], {}), base)
            with log.stage(f"{DOCKERFILE} for {architecture} ({engine.name})"):
                engine.build(
                    BuildStep(context, base, architecture, result, given, network=debs is None)
                )
            engine.save(result, scratch / "built.tar")
        finally:
            engine.remove([result, base])
        exported = image_archive.read_built_archive(scratch / "built.tar")
        if exported.config.get("architecture") != architecture:
            raise UserError(
                f"the image is not there for {architecture}",
                on if isinstance(on, str) else engine.name,
                "give another --base or --platform",
            )
        yield exported


def name_images(
    root: Path, on: str | Sequence[Layer], architecture: str, debs: Path | None
) -> tuple[str, str]:
    """Return what the base and the result are called in the engine for a time: the same every time,
    so that a run after a kill takes them over.
    """
    base = on if isinstance(on, str) else [each.diff_id for each in on]
    key = stage_key(
        "step",
        {"recipe": hash_recipe(root), "on": base, "architecture": architecture, "debs": str(debs)},
    )[:16]
    return f"{TEMPORARY_NAME}:base-{key}", f"{TEMPORARY_NAME}:built-{key}"


def _copy_context(folder: Path, root: Path, debs: Path | None) -> Path:
    for file in _list_recipe_files(root):
        target = folder / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(file, target)
    if debs:
        (folder / "debs").mkdir()
        for file in debs.iterdir():
            copy_file(file, folder / "debs" / file.name)
    return folder
