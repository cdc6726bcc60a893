"""Reproducible bytecode: compile each wheel once, and keep the .pyc files in the cache.

The .pyc files are hash-based: Python checks the hash of the source on import, so an edited source
is compiled again. They contain relative paths of the sources only; Python sets the real path on
import.

The output of marshal depends on what the process compiled before. So the files are divided into
batches in a fixed order, and a new interpreter compiles each batch.
"""

from __future__ import annotations

import concurrent.futures
import csv
import hashlib
import json
import os
import subprocess
import threading
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder.core import log
from builder.core.cache import Cache, stage_key
from builder.core.file_copies import copy_file
from builder.core.subprocesses import join_lines
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builder.packages.python_interpreter import Interpreter

_BATCH_SIZE = 250  # files that one interpreter compiles: about a second of work
# This program runs in the target Python, as `-c _WORKER ROOT OUTPUT TAG`. Each line of its standard
# input is a path relative to ROOT. Files that are not valid sources for that Python, such as
# templates and old tests, are left out. Its text is part of the cache key of every wheel.
_WORKER = """
import importlib._bootstrap_external as b, importlib.util as u, os, sys, warnings
warnings.simplefilter("ignore")
root, out, tag = sys.argv[1:4]
for line in sys.stdin.read().split("\\n"):
    if not line: continue
    with open(os.path.join(root, line), "rb") as f: data = f.read()
    try: code = compile(data, line, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, UnicodeError, RecursionError, MemoryError): continue
    folder, name = os.path.split(line)
    target = os.path.join(out, folder, "__pycache__", name[:-3] + "." + tag + ".pyc")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as f: f.write(b._code_to_hash_pyc(code, u.source_hash(data), True))
"""


def compile_files(python: Interpreter, root: Path, files: Iterable[str], output: Path) -> None:
    """Compile files into `__pycache__` folders.

    Args:
        python: The interpreter that compiles.
        root: The folder that has the files.
        files: The paths of the files relative to `root`, at most _BATCH_SIZE.
        output: The folder that gets the .pyc files, at the same relative paths.

    Raises:
        UserError: The interpreter failed, for example because the disk is full.
    """
    process = subprocess.run(
        [
            str(python.path),
            "-I",
            "-S",
            "-B",
            "-X",
            "utf8",
            "-c",
            _WORKER,
            str(root),
            str(output),
            python.tag,
        ],
        input="\n".join(files),
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", "")},
    )
    if process.returncode:
        last_lines = process.stderr.strip().splitlines()[-1:]  # one line, or none
        raise UserError(
            f"compiling bytecode failed: {join_lines(last_lines)}",
            str(root),
            "free disk space, or choose another interpreter with --python; then run again",
        )


def compile_tree(python: Interpreter, root: Path) -> None:
    """Compile every .py file below `root` into the `__pycache__` folder beside it."""
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*.py") if path.is_file())
    for start in range(0, len(files), _BATCH_SIZE):
        compile_files(python, root, files[start : start + _BATCH_SIZE], root)


def install_bytecode(cache: Cache, python: Interpreter, site: Path) -> None:
    """Copy the bytecode of every installed wheel from the cache; compile what the cache lacks.

    Args:
        cache: The builder's cache.
        python: The interpreter that compiles.
        site: The folder site-packages, which has the wheels.
    """
    wheel_sources = [_list_sources(dist_info) for dist_info in sorted(site.glob("*.dist-info"))]
    total = sum(len(sources) for sources in wheel_sources)
    with (
        log.progress("bytecode", total, "files") as advance,
        concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool,
    ):
        stop = threading.Event()
        # The largest first: a large wheel that begins last would keep one core busy at the end.
        wheel_sources.sort(key=len, reverse=True)
        futures = [
            pool.submit(_install_wheel_bytecode, cache, python, site, sources, stop)
            for sources in wheel_sources
        ]
        try:
            for future in concurrent.futures.as_completed(futures):
                advance(future.result())
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _list_sources(dist_info: Path) -> dict[str, str]:
    """Return path -> hash of the .py files of a wheel, from its RECORD.

    Files that the wheel installed outside site-packages are left out. The hash may be "".
    """
    with open(dist_info / "RECORD", encoding="utf-8", newline="") as record:
        rows = [row for row in csv.reader(record) if len(row) >= 2]
    return {
        path: digest
        for path, digest, *_ in rows
        if path.endswith(".py")
        and ".." not in PurePosixPath(path).parts
        and not path.startswith("/")
    }


def _install_wheel_bytecode(
    cache: Cache, python: Interpreter, site: Path, sources: dict[str, str], stop: threading.Event
) -> int:
    """Install the bytecode of one wheel.

    Args:
        cache: The builder's cache.
        python: The interpreter that compiles.
        site: The folder site-packages.
        sources: The paths and the hashes of the sources, see `_list_sources`.
        stop: Ends the compilation if it is set, because another wheel failed.

    Returns:
        The number of sources that exist.
    """
    files = sorted(file for file in sources if (site / file).is_file())
    if not files:
        return 0
    # A RECORD may have no hash for a file. The builder then hashes the file itself.
    hashes = {
        file: sources[file] or hashlib.sha256((site / file).read_bytes()).hexdigest()
        for file in files
    }
    key = stage_key(
        "bytecode",
        {
            "files": hashes,
            "python": python.full,
            "worker": hashlib.sha256(_WORKER.encode()).hexdigest(),
            "batch": _BATCH_SIZE,
        },
    )

    def compile_wheel(folder: Path) -> None:
        for start in range(0, len(files), _BATCH_SIZE):
            if stop.is_set():
                raise InterruptedError  # so that the cache does not keep a part of the wheel
            compile_files(python, site, files[start : start + _BATCH_SIZE], folder)
        (folder / "FILES.json").write_text(
            json.dumps(sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pyc")))
        )

    name = f"{key}-{python.tag.replace('cpython-', 'cp')}"
    _copy_bytecode(cache.ensure_folder("pyc", name, compile_wheel), site)
    return len(files)


def _copy_bytecode(entry: Path, site: Path) -> None:
    """Copy the .pyc files of an entry of the cache, which FILES.json lists, into site-packages."""
    created_folders: set[str] = set()
    for file in json.loads(Path(entry, "FILES.json").read_text()):
        target = f"{site}/{file}"
        folder = os.path.dirname(target)
        if folder not in created_folders:
            os.makedirs(folder, exist_ok=True)
            created_folders.add(folder)
        copy_file(f"{entry}/{file}", target)
