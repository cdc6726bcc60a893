"""The key that signs what is published: ECDSA over P-256 with SHA-256.

cosign verifies such signatures with the public half of the key alone.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rosetta.core.errors import DENIED, INVALID, MISSING, UNSUPPORTED, UserError

PASSWORD = "ROSETTA_KEY_PASSWORD"  # noqa: S105 - the name of the variable
_MAX_PLACE_LENGTH = 160  # characters; a private key on P-256 has more in PEM and in base64
_MAX_KEY_SIZE = 1 << 16  # bytes
_MAKE = "make one: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out KEY.pem"
_PUBLIC = "give its public half: openssl pkey -in KEY.pem -pubout -out KEY.pub"


@dataclass(frozen=True)
class PublicKey:
    """The half of a key that verifies signatures."""

    key: ec.EllipticCurvePublicKey

    @property
    def fingerprint(self) -> bytes:
        """The SHA-256 of the key in DER (SubjectPublicKeyInfo), as RFC 6962 names a key."""
        der = self.key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return hashlib.sha256(der).digest()

    def verifies(self, data: bytes, signature: bytes) -> bool:
        """Return whether the private half made this signature (ASN.1 DER) over `data`."""
        try:
            self.key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class PrivateKey:
    """The half of a key that signs."""

    key: ec.EllipticCurvePrivateKey

    @property
    def public(self) -> PublicKey:
        """The public half."""
        return PublicKey(self.key.public_key())

    def sign(self, data: bytes) -> bytes:
        """Return a signature in ASN.1 DER.

        By RFC 6979, the same data always gives the same signature. So nothing is uploaded again
        when a publication is repeated.
        """
        return self.key.sign(data, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))


def read_private_key(place: str) -> PrivateKey:
    """Read a private key. $ROSETTA_KEY_PASSWORD decrypts an encrypted one.

    Args:
        place: A PEM file, or env:NAME for an environment variable.

    Raises:
        UserError: there is no such key, or it is of another kind.
    """
    pem = _read_pem(place, _MAKE)
    if b"SIGSTORE PRIVATE KEY" in pem or b"COSIGN PRIVATE KEY" in pem:
        raise UserError(
            "is in cosign's own encrypted form, which only cosign reads",
            _name_option(place),
            _MAKE,
            kind=UNSUPPORTED,
        )
    password = os.environ.get(PASSWORD, "").encode() or None
    try:
        key = serialization.load_pem_private_key(pem, password)
    except TypeError as error:
        if password is None:
            raise UserError(
                "is encrypted", _name_option(place), f"set {PASSWORD}", kind=DENIED
            ) from error
        key = serialization.load_pem_private_key(pem, None)  # the key is not encrypted
    except (ValueError, UnsupportedAlgorithm) as error:
        other_reason = f"or {PASSWORD} is not its password; " if password else ""
        raise UserError(
            "is not a valid private key in PEM",
            _name_option(place),
            other_reason + _MAKE,
            kind=INVALID,
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_on_p256(key.curve):
        raise _other_curve(place, _MAKE)
    return PrivateKey(key)


def read_public_key(place: str) -> PublicKey:
    """Read a public key.

    Args:
        place: A PEM file, or env:NAME for an environment variable.

    Raises:
        UserError: there is no such key, or it is of another kind.
    """
    pem = _read_pem(place, _PUBLIC)
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(
            "is not a valid public key in PEM", _name_option(place), _PUBLIC, kind=INVALID
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not _is_on_p256(key.curve):
        raise _other_curve(place, _PUBLIC)
    return PublicKey(key)


def _is_on_p256(curve: ec.EllipticCurve) -> bool:
    return isinstance(curve, ec.SECP256R1)


def _other_curve(place: str, do: str) -> UserError:
    return UserError("is not a key on the curve P-256", _name_option(place), do, kind=UNSUPPORTED)


def _read_pem(place: str, do: str) -> bytes:
    """Read a file or an environment variable.

    Args:
        place: The value of `--key`.
        do: What an error tells the user to do.
    """
    kind, colon, name = place.partition(":")
    if kind == "env" and colon:
        value = os.environ.get(name, "")
        if not value:
            raise UserError("is not set", _name_option(place), do, kind=MISSING)
        return value.encode()
    if "-----BEGIN" in place:
        raise UserError(
            "is the text of a key, which others can read in the list of processes",
            "--key",
            "give the name of a file, or env:NAME of an environment variable",
            kind=DENIED,
        )
    try:
        with open(place, "rb") as file:
            return file.read(_MAX_KEY_SIZE)
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", _name_option(place), do, kind=MISSING
        ) from error


def _name_option(place: str) -> str:
    """Return how an error names `--key`. A value that may be the key itself is never shown."""
    is_place = place.isprintable() and len(place) <= _MAX_PLACE_LENGTH and "-----" not in place
    return f"--key {place}" if is_place else "--key"
