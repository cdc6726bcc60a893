"""Measure how long the builder takes to write an image layer, against `tar | zstd -1 -T0`.

    .venv/bin/python -m bench.layers --folder SITE_PACKAGES [--times 3]

All ways pack the same folder, and take turns. The program prints one JSON document: for each way
the seconds, the seconds of processor time and the bytes, and the ratio of its median seconds to
those of `tar | zstd`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core.cache import Cache
from builder.images.oci import layer, tar_file

if TYPE_CHECKING:
    from collections.abc import Callable


def _pack_with_tar(folder: Path, scratch: Path) -> int:
    """Pack with `tar | zstd -1 -T0`: without a digest, and with names and times as they are."""
    out = scratch / "plain.tar.zst"
    with (
        open(out, "wb") as file,
        subprocess.Popen(
            ["tar", "-C", str(folder), "-cf", "-", "."], stdout=subprocess.PIPE
        ) as source,
    ):
        subprocess.run(
            ["zstd", "-q", "-1", "-T0", "-c"], stdin=source.stdout, stdout=file, check=True
        )
    if source.returncode:
        raise SystemExit("tar failed")
    size = out.stat().st_size
    out.unlink()
    return size


def _make_layer_writer(compression: str) -> Callable[[Path, Path], int]:
    """Return a function that packs a folder as the builder does, and returns the bytes."""

    def write_layer(folder: Path, scratch: Path) -> int:
        cache = Cache(scratch / "cache")
        new_layer = layer.write_layer(
            cache, "bench", "bench", compression, lambda: tar_file.walk_folder(folder, "opt/site")
        )
        shutil.rmtree(cache.root)
        return new_layer.size

    return write_layer


def _read_processor_time() -> float:
    """Return the processor seconds of this process and its finished children."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _round_values(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the samples with two decimal places."""
    return {name: [round(value, 2) for value in values] for name, values in samples.items()}


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="the folder to pack, for example a site-packages of some gigabytes",
    )
    parser.add_argument(
        "--times", type=int, default=3, help="how often to measure each way (default: 3)"
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        help="a folder on the disk to measure (default: that of temporary files)",
    )
    arguments = parser.parse_args()
    if shutil.which("zstd") is None or shutil.which("tar") is None:
        raise SystemExit("bench.layers compares with the programs tar and zstd: install them")
    ways: dict[str, Callable[[Path, Path], int]] = {
        "tar | zstd -1 -T0": _pack_with_tar,
        "zstd": _make_layer_writer("zstd"),
        "gzip": _make_layer_writer("gzip"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    # Processor time hardly depends on what else the machine does.
    processor_seconds: dict[str, list[float]] = {name: [] for name in ways}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="rosetta-bench-", dir=arguments.scratch) as scratch:
        # Read all files into the page cache, so that the first way does not pay for it.
        for entry in tar_file.walk_folder(arguments.folder, ""):
            if entry.kind == "file":
                with open(entry.source, "rb", buffering=0) as file:
                    while file.read(1 << 20):
                        pass
        for _ in range(arguments.times):
            for name, way in ways.items():
                start, processor_start = time.perf_counter(), _read_processor_time()
                sizes[name] = way(arguments.folder, Path(scratch))
                seconds[name].append(time.perf_counter() - start)
                processor_seconds[name].append(_read_processor_time() - processor_start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    tar_median = medians["tar | zstd -1 -T0"]
    result = {
        "cores": len(os.sched_getaffinity(0)),
        "folder_bytes": sum(entry.size for entry in tar_file.walk_folder(arguments.folder, "")),
        "seconds": _round_values(seconds),
        "cpu_seconds": _round_values(processor_seconds),
        "load": os.getloadavg()[0],
        "bytes": sizes,
        "ratio": {name: round(value / tar_median, 2) for name, value in medians.items()},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
