"""Wrap a signed envelope in a Sigstore bundle, the form that cosign 3 writes and reads.

The bundle is described in sigstore_bundle.proto (sigstore/protobuf-specs), version 0.3. It has a
DSSE envelope, and says how the envelope is verified: here, with a public key that the verifier
must know already.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from builder.images.oci import oci_documents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.release.publish.signing_key import PublicKey

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_MEDIA_TYPES = (BUNDLE, "application/vnd.dev.sigstore.bundle+json;version=0.3")
_CONTENT = "dev.sigstore.bundle.content"
PREDICATE_TYPE = "dev.sigstore.bundle.predicateType"


def make_annotations(predicate_type: str) -> dict[str, str]:
    """Return the annotations of a bundle's manifest (cosign's BUNDLE_SPEC.md).

    Args:
        predicate_type: The type of the statement in the bundle.
    """
    return {_CONTENT: "dsse-envelope", PREDICATE_TYPE: predicate_type}


def wrap_envelope(envelope: Mapping[str, Any], key: PublicKey) -> bytes:
    """Return the bundle of a DSSE envelope.

    Args:
        envelope: The envelope, with one signature.
        key: The public half of the key that signed it.
    """
    # The specification wants the hint as the signature's key identifier, too. cosign 3 leaves the
    # identifier out, and refuses such a signature. No signature covers the hint.
    signatures = [{"sig": signature["sig"]} for signature in envelope["signatures"]]
    hint = base64.b64encode(key.fingerprint).decode()
    return oci_documents.encode_json(
        {
            "mediaType": BUNDLE,
            "verificationMaterial": {"publicKey": {"hint": hint}},
            "dsseEnvelope": {**envelope, "signatures": signatures},
        }
    )


def read_envelope(data: bytes) -> dict[str, Any]:
    """Return the DSSE envelope in a bundle that a key verifies.

    Raises:
        KeyError, TypeError, ValueError: the document is not such a bundle.
    """
    bundle = json.loads(data)
    if bundle["mediaType"] not in _MEDIA_TYPES:
        raise ValueError(bundle["mediaType"])
    envelope = dict(bundle["dsseEnvelope"])
    if len(envelope["signatures"]) != 1:
        raise ValueError("a bundle has exactly one signature")
    return envelope


def names_certificate(data: bytes) -> bool:
    """Return whether a bundle is verified with a certificate, as keyless signatures are."""
    try:
        material = json.loads(data)["verificationMaterial"]
        return "certificate" in material or "x509CertificateChain" in material
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
