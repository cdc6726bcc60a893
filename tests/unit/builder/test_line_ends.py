"""A clone has the very bytes of the repository, whatever the user's git does to line ends."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILES = (
    "build.py",
    "docker/install-packages",
    "builder/images/import.sh",
    "patches/t5x/series",
    "locks/build.txt",
    "overlay/t5x/REPLACES",
    "manifest.yaml",
    "Dockerfile.base",
)


def _git(folder: Path, *argv: str) -> str:
    settings = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *settings, *argv], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def test_a_clone_with_autocrlf_has_the_same_bytes(tmp_path: Path) -> None:
    files = [
        *FILES,
        *(
            str(path.relative_to(ROOT))
            for path in sorted(ROOT.glob("patches/*/*.patch"))
            + sorted(ROOT.glob("overlay/*/**/*.py"))
        ),
    ]
    origin = tmp_path / "origin"
    for name in (".gitattributes", *files):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, origin / name)
    (origin / "binary").write_bytes(b"a\r\nb\n\0")
    _git(origin, "init", "--quiet", "--template=")
    _git(origin, "-c", "core.autocrlf=true", "add", "-A")
    _git(origin, "commit", "--quiet", "-m", "x")
    _git(
        tmp_path,
        "-c",
        "core.autocrlf=true",
        "-c",
        "core.eol=crlf",
        "clone",
        "--quiet",
        str(origin),
        "clone",
    )
    changed = [
        name
        for name in (*files, "binary")
        if (tmp_path / "clone" / name).read_bytes() != (origin / name).read_bytes()
    ]
    assert changed == []
    assert _git(tmp_path / "clone", "-c", "core.autocrlf=true", "status", "--porcelain") == ""
