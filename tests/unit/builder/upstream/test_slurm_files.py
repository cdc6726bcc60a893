"""The Slurm files of scripts/ are those that their template and table make."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from builder.commands import docs
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.upstream import slurm_files

ROOT = Path(__file__).parents[4]


def test_the_files_are_current() -> None:
    found = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in ROOT.glob("overlay/**/*.sub")
    }
    assert found == slurm_files.render(ROOT), "run: python build.py docs"
    assert not any("{{" in text for text in found.values())


def test_the_command_writes_what_differs(tmp_path: Path, cache: Cache) -> None:
    shutil.copytree(ROOT / slurm_files.SOURCE, tmp_path / slurm_files.SOURCE)
    context = Context(tmp_path, tmp_path / "manifest.yaml", cache)
    check = argparse.Namespace(check=True, site="")
    write = argparse.Namespace(check=False, site="")
    assert not docs.run(context, check).ok
    assert not (tmp_path / "overlay").exists()
    assert docs.run(context, write).ok
    files = [tmp_path / name for name in slurm_files.render(tmp_path)]
    assert all(path.stat().st_mode & 0o777 == 0o755 for path in files)
    assert docs.run(context, check).ok
    files[0].write_text("edited by hand", encoding="utf-8")
    result = docs.run(context, check)
    assert (result.ok, result.data["current"]) == (False, False)
    assert result.text == f"{files[0].relative_to(tmp_path)} was not current"
