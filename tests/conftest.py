"""What every test shares: a cache of its own and a home of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.core.cache import Cache
from rosetta.data import json_lines
from tests.support import package_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.package_index import Index

ROOT = Path(__file__).resolve().parents[1]
_BYTECODE_SETTINGS = (sys.dont_write_bytecode, sys.pycache_prefix)
# Rewriting the assertions of all tests takes three quarters of the time of a collection. The
# results are kept beside pytest's own cache, and only while the builder's environment collects:
# no environment under test, no checkout and no program that a test starts gets bytecode from here.
if Path(sys.prefix) == ROOT / ".venv":
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(ROOT / ".pytest_cache" / "bytecode")


_LONG = frozenset({"slow", "engine", "registry", "slurm"})


def pytest_collection_finish() -> None:
    """Restore the settings of bytecode before the first test runs."""
    sys.dont_write_bytecode, sys.pycache_prefix = _BYTECODE_SETTINGS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the long files first where processes share the tests, so that none is left over."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _LONG.isdisjoint(item.keywords))


@pytest.fixture(autouse=True)
def _own_home(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """No test reads or writes the caches and settings of the person who runs it; those on real
    upstreams use the builder's own cache.
    """
    if "upstream" in request.keywords:
        return
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("ROSETTA_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def restore_field_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore how errors write the option of a field, which a command sets for its process."""
    monkeypatch.setattr(json_lines, "_field_option", json_lines._field_option)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A package index on the loopback address, and uv told of it."""
    with package_index.serve_index() as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        yield served
