from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import package_index, small_distribution
from tests.support.bisect_history import Story


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    with package_index.serve_index() as index:
        chain = small_distribution.make_distribution(tmp_path, index)
        for name, value in chain.environment().items():
            monkeypatch.setenv(name, value)
        yield Story(chain)
