"""buildah, and podman if it is installed: both use one storage, without a daemon."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import resource
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.cache import remove_path
from builder.images.engines import engine_program
from builder.images.engines.container_engine import PulledImage, name_temporary_image
from builder.images.engines.docker import format_limits
from builder.images.oci import layout, oci_documents
from rosetta.core.errors import MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from builder.core.cache import Cache
    from builder.images.engines.container_engine import BuildStep, RunLimits
    from builder.images.oci.oci_documents import Image, Index

_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])[:/]")
# This isolation works for root, for users, and inside of containers. It has the network of the
# host, and no way to switch the network off.
_ISOLATION = ("--isolation", "chroot")


class Buildah:
    """The storage of containers that buildah and podman share."""

    name = "buildah"

    def find_problem(self) -> UserError | None:
        """Return why buildah cannot be used on this machine; None if it can."""
        try:
            # `info` opens the storage, and ignores images that others remove meanwhile.
            done = engine_program.run_program("buildah", "info", check=False)
        except UserError as error:
            return UserError(
                "buildah is not installed", "buildah", error.do, kind=MISSING, value="buildah"
            )
        if done.returncode:
            return engine_program.explain_failure(f"{done.stdout}\n{done.stderr}", "buildah")
        return None

    def pull(self, reference: str, architecture: str, tag: str) -> PulledImage:
        """Fetch an image, or use buildah's own if no registry has it; give it the name `tag`."""
        full_name = layout.qualify_name(reference)
        if full_name.startswith("localhost/"):  # buildah's name for images of no registry
            problem = UserError(
                "there is no such image", reference, "check its name and tag (buildah images)"
            )
            return self._take_local(reference, architecture, tag, problem)
        # Like docker, take a registry on this machine without TLS.
        insecure = ["--tls-verify=false"] if _LOOPBACK.match(full_name) else []
        digest = reference.partition("@")[2]
        if not digest and (digest := _find_published_digest(full_name, insecure)):
            full_name = re.sub(r":[\w.-]+$", "", full_name) + "@" + digest
        done = _change_storage(
            "pull",
            "--quiet",
            *insecure,
            "--arch",
            architecture,
            "--",
            f"docker://{full_name}",
            check=False,
        )
        if done.returncode:
            problem = engine_program.explain_failure(f"{done.stdout}\n{done.stderr}", reference)
            return self._take_local(reference, architecture, tag, problem)
        image_id = done.stdout.split()[-1]
        _change_storage("tag", image_id, tag, where=reference)
        return PulledImage(digest or str(self._inspect(image_id)["FromImageDigest"]))

    def _take_local(
        self, reference: str, architecture: str, tag: str, problem: UserError
    ) -> PulledImage:
        """Name an image of buildah's storage; raise `problem` if it has none."""
        facts = self._inspect(reference)
        if facts.get("OCIv1", {}).get("architecture") != architecture:
            raise problem
        log.info(f"{reference} is taken from buildah's own storage: {problem.what}")
        image_id = str(facts["FromImageID"])
        _change_storage("tag", image_id, tag, where=reference)
        return PulledImage(f"sha256:{image_id}", local=True)

    def _inspect(self, image: str) -> dict[str, Any]:
        """Return what buildah knows of an image; empty if it has no such image."""
        done = engine_program.run_program(
            "buildah", "inspect", "--type", "image", "--", image, check=False
        )
        facts: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return facts

    def build(self, step: BuildStep) -> None:
        """Build Dockerfile.base into the image `step.tag`."""
        argv = [
            "buildah",
            "bud",
            *_ISOLATION,
            "--network",
            "host",
            "--pull-never",
            "--http-proxy=false",
            "--layers=false",
        ]
        argv += [
            "--file",
            str(step.context / "Dockerfile.base"),
            "--build-arg",
            f"BASE={step.base}",
            "--arch",
            step.architecture,
            "--tag",
            step.tag,
        ]
        for name, path in step.secrets.items():
            argv += ["--secret", f"id={name},src={path}"]
        engine_program.run_program(
            *argv, "--", str(step.context), where="Dockerfile.base (buildah)"
        )

    def save(self, tag: str, file: Path) -> None:
        """Write an image as an archive.

        The archive is an OCI layout, because docker's form has no zstd. Its name is relative,
        because buildah splits the argument at colons.
        """
        file.unlink(missing_ok=True)  # buildah does not overwrite a file
        engine_program.run_program(
            "buildah",
            "push",
            "--quiet",
            "--disable-compression",
            "--format",
            "oci",
            "--",
            tag,
            f"oci-archive:{file.name}",
            cwd=file.parent,
            where="buildah push",
        )

    def remove(self, tags: Sequence[str]) -> None:
        """Remove names of images; names that do not exist are ignored."""
        for tag in tags:
            _change_storage("rmi", "--", tag, check=False)

    def load(self, cache: Cache, index: Index, tag: str) -> str:
        """Bring an image into buildah's storage, completely or not at all; return its name."""
        name = _stored_name(tag)
        if len(index.images) > 1:
            self._load_list(cache, index, name, tag)
            return name
        image = index.images[0]
        if self.find_digest(name) == image.config_digest:
            # A run that was killed may have left the temporary name.
            self.remove([name_temporary_image(cache, image.digest[7:23])])
            return name
        with self._load_temporarily(cache, image, index) as temporary:
            _change_storage("tag", temporary, name, where=tag)
        return name

    def _load_list(self, cache: Cache, index: Index, name: str, tag: str) -> None:
        """Load an image of several architectures as a list of images.

        A list only refers to images, so each image keeps a name of its own. Without that name, the
        image would be removed with its temporary name.
        """
        image_names = [f"{name}-{image.architecture}" for image in index.images]
        for image, image_name in zip(index.images, image_names, strict=True):
            with self._load_temporarily(cache, image, index) as temporary:
                _change_storage("tag", temporary, image_name, where=tag)
        if _change_storage("manifest", "rm", "--", name, check=False).returncode:
            self.remove([name])
        try:
            _change_storage("manifest", "create", "--", name, where=tag)
            for image, image_name in zip(index.images, image_names, strict=True):
                _change_storage(
                    "manifest",
                    "add",
                    "--arch",
                    image.architecture,
                    "--os",
                    "linux",
                    "--",
                    name,
                    f"containers-storage:{image_name}",
                    where=tag,
                )
        except BaseException:
            _change_storage("manifest", "rm", "--", name, check=False)
            raise

    @contextlib.contextmanager
    def _load_temporarily(self, cache: Cache, image: Image, index: Index) -> Iterator[str]:
        """Load the image of one architecture; yield its name, which is removed with the context."""
        temporary = name_temporary_image(cache, image.digest[7:23])
        folder = temporary.partition("/")[2].partition(":")[0]  # buildah makes the name of it
        scratch = cache.path("blobs", f".tmp-engine-{image.digest[7:23]}")
        with cache.lock(f"engine-{image.digest[7:23]}"):
            remove_path(scratch)
            try:
                (scratch / folder).mkdir(parents=True)
                layout.fill_folder(
                    cache,
                    oci_documents.Index((image,), index.document),
                    scratch / folder,
                    name="latest",
                )
                _change_storage(
                    "pull",
                    "--quiet",
                    "--arch",
                    image.architecture,
                    "--",
                    f"oci:{folder}",
                    cwd=scratch,
                    where="buildah pull",
                )
                if self.find_digest(temporary) != image.config_digest:
                    raise UserError(
                        "buildah has another image than it was given",
                        "buildah pull",
                        "run again; if it happens again, check buildah's storage",
                    )
                yield temporary
            finally:
                remove_path(scratch)
                self.remove([temporary])

    def find_digest(self, tag: str) -> str:
        """Return the digest of an image's config; empty if there is no such image."""
        image_id = self._inspect(tag).get("FromImageID", "")
        return f"sha256:{image_id}" if image_id else ""

    def run(
        self, image: str, command: Sequence[str], limits: RunLimits
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in an image and remove the container; a bad exit status raises nothing.

        Raises:
            UserError: The limits need GPUs, or need podman, which is not installed.
        """
        if limits.gpus:
            raise UserError(
                "buildah and podman are not given GPUs here",
                image,
                "give --engine docker, with NVIDIA's runtime",
                kind=UNSUPPORTED,
            )
        if limits.architecture:
            # Of a list, podman 4.3 takes the image of the machine, whatever it is asked for.
            image_name = f"{image}-{limits.architecture}"
            image = image_name if self.find_digest(image_name) else image
        if shutil.which("podman"):
            return _run_podman(image, command, limits)
        if limits.read_only or limits.memory_folders or limits.entrypoint is not None:
            raise UserError(
                "buildah alone cannot run it so (read-only, in memory, another entrypoint)",
                image,
                "apt-get install podman",
            )
        return self._run_buildah(image, command, limits)

    def _run_buildah(
        self, image: str, command: Sequence[str], limits: RunLimits
    ) -> subprocess.CompletedProcess[str]:
        container = engine_program.run_program(
            "buildah", "from", "--pull-never", "--", image, where=image
        ).stdout.strip()
        try:
            argv = ["buildah", "run", *_ISOLATION]
            if limits.user:
                argv += ["--user", limits.user]
            for host, inside, writable in limits.mounts:
                argv += ["--volume", f"{host}:{inside}:{'rw' if writable else 'ro'}"]
            for name, value in limits.env.items():
                argv += ["--env", f"{name}={value}"]
            settings = self._inspect(image).get("OCIv1", {}).get("config", {})
            return engine_program.run_program(
                *argv,
                "--",
                container,
                *(settings.get("Entrypoint") or []),
                *(command or settings.get("Cmd") or []),
                check=False,
                where=image,
            )
        finally:
            engine_program.run_program("buildah", "rm", "--", container, check=False)


def _change_storage(
    *argv: str, cwd: Path | None = None, where: str = "", check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a command of buildah that adds or removes names of images.

    buildah reads the names of an image, changes them and writes them back. Of two processes that do
    so with one image at the same time, the second loses the change of the first. So the commands of
    the builder wait for each other, with a lock on the folder of the storage.
    """
    info = engine_program.run_program("buildah", "info", "--format", "{{.store.GraphRoot}}")
    folder = os.open(info.stdout.strip(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        return engine_program.run_program("buildah", *argv, cwd=cwd, where=where, check=check)
    finally:
        os.close(folder)


def _run_podman(
    image: str, command: Sequence[str], limits: RunLimits
) -> subprocess.CompletedProcess[str]:
    """Run a command with podman, again with other options if the machine refuses the first ones."""
    runtime: list[str] = []
    argv = ["--rm", "--pull", "never", *format_limits(limits)]

    def start() -> subprocess.CompletedProcess[str]:
        words = ("podman", *runtime, "run", *argv, "--", image, *command)
        return engine_program.run_program(*words, check=False, where=image)

    done = start()
    # Podman asks for more than an unprivileged machine may have; runc and crun word the refusal
    # differently.
    if done.returncode and "rlimit" in done.stderr.lower():
        for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            limit = _find_resource_limit(kind)
            argv += ["--ulimit", f"{name}={limit}:{limit}"]
        done = start()
    # crun does not run on a machine with both versions of cgroups, and runc does.
    if done.returncode and "cgroups in hybrid mode" in done.stderr and shutil.which("runc"):
        runtime = ["--runtime", "runc"]
        done = start()
    return done


def _find_resource_limit(kind: int) -> int:
    """Return the limit of this process for a resource, at most 4096."""
    limits = [limit for limit in resource.getrlimit(kind) if limit != resource.RLIM_INFINITY]
    return min([*limits, 4096])


def _find_published_digest(name: str, skopeo_options: Sequence[str]) -> str:
    """Return the digest of what a registry has under a tag; empty if skopeo cannot tell.

    It is the digest over all architectures, as docker reports it. buildah reports that of one.
    """
    if not shutil.which("skopeo"):
        return ""
    with tempfile.TemporaryDirectory() as scratch:
        manifest = Path(scratch) / "manifest"
        done = engine_program.run_program(
            "skopeo",
            "inspect",
            "--raw",
            *skopeo_options,
            "--",
            f"docker://{name}",
            output_file=manifest,
            check=False,
        )
        return "" if done.returncode else oci_documents.compute_digest(manifest.read_bytes())


def _stored_name(tag: str) -> str:
    """Return the full name that buildah's storage gives an image of the builder."""
    host, slash, _ = tag.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        tag = f"localhost/{tag}"
    return tag if ":" in tag.rpartition("/")[2] else f"{tag}:latest"
