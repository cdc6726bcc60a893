"""Archives are extracted alike on every supported Python, Debian 12's 3.11.2 included."""

from __future__ import annotations

import ast
import io
import tarfile
from pathlib import Path

import pytest

from builder.core import archives

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]


def _archive() -> tarfile.TarFile:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        folder = tarfile.TarInfo("top")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o1777
        archive.addfile(folder)
        file = tarfile.TarInfo("top/file")
        file.size, file.mode = 4, 0o666
        archive.addfile(file, io.BytesIO(b"text"))
    return tarfile.open(fileobj=io.BytesIO(content.getvalue()))


@pytest.mark.parametrize("keep_modes", [False, True])
@pytest.mark.parametrize("has_filters", [False, True])
def test_members_are_extracted(
    keep_modes: bool, has_filters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_filters:
        for name in ("data_filter", "fully_trusted_filter"):
            monkeypatch.delattr(tarfile, name, raising=False)
    with _archive() as archive:
        archives.extract_verified(archive, tmp_path / "out", keep_modes=keep_modes)
    assert (tmp_path / "out/top/file").read_text() == "text"
    if keep_modes:
        assert [
            (tmp_path / "out" / name).stat().st_mode & 0o7777 for name in ("top", "top/file")
        ] == [0o1777, 0o666]


def test_nothing_passes_a_filter_that_python_3_11_2_lacks() -> None:
    """extractall and extract took no `filter` before Python 3.11.4."""
    calls = []
    for folder in ("builder", "rosetta", "tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in (
                    "extract",
                    "extractall",
                ):
                    calls += [
                        f"{path}:{node.lineno}"
                        for keyword in node.keywords
                        if keyword.arg == "filter"
                    ]
    assert calls == []
