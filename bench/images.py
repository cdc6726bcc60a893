"""Compare how long an image takes to build here and with a plain Dockerfile.

    .venv/bin/python bench/images.py --distribution t5x --accelerator cuda13 [--mirror DIR]
        [--engine docker] [--runs 1]

The RUN step of the plain Dockerfile installs the same locked wheels with pip, in the same engine.
Both builds start from the same base, which is already in the engine, and from wheels on this disk:
ours from uv's cache, pip's from a folder of wheel files. Both end with a tagged image in the
engine. Images are made without Transformer Engine.

`plain` copies the sources before its RUN step, because it would read the requirements from them.
`plain_last` copies the sources after that step, which is only possible if the requirements are
known before. Each ratio is the plain way's time divided by ours; the runs alternate. The disk needs
room for the wheels and for four times the image.
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.builder import ROOT, copy_checkout, edit_patch, time_command
from builder.core import manifest
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.images.base import base_image, interpreter
from builder.images.engines.container_engine import choose_engine
from builder.images.oci import oci_documents
from builder.packages import lock_file, uv

# The two gaps are for the COPY instruction: before the RUN step, or after it.
DOCKERFILE = """ARG BASE
FROM ${BASE}
%s
RUN --mount=type=bind,source=wheels,target=/wheels --mount=type=bind,source=pip,target=/pip \\
    PYTHONPATH=/pip python3 -m pip install --quiet --no-index --find-links /wheels \
--no-deps --prefix /opt/env -r /pip/requirements.txt
%s
"""
COPY = "COPY sources/ /opt/"
PLATFORMS = (
    *(f"manylinux_{version}_x86_64" for version in ("2_28", "2_27", "2_26", "2_24", "2_17")),
    *(f"manylinux_{version}_x86_64" for version in ("2_12", "2_5")),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
)


def download_wheels(arguments: argparse.Namespace, folder: Path, python: Any) -> None:
    """Fill a folder with what a plain build would have in its cache.

    Args:
        arguments: The command line.
        folder: Gets the folder `wheels` with the wheels of the lock, and the folder `pip` with pip
            and its requirements.
        python: The interpreter of the image.
    """
    (folder / "wheels").mkdir()
    lock = ROOT / "locks" / f"{arguments.distribution}-{arguments.accelerator}.txt"
    markers = lock_file.marker_environment(python.version, python.full, "amd64")
    pins = [pin for pin in lock_file.read_lock(lock) if pin.applies_to(markers)]
    sdists = {entry.name for entry in manifest.load(ROOT / "manifest.yaml").sdists}
    time_command(
        [uv.find_program(), "pip", "install", "-q", "--target", str(folder / "pip"), "pip"],
        env=uv.make_environment(),
    )
    hashed = "".join(pin.requirement_lines() for pin in pins if pin.name not in sdists)
    (folder / "pip/hashed.txt").write_text(hashed)
    requirements = "".join(f"{pin.name}=={pin.version}\n" for pin in pins)
    (folder / "pip/requirements.txt").write_text(requirements)
    pip = [sys.executable, "-m", "pip"]
    environment = {"PYTHONPATH": str(folder / "pip")}
    download = [*pip, "download", "-q", "--no-deps", "--only-binary", ":all:"]
    download += ["--python-version", python.version, "--dest", str(folder / "wheels")]
    for platform in PLATFORMS:
        download += ["--platform", platform]
    download += ["--require-hashes", "-r", str(folder / "pip/hashed.txt")]
    time_command(download, env=environment)
    for pin in pins:
        if pin.name in sdists:  # pip would build this wheel in each run, which is not compared
            make_wheel = [*pip, "wheel", "-q", "--no-deps", "--wheel-dir", str(folder / "wheels")]
            time_command([*make_wheel, f"{pin.name}=={pin.version}"], env=environment)


def load_base(context: Context, arguments: argparse.Namespace, engine: Any, tag: str) -> Any:
    """Load the base into the engine, and return the base's interpreter."""
    loaded = manifest.load(context.manifest_path)
    line = loaded.distribution(arguments.distribution).line
    bases = base_image.resolve_bases(context, loaded, line, "", ["amd64"], "", "zstd")
    base = oci_documents.make_image(
        "amd64",
        bases["amd64"].layers,
        "2026-01-01T00:00:00Z",
        {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        {},
    )
    engine.load(context.cache, oci_documents.make_index([base], {}), tag)
    return interpreter.ensure_interpreter(context.cache, bases)


class Comparison:
    """The two ways to build the image, and the seconds that each build took."""

    def __init__(
        self, arguments: argparse.Namespace, scratch: Path, context: Context, engine: Any
    ) -> None:
        self.arguments, self.scratch, self.context, self.engine = (
            arguments,
            scratch,
            context,
            engine,
        )
        names = ("base", "ours", "plain", "plain_last")
        self.tags = {name: f"localhost/rosetta-bench:{name}" for name in names}
        self.plain = scratch / "plain"
        self.plain.mkdir()
        (self.plain / "plain.Dockerfile").write_text(DOCKERFILE % (COPY, ""))
        (self.plain / "plain_last.Dockerfile").write_text(DOCKERFILE % ("", COPY))
        self.seconds: dict[str, list[float]] = {}

    def run_turn(self, number: int) -> None:
        """Build the image in each way: from nothing, and after one edit."""
        cache = self.scratch / f"cache-{number}"
        shutil.copytree(self.context.cache.root, cache, copy_function=os.link, symlinks=True)
        self._build_ours("cold", cache)
        if not (self.plain / "sources").exists():
            self._copy_patched_sources(cache)
        self._build_ours("nothing_changed", cache)
        edit_patch(self.context.root, self.arguments.distribution, number)
        self._build_ours("pin", cache)
        shutil.rmtree(cache)
        for name in ("plain", "plain_last") if self.arguments.last else ("plain",):
            self._build_plain(name, "cold", "--no-cache")
            edited = next((self.plain / "sources").rglob("*.py"))
            edited.write_text(edited.read_text() + f"# edit {number}\n")
            self._build_plain(name, "pin")
            self.engine.remove([self.tags[name]])
        self.engine.remove([self.tags["ours"]])
        subprocess.run(["docker", "builder", "prune", "-af"], capture_output=True, check=False)

    def compute_ratios(self) -> dict[str, float]:
        """Return the median seconds of the plain ways, divided by ours."""
        medians = {name: statistics.median(values) for name, values in self.seconds.items()}
        return {
            f"{name}_{case}": round(medians[f"{name}_{case}"] / medians[f"ours_{case}"], 2)
            for name in ("plain", "plain_last")
            for case in ("cold", "pin")
            if f"{name}_{case}" in medians
        }

    def _build_ours(self, case: str, cache: Path) -> None:
        arguments = self.arguments
        command = ["python3", "build.py", "--distribution", arguments.distribution]
        command += ["--accelerator", arguments.accelerator, "--transformer-engine", "no"]
        command += ["--engine", arguments.engine, "--output", f"image:{self.tags['ours']}"]
        command += ["--platform", "linux/amd64"]
        if arguments.mirror:
            command += ["--mirror", arguments.mirror]
        environment = {"ROSETTA_CACHE": str(cache)}
        self._note(f"ours_{case}", time_command(command, env=environment, cwd=self.context.root))

    def _build_plain(self, name: str, case: str, *options: str) -> None:
        command = ["buildah", "bud", "-q", "--isolation", "chroot", "--layers"]
        if self.arguments.engine == "docker":
            command = ["docker", "build", "-q", "--network", "none"]
        command += [*options, "-f", str(self.plain / f"{name}.Dockerfile")]
        command += ["--build-arg", f"BASE={self.tags['base']}", "-t", self.tags[name]]
        seconds = time_command([*command, str(self.plain)], env={"DOCKER_BUILDKIT": "1"})
        self._note(f"{name}_{case}", seconds)

    def _copy_patched_sources(self, cache: Path) -> None:
        """Copy the patched sources of our build to the plain build, which puts them in too."""
        for tree in (cache / "trees").iterdir():
            if not tree.name.startswith("."):
                shutil.copytree(tree, self.plain / "sources" / tree.name[:12], symlinks=True)

    def _note(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(round(seconds, 2))
        print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--distribution", default="pax-1.4")
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--mirror", default="")
    parser.add_argument("--engine", default="docker")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument(
        "--last", action="store_true", help="also the plain way that copies the sources last"
    )
    arguments = parser.parse_args()
    engine = choose_engine(arguments.engine)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch_name:
        scratch = Path(scratch_name)
        folder = copy_checkout(scratch / "checkout")
        context = Context(folder, folder / "manifest.yaml", Cache(scratch / "base-cache"))
        comparison = Comparison(arguments, scratch, context, engine)
        try:
            python = load_base(context, arguments, engine, comparison.tags["base"])
            download_wheels(arguments, comparison.plain, python)
            for number in range(arguments.runs):
                comparison.run_turn(number)
        finally:
            engine.remove(list(comparison.tags.values()))
    result = {
        "distribution": arguments.distribution,
        "accelerator": arguments.accelerator,
        "engine": arguments.engine,
        "seconds": comparison.seconds,
        "ratios": comparison.compute_ratios(),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
