"""buildah, and podman where it is beside it: both use one storage, without a daemon."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.cache import remove_path
from builder.images.engines import engine_program
from builder.images.engines.container_engine import TEMPORARY_NAME, PulledImage
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
# Works for root, for users, and inside of containers; it has the host's network or none to switch
# off.
_ISOLATION = ("--isolation", "chroot")


class Buildah:
    """The storage of containers that buildah and podman share."""

    name = "buildah"

    def find_problem(self) -> UserError | None:
        try:
            done = engine_program.run_program(
                "buildah", "info", check=False
            )  # it opens the storage, and does not stumble over what others remove meanwhile
        except UserError as error:
            return UserError(
                "buildah is not installed", "buildah", error.do, kind=MISSING, value="buildah"
            )
        return (
            engine_program.explain_failure(f"{done.stdout}\n{done.stderr}", "buildah")
            if done.returncode
            else None
        )

    def pull(self, reference: str, architecture: str, tag: str) -> PulledImage:
        full = layout.qualify_name(reference)
        problem, digest = None, reference.partition("@")[2]
        if full.startswith("localhost/"):  # buildah's own name for what comes from no registry
            problem = UserError(
                "there is no such image", reference, "check its name and tag (buildah images)"
            )
        else:
            # As docker does, take a registry on this machine without TLS.
            insecure = ["--tls-verify=false"] if _LOOPBACK.match(full) else []
            if not digest and (digest := _find_published_digest(full, insecure)):
                full = re.sub(r":[\w.-]+$", "", full) + "@" + digest
            done = engine_program.run_program(
                "buildah",
                "pull",
                "--quiet",
                *insecure,
                "--arch",
                architecture,
                "--",
                f"docker://{full}",
                check=False,
            )
            if done.returncode:
                problem = engine_program.explain_failure(f"{done.stdout}\n{done.stderr}", reference)
        if problem:
            facts = self._facts(reference)
            if facts.get("OCIv1", {}).get("architecture") != architecture:
                raise problem
            log.info(f"{reference} is taken from buildah's own storage: {problem.what}")
            image = str(facts["FromImageID"])
        else:
            image = done.stdout.split()[-1]
        engine_program.run_program("buildah", "tag", image, tag, where=reference)
        if problem:
            return PulledImage(f"sha256:{image}", local=True)
        return PulledImage(digest or str(self._facts(image)["FromImageDigest"]))

    def _facts(self, image: str) -> dict[str, Any]:
        """Return what buildah knows of an image it has; empty where it has none."""
        done = engine_program.run_program(
            "buildah", "inspect", "--type", "image", "--", image, check=False
        )
        facts: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return facts

    def build(self, step: BuildStep) -> None:
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
        file.unlink(missing_ok=True)  # into one that is there it would not write
        # By a relative name: buildah takes everything after the first colon for one. As a layout:
        # its other form knows no zstd.
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
        for tag in tags:
            engine_program.run_program("buildah", "rmi", "--", tag, check=False)

    def load(self, cache: Cache, index: Index, tag: str) -> str:
        name = _stored_name(tag)
        if len(index.images) == 1:
            if self.find_digest(name) == index.images[0].config_digest:
                self.remove(
                    [_temporary_name(index.images[0])]
                )  # of a run that was killed before it did
                return name
            with self._taken(cache, index.images[0], index) as temporary:
                engine_program.run_program("buildah", "tag", temporary, name, where=tag)
            return name
        images = [f"{name}-{image.architecture}" for image in index.images]
        for image, named in zip(index.images, images, strict=True):
            # A list only refers to images: each keeps a name of its own, or it would go with its
            # temporary one.
            with self._taken(cache, image, index) as temporary:
                engine_program.run_program("buildah", "tag", temporary, named, where=tag)
        if engine_program.run_program(
            "buildah", "manifest", "rm", "--", name, check=False
        ).returncode:
            self.remove([name])
        try:
            engine_program.run_program("buildah", "manifest", "create", "--", name, where=tag)
            for image, named in zip(index.images, images, strict=True):
                engine_program.run_program(
                    "buildah",
                    "manifest",
                    "add",
                    "--arch",
                    image.architecture,
                    "--os",
                    "linux",
                    "--",
                    name,
                    f"containers-storage:{named}",
                    where=tag,
                )
        except BaseException:
            engine_program.run_program("buildah", "manifest", "rm", "--", name, check=False)
            raise
        return name

    @contextlib.contextmanager
    def _taken(self, cache: Cache, image: Image, index: Index) -> Iterator[str]:
        """One architecture's image in the storage, under a name that it has for as long as the
        context lasts.
        """
        temporary = _temporary_name(image)
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
                engine_program.run_program(
                    "buildah",
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
                        "buildah holds another image than was given to it",
                        "buildah pull",
                        "run again; if it happens again, check buildah's storage",
                    )
                yield temporary
            finally:
                remove_path(scratch)
                self.remove([temporary])

    def find_digest(self, tag: str) -> str:
        image = self._facts(tag).get("FromImageID", "")
        return f"sha256:{image}" if image else ""

    def run(
        self, image: str, command_: Sequence[str], limits: RunLimits
    ) -> subprocess.CompletedProcess[str]:
        if limits.gpus:
            raise UserError(
                "buildah and podman are not given GPUs here",
                image,
                "give --engine docker, with NVIDIA's runtime",
                kind=UNSUPPORTED,
            )
        if limits.architecture and self.find_digest(own := f"{image}-{limits.architecture}"):
            # Of a list podman 4.3 takes the machine's own architecture, whatever it was asked for.
            image = own
        if shutil.which("podman"):
            return self._podman(image, command_, limits)
        if limits.read_only or limits.memory_folders or limits.entrypoint is not None:
            raise UserError(
                "buildah alone cannot run it so (read-only, in memory, another entrypoint)",
                image,
                "apt-get install podman",
            )
        container = engine_program.run_program(
            "buildah", "from", "--pull-never", "--", image, where=image
        ).stdout.strip()
        try:
            argv = [
                "buildah",
                "run",
                *_ISOLATION,
                *(["--user", limits.user] if limits.user else []),
            ]
            for host, inside, writable in limits.mounts:
                argv += ["--volume", f"{host}:{inside}:{'rw' if writable else 'ro'}"]
            for name, value in limits.env.items():
                argv += ["--env", f"{name}={value}"]
            settings = self._facts(image).get("OCIv1", {}).get("config", {})
            return engine_program.run_program(
                *argv,
                "--",
                container,
                *(settings.get("Entrypoint") or []),
                *(command_ or settings.get("Cmd") or []),
                check=False,
                where=image,
            )
        finally:
            engine_program.run_program("buildah", "rm", "--", container, check=False)

    def _podman(
        self, image: str, command_: Sequence[str], limits: RunLimits
    ) -> subprocess.CompletedProcess[str]:
        runtime: list[str] = []
        argv = ["--rm", "--pull", "never", *format_limits(limits)]

        def start() -> subprocess.CompletedProcess[str]:
            words = ("podman", *runtime, "run", *argv, "--", image, *command_)
            return engine_program.run_program(*words, check=False, where=image)

        done = start()
        # Podman asks for more than an unprivileged machine may have; runc and crun word the refusal
        # differently.
        if done.returncode and "rlimit" in done.stderr.lower():
            for name, kind in (
                ("nofile", resource.RLIMIT_NOFILE),
                ("nproc", resource.RLIMIT_NPROC),
            ):
                most = min(
                    limit
                    for limit in (*resource.getrlimit(kind), 4096)
                    if limit != resource.RLIM_INFINITY
                )
                argv += ["--ulimit", f"{name}={most}:{most}"]
            done = start()
        # crun does not run beside both versions of cgroups, and runc does.
        if done.returncode and "cgroups in hybrid mode" in done.stderr and shutil.which("runc"):
            runtime = ["--runtime", "runc"]
            done = start()
        return done


def _find_published_digest(full: str, options_: Sequence[str]) -> str:
    """Return the digest of what a registry has under a tag, all architectures together: as docker
    says it, while buildah names one architecture's.
    """
    if not shutil.which("skopeo"):
        return ""
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "manifest"
        done = engine_program.run_program(
            "skopeo", "inspect", "--raw", *options_, "--", f"docker://{full}", into=raw, check=False
        )
        return "" if done.returncode else oci_documents.compute_digest(raw.read_bytes())


def _temporary_name(image: Image) -> str:
    return f"{TEMPORARY_NAME}-{image.digest[7:23]}:latest"


def _stored_name(tag: str) -> str:
    """Return the full name that this storage gives an image of ours."""
    host, slash, _ = tag.partition("/")
    full = (
        tag if slash and ("." in host or ":" in host or host == "localhost") else f"localhost/{tag}"
    )
    return full if ":" in full.rpartition("/")[2] else f"{full}:latest"
