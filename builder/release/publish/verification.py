"""Is a published image whole, and is all that is said of it signed by this key?

One row a thing looked at, each fine or with what is wrong.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.images.oci import oci_documents
from builder.images.registry import download
from builder.images.registry.transport import MismatchError
from builder.images.registry.upload import has_blob
from builder.release.publish import attachments, signed_statements
from builder.release.publish.signed_statements import SIMPLE, UntrustedError
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.images.registry.download import Document
    from builder.images.registry.transport import Connection
    from builder.release.publish.signing_key import Public

REQUIRED = ("signature", signed_statements.SBOM, signed_statements.PROVENANCE)


@dataclass
class Trusted:
    """What of one document's attachments this key signed: predicates by type, "signature" with an
    empty one; and why others do not count, by what they are.
    """

    said: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    passed_over: dict[str, list[str]] = field(default_factory=dict)

    def wrong(self, kind: str) -> str:
        """Why nothing of this kind counts; empty where something does."""
        if self.said.get(kind):
            return ""
        why = self.passed_over.get(signed_statements.NAMES.get(kind, kind), [])
        return f"it {why[0]}" if why else "there is none"


@dataclass(frozen=True)
class Row:
    """One thing that was looked at. `problem` is empty where it is fine."""

    what: str
    problem: str = ""

    def __str__(self) -> str:
        return f"{'FAILED' if self.problem else 'ok':<8}{self.what}" + (
            f": {self.problem}" if self.problem else ""
        )


@dataclass(frozen=True)
class Verdict:
    """All rows, and for each platform ("" for the index) what is attached to it and signed."""

    digest: str
    rows: tuple[Row, ...]
    trusted: dict[str, Trusted]

    @property
    def ok(self) -> bool:
        return not any(row.problem for row in self.rows)

    def with_row(self, row: Row) -> Verdict:
        """Return this verdict with one more row."""
        return Verdict(self.digest, (*self.rows, row), self.trusted)

    def first(self) -> str:
        """Return the first thing that is wrong."""
        return next((f"{row.what}: {row.problem}" for row in self.rows if row.problem), "")


def attached(connection: Connection, digest: str, public: Public, repository: str = "") -> Trusted:
    """Sort what is attached to a document by whether this key signed it for a repository.

    `repository` is HOST/NAME, where that is not the connection's own.
    """
    repository = repository or connection.reference.repository
    found = Trusted()
    for item in attachments.items(connection, digest):
        try:
            if item.media_type == SIMPLE:
                signed_statements.signs(item, public, digest, repository)
                kind, predicate = "signature", dict[str, Any]()
            else:
                kind, predicate = signed_statements.opened(item, public, digest, repository)
        except UntrustedError as problem:
            found.passed_over.setdefault(item.what, []).append(str(problem))
        else:
            found.said.setdefault(kind, []).append(predicate)
    return found


def verdict(
    connection: Connection,
    index: Document,
    public: Public,
    *,
    blobs: bool,
    tested: bool = False,
    repository: str = "",
) -> Verdict:
    """Look at an index, every platform's image and all that is attached to them.

    With `blobs` each blob is read and hashed, else asked for by its size. With `tested` a signed,
    passed test is asked for too. `repository` is the HOST/NAME that all must be signed for, where
    that is not the connection's own.
    """
    rows: list[Row] = []
    trusted: dict[str, Trusted] = {}

    def look(what: str, action: Callable[[], str]) -> None:
        try:
            rows.append(Row(what, action()))
        except UserError as problem:
            rows.append(Row(what, problem.what))

    def signed(where: str, digest: str) -> None:
        def ask() -> str:
            trusted[where] = attached(connection, digest, public, repository)
            return ""

        look(f"{where}: attachments", ask)
        known = trusted.get(where, Trusted())
        for kind in (*REQUIRED, *([signed_statements.TEST] if tested and where == "index" else [])):
            look(
                f"{where}: {signed_statements.NAMES.get(kind, kind)}",
                lambda kind=kind: known.wrong(kind) or _content(kind, known, digest),  # type: ignore[misc]
            )

    if index.media_type != oci_documents.INDEX:
        return Verdict(
            index.digest,
            (Row("index", "it is the image of one platform, not an index over all"),),
            trusted,
        )
    signed("index", index.digest)
    platforms: dict[str, dict[str, Any]] = {}
    for described in _list(index.json(), "manifests"):
        platform = described.get("platform") or {}
        name = f"{platform.get('os')}/{platform.get('architecture')}"
        if name in platforms:
            rows.append(Row(f"index: {name}", "it is there twice"))
        platforms[name] = described
    look("index: platforms", lambda: _platforms(set(platforms), trusted.get("index", Trusted())))
    for name, described in sorted(platforms.items()):
        digest = str(described.get("digest"))
        look(
            f"{name}: image",
            lambda digest=digest, name=name: _image(connection, digest, name, blobs=blobs),  # type: ignore[misc]
        )
        signed(name, digest)
    return Verdict(index.digest, tuple(rows), trusted)


def _platforms(found: set[str], known: Trusted) -> str:
    """Are they those that the signed provenance says were built?"""
    for said in known.said.get(signed_statements.PROVENANCE, []):
        try:
            wanted = {
                f"linux/{each}"
                for each in said["buildDefinition"]["externalParameters"]["architectures"]
            }
        except (KeyError, TypeError):
            continue
        if wanted == found:
            return ""
        missing, more = ", ".join(sorted(wanted - found)), ", ".join(sorted(found - wanted))
        return f"{missing} is missing" if missing else f"{more} was not built with the others"
    return "no signed provenance says which there must be"


def _content(kind: str, known: Trusted, digest: str) -> str:
    """Return what is wrong with what is signed: another image inside, or a failed test."""
    for said in known.said[kind]:
        if kind == signed_statements.SBOM:
            component = (said.get("metadata") or {}).get("component") or {}
            if {"alg": "SHA-256", "content": digest.removeprefix("sha256:")} not in (
                component.get("hashes") or []
            ):
                return "its metadata describes another image"
        if kind == signed_statements.TEST and said.get("result") == "PASSED":
            return ""
    return "no test in it has passed" if kind == signed_statements.TEST else ""


def _image(connection: Connection, digest: str, platform: str, *, blobs: bool) -> str:
    """One platform: its manifest by its digest, its config, its layers."""
    manifest = download.read_document(connection, digest).json()
    config = manifest.get("config") or {}
    described = [config, *_list(manifest, "layers")]
    for each in described:
        name, size = str(each.get("digest")), each.get("size")
        if not isinstance(size, int) or not name.startswith("sha256:"):
            return "its manifest names something without sha256 and size"
        if not has_blob(connection, name, size):
            return f"blob {name[7:19]}… is not there"
    whole = [each for each in described if blobs or each is config]
    problems: list[str] = connection.map_threads(
        _blob, [(connection, str(each["digest"]), int(each["size"])) for each in whole]
    )
    if any(problems):
        return next(each for each in problems if each)
    said = _config(connection, str(config["digest"]))
    return "" if said == platform else f"its config is for {said}"


def _blob(connection: Connection, digest: str, size: int) -> str:
    """Return what is wrong with a blob, read whole and kept nowhere."""

    def get() -> None:
        came, sha = 0, hashlib.sha256()
        answer = connection.request(
            "GET",
            connection.url(f"blobs/{digest}"),
            (200,),
            headers={"Accept-Encoding": "identity"},
            follow=True,
            stream=True,
        )
        for piece in connection.read_pieces(answer, size):
            came += len(piece)
            sha.update(piece)
        if came != size or f"sha256:{sha.hexdigest()}" != digest:
            raise MismatchError("it is not what its digest says")

    try:
        connection.retry(f"reading blob {digest[7:19]}…", get)
    except UserError as problem:
        return problem.what
    return ""


def _config(connection: Connection, digest: str) -> str:
    found = download.Document("", digest, attachments.small(connection, digest)).json()
    return f"{found.get('os')}/{found.get('architecture')}"


def _list(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UserError(f"it has no list of {key}")
    return value
