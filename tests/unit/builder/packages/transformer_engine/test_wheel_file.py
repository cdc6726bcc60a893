"""The wheel as a file: metadata set right, bytes that depend on nothing but the content."""

from __future__ import annotations

import os
import time
import zipfile
from typing import TYPE_CHECKING

import pytest

from builder.packages.transformer_engine import wheel_file
from builder.packages.transformer_engine.wheel_file import Target
from tests.support import errors, te_project

if TYPE_CHECKING:
    from pathlib import Path

TARGET = Target("2.20.2", "cuda13", "amd64", "3.13")


def test_names() -> None:
    assert TARGET.file == "transformer_engine_jax-2.20.2-cp313-cp313-linux_x86_64.whl"
    arm = Target("2.20.2", "cuda12", "arm64", "3.11")
    assert arm.file == "transformer_engine_jax-2.20.2-cp311-cp311-linux_aarch64.whl"
    assert (
        arm.module
        == "transformer_engine/wheel_lib/transformer_engine_jax.cpython-311-aarch64-linux-gnu.so"
    )


@pytest.mark.parametrize(
    ("accelerator", "wanted"),
    [("cuda12", "transformer_engine_cu12==1.2.0"), ("cuda13", "transformer_engine_cu13==1.2.0")],
)
def test_the_libraries_that_go_with_it(accelerator: str, wanted: str) -> None:
    before, after = (
        te_project.PKG_INFO.splitlines(),
        wheel_file.adapt_metadata(te_project.PKG_INFO, accelerator).splitlines(),
    )
    assert after == [*before[:-1], f"Requires-Dist: {wanted}"]


@pytest.mark.parametrize(
    "text",
    [
        "Requires-Dist: jax\n",
        te_project.PKG_INFO + "Requires-Dist: transformer_engine_cu13==1.2.0\n",
    ],
)
def test_metadata_of_another_kind(text: str) -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where="PKG-INFO", remedy="wheel_file.py"):
        wheel_file.adapt_metadata(text, "cuda13")


def test_the_same_bytes_at_any_time_and_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for number, (mask, zone) in enumerate([(0o022, "UTC"), (0o077, "Asia/Tokyo")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        old = os.umask(mask)
        try:
            made.append(
                wheel_file.write_wheel(
                    folder,
                    TARGET,
                    {"transformer_engine/x.so": b"\x7fELF"},
                    "Name: x\n",
                    b"licence",
                    {"b": 1, "a": 2},
                ).read_bytes()
            )
        finally:
            os.umask(old)
    monkeypatch.undo()
    time.tzset()
    assert made[0] == made[1]
    with zipfile.ZipFile(tmp_path / "0" / TARGET.file) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {
            info.external_attr >> 16 for info in archive.infolist() if info.filename.endswith(".so")
        } == {0o100755}


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        (b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0", "2.34"),
        (b"\0GLIBC_2.17\0", "2.17"),
        (b"\0GLIBCXX_3.4.30\0CXXABI_1.3\0GLIBC_2.14\0GLIBC_PRIVATE\0", "2.14"),
        (b"nothing", "2.0"),
    ],
)
def test_the_oldest_glibc_that_can_load_it(module: bytes, wanted: str) -> None:
    assert wheel_file.find_required_glibc(module) == wanted
