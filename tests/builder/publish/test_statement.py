"""The forms are those of cosign, DSSE and in-toto, to the byte."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from builder.publish import statement
from builder.publish.key import Private
from builder.publish.statement import Item, UntrustedError

KEY = Private(ec.generate_private_key(ec.SECP256R1()))
DIGEST = "sha256:" + "a" * 64


def test_the_encoding_that_dsse_signs() -> None:
    """The example of DSSE's protocol.md."""
    assert (
        statement._encoded("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_a_signature_and_a_statement_are_read_back() -> None:
    statement.signs(statement.signature(KEY, "host/name", DIGEST), KEY.public, DIGEST)
    made = statement.attestation(KEY, "host/name", DIGEST, statement.TEST, {"result": "PASSED"})
    assert statement.opened(made, KEY.public, DIGEST) == (statement.TEST, {"result": "PASSED"})
    said = json.loads(base64.b64decode(json.loads(made.data)["payload"]))
    assert (said["_type"], said["subject"]) == (
        statement.STATEMENT,
        [{"name": "host/name", "digest": {"sha256": "a" * 64}}],
    )


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"\xff", b'{"critical": {"type": "other"}}', b"[" * 100_000]
)
def test_what_is_no_signature_or_statement(data: bytes) -> None:
    with pytest.raises(UntrustedError):
        statement.signs(Item(statement.SIMPLE, data, {}), KEY.public, DIGEST)
    with pytest.raises(UntrustedError):
        statement.opened(Item(statement.ENVELOPE, data, {}), KEY.public, DIGEST)


def test_a_statement_whose_type_was_taken_for_another() -> None:
    """The type is signed with the payload."""
    made = json.loads(statement.attestation(KEY, "r", DIGEST, statement.TEST, {}).data)
    with pytest.raises(UntrustedError, match="not signed by this key"):
        statement.opened(
            Item(statement.ENVELOPE, json.dumps({**made, "payloadType": "text/plain"}).encode()),
            KEY.public,
            DIGEST,
        )
