"""The key that signs what is published: ECDSA over P-256 with SHA-256, the kind that cosign
verifies with nothing but the public half.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rosetta.core.errors import DENIED, INVALID, MISSING, UNSUPPORTED, UserError

PASSWORD = "ROSETTA_KEY_PASSWORD"  # noqa: S105 - the name of the variable
_LONGEST_PLACE = 160  # characters; a private key on P-256 has more in PEM and in base64
_MAKE = "make one: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out KEY.pem"
_PUBLIC = "give its public half: openssl pkey -in KEY.pem -pubout -out KEY.pub"


@dataclass(frozen=True)
class Public:
    """The half that anyone may have."""

    key: ec.EllipticCurvePublicKey

    def signed(self, data: bytes, signature: bytes) -> bool:
        """Did the other half make this signature (ASN.1 DER) over `data`?"""
        try:
            self.key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class Private:
    """The half that signs."""

    key: ec.EllipticCurvePrivateKey

    @property
    def public(self) -> Public:
        return Public(self.key.public_key())

    def sign(self, data: bytes) -> bytes:
        """Return a signature in ASN.1 DER; the same for the same data, by RFC 6979, so that a rerun
        sends nothing twice.
        """
        return self.key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))


def private(text: str) -> Private:
    """Return the private key in a PEM file, or with env:NAME in an environment variable;
    $ROSETTA_KEY_PASSWORD opens one that is encrypted.
    """
    data = _read(text, _MAKE)
    if b"SIGSTORE PRIVATE KEY" in data or b"COSIGN PRIVATE KEY" in data:
        raise UserError(
            "is in cosign's own encrypted form, which only cosign reads",
            _shown(text),
            _MAKE,
            kind=UNSUPPORTED,
        )
    password = os.environ.get(PASSWORD, "").encode() or None
    try:
        found = serialization.load_pem_private_key(data, password)
    except TypeError as error:
        if password is None:
            raise UserError("is encrypted", _shown(text), f"set {PASSWORD}", kind=DENIED) from error
        found = serialization.load_pem_private_key(data, None)  # it needs none
    except (ValueError, UnsupportedAlgorithm) as error:
        why = f"or {PASSWORD} is not its password; " if password else ""
        raise UserError(
            "is no private key in PEM", _shown(text), why + _MAKE, kind=INVALID
        ) from error
    if not isinstance(found, ec.EllipticCurvePrivateKey) or not isinstance(
        found.curve, ec.SECP256R1
    ):
        raise UserError("is no key on the curve P-256", _shown(text), _MAKE, kind=UNSUPPORTED)
    return Private(found)


def public(text: str) -> Public:
    """Return the public key in a PEM file, or with env:NAME in an environment variable."""
    data = _read(text, _PUBLIC)
    try:
        found = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError("is no public key in PEM", _shown(text), _PUBLIC, kind=INVALID) from error
    if not isinstance(found, ec.EllipticCurvePublicKey) or not isinstance(
        found.curve, ec.SECP256R1
    ):
        raise UserError("is no key on the curve P-256", _shown(text), _PUBLIC, kind=UNSUPPORTED)
    return Public(found)


def _read(text: str, do: str) -> bytes:
    kind, colon, name = text.partition(":")
    if kind == "env" and colon:
        if not (value := os.environ.get(name, "")):
            raise UserError("is not set", _shown(text), do, kind=MISSING)
        return value.encode()
    if "-----BEGIN" in text:
        raise UserError(
            "is the text of a key, which others can read in the list of processes",
            "--key",
            "give the name of a file, or env:NAME of a variable that holds it",
            kind=DENIED,
        )
    try:
        with open(text, "rb") as file:
            return file.read(1 << 16)
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", _shown(text), do, kind=MISSING
        ) from error


def _shown(text: str) -> str:
    """Return how a message names --key. What may be the key itself is never shown."""
    is_place = text.isprintable() and len(text) <= _LONGEST_PLACE and "-----" not in text
    return f"--key {text}" if is_place else "--key"
