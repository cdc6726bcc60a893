"""What the tests of publishing share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from builder.images.registry import transport
from tests.support import published_project
from tests.support.published_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.core.cache import Cache
    from tests.support.image_registry import Served


@pytest.fixture
def project(tmp_path: Path, cache: Cache) -> Project:
    (tmp_path / "project").mkdir()
    return Project(tmp_path / "project", cache)


@pytest.fixture(params=["memory", "referrers", "docker-registry"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with published_project.serve_registry(
        request.param, tmp_path_factory.mktemp("registry")
    ) as found:
        yield found


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be seconds between tries is a few milliseconds."""
    monkeypatch.setattr(
        transport.Connection, "wait", lambda _, seconds: time.sleep(min(seconds, 0.01))
    )
