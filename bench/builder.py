"""How long builds take: nothing changed, one patch edited, and a cold build against `uv pip sync`
of the same lock.

    python bench/builder.py --distribution pax-1.4 [--mirror DIR] [--runs 5]

Runs on the builder's own Python (.venv/bin/python). Figures are medians of one call; the cold build
and its yardstick run in turn, with uv's cache warm for both and the builder's own cache empty each
time. Needs root or user namespaces for the network cut (`unshare -n`).
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


def timed(argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> float:
    """Seconds a command takes, which must succeed."""
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


def checkout(folder: Path) -> Path:
    """Copy the repository with the builder's environment, so that its patches may be edited."""
    skip = shutil.ignore_patterns("build", ".git", "__pycache__", ".mypy_cache", ".ruff_cache")
    shutil.copytree(
        ROOT,
        folder,
        ignore=skip,
        symlinks=True,
        copy_function=lambda a, b: os.link(a, b) if "/.venv/" in a else shutil.copy2(a, b),
    )
    return folder


def edit_a_patch(folder: Path, distribution: str, number: int) -> str:
    """Change one added line of a Python file in a patch of the distribution."""
    manifest = (folder / "manifest.yaml").read_text(encoding="utf-8")
    suffix = "-1.4" if distribution.endswith("-1.4") else ""
    for source in ("t5x" if distribution == "t5x" else f"paxml{suffix}",):
        assert f"patches/{source}" in manifest
        for path in sorted((folder / "patches" / source).glob("*.patch")):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            inside = False
            for index, line in enumerate(lines):
                if line.startswith("diff --git"):
                    inside = line.rstrip().endswith(".py")
                if (
                    inside
                    and line.startswith("+")
                    and not line.startswith("+++")
                    and line.strip("+ \n")
                    and '"""' not in line
                ):
                    text = line.rstrip("\n").partition("  # edit")[0]
                    lines[index] = f"{text}  # edit {number}\n"
                    path.unlink()  # the copy may share its file with the original
                    path.write_text("".join(lines), encoding="utf-8")
                    return str(path.relative_to(folder))
    sys.exit("no patch with an added line of Python")


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
    what = arguments.only or ["nothing", "patch", "cold"]
    mirror = ["--mirror", arguments.mirror] if arguments.mirror else []
    result: dict[str, object] = {"distribution": arguments.distribution, "runs": arguments.runs}
    (ROOT / "build").mkdir(exist_ok=True)  # beside the outputs a user makes: the same file system
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch:
        folder = checkout(Path(scratch) / "checkout")
        output = Path(scratch) / "out"
        build = [
            "python3",
            "build.py",
            "--distribution",
            arguments.distribution,
            "--output",
            f"env:{output}",
            *mirror,
        ]
        timed(build, cwd=folder)
        if "nothing" in what:
            times = [timed(["unshare", "-n", *build], cwd=folder) for _ in range(arguments.runs)]
            result["nothing_changed_s"] = times
            result["nothing_changed_median_s"] = round(statistics.median(times), 3)
        if "patch" in what:
            times = []
            for number in range(arguments.runs):
                result["edited"] = edit_a_patch(folder, arguments.distribution, number)
                times.append(timed(build, cwd=folder))
            result["one_patch_edited_s"] = times
            result["one_patch_edited_median_s"] = round(statistics.median(times), 2)
        if "cold" in what:
            ratios, ours, theirs = [], [], []
            lock = folder / "locks" / f"{arguments.distribution}-cpu.txt"
            for number in range(
                arguments.runs + 1
            ):  # the first fills uv's cache and the page cache, and does not count
                shutil.rmtree(output)
                cache, venv = Path(scratch) / "cache", Path(scratch) / "venv"
                cold = timed(build, env={"ROSETTA_CACHE": str(cache)}, cwd=folder)
                shutil.rmtree(cache)
                environment = uv.make_environment()
                start = time.monotonic()
                timed(
                    [
                        uv.find_program(),
                        "venv",
                        "-q",
                        str(venv),
                        "--python",
                        os.path.realpath(sys.executable),
                    ],
                    env=environment,
                )
                timed(
                    [
                        uv.find_program(),
                        "pip",
                        "sync",
                        "-q",
                        "--compile-bytecode",
                        "--require-hashes",
                        "--python",
                        str(venv / "bin/python"),
                        str(lock),
                    ],
                    env=environment,
                )
                yardstick = time.monotonic() - start
                shutil.rmtree(venv)
                if number:
                    ours.append(cold)
                    theirs.append(yardstick)
                    ratios.append(cold / yardstick)
            result |= {
                "cold_s": ours,
                "uv_pip_sync_s": theirs,
                "cold_ratio_median": round(statistics.median(ratios), 3),
            }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
