"""The Python of a base, run on this machine: here the one that runs the tests, packed as a layer."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builder.core import bytecode, machine_architecture
from builder.core.cache import Cache
from builder.images.base.base_image import Base
from builder.images.base.interpreter import ensure_interpreter
from builder.images.oci import layer
from builder.packages import python_interpreter
from rosetta.core.errors import UserError
from tests.support import debian_packages, errors

pytestmark = pytest.mark.slow

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def base(cache: Cache) -> Base:
    debian_packages.need_programs("ldd")
    if (
        platform.libc_ver()[0] != "glibc"
        or platform.machine() not in machine_architecture.ARCHITECTURES
    ):
        pytest.skip("NOT CHECKED: bases are of glibc, on x86_64 or aarch64")
    made = layer.write_layer(
        cache, "key", "base", "gzip", debian_packages.list_running_python_files
    )
    return Base(
        machine_architecture.ARCHITECTURES[platform.machine()],
        "test",
        "sha256:" + "0" * 64,
        (made,),
        (),
        HERE,
        platform.python_version(),
        "2.36",
    )


def test_it_compiles_as_the_python_itself_does(cache: Cache, base: Base, tmp_path: Path) -> None:
    found = ensure_interpreter(cache, base)
    assert (found.version, found.full, found.tag) == (
        HERE,
        platform.python_version(),
        sys.implementation.cache_tag,
    )
    direct = python_interpreter.Interpreter(
        debian_packages.PROGRAM, found.version, found.full, found.tag
    )
    root = Path(bytecode.__file__).parents[1]
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*.py"))
    for each, name in ((found, "one"), (direct, "two")):
        bytecode.compile_files(each, root, files, tmp_path / name)
    made = {
        name: {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("*.pyc")
        }
        for name in ("one", "two")
    }
    assert len(made["one"]) == len(files)
    assert made["one"] == made["two"]


def test_it_has_its_own_library_and_loader(cache: Cache, base: Base) -> None:
    found = ensure_interpreter(cache, {base.architecture: base})
    shown = subprocess.run(
        [
            found.path,
            "-I",
            "-S",
            "-c",
            "import os, sys; print(os.__file__, open('/proc/self/maps').read())",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    root = str(found.path.parent / "root")
    assert shown.startswith(f"{root}/usr/lib/python{HERE}/os.py")
    mapped = {
        line.split()[-1]
        for line in shown.splitlines()
        if re.search(r"/libc\.so|/libm\.so|ld-linux", line)
    }
    assert mapped
    assert all(path.startswith(root) for path in mapped)


def test_it_is_made_once(cache: Cache, base: Base) -> None:
    first = ensure_interpreter(cache, base).path.stat().st_ino
    layer.blob_path(cache, base.layers[0].digest).unlink()
    assert ensure_interpreter(cache, base).path.stat().st_ino == first


def test_another_architecture_is_refused(cache: Cache, base: Base) -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, names="riscv", remedy="--platform"):
        ensure_interpreter(cache, {"riscv": base})


def test_a_base_that_says_another_version(cache: Cache, base: Base) -> None:
    other = Base(
        base.architecture, "test", base.digest, base.layers, (), HERE, f"{HERE}.99", base.glibc
    )
    with pytest.raises(UserError, match=rf"not {HERE}\.99"):
        ensure_interpreter(cache, other)
