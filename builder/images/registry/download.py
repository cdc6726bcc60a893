"""What a registry holds of an image: documents and blobs, each checked against its digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.core import log
from builder.core.secrets import redact
from builder.images.oci import oci_documents, reference
from builder.images.registry.transport import Connection, MismatchError
from builder.images.registry.upload import Meter
from rosetta.core.atomic_files import replace_file
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST_TYPES = (
    oci_documents.INDEX,
    oci_documents.MANIFEST,
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEX_TYPES = (MANIFEST_TYPES[0], MANIFEST_TYPES[2])


@dataclass(frozen=True)
class Document:
    """A manifest or an index as its registry gives it."""

    media_type: str
    digest: str
    data: bytes

    def json(self) -> dict[str, Any]:
        """Its content. Raises UserError for what is no JSON object."""
        try:
            value = json.loads(self.data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise UserError(
                f"document {self.digest[7:19]}… of the registry is not JSON",
                "",
                "check the name and the proxy settings",
            )
        return value


def read_document(connection: Connection, wanted: str) -> Document:
    """Return the manifest or index of a tag or a digest in the repository."""

    def get() -> Document:
        answer = connection.request(
            "GET",
            connection.url(f"manifests/{wanted}"),
            (200,),
            headers={"Accept": ", ".join(MANIFEST_TYPES)},
            follow=True,
            stream=True,
        )
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        said = answer.headers.get("Docker-Content-Digest", "")
        data = connection.read_document(answer)
        if kind not in MANIFEST_TYPES:
            what = (
                "a web page (a login page or a proxy's answer?)"
                if kind == "text/html"
                else f"{kind or 'something without a type'}"
            )
            raise UserError(
                f"gives {what}, not an image",
                str(connection.reference),
                "check the name and the proxy settings",
                kind=INVALID,
                value=kind,
            )
        expected = wanted if ":" in wanted else said or oci_documents.compute_digest(data)
        if oci_documents.compute_digest(data) != expected:
            raise MismatchError(f"a document came that is not {redact(expected)[:19]}…")
        return Document(kind, expected, data)

    what = f"document {wanted[7:19]}…" if ":" in wanted else f"the tag {wanted}"
    found: Document = connection.retry(f"reading {what}", get)
    return found


def fetch_blob(name: str, digest: str, size: int, target: Path) -> None:
    """Bring a blob of HOST/NAME to the file `target`, whole or not at all."""
    with (
        Connection(reference.parse_reference(name), "pull") as connection,
        Meter(f"pull of {digest[7:19]}…", size) as meter,
    ):
        download_blob(connection, digest, size, target, meter)


def download_blob(
    connection: Connection, digest: str, size: int, target: Path, meter: Meter
) -> None:
    """Download over a connection that stands."""

    def get(new: Path) -> None:
        came, sha = 0, hashlib.sha256()
        headers = {"Accept-Encoding": "identity"}
        try:
            with (
                connection.request(
                    "GET",
                    connection.url(f"blobs/{digest}"),
                    (200,),
                    headers=headers,
                    follow=True,
                    stream=True,
                ) as answer,
                open(new, "wb") as out,
            ):
                for piece in connection.read_pieces(answer, size):
                    out.write(piece)
                    sha.update(piece)
                    came += len(piece)
                    meter.add(len(piece))
            if came != size or f"sha256:{sha.hexdigest()}" != digest:
                raise MismatchError(
                    f"{came} bytes came that are not blob {digest[7:19]}… of {size}"
                )
        except BaseException:
            meter.add(-came)
            raise

    with replace_file(target, None) as new:
        connection.retry(f"reading blob {digest[7:19]}…", lambda: get(new))


def pull_image(name: str, folder: Path, *, layers: bool) -> Document:
    """Write HOST/NAME:TAG, or what a digest names, as an OCI image layout into `folder`, which must
    be new; without its `layers` where they are not asked for.

    `layout.read_layout(folder, blobs=layers)` reads it. Returns what the name stands for.
    """
    wanted = _parse_selected(name)
    place = folder / "blobs/sha256"
    place.mkdir(parents=True)
    with Connection(wanted, "pull") as connection:
        first = read_document(connection, wanted.selector)
        manifests = [first]
        if first.media_type in INDEX_TYPES:
            manifests = [
                read_document(connection, str(each.get("digest")))
                for each in _require_list(first.json(), "manifests")
                if (each.get("platform") or {}).get("os") != "unknown"
            ]
        blobs: dict[str, int] = {}
        for each in manifests:
            content = each.json()
            for described in [
                content.get("config"),
                *(_require_list(content, "layers") if layers else []),
            ]:
                blobs |= _parse_descriptor(described)
        with Meter(f"pull of {wanted}", sum(blobs.values())) as meter:
            for digest, size in blobs.items():
                download_blob(connection, digest, size, place / digest[7:], meter)
    for each in {first.digest: first, **{each.digest: each for each in manifests}}.values():
        (place / each.digest[7:]).write_bytes(each.data)
    top = {
        "schemaVersion": 2,
        "mediaType": oci_documents.INDEX,
        "manifests": [
            {"mediaType": first.media_type, "digest": first.digest, "size": len(first.data)}
        ],
    }
    top["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": str(wanted)}  # type: ignore[index]
    (folder / "index.json").write_bytes(oci_documents.encode_json(top))
    (folder / "oci-layout").write_bytes(oci_documents.encode_json({"imageLayoutVersion": "1.0.0"}))
    log.info(f"{wanted} is {first.digest}")
    return first


def _parse_selected(name: str) -> reference.Reference:
    wanted = reference.parse_reference(name)
    if not wanted.selector:
        raise UserError(
            "needs a tag or a digest", str(wanted), "give HOST/NAME:TAG or HOST/NAME@sha256:DIGEST"
        )
    return wanted


def _require_list(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UserError(f"a document of the registry has no list of {key}", "", "check the name")
    return value


def _parse_descriptor(value: Any) -> dict[str, int]:
    digest, size = (
        (value.get("digest"), value.get("size")) if isinstance(value, dict) else (None, None)
    )
    if (
        not isinstance(digest, str)
        or not reference.is_digest(digest)
        or not isinstance(size, int)
        or size < 0
    ):
        raise UserError(
            "a document of the registry names something without sha256 and size",
            "",
            "check the name",
        )
    return {digest: size}
