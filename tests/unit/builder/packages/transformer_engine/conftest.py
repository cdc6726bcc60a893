"""What the tests of the wheel share: a repository with an sdist of it, its headers in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import te_project

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache
    from tests.support.package_index import Index
    from tests.support.te_project import Te


@pytest.fixture
def te(tmp_path: Path, index: Index, cache: Cache) -> Te:
    te_project.need_compiler()
    made = te_project.make_project(tmp_path / "repo", index)
    made.with_headers(cache)
    return made
