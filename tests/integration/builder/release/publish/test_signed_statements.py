"""The forms are those of cosign, DSSE and in-toto, to the byte."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from builder.release.publish import signed_statements
from builder.release.publish.signed_statements import Attachment, UntrustedError
from builder.release.publish.signing_key import PrivateKey
from builder.release.publish.sigstore_bundle import BUNDLE

KEY = PrivateKey(ec.generate_private_key(ec.SECP256R1()))
DIGEST = "sha256:" + "a" * 64


def test_the_encoding_that_dsse_signs() -> None:
    """The example of DSSE's protocol.md."""
    assert (
        signed_statements._encode_payload("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_a_signature_and_a_statement_are_read_back() -> None:
    signed_statements.check_signature(
        signed_statements.make_signature(KEY, "host/name", DIGEST), KEY.public, DIGEST
    )
    made = signed_statements.make_attestation(
        KEY, "host/name", DIGEST, signed_statements.TEST, {"result": "PASSED"}
    )
    assert signed_statements.open_attestation(made, KEY.public, DIGEST) == (
        signed_statements.TEST,
        {"result": "PASSED"},
    )
    said = json.loads(base64.b64decode(json.loads(made.data)["payload"]))
    assert (said["_type"], said["subject"]) == (
        signed_statements.STATEMENT,
        [{"name": "host/name", "digest": {"sha256": "a" * 64}}],
    )


def test_a_bundle_has_what_sigstores_specification_wants() -> None:
    """Version 0.3 of sigstore_bundle.proto, in the JSON form of protocol buffers."""
    signed, bundle = signed_statements.sign_statement(
        KEY, "host/name", DIGEST, signed_statements.TEST, {"result": "PASSED"}
    )
    document, envelope = json.loads(bundle.data), json.loads(signed.data)
    der = KEY.public.key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    hint = base64.b64encode(hashlib.sha256(der).digest()).decode()
    assert document == {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": hint}},
        "dsseEnvelope": {**envelope, "signatures": [{"sig": envelope["signatures"][0]["sig"]}]},
    }
    assert bundle.annotations["dev.sigstore.bundle.predicateType"] == signed_statements.TEST
    assert signed_statements.open_attestation(
        bundle, KEY.public, DIGEST, "host/name"
    ) == signed_statements.open_attestation(signed, KEY.public, DIGEST)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"\xff", b'{"critical": {"type": "other"}}', b"[" * 100_000]
)
def test_what_is_no_signature_or_statement(data: bytes) -> None:
    with pytest.raises(UntrustedError):
        signed_statements.check_signature(
            Attachment(signed_statements.SIMPLE, data, {}), KEY.public, DIGEST
        )
    for media_type in (signed_statements.ENVELOPE, BUNDLE):
        with pytest.raises(UntrustedError):
            signed_statements.open_attestation(Attachment(media_type, data, {}), KEY.public, DIGEST)


def test_a_statement_whose_type_was_taken_for_another() -> None:
    """The type is signed with the payload."""
    made = json.loads(
        signed_statements.make_attestation(KEY, "r", DIGEST, signed_statements.TEST, {}).data
    )
    with pytest.raises(UntrustedError, match="this key"):
        signed_statements.open_attestation(
            Attachment(
                signed_statements.ENVELOPE,
                json.dumps({**made, "payloadType": "text/plain"}).encode(),
            ),
            KEY.public,
            DIGEST,
        )
