"""Bytecode made once per wheel and cached: hash-based .pyc files, equal for equal sources wherever
they are compiled.

A .pyc names no path of the build (Python puts the real one in on import) and is checked against its
source's hash, so an edit of a source takes effect. Each batch is compiled by a fresh interpreter in
a fixed order: marshal's output depends on what the process saw before.
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

_BATCH = 250  # files an interpreter compiles before the next one starts: about a second of work
# Runs in the target Python. stdin: lines "relative path". A file that is no valid source of this
# Python (templates, old tests) is left out.
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


def compile_files(python: Interpreter, root: Path, files: Iterable[str], out: Path) -> None:
    """Compile `files` (relative to `root`) into `__pycache__` folders below `out`."""
    done = subprocess.run(
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
            str(out),
            python.tag,
        ],
        input="\n".join(files),
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", "")},
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise UserError(
            f"compiling bytecode failed: {join_lines(last)}",
            str(root),
            "free space, or give another --python, and run again",
        )


def compile_tree(python: Interpreter, root: Path) -> None:
    """Compile every .py file below `root`, in place."""
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*.py") if path.is_file())
    for start in range(0, len(files), _BATCH):
        compile_files(python, root, files[start : start + _BATCH], root)


def install(cache: Cache, python: Interpreter, site: Path) -> None:
    """Give every package in `site` its bytecode: copied from the cache, compiled first where the
    cache lacks it.
    """
    jobs = [(info.name, _sources(info)) for info in sorted(site.glob("*.dist-info"))]
    total = sum(len(sources) for _, sources in jobs)
    with (
        log.progress("bytecode", total, "files") as advance,
        concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool,
    ):
        # The longest first: one big wheel begun last would keep a single core busy at the end.
        stop = threading.Event()
        waiting = [
            pool.submit(_one, cache, python, site, sources, stop)
            for _, sources in sorted(jobs, key=lambda job: -len(job[1]))
        ]
        try:
            for future in concurrent.futures.as_completed(waiting):
                advance(future.result())
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _sources(info: Path) -> dict[str, str]:
    """Return a wheel's .py files inside site-packages and their hashes, from its RECORD."""
    with open(info / "RECORD", encoding="utf-8", newline="") as record:
        rows = [row for row in csv.reader(record) if len(row) >= 2]
    return {
        path: digest
        for path, digest, *_ in rows
        if path.endswith(".py")
        and ".." not in PurePosixPath(path).parts
        and not path.startswith("/")
    }


def _one(
    cache: Cache, python: Interpreter, site: Path, sources: dict[str, str], stop: threading.Event
) -> int:
    if not sources:
        return 0
    files = sorted(file for file in sources if (site / file).is_file())
    # A RECORD may leave digests out: then the files themselves say what they are.
    sources = {
        file: sources[file] or hashlib.sha256((site / file).read_bytes()).hexdigest()
        for file in files
    }
    if not sources:
        return 0
    key = stage_key(
        "bytecode",
        {
            "files": sources,
            "python": python.full,
            "worker": hashlib.sha256(_WORKER.encode()).hexdigest(),
            "batch": _BATCH,
        },
    )

    def make(folder: Path) -> None:
        for start in range(0, len(files), _BATCH):
            if stop.is_set():
                raise InterruptedError
            compile_files(python, site, files[start : start + _BATCH], folder)
        (folder / "FILES.json").write_text(
            json.dumps(sorted(str(path.relative_to(folder)) for path in folder.rglob("*.pyc")))
        )

    kept = str(cache.folder("pyc", f"{key}-{python.tag.replace('cpython-', 'cp')}", make))
    made: set[str] = set()
    for name in json.loads(Path(kept, "FILES.json").read_text()):
        target = f"{site}/{name}"
        folder = os.path.dirname(target)
        if folder not in made:
            os.makedirs(folder, exist_ok=True)
            made.add(folder)
        copy_file(f"{kept}/{name}", target)
    return len(sources)
