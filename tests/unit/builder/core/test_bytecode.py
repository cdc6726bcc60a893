"""Bytecode: found by Python, equal wherever it is made, renewed by an edit, cached per wheel."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from builder.core import bytecode
from builder.packages import python_interpreter

if TYPE_CHECKING:
    from builder.core.cache import Cache

_SOURCES = {
    "pkg/__init__.py": "NAME = 'a'\nSET = {'x', 'y', 'z'}\n",
    "pkg/mod.py": "def f(word='key'):\n    return __file__, (1, 2), {'key': word}\n",
    "pkg/broken.py": "print 'python 2'\n",
    "pkg/latin.py": "# -*- coding: latin-1 -*-\nx = '\xe9'\n",
}


def _site(folder: Path, name: str = "pkg") -> Path:
    site = folder / "lib/site-packages"
    record = ""
    for path, text in _SOURCES.items():
        data = text.encode("latin-1")
        target = site / path.replace("pkg", name, 1)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path.replace('pkg', name, 1)},sha256={digest},{len(data)}\n"
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(record + f"../../bin/{name}.py,,\n{info.name}/RECORD,,\n")
    return site


def _interpreter() -> python_interpreter.Interpreter:
    return python_interpreter.find_interpreter(
        [f"{sys.version_info.major}.{sys.version_info.minor}"], ""
    )


def _install(cache: Cache, site: Path) -> None:
    bytecode.install_bytecode(cache, _interpreter(), site)


def _pyc(site: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(site.rglob("*.pyc"))}


def test_python_uses_it_and_an_edit_takes_effect(cache: Cache, tmp_path: Path) -> None:
    site = _site(tmp_path)
    _install(cache, site)
    assert {name.partition(".")[0] for name in _pyc(site)} == {"__init__", "mod", "latin"}
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import pkg.mod; print(pkg.mod.f()[0], pkg.mod.f.__code__.co_filename, pkg.mod.__spec__.cached)"
    read = f"import sys; sys.dont_write_bytecode = True; {code}"
    done = subprocess.run(
        [sys.executable, "-I", "-v", "-c", read], capture_output=True, text=True, check=True
    )
    assert f"matches {site}/pkg/mod.py" in done.stderr
    assert done.stdout.split()[:2] == [f"{site}/pkg/mod.py"] * 2, (
        "the real path, not that of the build"
    )
    (site / "pkg/mod.py").unlink()
    (site / "pkg/mod.py").write_text("def f():\n    return ['edited']\n")
    assert subprocess.run(
        [sys.executable, "-I", "-c", read], capture_output=True, text=True, check=True
    ).stdout.startswith("edited")


def test_equal_wherever_it_is_made(cache: Cache, tmp_path: Path) -> None:
    first = _site(tmp_path / "a")
    second = _site(tmp_path / "some/other/place")
    _install(cache, first)
    _install(type(cache)(tmp_path / "cache2"), second)
    assert _pyc(first) == _pyc(second)
    assert not any(str(tmp_path).encode() in data for data in _pyc(first).values())


def test_compiled_once_per_wheel(cache: Cache, tmp_path: Path) -> None:
    first, second = _site(tmp_path / "a"), _site(tmp_path / "b")
    _install(cache, first)
    kept = {path for path in cache.path("pyc").iterdir() if path.is_dir()}
    _install(cache, second)
    assert {path for path in cache.path("pyc").iterdir() if path.is_dir()} == kept
    name = f"pkg/__pycache__/mod.{sys.implementation.cache_tag}.pyc"
    assert (first / name).read_bytes() == (second / name).read_bytes()
    assert not (first / name).samefile(second / name), "an edit of one would be one of the other"


def test_a_wheel_without_python_is_fine(cache: Cache, tmp_path: Path) -> None:
    info = tmp_path / "x-1.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("x/data.txt,,\n")
    _install(cache, tmp_path)
    assert _pyc(tmp_path) == {}


def test_a_tree_is_compiled_in_place(tmp_path: Path) -> None:
    site = _site(tmp_path)
    bytecode.compile_tree(_interpreter(), site)
    assert (site / f"pkg/__pycache__/mod.{sys.implementation.cache_tag}.pyc").is_file()
