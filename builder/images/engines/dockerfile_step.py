"""Build Dockerfile.base on a base image with an engine, and read the result."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from builder.core import log
from builder.core.cache import remove_path, stage_key
from builder.core.file_copies import copy_file
from builder.images.engines import build_secrets, image_archive, layer_normalisation
from builder.images.engines.container_engine import BuildStep, name_temporary_image
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
    """Return the sha256 of Dockerfile.base, of all that it runs, and of the normalisation rules.

    It is the part of a stage key that stands for the build.
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
    for file in files:
        if not file.is_file():
            raise UserError("is missing", str(file), "git checkout it", kind=MISSING)
    return files


@contextlib.contextmanager
def build_base(
    engine: Engine,
    cache: Cache,
    root: Path,
    base: str | Sequence[Layer],
    architecture: str,
    debs: Path | None = None,
) -> Iterator[ExportedImage]:
    """Yield the image that Dockerfile.base makes of a base; it can be read inside the context.

    Nothing stays in the engine.

    Args:
        engine: The engine.
        cache: The cache; layers of the base are there.
        root: The repository, which has Dockerfile.base.
        base: The name of an image (of a registry, best with its digest, or of the engine), or the
            layers of a base that the builder made.
        architecture: "amd64" or "arm64".
        debs: A folder with .deb files and their Packages. If given, no setting of this machine
            reaches the build, and the build uses no network.
    """
    key = _compute_step_key(root, base, architecture, debs)
    base_name = name_temporary_image(cache, f"base-{key}")
    result_name = name_temporary_image(cache, f"built-{key}")
    with contextlib.ExitStack() as stack:
        stack.enter_context(cache.lock(f"engine-{key}"))
        scratch = cache.path("blobs", f".tmp-engine-{key}")
        stack.callback(remove_path, scratch)
        remove_path(scratch)
        scratch.mkdir()
        context = _copy_context(scratch / "context", root, debs)
        secrets = {} if debs else build_secrets.collect_secrets()
        secret_files = stack.enter_context(build_secrets.write_files(secrets))
        step = BuildStep(
            context, base_name, architecture, result_name, secret_files, network=debs is None
        )
        try:
            _provide_base(engine, cache, base, architecture, base_name)
            with log.stage(f"{DOCKERFILE} for {architecture} ({engine.name})"):
                engine.build(step)
            engine.save(result_name, scratch / "built.tar")
        finally:
            engine.remove([result_name, base_name])
        exported = image_archive.read_built_archive(scratch / "built.tar")
        if exported.config.get("architecture") != architecture:
            raise UserError(
                f"the image is not there for {architecture}",
                base if isinstance(base, str) else engine.name,
                "give another --base or --platform",
            )
        yield exported


def _provide_base(
    engine: Engine, cache: Cache, base: str | Sequence[Layer], architecture: str, name: str
) -> None:
    """Bring a base into the engine under a name: pull an image, or load layers."""
    if isinstance(base, str):
        engine.pull(base, architecture, name)
        return
    image = oci_documents.make_image(architecture, base, "1980-01-01T00:00:00Z", {}, {})
    engine.load(cache, oci_documents.make_index([image], {}), name)


def _compute_step_key(
    root: Path, base: str | Sequence[Layer], architecture: str, debs: Path | None
) -> str:
    """Return the start of a key of all that decides the result of `build_base`."""
    identity = base if isinstance(base, str) else [layer.diff_id for layer in base]
    return stage_key(
        "step",
        {
            "recipe": hash_recipe(root),
            "on": identity,
            "architecture": architecture,
            "debs": str(debs),
        },
    )[:16]


def _copy_context(folder: Path, root: Path, debs: Path | None) -> Path:
    """Copy what the build may read into a folder, and return the folder."""
    for file in _list_recipe_files(root):
        target = folder / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(file, target)
    if debs:
        (folder / "debs").mkdir()
        for file in debs.iterdir():
            copy_file(file, folder / "debs" / file.name)
    return folder
