"""By which Python the tests run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from builder import selfcheck
from builder.cache import Cache
from builder.errors import FatalError
from builder.verb import Context

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(ROOT, ROOT / "manifest.yaml", Cache(tmp_path), offline=True)


def test_our_own_python_unless_asked(context: Context) -> None:
    assert selfcheck._python(context, "") == [sys.executable]


def test_a_baked_environments_python(context: Context, tmp_path: Path) -> None:
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").touch()
    assert selfcheck._python(context, f"env:{tmp_path}/env")[0] == f"{tmp_path}/env/bin/python"


@pytest.mark.parametrize(
    ("inside", "complaint"), [("env:nowhere", "no baked environment"), ("image:x", "no baked environment"), ("lock:t6x", "t6x"), ("lock:", "distribution")]
)
def test_what_has_no_python_is_refused(context: Context, inside: str, complaint: str) -> None:
    with pytest.raises(FatalError, match=complaint):
        selfcheck._python(context, inside)
