from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import lock_record, transformer_engine
from rosetta.core.errors import UserError


@pytest.fixture
def lock_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock_record, "get_lock_path", lambda: tmp_path / "lock.json")
    return tmp_path / "lock.json"


def set_installed_version(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    def found(name: str) -> str:
        assert name == "transformer-engine-jax"
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", found)


@pytest.mark.parametrize(
    ("known", "word"),
    [
        ({"transformer_engine": None, "transformer_engine_reason": "for CPUs"}, "for CPUs"),
        ({}, "not asked for"),
        ({"transformer_engine": {"version": "2.20.2"}}, "not installed any more"),
        (None, "not asked for"),
    ],
)
def test_the_error_has_the_reason(
    lock_path: Path, monkeypatch: pytest.MonkeyPatch, known: dict[str, Any] | None, word: str
) -> None:
    set_installed_version(monkeypatch, None)
    if known is not None:
        lock_path.write_text(json.dumps(known))
    with pytest.raises(UserError, match=word) as caught:
        transformer_engine.require_transformer_engine()
    assert "ENABLE_TE=0" in caught.value.do


def test_the_installed_version(lock_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_path.write_text("{}")
    set_installed_version(monkeypatch, "2.20.2")
    assert transformer_engine.require_transformer_engine() == "2.20.2"
    assert transformer_engine.explain_absence() is None
