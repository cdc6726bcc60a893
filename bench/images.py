"""How long an image takes, against the plain way: one Dockerfile whose RUN step installs the same
locked wheels by pip, in the same engine.

    python bench/images.py --distribution t5x --accelerator cuda13 [--mirror DIR]
        [--engine docker] [--runs 1]

Both start from the same base, which is in the engine, and from wheels on this disk: ours from uv's
cache, pip from a folder of the wheel files. Both end with a tagged image in the engine. `plain`
copies the sources before its RUN step, as it must where the requirements come from the sources;
`plain_last` copies them after it, which no one could write who resolves them there. Ratios are
plain over ours; the runs alternate. Without Transformer Engine. Needs room for the wheels and four
times the image.
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
from bench.builder import ROOT, checkout, edit_a_patch, timed
from builder.core import manifest
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.images.base import base_image, interpreter
from builder.images.engines.container_engine import choose_engine
from builder.images.oci import oci_documents
from builder.packages import lock_file, uv

PLAIN = """ARG BASE
FROM ${BASE}
%s
RUN --mount=type=bind,source=wheels,target=/wheels --mount=type=bind,source=pip,target=/pip \\
    PYTHONPATH=/pip python3 -m pip install --quiet --no-index --find-links /wheels \
--no-deps --prefix /opt/env -r /pip/requirements.txt
%s
"""
COPY = "COPY sources/ /opt/"


def wheels(arguments: argparse.Namespace, folder: Path, python: Any) -> None:
    """Download the wheels of the lock, and pip, which a plain build would have in its cache."""
    (folder / "wheels").mkdir()
    loaded = manifest.load(ROOT / "manifest.yaml")
    lock = ROOT / "locks" / f"{arguments.distribution}-{arguments.accelerator}.txt"
    pins = [
        pin
        for pin in lock_file.read_lock(lock)
        if pin.applies_to(lock_file.marker_environment(python.version, python.full, "amd64"))
    ]
    unbuilt = {entry.name for entry in loaded.sdists}
    timed(
        [uv.find_program(), "pip", "install", "-q", "--target", str(folder / "pip"), "pip"],
        env=uv.make_environment(),
    )
    (folder / "pip/hashed.txt").write_text(
        "".join(pin.requirement_lines() for pin in pins if pin.name not in unbuilt)
    )
    (folder / "pip/requirements.txt").write_text(
        "".join(f"{pin.name}=={pin.version}\n" for pin in pins)
    )
    tags = [
        part
        for tag in ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
        for part in ("--platform", f"manylinux_{tag}_x86_64")
    ]
    tags += [
        "--platform",
        "manylinux2014_x86_64",
        "--platform",
        "manylinux2010_x86_64",
        "--platform",
        "manylinux1_x86_64",
        "--platform",
        "linux_x86_64",
    ]
    common = [
        "download",
        "-q",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--python-version",
        python.version,
        *tags,
        "--dest",
        str(folder / "wheels"),
    ]
    timed(
        [
            sys.executable,
            "-m",
            "pip",
            *common,
            "--require-hashes",
            "-r",
            str(folder / "pip/hashed.txt"),
        ],
        env={"PYTHONPATH": str(folder / "pip")},
    )
    for pin in pins:
        if pin.name in unbuilt:  # pip would build it each time: spared
            timed(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "wheel",
                    "-q",
                    "--no-deps",
                    "--wheel-dir",
                    str(folder / "wheels"),
                    f"{pin.name}=={pin.version}",
                ],
                env={"PYTHONPATH": str(folder / "pip")},
            )


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
        "--last", action="store_true", help="also the plain way with the sources copied last"
    )
    arguments = parser.parse_args()
    engine = choose_engine(arguments.engine)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as scratch_:
        scratch = Path(scratch_)
        folder = checkout(scratch / "checkout")
        context = Context(folder, folder / "manifest.yaml", Cache(scratch / "base-cache"))
        loaded = manifest.load(context.manifest_path)
        line = loaded.distribution(arguments.distribution).line
        bases = base_image.resolve_bases(context, loaded, line, "", ["amd64"], "", "zstd")
        python = interpreter.ensure_interpreter(context.cache, bases)
        tags = {
            name: f"localhost/rosetta-bench:{name}"
            for name in ("base", "ours", "plain", "plain_last")
        }
        base = oci_documents.make_image(
            "amd64",
            bases["amd64"].layers,
            "2026-01-01T00:00:00Z",
            {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
            {},
        )
        engine.load(context.cache, oci_documents.make_index([base], {}), tags["base"])
        plain = scratch / "plain"
        plain.mkdir()
        wheels(arguments, plain, python)
        build = [
            "python3",
            "build.py",
            "--distribution",
            arguments.distribution,
            "--accelerator",
            arguments.accelerator,
            "--transformer-engine",
            "no",
        ]
        build += [
            "--engine",
            arguments.engine,
            "--output",
            f"image:{tags['ours']}",
            "--platform",
            "linux/amd64",
            *(["--mirror", arguments.mirror] if arguments.mirror else []),
        ]
        (plain / "plain.Dockerfile").write_text(PLAIN % (COPY, ""))
        (plain / "plain_last.Dockerfile").write_text(PLAIN % ("", COPY))
        argv = (
            ["docker", "build", "-q", "--network", "none"]
            if arguments.engine == "docker"
            else ["buildah", "bud", "-q", "--isolation", "chroot", "--layers"]
        )
        rows: dict[str, list[float]] = {}

        def note(name: str, seconds: float) -> None:
            rows.setdefault(name, []).append(round(seconds, 2))
            print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)

        def by_engine(name: str, *more: str) -> float:
            return timed(
                [
                    *argv,
                    *more,
                    "-f",
                    str(plain / f"{name}.Dockerfile"),
                    "--build-arg",
                    f"BASE={tags['base']}",
                    "-t",
                    tags[name],
                    str(plain),
                ],
                env={"DOCKER_BUILDKIT": "1"},
            )

        try:
            for number in range(arguments.runs):
                cache = scratch / f"cache-{number}"
                shutil.copytree(context.cache.root, cache, copy_function=os.link, symlinks=True)
                env = {"ROSETTA_CACHE": str(cache)}
                note("ours_cold", timed(build, env=env, cwd=folder))
                if not (plain / "sources").exists():  # the patched trees that both put in
                    trees = [
                        path
                        for path in (cache / "trees").iterdir()
                        if not path.name.startswith(".")
                    ]
                    for tree in trees:
                        shutil.copytree(tree, plain / "sources" / tree.name[:12], symlinks=True)
                note("ours_nothing_changed", timed(build, env=env, cwd=folder))
                edit_a_patch(folder, arguments.distribution, number)
                note("ours_pin", timed(build, env=env, cwd=folder))
                shutil.rmtree(cache)
                for name in ("plain", "plain_last") if arguments.last else ("plain",):
                    note(f"{name}_cold", by_engine(name, "--no-cache"))
                    edited = next((plain / "sources").rglob("*.py"))
                    edited.write_text(edited.read_text() + f"# edit {number}\n")
                    note(f"{name}_pin", by_engine(name))
                    engine.remove([tags[name]])
                engine.remove([tags["ours"]])
                subprocess.run(
                    ["docker", "builder", "prune", "-af"], capture_output=True, check=False
                )
        finally:
            engine.remove(list(tags.values()))
        middle = {name: statistics.median(times) for name, times in rows.items()}
        ratios = {
            f"{name}_{what}": round(middle[f"{name}_{what}"] / middle[f"ours_{what}"], 2)
            for name in ("plain", "plain_last")
            for what in ("cold", "pin")
            if f"{name}_{what}" in middle
        }
        print(
            json.dumps(
                {
                    "distribution": arguments.distribution,
                    "accelerator": arguments.accelerator,
                    "engine": arguments.engine,
                    "seconds": rows,
                    "ratios": ratios,
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
