"""Measure how long builds take: with no change, with one edited patch, and from an empty cache.

    .venv/bin/python bench/builder.py --distribution pax-1.4 [--mirror DIR] [--runs 5]

The build from an empty cache is compared with `uv pip sync` of the same lock. The two run in turn.
Before each of them the builder's cache is empty, and uv's cache is full. All figures are medians of
one call. The build with no change runs without a network (`unshare -n`), which needs root or user
namespaces.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from builder.packages import uv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]


def time_command(
    argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> float:
    """Return the seconds that a command takes. The program ends if the command fails."""
    start = time.monotonic()
    done = subprocess.run(
        list(argv),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - start
    if done.returncode:
        sys.exit(f"{' '.join(argv)}: status {done.returncode}\n{done.stderr[-2000:]}")
    return seconds


def copy_checkout(folder: Path) -> Path:
    """Copy the repository and the builder's environment to a new folder, and return the folder."""
    skip = shutil.ignore_patterns("build", ".git", "__pycache__", ".mypy_cache", ".ruff_cache")
    shutil.copytree(
        ROOT,
        folder,
        ignore=skip,
        symlinks=True,
        copy_function=lambda a, b: os.link(a, b) if "/.venv/" in a else shutil.copy2(a, b),
    )
    return folder


def edit_patch(folder: Path, distribution: str, number: int) -> str:
    """Change one added line of Python in the first patch that has one.

    Args:
        folder: A checkout.
        distribution: The distribution that the patch belongs to.
        number: A number that the edit adds to the line, so that each edit differs.

    Returns:
        The path of the patch in the checkout.
    """
    source = "t5x" if distribution == "t5x" else distribution.replace("pax", "paxml")
    manifest = (folder / "manifest.yaml").read_text(encoding="utf-8")
    assert f"patches/{source}" in manifest
    for path in sorted((folder / "patches" / source).glob("*.patch")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        index = _find_added_line(lines)
        if index is not None:
            code = lines[index].rstrip("\n").partition("  # edit")[0]
            lines[index] = f"{code}  # edit {number}\n"
            path.unlink()  # the copy may share its file with the original
            path.write_text("".join(lines), encoding="utf-8")
            return str(path.relative_to(folder))
    sys.exit(f"no patch of {source} adds a line of Python")


def _find_added_line(lines: Sequence[str]) -> int | None:
    """Return the index of a patch's first added line of Python that is not part of a docstring."""
    in_python_file = False
    for index, line in enumerate(lines):
        if line.startswith("diff --git"):
            in_python_file = line.rstrip().endswith(".py")
        is_added = line.startswith("+") and not line.startswith("+++")
        if in_python_file and is_added and line.strip("+ \n") and '"""' not in line:
            return index
    return None


def _measure_unchanged(build: Sequence[str], folder: Path, runs: int) -> dict[str, object]:
    """Time builds that have nothing to do, without a network."""
    times = [time_command(["unshare", "-n", *build], cwd=folder) for _ in range(runs)]
    return {
        "nothing_changed_s": times,
        "nothing_changed_median_s": round(statistics.median(times), 3),
    }


def _measure_edited_patch(
    build: Sequence[str], folder: Path, runs: int, distribution: str
) -> dict[str, object]:
    """Time builds after an edit of one patch."""
    times = []
    edited = ""
    for number in range(runs):
        edited = edit_patch(folder, distribution, number)
        times.append(time_command(build, cwd=folder))
    return {
        "edited": edited,
        "one_patch_edited_s": times,
        "one_patch_edited_median_s": round(statistics.median(times), 2),
    }


def _measure_cold(
    build: Sequence[str], folder: Path, output: Path, runs: int, lock: Path
) -> dict[str, object]:
    """Time builds from an empty cache, and `uv pip sync` of the same lock, in turn."""
    build_times, sync_times = [], []
    # The first run fills uv's cache and the page cache, and does not count.
    for number in range(runs + 1):
        shutil.rmtree(output)
        cache = folder.parent / "cache"
        build_seconds = time_command(build, env={"ROSETTA_CACHE": str(cache)}, cwd=folder)
        shutil.rmtree(cache)
        sync_seconds = _time_pip_sync(folder.parent / "venv", lock)
        if number:
            build_times.append(build_seconds)
            sync_times.append(sync_seconds)
    ratios = [ours / uvs for ours, uvs in zip(build_times, sync_times, strict=True)]
    return {
        "cold_s": build_times,
        "uv_pip_sync_s": sync_times,
        "cold_ratio_median": round(statistics.median(ratios), 3),
    }


def _time_pip_sync(venv: Path, lock: Path) -> float:
    """Return the seconds in which uv makes an environment and installs a lock into it."""
    environment = uv.make_environment()
    make = [uv.find_program(), "venv", "-q", str(venv)]
    make += ["--python", os.path.realpath(sys.executable)]
    sync = [uv.find_program(), "pip", "sync", "-q", "--compile-bytecode", "--require-hashes"]
    sync += ["--python", str(venv / "bin/python"), str(lock)]
    seconds = time_command(make, env=environment) + time_command(sync, env=environment)
    shutil.rmtree(venv)
    return seconds


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--distribution", default="pax-1.4")
    parser.add_argument("--mirror", default="")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", choices=["nothing", "patch", "cold"], action="append")
    arguments = parser.parse_args()
    distribution, runs = arguments.distribution, arguments.runs
    parts = arguments.only or ["nothing", "patch", "cold"]
    result: dict[str, object] = {"distribution": distribution, "runs": runs}
    # Users make their outputs in this folder too, so the file system is the same.
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch:
        folder = copy_checkout(Path(scratch) / "checkout")
        output = Path(scratch) / "out"
        build = ["python3", "build.py", "--distribution", distribution, "--output", f"env:{output}"]
        if arguments.mirror:
            build += ["--mirror", arguments.mirror]
        time_command(build, cwd=folder)
        if "nothing" in parts:
            result |= _measure_unchanged(build, folder, runs)
        if "patch" in parts:
            result |= _measure_edited_patch(build, folder, runs, distribution)
        if "cold" in parts:
            lock = folder / "locks" / f"{distribution}-cpu.txt"
            result |= _measure_cold(build, folder, output, runs, lock)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
