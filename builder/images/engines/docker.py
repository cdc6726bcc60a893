"""Docker, whichever store it has: the classic one of layers, or containerd's of blobs."""

from __future__ import annotations

import contextlib
import json
import re
from typing import IO, TYPE_CHECKING, Any

from builder.core import log
from builder.images.engines import engine_program
from builder.images.engines.container_engine import (
    TEMPORARY_NAME,
    PulledImage,
    make_platforms_error,
)
from builder.images.oci import blob_compression, layer, layout, oci_documents, tar_file
from builder.images.oci.tar_entry import Entry, make_file
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.engines.container_engine import BuildStep, RunLimits
    from builder.images.oci.oci_documents import Image, Index


class Docker:
    """The daemon that the docker program reaches."""

    name = "docker"

    def find_problem(self) -> UserError | None:
        try:
            done = engine_program.run_program(
                "docker", "version", "--format", "{{.Server.APIVersion}}", check=False
            )
        except UserError as error:
            return UserError(
                "docker is not installed", "docker", error.do, kind=MISSING, value="docker"
            )
        return (
            engine_program.explain_failure(f"{done.stdout}\n{done.stderr}", "docker")
            if done.returncode
            else None
        )

    def pull(self, reference: str, architecture: str, tag: str) -> PulledImage:
        local, digest = False, reference.partition("@")[2]
        if not (digest and self._facts(reference, architecture)):
            argv = ("docker", "pull", "--platform", f"linux/{architecture}", "--", reference)
            done = engine_program.run_program(*argv, check=False)
            if (
                "cannot overwrite digest" in done.stderr
            ):  # the classic store keeps one architecture under a digest
                self.remove([reference])
                done = engine_program.run_program(*argv, check=False)
            if found := re.search(r"(?m)^Digest: (sha256:[0-9a-f]{64})$", done.stdout):
                digest = found[1]
            if done.returncode:
                problem = engine_program.explain_failure(f"{done.stdout}\n{done.stderr}", reference)
                if not self._facts(reference, architecture):
                    raise problem
                local = True
                log.info(f"{reference} is taken from docker's own storage: {problem.what}")
        facts = self._facts(reference, architecture)
        if not facts:
            raise UserError(
                f"the image is not there for {architecture}",
                reference,
                "give another --base or --platform",
            )
        engine_program.run_program("docker", "tag", "--", reference, tag)
        return PulledImage(str(facts["Id"]) if local else digest, local)

    def _facts(self, reference: str, architecture: str) -> dict[str, Any]:
        """Return what docker knows of an image it has; empty where it has none for that
        architecture.
        """
        done = engine_program.run_program(
            "docker", "image", "inspect", "--", reference, check=False
        )
        found = json.loads(done.stdout or "[]") if done.returncode == 0 else []
        facts: dict[str, Any] = found[0] if found else {}
        # A store that holds several platforms under one name describes the daemon's own.
        return (
            facts
            if facts.get("Architecture") == architecture or (facts and self._containerd())
            else {}
        )

    def build(self, step: BuildStep) -> None:
        # --no-cache: what a step found in an archive last week is no answer for today, and secrets
        # are not in the key of that cache. The builder of the daemon in use, whatever else buildx
        # is set to: only that one sees its images.
        context = (
            engine_program.run_program(
                "docker", "context", "inspect", "--format", "{{.Name}}", check=False
            ).stdout.strip()
            or "default"
        )
        env = {
            "DOCKER_BUILDKIT": "1",
            "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
            "BUILDX_BUILDER": context,
        }
        argv = [
            "docker",
            "build",
            "--file",
            str(step.context / "Dockerfile.base"),
            "--build-arg",
            f"BASE={step.base}",
            "--progress",
            "plain",
            "--no-cache",
        ]
        argv += [
            "--platform",
            f"linux/{step.architecture}",
            "--network",
            "host" if step.network else "none",
            "--tag",
            step.tag,
        ]
        for name, path in step.secrets.items():
            argv += ["--secret", f"id={name},src={path}"]
        engine_program.run_program(
            *argv, "--", str(step.context), env=env, where="Dockerfile.base (docker)"
        )

    def save(self, tag: str, file: Path) -> None:
        engine_program.run_program("docker", "save", "--", tag, into=file, where="docker save")

    def remove(self, tags: Sequence[str]) -> None:
        for tag in tags:
            engine_program.run_program("docker", "image", "rm", "--force", "--", tag, check=False)

    def load(self, cache: Cache, index: Index, tag: str) -> str:
        temporary = f"{TEMPORARY_NAME}:{index.digest[7:23]}"
        if self.find_digest(tag) in _known_digests(index):
            self.remove([temporary])  # of a run that was killed before it did
            return tag
        containerd = self._containerd()
        if len(index.images) > 1 and not containerd:
            raise make_platforms_error("docker daemon", index)
        with cache.lock(f"engine-{index.digest[7:23]}"):
            try:
                if len(index.images) > 1:
                    self._feed(
                        temporary,
                        index,
                        lambda out: _write_full_archive(cache, index, temporary, out),
                    )
                else:
                    self._load_one(cache, index, temporary, containerd=containerd)
                engine_program.run_program("docker", "tag", temporary, tag, where=tag)
            finally:
                self.remove([temporary])
        return tag

    def _load_one(self, cache: Cache, index: Index, temporary: str, *, containerd: bool) -> None:
        """First without the layers that are there already, then whole, then in the form that every
        docker reads.
        """
        image = index.images[0]
        present = self._blobs(cache, image) if containerd else self._chain(image)
        ways = [lambda out: layout.write_archive(cache, image, temporary, out)]
        if present:
            ways.insert(0, lambda out: layout.write_archive(cache, image, temporary, out, present))
        if not containerd:
            ways.append(lambda out: _write_plain_archive(cache, image, temporary, out))
        for number, way in enumerate(ways, 1):
            try:
                self._feed(temporary, index, way)
            except UserError as error:
                if number == len(ways) or "disk is full" in error.what:
                    raise
                log.info(f"docker did not take the image ({error.what}): once more, another way")
                self.remove([temporary])
            else:
                if containerd:
                    write_atomic(
                        _stamp_path(cache, image.digest),
                        json.dumps([each.digest for each in image.layers]),
                    )
                return

    def _feed(self, temporary: str, index: Index, write: Callable[[IO[bytes]], None]) -> None:
        engine_program.run_program("docker", "load", "--quiet", feed=write, where="docker load")
        if self.find_digest(temporary) not in _known_digests(index):
            raise UserError(
                "docker holds another image than was given to it",
                "docker load",
                "run again; if it happens again, check docker's storage",
            )
        # Only a container shows that all layers are there. Of several architectures docker unpacks
        # its own.
        platform = (
            ["--platform", f"linux/{index.images[0].architecture}"]
            if len(index.images) == 1
            else []
        )
        container = engine_program.run_program(
            "docker",
            "create",
            "--pull",
            "never",
            *platform,
            "--",
            temporary,
            "true",
            where="docker create",
        ).stdout.strip()
        engine_program.run_program("docker", "rm", "--", container, check=False)

    def _images(self) -> list[str]:
        return sorted(
            set(
                engine_program.run_program(
                    "docker", "image", "ls", "--quiet", "--no-trunc", check=False
                ).stdout.split()
            )
        )

    def _blobs(self, cache: Cache, image: Image) -> set[str]:
        """Digests of those layers that containerd's store holds for an image that was loaded
        before: it says nothing of blobs, so what was loaded is noted.
        """
        found: set[str] = set()
        for known in self._images():
            with contextlib.suppress(OSError, ValueError):
                found |= set(json.loads(_stamp_path(cache, known).read_text(encoding="ascii")))
        return {each.digest for each in image.layers} & found

    def _chain(self, image: Image) -> set[str]:
        """Digests of those layers, from the bottom up, that some image in the classic store stands
        on too: it goes by what is unpacked.
        """
        known = self._images()
        if not known:
            return set()
        shown = engine_program.run_program(
            "docker",
            "image",
            "inspect",
            "--format",
            "{{json .RootFS.Layers}}",
            "--",
            *known,
            check=False,
        ).stdout
        wanted = [each.diff_id for each in image.layers]
        most = 0
        for line in shown.splitlines():
            have = json.loads(line or "null") or []
            most = max(
                most,
                next(
                    (
                        number
                        for number, pair in enumerate(zip(have, wanted, strict=False))
                        if pair[0] != pair[1]
                    ),
                    min(len(have), len(wanted)),
                ),
            )
        return {each.digest for each in image.layers[:most]}

    def _containerd(self) -> bool:
        done = engine_program.run_program(
            "docker", "info", "--format", "{{json .DriverStatus}}", where="docker info"
        )
        return "io.containerd.snapshotter" in done.stdout

    def find_digest(self, tag: str) -> str:
        done = engine_program.run_program(
            "docker", "image", "inspect", "--format", "{{.Id}}", "--", tag, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def run(
        self, image: str, command_: Sequence[str], limits: RunLimits
    ) -> subprocess.CompletedProcess[str]:
        gpus = ("--gpus", "all") if limits.gpus else ()
        return engine_program.run_program(
            "docker",
            "run",
            "--rm",
            "--pull",
            "never",
            *gpus,
            *format_limits(limits),
            "--",
            image,
            *command_,
            check=False,
            where=image,
        )


def format_limits(limits: RunLimits) -> list[str]:
    """Return the options of `docker run` and `podman run` for these limits."""
    argv = [] if limits.network else ["--network", "none"]
    if limits.user:
        argv += ["--user", limits.user]
    if limits.read_only:
        argv.append("--read-only")
    if limits.architecture:
        argv += ["--platform", f"linux/{limits.architecture}"]
    if limits.entrypoint is not None:
        argv.append(f"--entrypoint={limits.entrypoint}")
    for folder in limits.memory_folders:
        argv += ["--tmpfs", folder]
    for host, inside, writable in limits.mounts:
        argv += ["--volume", f"{host}:{inside}:{'rw' if writable else 'ro'}"]
    for name, value in limits.env.items():
        argv += ["--env", f"{name}={value}"]
    return argv


def _stamp_path(cache: Cache, digest: str) -> Path:
    return cache.path("stamps", f"docker-{digest.removeprefix('sha256:')}.json")


def _known_digests(index: Index) -> set[str]:
    """Return what docker may call an image of ours: by its config in the classic store, by its
    manifest or index in containerd's.
    """
    return {index.digest} | (
        {index.images[0].config_digest, index.images[0].digest} if len(index.images) == 1 else set()
    )


def _write_plain_archive(cache: Cache, image: Image, name: str, out: IO[bytes]) -> None:
    """Load the oldest form: uncompressed layers, for a docker that does not know the
    compression.
    """
    config = f"{image.config_digest[7:]}.json"
    named = [f"{each.diff_id[7:]}.tar" for each in image.layers]
    sink = tar_file.PlainSink(out)
    first = [
        make_file(
            "manifest.json",
            json.dumps([{"Config": config, "RepoTags": [name], "Layers": named}], sort_keys=True),
        ),
        make_file(config, image.config),
    ]
    for each in first:
        sink.write(tar_file.encode_header(each))
        sink.write((each.data or b"") + bytes(-each.size % tar_file.BLOCK_SIZE))
    for path, each_layer in dict(zip(named, image.layers, strict=True)).items():
        sink.write(tar_file.encode_header(Entry(path, "file", 0o644, size=each_layer.unpacked)))
        with (
            open(layer.blob_path(cache, each_layer.digest), "rb") as packed,
            blob_compression.decompress_stream(packed) as plain,
        ):
            while data := plain.read(1 << 20):
                sink.write(data)
        sink.write(bytes(-each_layer.unpacked % tar_file.BLOCK_SIZE))
    sink.write(bytes(2 * tar_file.BLOCK_SIZE))


def _write_full_archive(cache: Cache, index: Index, name: str, out: IO[bytes]) -> None:
    """Load an image of several architectures as a layout that names it, for containerd's store."""
    names = {
        "io.containerd.image.name": layout.qualify_name(name),
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    top = {
        "schemaVersion": 2,
        "mediaType": oci_documents.INDEX,
        "manifests": [
            {
                **oci_documents.make_descriptor(oci_documents.INDEX, index.document),
                "annotations": names,
            }
        ],
    }
    parts = [each for each in layout.list_entries(cache, index, name) if each.path != "index.json"]
    tar_file.write_tar(
        [make_file("index.json", oci_documents.encode_json(top)), *parts], tar_file.PlainSink(out)
    )
