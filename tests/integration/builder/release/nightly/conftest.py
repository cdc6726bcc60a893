from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.support import nightly_checkout
from tests.support.nightly_checkout import Place


@pytest.fixture
def place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Place:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return nightly_checkout.make_checkout(tmp_path, capsys)


@pytest.fixture
def key(tmp_path: Path) -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    file = tmp_path / "key.pem"
    file.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(file)
