"""Keys are read in the forms that openssl writes, and what is no such key is said so."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.release.publish import signing_key
from rosetta.core.errors import UserError
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _openssl(
        tmp_path,
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-out",
        "key.pem",
    )
    _openssl(tmp_path, "pkey", "-in", "key.pem", "-pubout", "-out", "key.pub")
    _openssl(
        tmp_path, "pkey", "-in", "key.pem", "-aes256", "-passout", "pass:open", "-out", "locked.pem"
    )
    _openssl(
        tmp_path,
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:P-384",
        "-out",
        "other.pem",
    )
    _openssl(tmp_path, "pkey", "-in", "other.pem", "-pubout", "-out", "other.pub")
    (tmp_path / "cosign.key").write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n")
    (tmp_path / "junk").write_text("junk")
    return tmp_path


def test_sign_and_verify(folder: Path) -> None:
    private, public = (
        signing_key.read_private_key(f"{folder}/key.pem"),
        signing_key.read_public_key(f"{folder}/key.pub"),
    )
    signature = private.sign(b"data")
    assert signature == private.sign(b"data")  # the same again, so that a rerun sends nothing twice
    assert public.verifies(b"data", signature)
    assert not public.verifies(b"date", signature)
    assert not public.verifies(b"data", b"no signature")
    (folder / "data").write_bytes(b"data")
    (folder / "sig").write_bytes(signature)
    _openssl(folder, "dgst", "-sha256", "-verify", "key.pub", "-signature", "sig", "data")


def test_from_the_environment_and_with_a_password(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", (folder / "locked.pem").read_text())
    with errors.expect_user_error(errors.DENIED, where="--key", remedy=signing_key.PASSWORD):
        signing_key.read_private_key("env:MY_KEY")
    monkeypatch.setenv(signing_key.PASSWORD, "open")
    assert signing_key.read_public_key(f"{folder}/key.pub").verifies(
        b"x", signing_key.read_private_key("env:MY_KEY").sign(b"x")
    )
    assert signing_key.read_private_key(f"{folder}/key.pem").public.verifies(
        b"x", signing_key.read_private_key("env:MY_KEY").sign(b"x")
    )
    monkeypatch.setenv(signing_key.PASSWORD, "wrong")
    with pytest.raises(UserError) as problem:
        signing_key.read_private_key("env:MY_KEY")
    assert "wrong" not in str(problem.value)
    assert signing_key.PASSWORD in problem.value.do


@pytest.mark.parametrize(
    ("name", "kind", "fact"),
    [
        ("nothing", errors.MISSING, ""),
        ("junk", errors.INVALID, "PEM"),
        ("key.pub", errors.INVALID, "PEM"),
        ("other.pem", errors.UNSUPPORTED, "P-256"),
        ("cosign.key", errors.UNSUPPORTED, "cosign"),
        ("env:NOT_SET", errors.MISSING, ""),
    ],
)
def test_what_is_no_private_key(folder: Path, name: str, kind: str, fact: str) -> None:
    with errors.expect_user_error(kind, where=name, names=fact, remedy="openssl genpkey"):
        signing_key.read_private_key(name if ":" in name else f"{folder}/{name}")


@pytest.mark.parametrize(
    ("name", "kind", "fact"),
    [
        ("nothing", errors.MISSING, ""),
        ("junk", errors.INVALID, "PEM"),
        ("key.pem", errors.INVALID, "PEM"),
        ("other.pub", errors.UNSUPPORTED, "P-256"),
    ],
)
def test_what_is_no_public_key(folder: Path, name: str, kind: str, fact: str) -> None:
    with errors.expect_user_error(kind, where=name, names=fact, remedy="openssl pkey"):
        signing_key.read_public_key(f"{folder}/{name}")
