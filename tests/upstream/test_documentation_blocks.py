"""The code blocks of the pages that run in a baked environment: they train, evaluate and infer.

To be run by a baked environment's Python (build.py test --inside env:DIR). Minutes for each page.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import documentation_runs
from tests.support.documentation_blocks import page_paths

pytestmark = pytest.mark.upstream


def environment() -> tuple[str, Path]:
    """Return the distribution of the environment whose Python this is, and its folder."""
    for folder in Path(sys.executable).parents:
        record = folder / "opt" / "rosetta" / "lock.json"
        if record.is_file():
            return str(json.loads(record.read_text())["distribution"]), folder
    pytest.skip("NOT TESTED: needs a baked environment of t5x or pax", allow_module_level=True)


PLACE, FOLDER = environment()
PAGES = documentation_runs.pages_with(PLACE, page_paths())


@pytest.mark.parametrize("page", PAGES)
def test_blocks_in_an_environment(page: str, tmp_path: Path) -> None:
    ran = documentation_runs.run_page(page, tmp_path, PLACE, FOLDER)
    for where, (first, last) in ran.losses.items():
        print(f"{where}: the loss fell from {first} to {last}")
