from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builder import chainkit, indexkit
from tests.builder.bisect.bisectkit import Story


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    with indexkit.serving() as index:
        chain = chainkit.make(tmp_path, index)
        for name, value in chain.environment().items():
            monkeypatch.setenv(name, value)
        yield Story(chain)
