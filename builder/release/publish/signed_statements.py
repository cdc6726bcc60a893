"""Make and check signatures and signed statements in the forms that cosign reads.

A signature covers a payload that names an image. A statement about an image is in an envelope. The
payload and its media types are described in cosign's SIGNATURE_SPEC.md, the envelope is DSSE 1.0
(secure-systems-lab/dsse), and the statement is in-toto's v1 (in-toto/attestation).

cosign 2 reads the payload and the envelope. cosign 3 first looks for Sigstore bundles, in which
the signature is a statement as well. So everything is signed in both forms.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder.images.oci import oci_documents
from builder.release.publish import sigstore_bundle
from builder.release.publish.sigstore_bundle import BUNDLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.release.publish.signing_key import PrivateKey, PublicKey

SIMPLE = "application/vnd.dev.cosign.simplesigning.v1+json"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
IN_TOTO = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
SBOM = "https://cyclonedx.org/bom"
PROVENANCE = "https://slsa.dev/provenance/v1"
TEST = "https://in-toto.io/attestation/test-result/v0.1"
RELEASE = "urn:rosetta:release:v1"
COSIGN_SIGN = "https://sigstore.dev/cosign/sign/v1"  # the statement is nothing but a signature
PREDICATE_NAMES = {
    COSIGN_SIGN: "signature",
    SBOM: "SBOM",
    PROVENANCE: "provenance",
    TEST: "test result",
    RELEASE: "release",
}
_SIGNATURE = "dev.cosignproject.cosign/signature"
_TYPE = "cosign container image signature"


class UntrustedError(Exception):
    """What claims to be signed is not signed by the key, or is about another image."""


@dataclass(frozen=True)
class Attachment:
    """A signature, a signed statement or a bundle: a blob and its annotations."""

    media_type: str
    data: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def descriptor(self) -> dict[str, Any]:
        """The OCI descriptor of the blob, with the annotations."""
        return {
            **oci_documents.make_descriptor(self.media_type, self.data),
            "annotations": dict(self.annotations),
        }

    @property
    def claimed_kind(self) -> str:
        """What the attachment claims to be, in words."""
        if self.media_type == SIMPLE:
            return "signature"
        key = sigstore_bundle.PREDICATE_TYPE if self.media_type == BUNDLE else "predicateType"
        return PREDICATE_NAMES.get(self.annotations.get(key, ""), "attestation")


def sign_image(key: PrivateKey, repository: str, digest: str) -> tuple[Attachment, Attachment]:
    """Return the signature of an image, and the bundle with the same meaning.

    Args:
        key: The key to sign with.
        repository: The repository of the image, HOST/NAME.
        digest: The digest of the image.
    """
    signed = make_attestation(key, repository, digest, COSIGN_SIGN, {})
    return make_signature(key, repository, digest), make_bundle(signed, key.public)


def sign_statement(
    key: PrivateKey,
    repository: str,
    digest: str,
    predicate_type: str,
    predicate: Mapping[str, Any],
) -> tuple[Attachment, Attachment]:
    """Return a signed statement about an image, and the bundle of the same statement.

    Args:
        key: The key to sign with.
        repository: The repository of the image, HOST/NAME.
        digest: The digest of the image.
        predicate_type: The URI of the kind of statement.
        predicate: The statement.
    """
    signed = make_attestation(key, repository, digest, predicate_type, predicate)
    return signed, make_bundle(signed, key.public)


def make_signature(key: PrivateKey, repository: str, digest: str) -> Attachment:
    """Return the signature of an image.

    Args:
        key: The key to sign with.
        repository: The repository of the image, HOST/NAME.
        digest: The digest of the image.
    """
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": digest},
        "type": _TYPE,
    }
    payload = oci_documents.encode_json({"critical": critical, "optional": None})
    signature = base64.b64encode(key.sign(payload)).decode()
    return Attachment(SIMPLE, payload, {_SIGNATURE: signature})


def make_attestation(
    key: PrivateKey,
    repository: str,
    digest: str,
    predicate_type: str,
    predicate: Mapping[str, Any],
) -> Attachment:
    """Return a signed statement about an image.

    Args:
        key: The key to sign with.
        repository: The repository of the image, HOST/NAME.
        digest: The digest of the image.
        predicate_type: The URI of the kind of statement.
        predicate: The statement.
    """
    subject = {"name": repository, "digest": {"sha256": digest.removeprefix("sha256:")}}
    payload = oci_documents.encode_json(
        {
            "_type": STATEMENT,
            "subject": [subject],
            "predicateType": predicate_type,
            "predicate": predicate,
        }
    )
    signature = base64.b64encode(key.sign(_encode_payload(IN_TOTO, payload))).decode()
    envelope = {
        "payloadType": IN_TOTO,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": "", "sig": signature}],
    }
    annotations = {_SIGNATURE: "", "predicateType": predicate_type}
    return Attachment(ENVELOPE, oci_documents.encode_json(envelope), annotations)


def make_bundle(attestation: Attachment, key: PublicKey) -> Attachment:
    """Return the bundle of a signed statement.

    Args:
        attestation: What `make_attestation` returned.
        key: The public half of the key that signed the statement.
    """
    annotations = sigstore_bundle.make_annotations(attestation.annotations["predicateType"])
    bundle = sigstore_bundle.wrap_envelope(json.loads(attestation.data), key)
    return Attachment(BUNDLE, bundle, annotations)


def _encode_payload(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that a DSSE signature covers: the pre-authentication encoding."""
    type_ = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(payload_type), type_, len(payload), payload)


def check_signature(
    attachment: Attachment, key: PublicKey, digest: str, repository: str = ""
) -> None:
    """Check that an attachment is a key's signature of an image.

    Args:
        attachment: The attachment.
        key: The key.
        digest: The digest of the image.
        repository: The repository that the signature must name, HOST/NAME; "" accepts any.

    Raises:
        UntrustedError: it is not.
    """
    try:
        signature = base64.b64decode(attachment.annotations.get(_SIGNATURE, ""), validate=True)
        critical = json.loads(attachment.data)["critical"]
        is_image = critical["type"] == _TYPE
        signed_digest = critical["image"]["docker-manifest-digest"] if is_image else ""
        signed_repository = str(critical["identity"]["docker-reference"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedError("is not in cosign's form") from error
    if not key.verifies(attachment.data, signature):
        raise UntrustedError("was not made by this key, or was changed since")
    if signed_digest != digest:
        raise UntrustedError(f"is that of another image, {str(signed_digest)[:19]}…")
    _check_repository(signed_repository, repository)


def open_attestation(
    attachment: Attachment, key: PublicKey | None, digest: str, repository: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return the kind and the content of a signed statement about an image.

    Args:
        attachment: The attachment, an envelope or a bundle.
        key: The key that must have signed the statement; None accepts any.
        digest: The digest of the image.
        repository: The repository that the statement must name, HOST/NAME; "" accepts any.

    Returns:
        The predicate's type and the predicate.

    Raises:
        UntrustedError: the attachment is not such a statement.
    """
    payload = _open_envelope(attachment, key)
    try:
        statement = json.loads(payload)
        repositories = {
            str(subject["digest"]["sha256"]): str(subject.get("name") or "")
            for subject in statement["subject"]
        }
        predicate_type, predicate = str(statement["predicateType"]), dict(statement["predicate"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedError("does not contain an in-toto statement") from error
    sha256 = digest.removeprefix("sha256:")
    if sha256 not in repositories:
        other_images = ", ".join(other[:12] for other in repositories)
        raise UntrustedError(f"is about another image, {other_images}…")
    _check_repository(repositories[sha256], repository)
    return predicate_type, predicate


def _open_envelope(attachment: Attachment, key: PublicKey | None) -> bytes:
    """Return the payload of a DSSE envelope, or of the envelope in a bundle.

    Raises:
        UntrustedError: it is not a DSSE envelope, or the key did not sign it.
    """
    is_bundle = attachment.media_type == BUNDLE
    if key and is_bundle and sigstore_bundle.names_certificate(attachment.data):
        raise UntrustedError("was signed with a certificate, and not with this key")
    read_envelope = sigstore_bundle.read_envelope if is_bundle else json.loads
    try:
        envelope = read_envelope(attachment.data)
        payload_type = str(envelope["payloadType"])
        payload = base64.b64decode(envelope["payload"], validate=True)
        signatures = [
            base64.b64decode(entry["sig"], validate=True) for entry in envelope["signatures"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UntrustedError("is not a valid DSSE envelope") from error
    encoded = _encode_payload(payload_type, payload)
    is_signed = key is None or any(key.verifies(encoded, signature) for signature in signatures)
    if payload_type != IN_TOTO or not is_signed:
        raise UntrustedError("was not signed by this key, or was changed since")
    return payload


def _check_repository(signed_repository: str, repository: str) -> None:
    """Raise UntrustedError if something was signed for another repository than HOST/NAME."""
    if repository and not signed_repository:
        raise UntrustedError("does not name the repository that it was signed for")
    host, slash, name = signed_repository.partition("/")
    if repository and f"{host.lower()}{slash}{name}" != repository:
        raise UntrustedError(f"was signed for another repository, {signed_repository[:200]!r}")
