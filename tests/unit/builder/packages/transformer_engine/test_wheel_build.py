"""The wheel from an sdist on the loopback index: real uv, real g++, Debian's way of packing headers."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from builder.core.cache import Cache
from builder.packages.transformer_engine import addition, compiler, preload_library, wheel_build
from tests.support import errors, te_project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.package_index import Index
    from tests.support.te_project import Te

pytestmark = pytest.mark.slow

WANTED = ("l", "cuda13", "amd64", "3.13")
MODULE = "transformer_engine/wheel_lib/transformer_engine_jax.cpython-313-x86_64-linux-gnu.so"
LOADER = "nvidia/cu13/cudart/lib/libcudart_te.so.13"
INFO = f"transformer_engine_jax-{te_project.VERSION}.dist-info"


def _wheel(te: Te, cache: Cache, *, offline: bool = False) -> wheel_build.BuiltWheel:
    return wheel_build.ensure_wheel(
        cache, wheel_build.make_plan(te.manifest(), *WANTED), offline=offline
    )


def test_what_is_in_the_wheel(te: Te, cache: Cache) -> None:
    made = _wheel(te, cache)
    assert (
        made.path.name
        == f"transformer_engine_jax-{te_project.VERSION}-cp313-cp313-linux_x86_64.whl"
    )
    assert hashlib.sha256(made.path.read_bytes()).hexdigest() == made.sha256
    with zipfile.ZipFile(made.path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert list(files) == [
        LOADER,
        MODULE,
        *(
            f"{INFO}/{name}"
            for name in (
                "METADATA",
                "RECORD",
                "WHEEL",
                "licenses/LICENSE",
                "rosetta-build.json",
                "top_level.txt",
            )
        ),
    ]
    assert (
        f"Requires-Dist: transformer_engine_cu13=={te_project.VERSION}"
        in files[f"{INFO}/METADATA"].decode().splitlines()
    )
    assert b"cu12" not in files[f"{INFO}/METADATA"]
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(files[f"{INFO}/RECORD"].decode()))}
    assert rows.pop(f"{INFO}/RECORD") == ""
    assert rows == {
        name: "sha256="
        + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        for name, data in files.items()
        if name in rows
    }
    assert rows.keys() == files.keys() - {f"{INFO}/RECORD"}


def test_the_module_loads_and_names_no_folder_of_this_machine(
    te: Te, cache: Cache, tmp_path: Path
) -> None:
    made = _wheel(te, cache)
    shutil.unpack_archive(made.path, tmp_path / "out", "zip")
    module = tmp_path / "out" / MODULE
    assert str(cache.root).encode() not in module.read_bytes()
    assert b"rosetta/wheels/te-source-" in module.read_bytes()
    shown = subprocess.run(
        ["readelf", "-d", str(module)], capture_output=True, text=True, check=True
    ).stdout
    assert "[libnccl.so.2]" in shown
    assert "[$ORIGIN/../../nvidia/nccl/lib]" in shown
    assert "NOW" not in shown
    assert (
        "BUILD_ID"
        not in subprocess.run(
            ["readelf", "-n", str(module)], capture_output=True, text=True, check=True
        ).stdout
    )
    note = te_project.read_build_note(made.path)
    assert note["inputs"] == wheel_build.make_plan(te.manifest(), *WANTED).inputs
    assert note["against"] == [
        "jaxlib==1",
        "nvidia-cuda-runtime==1",
        "nvidia-cudnn-frontend==1",
        "nvidia-nccl-cu13==1",
        "nvidia-nvtx==1",
        "pybind11==1",
    ]


def test_what_it_brings_in_is_loaded_with_it(te: Te, cache: Cache, tmp_path: Path) -> None:
    """As transformer_engine.common loads it: by its path, from a site-packages folder, with nothing on LD_LIBRARY_PATH."""
    made = _wheel(te, cache)
    shutil.unpack_archive(made.path, tmp_path / "site", "zip")
    for wheel in (tmp_path / "made-repo").glob("nvidia_[cn]*.whl"):
        if "cu12" not in wheel.name:
            shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL); here = ctypes.CDLL(None); print(here.ncclGroupStart(), here.cudaFree())"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "site" / LOADER)],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0", "0"]), done.stderr


def test_cudart_is_not_there(tmp_path: Path) -> None:
    te_project.need_compiler()
    with errors.expect_user_error(errors.MISSING, where="cuda_runtime/lib/libcudart.so.12"):
        preload_library.link_library(compiler.find_compiler("amd64"), "cuda12", tmp_path, tmp_path)


def test_the_same_bytes_in_another_place(te: Te, cache: Cache, tmp_path: Path) -> None:
    other = te.with_headers(Cache(tmp_path / "elsewhere" / "deeper"))
    assert _wheel(te, cache).sha256 == _wheel(te, other).sha256


def test_the_second_time_nothing_is_fetched_or_compiled(
    te: Te, cache: Cache, capfd: pytest.CaptureFixture[str]
) -> None:
    first = _wheel(te, cache)
    assert set(first.effort["files"]) == {"one.cpp", "two.cpp"}
    assert first.effort["peak_bytes"] > 1_000_000
    te.index.requests.clear()
    capfd.readouterr()
    assert _wheel(te, cache, offline=True) == first
    assert te.index.requests == []
    assert "compile" not in capfd.readouterr().err


def test_a_damaged_wheel_is_made_again(te: Te, cache: Cache) -> None:
    first = _wheel(te, cache)
    first.path.write_bytes(first.path.read_bytes()[:-1] + b"x")
    assert _wheel(te, cache).sha256 == first.sha256
    assert hashlib.sha256(first.path.read_bytes()).hexdigest() == first.sha256


def test_offline_without_the_sdist(te: Te, cache: Cache) -> None:
    with errors.expect_user_error(errors.MISSING, remedy="--offline"):
        _wheel(te, cache, offline=True)
    assert not addition.is_built(te.context(cache), te.manifest(), *WANTED)


def test_a_source_that_does_not_compile_leaves_no_wheel(
    tmp_path: Path, index: Index, cache: Cache
) -> None:
    te_project.need_compiler()
    te = te_project.make_project(
        tmp_path / "repo",
        index,
        sources={**te_project.SOURCES, "bad.cpp": "int f() { return nothing; }\n"},
    )
    te.with_headers(cache)
    with errors.expect_user_error(errors.FAILED, where="bad.cpp", names="bad.cpp:1:"):
        _wheel(te, cache)
    assert not list(cache.path("wheels").glob("te-*/*.whl"))


def test_for_the_other_architecture_by_a_cross_compiler(
    tmp_path: Path, index: Index, cache: Cache
) -> None:
    te_project.need_compiler("arm64")
    te = te_project.make_project(tmp_path / "repo", index, "arm64")
    te.with_headers(cache)
    made = wheel_build.ensure_wheel(
        cache, wheel_build.make_plan(te.manifest(), "l", "cuda13", "arm64", "3.13"), offline=False
    )
    with zipfile.ZipFile(made.path) as archive:
        module = archive.read(MODULE.replace("x86_64", "aarch64"))
    assert module[:4] == b"\x7fELF"
    assert int.from_bytes(module[18:20], "little") == 183


@pytest.mark.parametrize(
    ("wanted", "kind", "value", "remedy"),
    [
        (("other", "cuda13", "amd64", "3.13"), errors.MISSING, "other", "one of: l"),
        (("l", "cuda12", "amd64", "3.13"), errors.UNSUPPORTED, "cuda12", "one of: cuda13"),
        (("l", "cpu", "amd64", "3.13"), errors.UNSUPPORTED, "cpu", "cuda13"),
        (("l", "cuda13", "amd64", "3.11"), errors.UNSUPPORTED, "3.11", "3.12, 3.13"),
        (
            ("l", "cuda13", "amd64", "3.12"),
            errors.MISSING,
            "3.12",
            "lock --base",
        ),
    ],
)
def test_what_it_is_not_for(
    te: Te, wanted: tuple[str, str, str, str], kind: str, value: str, remedy: str
) -> None:
    with errors.expect_user_error(kind, value=value, remedy=remedy):
        wheel_build.make_plan(te.manifest(), *wanted)


def test_what_decides_a_wheel(te: Te) -> None:
    before = wheel_build.make_plan(te.manifest(), *WANTED).inputs
    lock = te.root / "locks/l/common.txt"
    lock.write_text(lock.read_text().replace("nvidia-nccl-cu12==1", "nvidia-nccl-cu12==2"))
    assert wheel_build.make_plan(te.manifest(), *WANTED).inputs == before, (
        "CUDA 12 is nothing to it"
    )
    lock.write_text(lock.read_text().replace("jaxlib==1", "jaxlib==2"))
    assert wheel_build.make_plan(te.manifest(), *WANTED).inputs != before
