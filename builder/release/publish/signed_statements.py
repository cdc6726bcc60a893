"""What is signed, in cosign's forms: a payload that names an image, and in-toto statements on an
image in DSSE envelopes.

The simple signing payload and the names of its media types are from cosign's SIGNATURE_SPEC.md, the
envelope is DSSE 1.0 (secure-systems-lab/dsse), the statement in-toto's v1 (in-toto/attestation).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.images.oci import oci_documents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.release.publish.signing_key import Private, Public

SIMPLE = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
IN_TOTO = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
SBOM = "https://cyclonedx.org/bom"
PROVENANCE = "https://slsa.dev/provenance/v1"
TEST = "https://in-toto.io/attestation/test-result/v0.1"
RELEASE = "urn:rosetta:release:v1"
NAMES = {SBOM: "SBOM", PROVENANCE: "provenance", TEST: "test result", RELEASE: "release"}
_SIGNATURE = "dev.cosignproject.cosign/signature"
_TYPE = "cosign container image signature"


class UntrustedError(Exception):
    """Something that claims to be signed and is not, or speaks of another image."""


@dataclass(frozen=True)
class Item:
    """A blob of an attached manifest, with what its descriptor says of it."""

    media_type: str
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def descriptor(self) -> dict[str, Any]:
        return {
            **oci_documents.make_descriptor(self.media_type, self.data),
            "annotations": dict(self.annotations),
        }

    @property
    def what(self) -> str:
        """What it says it is, for people."""
        return (
            "signature"
            if self.media_type == SIMPLE
            else NAMES.get(self.annotations.get("predicateType", ""), "attestation")
        )


def signature(key: Private, repository: str, digest: str) -> Item:
    """Return the signature of an image. `repository`: HOST/NAME."""
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": digest},
        "type": _TYPE,
    }
    data = oci_documents.encode_json({"critical": critical, "optional": None})
    return Item(SIMPLE, data, {_SIGNATURE: base64.b64encode(key.sign(data)).decode()})


def attestation(
    key: Private, repository: str, digest: str, kind: str, predicate: Mapping[str, Any]
) -> Item:
    """Return a signed statement on an image. `kind` is the URI of the predicate's type."""
    subject = {"name": repository, "digest": {"sha256": digest.removeprefix("sha256:")}}
    payload = oci_documents.encode_json(
        {"_type": STATEMENT, "subject": [subject], "predicateType": kind, "predicate": predicate}
    )
    signed = {"keyid": "", "sig": base64.b64encode(key.sign(_encoded(IN_TOTO, payload))).decode()}
    envelope = {
        "payloadType": IN_TOTO,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [signed],
    }
    return Item(
        ENVELOPE, oci_documents.encode_json(envelope), {_SIGNATURE: "", "predicateType": kind}
    )


def _encoded(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)


def _check_repository(named: str, repository: str) -> None:
    """Raise UntrustedError where something was signed for another repository than HOST/NAME."""
    host, slash, name = named.partition("/")
    if repository and f"{host.lower()}{slash}{name}" != repository:
        raise UntrustedError(f"was signed for another repository, {named[:200]!r}")


def signs(item: Item, public: Public, digest: str, repository: str = "") -> None:
    """Check that `item` is this key's signature of this image in this repository.

    It must name `repository`, HOST/NAME; an empty one accepts any.

    Raises:
        UntrustedError: it is not.
    """
    try:
        given = base64.b64decode(item.annotations.get(_SIGNATURE, ""), validate=True)
        critical = json.loads(item.data)["critical"]
        named = critical["image"]["docker-manifest-digest"] if critical["type"] == _TYPE else ""
        signed_for = str(critical["identity"]["docker-reference"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedError("is not in cosign's form") from error
    if not public.signed(item.data, given):
        raise UntrustedError("was not made by this key, or was changed since")
    if named != digest:
        raise UntrustedError(f"is that of another image, {str(named)[:19]}…")
    _check_repository(signed_for, repository)


def opened(
    item: Item, public: Public | None, digest: str, repository: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return the predicate's type and the predicate of a signed statement on this image.

    The key `public` must have signed it; None accepts any. It must name `repository`, HOST/NAME; an
    empty one accepts any.

    Raises:
        UntrustedError: it is not such a statement.
    """
    try:
        envelope = json.loads(item.data)
        kind, payload = (
            str(envelope["payloadType"]),
            base64.b64decode(envelope["payload"], validate=True),
        )
        given = [base64.b64decode(each["sig"], validate=True) for each in envelope["signatures"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedError("is no DSSE envelope") from error
    if kind != IN_TOTO or (
        public and not any(public.signed(_encoded(kind, payload), each) for each in given)
    ):
        raise UntrustedError("was not signed by this key, or was changed since")
    try:
        said = json.loads(payload)
        subjects = {
            str(subject["digest"]["sha256"]): str(subject["name"]) for subject in said["subject"]
        }
        found = str(said["predicateType"]), dict(said["predicate"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedError("holds no in-toto statement") from error
    if digest.removeprefix("sha256:") not in subjects:
        raise UntrustedError(
            f"speaks of another image, {', '.join(each[:12] for each in subjects)}…"
        )
    _check_repository(subjects[digest.removeprefix("sha256:")], repository)
    return found
