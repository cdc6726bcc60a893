"""Registries for tests, and no pause between tries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.images.registry import transport
from tests.support import image_registry
from tests.support.image_registry import Served

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(name="served", params=["memory", "docker-registry"])
def served_(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with (
        image_registry.serve_memory_registry()
        if request.param == "memory"
        else image_registry.serve_docker_registry(tmp_path_factory.mktemp("registry")) as found
    ):
        yield found


@pytest.fixture(name="pauses", autouse=True)
def pauses_(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none is made."""
    asked: list[float] = []
    monkeypatch.setattr(transport.Connection, "wait", lambda _, seconds: asked.append(seconds))
    return asked
