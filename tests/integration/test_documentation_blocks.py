"""The code blocks of the pages that need nothing but a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import documentation_runs, shipped_sources
from tests.support.documentation_blocks import CHECKOUT, page_paths

pytestmark = pytest.mark.slow

PAGES = page_paths()


@pytest.mark.parametrize("page", documentation_runs.pages_with(CHECKOUT, PAGES, slow=False))
def test_blocks_in_a_checkout(page: str, tmp_path: Path) -> None:
    documentation_runs.run_page(page, tmp_path, CHECKOUT)


@pytest.mark.long
@pytest.mark.upstream
@pytest.mark.parametrize("page", documentation_runs.pages_with(CHECKOUT, PAGES, slow=True))
def test_slow_blocks_in_a_checkout(page: str, tmp_path: Path) -> None:
    for name in shipped_sources.SHIPPED.sources:
        shipped_sources.need_pinned_source(name)
    documentation_runs.run_page(page, tmp_path, CHECKOUT)
