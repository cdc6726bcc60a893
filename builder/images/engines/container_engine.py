"""What an engine can do for us, whichever it is, and which one is taken."""

from __future__ import annotations

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

# Images of ours that are gone when a step ends; a digest's digits follow as the tag.
TEMPORARY_NAME = "localhost/rosetta-temporary"


@dataclass(frozen=True)
class PulledImage:
    """An image that an engine has fetched: the registry's digest, or the engine's own id where no
    registry has it (`local`).
    """

    digest: str
    local: bool = False


@dataclass(frozen=True)
class BuildStep:
    """What to build: a folder with Dockerfile.base and what it needs, on an image of the engine,
    and how.
    """

    context: Path
    base: str
    architecture: str
    tag: str  # of the result
    secrets: Mapping[str, Path] = field(default_factory=dict)
    network: bool = False


@dataclass(frozen=True)
class RunLimits:
    """How a command is run in an image: `user` as UID or UID:GID, folders in memory, mounts (host
    path, path inside, writable), more environment.
    """

    user: str = ""
    read_only: bool = False
    network: bool = False
    memory_folders: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str, bool], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: str | None = None  # in the image's stead; "" for none
    architecture: str = ""
    gpus: bool = False  # all of the machine's


class Engine(Protocol):
    """One of docker and buildah.

    Every method raises UserError with what to do where the engine refuses.
    """

    name: str

    def find_problem(self) -> UserError | None:
        """Why it cannot be used here; None where it can."""

    def pull(self, reference: str, architecture: str, tag: str) -> PulledImage:
        """Make an image of a registry, or of the engine's own storage where no registry has it,
        known as `tag`.
        """

    def build(self, step: BuildStep) -> None:
        """Build a context's Dockerfile.base into `step.tag`."""

    def save(self, tag: str, file: Path) -> None:
        """Write an image as the archive that `image_archive.read_built_archive` reads."""

    def remove(self, tags: Sequence[str]) -> None:
        """Drop names of images; what is not there is fine."""

    def load(self, cache: Cache, index: Index, tag: str) -> str:
        """Take an image into the engine's storage under `tag`, whole or not at all; returns the
        name it has there.
        """

    def find_digest(self, tag: str) -> str:
        """Return what the engine calls an image in its storage (the digest of its config, manifest
        or index); empty where there is none.
        """

    def run(
        self, image: str, command: Sequence[str], limits: RunLimits
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in an image and remove the container; its exit status is for the caller to
        judge.
        """


def choose_engine(asked: str = "") -> Engine:
    """Return the engine asked for ("docker" or "buildah"), or the first of them that answers."""
    from builder.images.engines.buildah import Buildah
    from builder.images.engines.docker import Docker

    engines: dict[str, Engine] = {"docker": Docker(), "buildah": Buildah()}
    if asked:
        if asked not in engines:
            raise UserError(
                f"{asked!r} is no engine",
                "--engine",
                f"one of: {', '.join(engines)}",
                kind=UNKNOWN,
                value=asked,
            )
        if problem := engines[asked].find_problem():
            raise problem
        return engines[asked]
    problems = []
    for engine in engines.values():
        problem = engine.find_problem()
        if problem is None:
            return engine
        problems.append(problem)
    told = [each for each in problems if shutil.which(each.where)] or problems[:1]
    if shutil.which(told[0].where):
        raise told[0]
    raise UserError(
        "no engine is here",
        "--engine",
        (
            "install one (apt-get install buildah, or docker.io and docker-buildx), or give "
            "--output oci:PATH"
        ),
        kind=MISSING,
    )


def find_engine(asked: str = "") -> Engine | None:
    """As `choose`, but None where none was asked for and none is here."""
    try:
        return choose_engine(asked)
    except UserError as error:
        if asked:
            raise
        log.info(f"no engine of containers can be used: {error.what}")
        return None


def make_platforms_error(engine: str, index: Index) -> UserError:
    """Return the refusal of what a storage for one architecture cannot hold."""
    names = ", ".join(image.architecture for image in index.images)
    return UserError(
        f"this {engine} holds an image of one architecture under a tag, not {names}",
        "--output image",
        "give one --platform, or --output oci:PATH, which holds them all",
        kind=UNSUPPORTED,
    )
