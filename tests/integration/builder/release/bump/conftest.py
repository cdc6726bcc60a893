from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bump_history import Story, begin_story


@pytest.fixture
def story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Story:
    return begin_story(tmp_path, capsys, monkeypatch)
