"""The interface of container engines, and the choice of one."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from builder.core import log
from rosetta.core.errors import MISSING, UNKNOWN, UNSUPPORTED, UserError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.oci.oci_documents import Index

# The start of the names of images that are removed when a step ends.
TEMPORARY_NAME = "localhost/rosetta-temporary"


def name_temporary_image(cache: Cache, key: str) -> str:
    """Return the name of an image that is removed when a step ends.

    The step holds a lock of the cache for its key. Builds with other caches may use the same engine
    at the same time, so the name depends on the cache, too. It is the same in each run, so that a
    run replaces what a killed run has left.
    """
    cache_key = hashlib.sha256(str(cache.root.resolve()).encode()).hexdigest()[:8]
    return f"{TEMPORARY_NAME}-{cache_key}-{key}:latest"


@dataclass(frozen=True)
class PulledImage:
    """An image that an engine has fetched, or had already."""

    digest: str  # of the registry; if `local`, the engine's own id
    local: bool = False  # whether no registry has the image


@dataclass(frozen=True)
class BuildStep:
    """A build of Dockerfile.base."""

    context: Path  # the folder with Dockerfile.base and the files that it needs
    base: str  # the name of an image of the engine
    architecture: str
    tag: str  # of the result
    secrets: Mapping[str, Path] = field(default_factory=dict)  # files by the names of secrets
    network: bool = False


@dataclass(frozen=True)
class RunLimits:
    """How a command runs in an image."""

    user: str = ""  # UID or UID:GID
    read_only: bool = False
    network: bool = False
    memory_folders: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str, bool], ...] = ()  # path on the host, path inside, writable
    env: Mapping[str, str] = field(default_factory=dict)  # added to that of the image
    entrypoint: str | None = None  # replaces that of the image; "" for none
    architecture: str = ""
    gpus: bool = False  # all GPUs of the machine


class Engine(Protocol):
    """A container engine: docker or buildah.

    Every method raises UserError, with what to do, if the engine refuses.
    """

    name: str

    def find_problem(self) -> UserError | None:
        """Return why the engine cannot be used on this machine; None if it can."""

    def pull(self, reference: str, architecture: str, tag: str) -> PulledImage:
        """Fetch an image from a registry, and give it a name in the engine.

        Args:
            reference: The image. If no registry has it, the engine's own storage may.
            architecture: "amd64" or "arm64".
            tag: The name that the image gets in the engine.
        """

    def build(self, step: BuildStep) -> None:
        """Build Dockerfile.base into the image `step.tag`."""

    def save(self, tag: str, file: Path) -> None:
        """Write an image as an archive that `image_archive.read_archive` reads."""

    def remove(self, tags: Sequence[str]) -> None:
        """Remove names of images; names that do not exist are ignored."""

    def load(self, cache: Cache, index: Index, tag: str) -> str:
        """Bring an image into the engine's storage, completely or not at all.

        Args:
            cache: The cache that has the image's layers.
            index: The image.
            tag: The name that the image gets.

        Returns:
            The name that the engine shows.
        """

    def find_digest(self, tag: str) -> str:
        """Return the id of an image in the engine's storage; empty if there is no such image.

        The id is the digest of the image's config, manifest or index, by the kind of storage.
        """

    def run(
        self, image: str, command: Sequence[str], limits: RunLimits
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in an image and remove the container; a bad exit status raises nothing."""


def choose_engine(name: str = "") -> Engine:
    """Return an engine that answers.

    Args:
        name: "docker", "buildah", or "" for the first of them that answers.

    Raises:
        UserError: There is no such engine, or it does not answer.
    """
    from builder.images.engines.buildah import Buildah
    from builder.images.engines.docker import Docker

    engines: dict[str, Engine] = {"docker": Docker(), "buildah": Buildah()}
    if name:
        if name not in engines:
            raise UserError(
                f"{name!r} is not a known engine",
                "--engine",
                f"one of: {', '.join(engines)}",
                kind=UNKNOWN,
                value=name,
            )
        if problem := engines[name].find_problem():
            raise problem
        return engines[name]
    problems = []
    for engine in engines.values():
        problem = engine.find_problem()
        if problem is None:
            return engine
        problems.append(problem)
    for problem in problems:
        if shutil.which(problem.where):  # the engine is installed: the problem can be repaired
            raise problem
    raise UserError(
        "no container engine is installed",
        "--engine",
        (
            "install one (apt-get install buildah, or docker.io and docker-buildx), or give "
            "--output oci:PATH"
        ),
        kind=MISSING,
    )


def find_engine(name: str = "") -> Engine | None:
    """Return an engine as `choose_engine` does, but None if `name` is "" and none answers."""
    try:
        return choose_engine(name)
    except UserError as error:
        if name:
            raise
        log.info(f"no container engine can be used: {error.what}")
        return None


def make_platforms_error(engine: str, index: Index) -> UserError:
    """Return the error for a storage that takes only one architecture."""
    names = ", ".join(image.architecture for image in index.images)
    return UserError(
        f"this {engine} can have only one architecture under a tag, not {names}",
        "--output image",
        "give one --platform, or --output oci:PATH, which takes them all",
        kind=UNSUPPORTED,
    )
