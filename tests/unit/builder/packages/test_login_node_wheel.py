"""The wheel for login nodes: installed by pip into an environment of its own, and used there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml

from builder import cli
from builder.commands import wheel
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.packages import login_node_wheel
from tests.support import errors

ROOT = Path(__file__).resolve().parents[4]


def make(tmp_path: Path, *words: str) -> dict[str, object]:
    context = Context(ROOT, ROOT / "manifest.yaml", Cache(tmp_path / "cache"))
    return dict(wheel.run(context, cli.make_command_parser("wheel").parse_args(words)).data)


def test_the_same_files_make_the_same_wheel(tmp_path: Path) -> None:
    first = make(tmp_path, "launcher", "--output", str(tmp_path / "a"))
    assert Path(str(first["output"])).read_bytes() == login_node_wheel.build_wheel(ROOT)
    assert first["sha256"] == hashlib.sha256(login_node_wheel.build_wheel(ROOT)).hexdigest()
    assert [path.name for path in (tmp_path / "a").iterdir()] == [login_node_wheel.NAME]
    assert login_node_wheel.NAME.startswith("rosetta_launcher-")


def test_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "rosetta/launch/__pycache__").mkdir(parents=True)
    for name in (
        "rosetta/__init__.py",
        "rosetta/launch/job.sh",
        "rosetta/launch/__pycache__/x.pyc",
        "LICENSE",
        "build.py",
    ):
        (tmp_path / name).write_text("text")
    (tmp_path / "x.whl").write_bytes(login_node_wheel.build_wheel(tmp_path))
    with zipfile.ZipFile(tmp_path / "x.whl") as file:
        names = [name for name in file.namelist() if ".dist-info/" not in name]
    assert names == ["rosetta/__init__.py", "rosetta/launch/job.sh"]


def test_installed_it_starts_runs(tmp_path: Path) -> None:
    """By pip, which checks the record of what is in it; PyYAML is this Python's, as no network is asked."""
    made = make(tmp_path, "launcher", "--output", str(tmp_path))
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert uv
    target = tmp_path / "site"
    subprocess.run(
        [
            uv,
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--offline",
            "--no-cache",
            "--target",
            str(target),
            str(made["output"]),
        ],
        check=True,
        capture_output=True,
    )
    shutil.copytree(
        Path(yaml.__file__).parent,
        target / "yaml",
        ignore=shutil.ignore_patterns("__pycache__", "*.so"),
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(target), "HOME": str(tmp_path)}
    argv = [
        sys.executable,
        "-P",
        "-B",
        str(target / "bin" / "rosetta"),
        "submit",
        "--on=slurm",
        "gpt-126m",
        "--dry-run",
        "--json",
    ]
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    words = json.loads(done.stdout)["result"]["argv"]
    script = next(word for word in words if word.endswith("job.sh"))
    assert Path(script).is_relative_to(target)
    assert Path(script).read_bytes() == (ROOT / "rosetta/launch/job.sh").read_bytes()


def test_the_other_wheel_needs_an_accelerator(tmp_path: Path) -> None:
    with errors.expect_user_error(
        errors.MISSING, where="--accelerator", remedy=("cuda12", "cuda13")
    ):
        make(tmp_path, "transformer-engine")


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with errors.expect_user_error(errors.EXISTS, where="--output"):
        make(tmp_path, "launcher", "--output", str(tmp_path / "a"))
    assert (tmp_path / "a").read_text() == "mine"
