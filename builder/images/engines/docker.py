"""Docker, with either of its stores.

The classic store has unpacked layers and names images by their configs. The store of containerd
has blobs and names images by their manifests or indexes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
from typing import IO, TYPE_CHECKING, Any

from builder.core import log
from builder.images.engines import docker_daemon, engine_program
from builder.images.engines.container_engine import (
    PulledImage,
    make_platforms_error,
    name_temporary_image,
)
from builder.images.oci import blob_compression, layer, layout, oci_documents, tar_file
from builder.images.oci.tar_entry import Entry, make_file
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.engines.container_engine import BuildStep, RunLimits
    from builder.images.oci.oci_documents import Image, Index


class Docker:
    """The daemon that the docker program reaches."""

    name = "docker"

    @functools.cached_property
    def _daemon(self) -> docker_daemon.Daemon:
        return docker_daemon.Daemon()

    def find_problem(self) -> UserError | None:
        """Return why docker cannot be used on this machine; None if it can."""
        if not shutil.which("docker"):
            return UserError(
                "docker is not installed", "docker", "install docker", kind=MISSING, value="docker"
            )
        try:
            _ = self._daemon
        except UserError as error:
            return error
        return None

    def pull(self, reference: str, architecture: str, tag: str) -> PulledImage:
        """Fetch an image, or use docker's own if no registry has it; give it the name `tag`."""
        digest = reference.partition("@")[2]
        is_local = False
        if not digest or not self._inspect(reference, architecture):
            done = self._pull(reference, architecture)
            if match := re.search(r"(?m)^Digest: (sha256:[0-9a-f]{64})$", done.stdout):
                digest = match[1]
            if done.returncode:
                problem = engine_program.explain_failure(f"{done.stdout}\n{done.stderr}", reference)
                if not self._inspect(reference, architecture):
                    raise problem
                is_local = True
                log.info(f"{reference} is taken from docker's own storage: {problem.what}")
        facts = self._inspect(reference, architecture)
        if not facts:
            raise UserError(
                f"the image is not there for {architecture}",
                reference,
                "give another --base or --platform",
            )
        self._daemon.tag(reference, tag)
        return PulledImage(str(facts["Id"]) if is_local else digest, is_local)

    def _pull(self, reference: str, architecture: str) -> subprocess.CompletedProcess[str]:
        argv = ("docker", "pull", "--platform", f"linux/{architecture}", "--", reference)
        done = engine_program.run_program(*argv, check=False)
        if "cannot overwrite digest" in done.stderr:
            # The classic store has one architecture under a digest.
            self.remove([reference])
            done = engine_program.run_program(*argv, check=False)
        return done

    def _inspect(self, reference: str, architecture: str) -> dict[str, Any]:
        """Return what docker knows of an image; empty if it has none for the architecture."""
        facts = self._daemon.inspect(reference)
        # A store that has several platforms under one name describes that of the daemon.
        if facts.get("Architecture") == architecture:
            return facts
        return facts if facts and self._daemon.has_containerd_store() else {}

    def build(self, step: BuildStep) -> None:
        """Build Dockerfile.base into the image `step.tag`.

        The build uses no cache: a cached step has the packages of an earlier day, and its key does
        not count secrets. It uses the builder of the daemon, whatever buildx is set to, because
        only that builder sees the daemon's images.
        """
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
        """Write an image as an archive."""
        engine_program.run_program(
            "docker", "save", "--", tag, output_file=file, where="docker save"
        )

    def remove(self, tags: Sequence[str]) -> None:
        """Remove names of images; names that do not exist are ignored."""
        for tag in tags:
            self._daemon.remove(tag)

    def load(self, cache: Cache, index: Index, tag: str) -> str:
        """Bring an image into docker's storage, completely or not at all; return its name."""
        temporary = name_temporary_image(cache, index.digest[7:23])
        current = self.find_digest(tag)
        if current in _known_digests(index):
            self.remove([temporary])  # a run that was killed may have left it
            return tag
        # Usually the image of the build before has the name. Only if not, all images are listed.
        image_ids = [current]
        noted = _read_noted_layers(cache, image_ids)
        if not noted:
            image_ids = self._daemon.list_image_ids()
            noted = _read_noted_layers(cache, image_ids)
        # Only loads into containerd's store are noted, so a note tells which store it is.
        has_containerd_store = bool(noted) or self._daemon.has_containerd_store()
        if len(index.images) > 1 and not has_containerd_store:
            raise make_platforms_error("docker daemon", index)
        with cache.lock(f"engine-{index.digest[7:23]}"):
            try:
                if len(index.images) > 1:
                    self._load_archive(
                        temporary,
                        index,
                        lambda out: _write_full_archive(cache, index, temporary, out),
                    )
                    self._daemon.tag(temporary, tag)
                elif has_containerd_store:
                    self._load_into_containerd(cache, index, temporary, noted)
                    self._move_name(cache, index, temporary, tag)
                else:
                    self._load_into_classic_store(cache, index, temporary, image_ids)
                    self._daemon.tag(temporary, tag)
            finally:
                self.remove([temporary])
        return tag

    def _move_name(self, cache: Cache, index: Index, temporary: str, tag: str) -> None:
        """Give an image that containerd's store has the name `tag`, which another image may have.

        After `docker tag` the other image would stay, without a name. If an archive gives the name,
        the other image goes, as after `docker build`.
        """
        image = index.images[0]
        present = {image_layer.digest for image_layer in image.layers}
        try:
            self._daemon.load(lambda out: layout.write_archive(cache, image, tag, out, present))
        except UserError as error:
            log.debug(f"docker did not take the image without layers: {error.what}")
        if self.find_digest(tag) not in _known_digests(index):
            self._daemon.tag(temporary, tag)

    def _load_into_containerd(
        self, cache: Cache, index: Index, temporary: str, noted: set[str]
    ) -> None:
        """Load an image of one architecture, and note its layers for later loads."""
        image = index.images[0]
        archives = [lambda out: layout.write_archive(cache, image, temporary, out)]
        if present := noted & {image_layer.digest for image_layer in image.layers}:
            archives.insert(
                0, lambda out: layout.write_archive(cache, image, temporary, out, present)
            )
        self._load_first(temporary, index, archives)
        digests = [image_layer.digest for image_layer in image.layers]
        write_atomic(_stamp_path(cache, image.digest), json.dumps(digests))

    def _load_into_classic_store(
        self, cache: Cache, index: Index, temporary: str, image_ids: Sequence[str]
    ) -> None:
        """Load an image of one architecture, if need be in the form that every docker reads."""
        image = index.images[0]
        archives = [
            lambda out: layout.write_archive(cache, image, temporary, out),
            lambda out: _write_plain_archive(cache, image, temporary, out),
        ]
        if present := self._find_shared_layers(image, image_ids):
            archives.insert(
                0, lambda out: layout.write_archive(cache, image, temporary, out, present)
            )
        self._load_first(temporary, index, archives)

    def _load_first(
        self, temporary: str, index: Index, archives: Sequence[Callable[[IO[bytes]], None]]
    ) -> None:
        """Load the first archive that docker takes; raise the error of the last one."""
        for number, write in enumerate(archives, 1):
            try:
                self._load_archive(temporary, index, write)
            except UserError as error:
                if number == len(archives) or "disk is full" in error.what:
                    raise
                log.info(f"docker did not take the image ({error.what}): once more, another way")
                self.remove([temporary])
            else:
                return

    def _load_archive(
        self, temporary: str, index: Index, write: Callable[[IO[bytes]], None]
    ) -> None:
        """Load an archive that `write` writes, and check that the image is there and complete."""
        self._daemon.load(write)
        if self.find_digest(temporary) not in _known_digests(index):
            raise UserError(
                "docker has another image than it was given",
                "docker load",
                "run again; if it happens again, check docker's storage",
            )
        # Only a container shows that all layers are there. Of several architectures, docker unpacks
        # that of the machine.
        platform = f"linux/{index.images[0].architecture}" if len(index.images) == 1 else ""
        self._daemon.remove_container(self._daemon.create_container(temporary, platform))

    def _find_shared_layers(self, image: Image, image_ids: Sequence[str]) -> set[str]:
        """Return the digests of the lowest layers that an image in the classic store has, too.

        The store names layers by their uncompressed content.
        """
        diff_ids = [image_layer.diff_id for image_layer in image.layers]
        shared_count = 0
        for image_id in image_ids:
            root = self._daemon.inspect(image_id).get("RootFS") or {}
            shared_count = max(
                shared_count, _count_common_prefix(root.get("Layers") or [], diff_ids)
            )
        return {image_layer.digest for image_layer in image.layers[:shared_count]}

    def find_digest(self, tag: str) -> str:
        """Return the id of an image; empty if there is no such image."""
        return str(self._daemon.inspect(tag).get("Id", ""))

    def run(
        self, image: str, command: Sequence[str], limits: RunLimits
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in an image and remove the container; a bad exit status raises nothing."""
        # With docker's 64 MiB of shared memory, NCCL ends with SIGBUS.
        gpus = ("--gpus", "all", "--shm-size=8g") if limits.gpus else ()
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
            *command,
            check=False,
            where=image,
        )


def _count_common_prefix(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many items two sequences have in common, from the beginning."""
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count


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
    """Return the file that notes which layers containerd's store has for an image."""
    return cache.path("stamps", f"docker-{digest.removeprefix('sha256:')}.json")


def _read_noted_layers(cache: Cache, image_ids: Iterable[str]) -> set[str]:
    """Return the digests of the layers that containerd's store has from earlier loads of images.

    Docker does not tell which blobs the store has, so each load is noted in the cache.
    """
    noted: set[str] = set()
    for image_id in image_ids:
        with contextlib.suppress(OSError, ValueError):
            stamp = _stamp_path(cache, image_id)
            noted |= set(json.loads(stamp.read_text(encoding="ascii")))
    return noted


def _known_digests(index: Index) -> set[str]:
    """Return the ids that docker may give an image.

    The classic store uses the config, the store of containerd the manifest or the index.
    """
    digests = {index.digest}
    if len(index.images) == 1:
        digests |= {index.images[0].config_digest, index.images[0].digest}
    return digests


def _write_plain_archive(cache: Cache, image: Image, name: str, out: IO[bytes]) -> None:
    """Write docker's oldest form of an image, with uncompressed layers.

    Every docker reads this form, also one that does not know the compression of the layers.
    """
    config_name = f"{image.config_digest[7:]}.json"
    layer_names = [f"{image_layer.diff_id[7:]}.tar" for image_layer in image.layers]
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": layer_names}]
    sink = tar_file.PlainSink(out)
    for document in (
        make_file("manifest.json", json.dumps(manifest, sort_keys=True)),
        make_file(config_name, image.config),
    ):
        sink.write(tar_file.encode_header(document))
        sink.write((document.data or b"") + bytes(-document.size % tar_file.BLOCK_SIZE))
    for path, image_layer in dict(zip(layer_names, image.layers, strict=True)).items():
        sink.write(tar_file.encode_header(Entry(path, "file", 0o644, size=image_layer.unpacked)))
        with (
            open(layer.blob_path(cache, image_layer.digest), "rb") as packed,
            blob_compression.decompress_stream(packed) as plain,
        ):
            while data := plain.read(1 << 20):
                sink.write(data)
        sink.write(bytes(-image_layer.unpacked % tar_file.BLOCK_SIZE))
    sink.write(bytes(2 * tar_file.BLOCK_SIZE))


def _write_full_archive(cache: Cache, index: Index, name: str, out: IO[bytes]) -> None:
    """Write an image of several architectures as a layout, for the store of containerd."""
    annotations = {
        "io.containerd.image.name": layout.qualify_name(name),
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    described = oci_documents.make_descriptor(oci_documents.INDEX, index.document)
    top_index = {
        "schemaVersion": 2,
        "mediaType": oci_documents.INDEX,
        "manifests": [{**described, "annotations": annotations}],
    }
    others = [
        entry for entry in layout.list_entries(cache, index, name) if entry.path != "index.json"
    ]
    entries = [make_file("index.json", oci_documents.encode_json(top_index)), *others]
    tar_file.write_tar(entries, tar_file.PlainSink(out))
