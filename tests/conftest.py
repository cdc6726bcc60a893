"""What every test shares: a cache of its own and a home of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.core.cache import Cache
from tests.support import package_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.package_index import Index


@pytest.fixture(autouse=True)
def _own_home(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """No test reads or writes the caches and settings of the person who runs it; those on real upstreams use the builder's own cache."""
    if "upstream" in request.keywords:
        return
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("ROSETTA_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A package index on the loopback address, and uv told of it."""
    with package_index.serving() as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        yield served
