"""How long a layer takes to write, against `tar | zstd -1 -T0` of the same folder: interleaved, in
one run, medians.

    .venv/bin/python -m bench.layers --folder SITE_PACKAGES [--times 3]

Prints one JSON document: seconds, seconds of processor time and bytes of each way, and the ratios
of the seconds to `tar | zstd`.
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


def _plain(folder: Path, scratch: Path) -> int:
    """`tar | zstd -1 -T0`: no digest, names and times as they come."""
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


def _ours(compression: str) -> Callable[[Path, Path], int]:
    def write(folder: Path, scratch: Path) -> int:
        cache = Cache(scratch / "cache")
        new_layer = layer.write_layer(
            cache, "bench", "bench", compression, lambda: tar_file.walk_folder(folder, "opt/site")
        )
        shutil.rmtree(cache.root)
        return new_layer.size

    return write


def _cpu() -> float:
    """Seconds of processor time that this process and its finished children took."""
    return sum(
        sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


def main() -> None:
    """Run the benchmark that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="what is written, a site-packages of some gigabytes",
    )
    parser.add_argument("--times", type=int, default=3, help="how often each way (default: 3)")
    parser.add_argument(
        "--scratch", type=Path, help="a folder on the disk that counts (default: the temporary one)"
    )
    arguments = parser.parse_args()
    if shutil.which("zstd") is None or shutil.which("tar") is None:
        raise SystemExit("bench.layers compares with the programs tar and zstd: install them")
    ways: dict[str, Callable[[Path, Path], int]] = {
        "tar | zstd -1 -T0": _plain,
        "zstd": _ours("zstd"),
        "gzip": _ours("gzip"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {
        name: [] for name in ways
    }  # says what a machine that others use at the same time would blur
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="rosetta-bench-", dir=arguments.scratch) as scratch:
        # Read all files into the page cache, so that the first way does not pay for the others.
        for entry in tar_file.walk_folder(arguments.folder, ""):
            if entry.kind == "file":
                with open(entry.source, "rb", buffering=0) as file:
                    while file.read(1 << 20):
                        pass
        for _ in range(arguments.times):
            for name, way in ways.items():
                start, busy = time.perf_counter(), _cpu()
                sizes[name] = way(arguments.folder, Path(scratch))
                seconds[name].append(time.perf_counter() - start)
                cpu[name].append(_cpu() - busy)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    plain = medians["tar | zstd -1 -T0"]
    result = {
        "cores": len(os.sched_getaffinity(0)),
        "folder_bytes": sum(entry.size for entry in tar_file.walk_folder(arguments.folder, "")),
        "seconds": {
            name: [round(value, 2) for value in values] for name, values in seconds.items()
        },
        "cpu_seconds": {
            name: [round(value, 2) for value in values] for name, values in cpu.items()
        },
        "load": os.getloadavg()[0],
        "bytes": sizes,
        "ratio": {name: round(value / plain, 2) for name, value in medians.items()},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
