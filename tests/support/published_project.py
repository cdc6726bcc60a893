"""A small distribution that was built already, keys, and registries that list tags and, one of them, what refers to an image."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from builder import __version__, cli
from builder.commands.registry import PROGRAM
from builder.core.accelerators import ACCELERATORS, NEWEST_CUDA
from builder.core.cache import Cache
from builder.core.command_context import Context, Result
from builder.images import image_settings
from builder.images.oci import layer, layout, oci_documents
from builder.images.oci.tar_entry import make_file
from builder.packages import build_record, debian_lock, licences
from builder.packages.debian_lock import BaseLock, Deb
from tests.support import image_registry, small_distribution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.image_registry import Answer, Served

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "hunter2"  # noqa: S105 - what must not be published
BOTH = ("amd64", "arm64")
DAY = "2026-01-02"


class Listing(image_registry.Memory):
    """The registry of a few lines, with its tags listed `page` at a time; with `referrers` it lists what refers to an image itself, one at a time."""

    def __init__(self, *, referrers: bool = False, page: int = 200) -> None:
        super().__init__()
        self.referrers, self.page = referrers, page

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        if found := re.fullmatch(r"/v2/(.+)/tags/list\?(?:.*&)?n=\d+(?:&last=(.*))?", target):
            with self._lock:
                return self._tags(found[1], found[2] or "")
        if (
            found := re.fullmatch(
                r"/v2/(.+)/referrers/(sha256:[0-9a-f]{64})(?:\?page=(\d+))?", target
            )
        ) and self.referrers:
            with self._lock:
                return self._referrers(found[1], found[2], int(found[3] or 0))
        return super().answer(method, target, headers, body)

    def _tags(self, name: str, last: str) -> Answer:
        tags = sorted(
            tag for repository, tag in self.manifests if repository == name and ":" not in tag
        )
        if not tags:
            return 404, {}, b'{"errors": [{"code": "NAME_UNKNOWN", "message": ""}]}'
        after = [tag for tag in tags if tag > last]
        more = (
            {"Link": f'</v2/{name}/tags/list?n=1000&last={after[self.page - 1]}>; rel="next"'}
            if len(after) > self.page
            else {}
        )
        return (
            200,
            {"Content-Type": "application/json", **more},
            json.dumps({"name": name, "tags": after[: self.page]}).encode(),
        )

    def _referrers(self, name: str, digest: str, page: int) -> Answer:
        rows = []
        for (repository, which), (kind, data) in self.manifests.items():
            document = json.loads(data)
            if (
                repository == name
                and ":" in which
                and (document.get("subject") or {}).get("digest") == digest
            ):
                rows.append(
                    {
                        **oci_documents.make_descriptor(kind, data),
                        "artifactType": document["artifactType"],
                        "annotations": document.get("annotations", {}),
                    }
                )
        more = (
            {"Link": f'</v2/{name}/referrers/{digest}?page={page + 1}>; rel="next"'}
            if len(rows) > page + 1
            else {}
        )
        return (
            200,
            {"Content-Type": oci_documents.INDEX, **more},
            oci_documents.encode_json(
                {
                    "schemaVersion": 2,
                    "mediaType": oci_documents.INDEX,
                    "manifests": rows[page : page + 1],
                }
            ),
        )


_PLACES: dict[str, Path] = {}  # of the real registries, by their hosts


def overwrite_blob(served: Served, digest: str, data: bytes) -> None:
    """Change what a registry keeps under a digest, behind its back."""
    kept = getattr(served.answer, "__self__", None)
    if not isinstance(kept, Listing):
        (place,) = _PLACES[served.host].glob(
            f"data/docker/registry/v2/blobs/sha256/*/{digest[7:]}/data"
        )
        place.write_bytes(data)
        return
    assert any(key[1] == digest for key in (*kept.blobs, *kept.manifests))
    kept.blobs |= {key: data for key in kept.blobs if key[1] == digest}
    kept.manifests |= {
        key: (kind, data) for key, (kind, _) in kept.manifests.items() if key[1] == digest
    }


def delete_manifests(served: Served, digests: list[str]) -> None:
    """Remove manifests from a registry that lists what refers to an image."""
    kept = getattr(served.answer, "__self__", None)
    assert isinstance(kept, Listing)
    kept.manifests = {key: value for key, value in kept.manifests.items() if key[1] not in digests}


def take_snapshot(served: Served, folder: Path) -> Callable[[], None]:
    """Return what brings back all that a registry keeps now; `folder` does not exist yet."""
    kept = getattr(served.answer, "__self__", None)
    if isinstance(kept, Listing):
        blobs, manifests = dict(kept.blobs), dict(kept.manifests)

        def restore() -> None:
            kept.blobs, kept.manifests = dict(blobs), dict(manifests)

        return restore
    data = _PLACES[served.host] / "data"
    shutil.copytree(data, folder)

    def restore_files() -> None:
        shutil.rmtree(data)
        shutil.copytree(folder, data)

    return restore_files


@contextmanager
def serve_registry(kind: str, folder: Path) -> Iterator[Served]:
    """ "memory", "referrers" (memory too) or "docker-registry"."""
    if kind == "docker-registry":
        with image_registry.serve_docker_registry(folder) as served:
            _PLACES[served.host] = folder
            yield served
        return
    kept = Listing(referrers=kind == "referrers")
    with image_registry.serve_answers(kept.answer, kept.lose) as served:
        yield served


@dataclass
class Project:
    """A repository with one distribution, `thing`, and the layouts of its images."""

    folder: Path
    cache: Cache
    commit: str = COMMIT
    architectures: tuple[str, ...] = BOTH
    licences: dict[str, Any] | None = None  # the image's index of licences

    def __post_init__(self) -> None:
        for name in ("patches/thing", "locks/line"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "patches/thing/series").write_text("greet\n")
        old, new = (
            small_distribution.hash_blob(small_distribution.SOURCE),
            small_distribution.hash_blob(small_distribution.SOURCE.replace("hi", "good day")),
        )
        (self.folder / "patches/thing/greet.patch").write_text(
            small_distribution.PATCH.format(old=old, new=new, greeting="good day")
        )
        (self.folder / "locks/line/common.in").write_text("helper\n")
        self.lock({"helper": "1.0", "other": "2.0"})
        self.base(libc6="2.41-1", bash="5.2-1")
        self.keys = {name: make_key_pair(self.folder, name) for name in ("ours", "theirs")}

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.yaml"

    def lock(self, packages: dict[str, str]) -> None:
        """Write the lock of the distribution, and the manifest."""
        sums = {
            name: hashlib.sha256(f"{name}{version}".encode()).hexdigest()
            for name, version in packages.items()
        }
        text = "".join(
            f"{name}=={version} \\\n    --hash=sha256:{sums[name]}\n"
            for name, version in packages.items()
        )
        text += f"only-arm==1.0 ; platform_machine == 'aarch64' \\\n    --hash=sha256:{'a' * 64}\n"
        for accelerator in ACCELERATORS:
            (self.folder / f"locks/thing-{accelerator}.txt").write_text(text)
        self.manifest.write_text(f"""version: 1
sources:
  thing: {{git: "https://example.invalid/group/thing.git", track: main, commit: {self.commit}, patches: patches/thing}}
lines:
  line: {{python: "3.11", pythons: ["3.11"], common: locks/line/common.in, base: any}}
distributions:
  thing: {{line: line, sources: [thing], accelerators: [{", ".join(ACCELERATORS)}], architectures: [{", ".join(self.architectures)}]}}
bases:
  any: {{image: "debian:trixie-slim", bootstrap: trixie}}
""")

    def base(self, **packages: str) -> None:
        """Write the locks of the base."""
        self.bases = {}
        for architecture in BOTH:
            found = [
                Deb(
                    name,
                    version,
                    architecture,
                    f"pool/main/{name}.deb",
                    hashlib.sha256(f"{name}{version}{architecture}".encode()).hexdigest(),
                    1,
                    "base",
                )
                for name, version in sorted(packages.items())
            ]
            lock = self.bases[architecture] = BaseLock(
                "any", "trixie", architecture, "", (), tuple(found)
            )
            (self.folder / f"locks/base-any-{architecture}.json").write_text(
                debian_lock.render_lock(lock)
            )

    def record(self, architecture: str, accelerator: str = NEWEST_CUDA) -> dict[str, Any]:
        """The lock.json of an image of this project as it stands now."""
        patch = (self.folder / "patches/thing/greet.patch").read_bytes()
        source = {
            "name": "thing",
            "url": f"https://me:{SECRET}@example.invalid/group/thing.git",
            "commit": self.commit,
            "tree": "1" * 40,
            "patched_commit": "2" * 40,
            "patched_tree": "3" * 40,
            "exported_tree": "3" * 40,
            "absent": [],
            "patches": [
                {
                    "name": "greet",
                    "sha256": hashlib.sha256(patch).hexdigest(),
                    "subject": "s",
                    "outcome": "applied",
                }
            ],
            "overlay": [],
            "date": 1_760_000_000,
        }
        base = {
            "name": "bootstrap:trixie",
            "digest": self.bases[architecture].digest,
            "python": "3.11.9",
            "glibc": "2.41",
        }
        return {
            "schema": 1,
            "distribution": "thing",
            "line": "line",
            "accelerator": accelerator,
            "architecture": architecture,
            "python": "3.11",
            "builder": __version__,
            "sources": {"thing": source},
            "requirements": {
                "file": f"thing-{accelerator}.txt",
                "sha256": hashlib.sha256(
                    (self.folder / f"locks/thing-{accelerator}.txt").read_bytes()
                ).hexdigest(),
            },
            "transformer_engine": None,
            "transformer_engine_reason": "built with --transformer-engine no",
            "base": base,
            "compression": "gzip",
            "layers": [],
        }

    def image(
        self,
        architecture: str,
        top: str,
        accelerator: str = NEWEST_CUDA,
        distribution: str = "",
    ) -> tuple[oci_documents.Image, dict[str, str]]:
        record = self.record(architecture, accelerator)
        texts = {
            "base.txt": "base",
            f"top-{architecture}": top * 50_000,
            "opt/rosetta/lock.json": build_record.lock_text(record),
        }
        made = [
            layer.write_layer(
                self.cache,
                hashlib.sha256(f"{path}{text}{self.licences}".encode()).hexdigest(),
                path,
                "gzip",
                lambda path=path, text=text: [make_file(path, text), *self._more(path)],  # type: ignore[misc]
            )
            for path, text in texts.items()
        ]
        declared = [row["licence"] for row in (self.licences or {}).get("licences", [])]
        noted = image_settings.make_annotations(
            record | ({"distribution": distribution} if distribution else {}),
            image_settings.Origin(
                licences=licences.list_spdx_terms([*declared, licences.BASE_LICENCES])
            ),
        )
        return oci_documents.make_image(
            architecture, made, "2026-01-01T00:00:00Z", {"Cmd": ["true"]}, noted
        ), noted

    def _more(self, path: str) -> list[Any]:
        """Return what stands beside lock.json in the highest layer."""
        if self.licences is None or path != "opt/rosetta/lock.json":
            return []
        return [make_file("opt/rosetta/LICENSES/index.json", json.dumps(self.licences))]

    def layout(
        self,
        top: str = "one",
        architectures: tuple[str, ...] = BOTH,
        *,
        accelerator: str = NEWEST_CUDA,
        distribution: str = "",
    ) -> str:
        """Write the image with the text `top` as a layout; the name that `publish` takes."""
        images = [self.image(each, top, accelerator, distribution) for each in architectures]
        name = "-".join(["layout", top, *architectures, accelerator, distribution])
        folder = self.folder / name
        layout.write_layout(
            self.cache,
            oci_documents.make_index([image for image, _ in images], images[0][1]),
            folder,
            name="thing:1",
        )
        return f"oci:{folder}"

    def digest(self, place: str) -> str:
        return layout.read_layout(Path(place.removeprefix("oci:"))).index.digest

    def run(self, verb: str, *more: str, key: str = "ours") -> tuple[int, dict[str, Any]]:
        """Run a verb in this process; its status and its JSON document."""
        half = "pub" if verb in ("verify-published", "changelog") else "pem"
        argv = [
            verb,
            *more,
            "--manifest",
            str(self.manifest),
            "--json",
            *(("--key", f"{self.keys[key]}.{half}") if key else ()),
        ]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = cli.main(argv)
        return status, json.loads(out.getvalue())

    def call(self, verb: str, *more: str) -> Result:
        """Run a verb as a function, which may be done in several threads at once. Raises what it raises."""
        module = PROGRAM.find_command(verb).load_module()
        context = Context(small_distribution.ROOT, self.manifest, self.cache)
        found: Result = module.run(
            context,
            cli.make_command_parser(verb).parse_args([*more, "--key", f"{self.keys['ours']}.pem"]),
        )
        return found

    def publish(
        self,
        served: Served,
        *what: str,
        name: str = "team/thing",
        date: str = DAY,
        key: str = "ours",
    ) -> tuple[int, dict[str, Any]]:
        return self.run(
            "publish",
            *what,
            "--to",
            f"{served.host}/{name}",
            *(("--date", date) if date else ()),
            key=key,
        )


def make_suite_result(digest: str, **results: Any) -> dict[str, Any]:
    """Return the result of a suite that ran on a GPU, in an image without Transformer Engine."""
    outcomes = {
        "fp8": {"outcome": "passed"},
        "te": {"outcome": "not run", "lacks": "environment", "reason": "it is not in the image"},
        "collective": {"outcome": "passed"},
        **results,
    }
    checks = [{"name": name, "platform": "cuda", **check} for name, check in outcomes.items()]
    return {"schema": 1, "ok": True, "result": {"digest": digest, "checks": checks}}


def make_key_pair(folder: Path, name: str) -> Path:
    """Write a pair of keys, NAME.pem and NAME.pub; return their path without the suffix."""
    made = ec.generate_private_key(ec.SECP256R1())
    place = folder / name
    plain = made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    place.with_suffix(".pem").write_bytes(plain)
    place.with_suffix(".pub").write_bytes(
        made.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return place


def list_pullable_tags(served: Served, name: str = "team/thing") -> list[str]:
    """The tags of a repository that a person may pull."""
    status, _, data = served.answer("GET", f"/v2/{name}/tags/list?n=1000", {}, b"")
    return (
        sorted(tag for tag in json.loads(data)["tags"] if tag.startswith(("nightly", "latest")))
        if status == 200
        else []
    )
