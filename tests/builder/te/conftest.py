"""What the tests of the wheel share: a repository with an sdist of it, its headers in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.builder.te import tekit

if TYPE_CHECKING:
    from pathlib import Path

    from builder.cache import Cache
    from tests.builder.indexkit import Index
    from tests.builder.te.tekit import Te


@pytest.fixture
def te(tmp_path: Path, index: Index, cache: Cache) -> Te:
    tekit.need()
    made = tekit.make(tmp_path / "repo", index)
    made.with_headers(cache)
    return made
