from __future__ import annotations

from pathlib import Path

import pytest

from tests.builder.bump.bumpkit import Story, begin


@pytest.fixture
def story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Story:
    return begin(tmp_path, capsys, monkeypatch)
