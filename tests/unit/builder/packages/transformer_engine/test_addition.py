"""What is installed beside a distribution, and a wheel made elsewhere in place of one compiled here."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.core.cache import Cache
from builder.packages.transformer_engine import addition, wheel_build
from tests.support import errors, te_project

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.package_index import Index
    from tests.support.te_project import Te

pytestmark = pytest.mark.slow

WANTED = ("l", "cuda13", "amd64", "3.13")


@pytest.fixture
def wheel(te: Te, tmp_path: Path) -> Path:
    """One made elsewhere, at a place of the user's."""
    elsewhere = te.with_headers(Cache(tmp_path / "elsewhere"))
    made = addition.prepare_addition(te.context(elsewhere), te.manifest(), *WANTED)
    return Path(shutil.copy(made.wheel, tmp_path / made.wheel.name))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_pins_and_wheel(te: Te, cache: Cache) -> None:
    assert not addition.is_built(te.context(cache), te.manifest(), *WANTED)
    added = addition.prepare_addition(te.context(cache), te.manifest(), *WANTED)
    assert [pin.text for pin in added.pins] == [
        "nvidia-cudnn-frontend==1",
        "transformer-engine-cu13==1",
    ]
    assert (added.version, added.sha256) == (te_project.VERSION, _digest(added.wheel))
    assert added.wheel.is_relative_to(cache.root)
    assert added.glibc.startswith("2.")
    assert addition.is_built(te.context(cache), te.manifest(), *WANTED)


def test_an_imported_wheel_needs_no_compiler(
    te: Te, cache: Cache, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = wheel_build.make_plan(te.manifest(), *WANTED)
    assert addition.find_imported_wheel(cache, plan) is None
    addition.import_wheel(cache, plan, wheel, _digest(wheel))
    wheel.unlink()
    monkeypatch.setenv("PATH", "")
    te.index.requests.clear()
    assert addition.is_built(te.context(cache), te.manifest(), *WANTED)
    added = addition.prepare_addition(te.context(cache, offline=True), te.manifest(), *WANTED)
    assert added.wheel.name == wheel.name
    assert te.index.requests == []
    assert addition.forget_imported_wheel(cache, plan)
    assert not addition.forget_imported_wheel(cache, plan)
    with errors.expect_user_error(errors.MISSING, value="amd64", remedy="apt-get install g++"):
        addition.prepare_addition(te.context(cache), te.manifest(), *WANTED)


def test_no_cross_compiler(
    tmp_path: Path, index: Index, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    te_project.need_compiler("arm64")
    te = te_project.make_project(tmp_path / "repo", index, "arm64")
    monkeypatch.setenv("PATH", "")
    with errors.expect_user_error(
        errors.MISSING, value="arm64", remedy=("apt-get install g++-aarch64-linux-gnu", "--import")
    ):
        addition.prepare_addition(te.context(cache), te.manifest(), "l", "cuda13", "arm64", "3.13")
    assert not addition.is_built(te.context(cache), te.manifest(), "l", "cuda13", "arm64", "3.13")


def test_another_lock_does_not_take_the_imported_wheel(te: Te, cache: Cache, wheel: Path) -> None:
    addition.import_wheel(
        cache, wheel_build.make_plan(te.manifest(), *WANTED), wheel, _digest(wheel)
    )
    lock = te.root / "locks/l/common.txt"
    lock.write_text(lock.read_text().replace("jaxlib==1", "jaxlib==2"))
    changed = wheel_build.make_plan(te.manifest(), *WANTED)
    assert addition.find_imported_wheel(cache, changed) is None
    with errors.expect_user_error(errors.DIFFERS, where=wheel.name):
        addition.import_wheel(cache, changed, wheel, _digest(wheel))


def _again(wheel: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        files = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files:
            if changed := change(name, data):
                archive.writestr(*changed)
    return wheel


def _refused(
    te: Te, cache: Cache, wheel: Path, kind: str, value: str | None = None, sha256: str = ""
) -> None:
    with errors.expect_user_error(kind, where=wheel.name, value=value):
        addition.import_wheel(
            cache, wheel_build.make_plan(te.manifest(), *WANTED), wheel, sha256 or _digest(wheel)
        )
    assert (
        addition.find_imported_wheel(cache, wheel_build.make_plan(te.manifest(), *WANTED)) is None
    )
    assert not list(cache.path("wheels").glob("te-import*"))


def test_wheels_that_are_not_taken(te: Te, cache: Cache, wheel: Path, tmp_path: Path) -> None:
    _refused(te, cache, wheel, errors.DAMAGED, _digest(wheel), "0" * 64)
    _refused(te, cache, tmp_path / "none.whl", errors.MISSING, None, "0" * 64)
    for name, (kind, value) in {
        wheel.name.replace("1.2.0", "1.2.1"): (errors.DIFFERS, "transformer-engine-jax 1.2.1"),
        wheel.name.replace("x86_64", "aarch64"): (errors.DIFFERS, "cp313-cp313-linux_aarch64"),
        wheel.name.replace("cp313", "cp312"): (errors.DIFFERS, "cp312-cp312-linux_x86_64"),
        wheel.name.replace("_jax", "_torch"): (errors.DIFFERS, "transformer-engine-torch 1.2.0"),
        "x.whl": (errors.INVALID, None),
    }.items():
        _refused(te, cache, Path(shutil.copy(wheel, tmp_path / name)), kind, value)
    (tmp_path / "sub").mkdir()
    broken = tmp_path / "sub" / wheel.name
    broken.write_bytes(wheel.read_bytes()[:-100])
    _refused(te, cache, broken, errors.DAMAGED)


@pytest.mark.parametrize(
    ("change", "kind", "value"),
    [
        (
            lambda name, data: None if name.endswith(".so") else (name, data),
            errors.DIFFERS,
            "",
        ),
        (
            lambda name, data: (name.replace("cpython-313", "cpython-312"), data),
            errors.DIFFERS,
            "transformer_engine/wheel_lib/transformer_engine_jax.cpython-312-x86_64-linux-gnu.so",
        ),
        (
            lambda name, data: (
                name,
                data.replace(b"\x3e\x00", b"\xb7\x00", 1) if name.endswith(".so") else data,
            ),
            errors.UNSUPPORTED,
            "amd64",
        ),
        (
            lambda name, data: (name, b"MZ" + data if name.endswith(".so") else data),
            errors.UNSUPPORTED,
            "amd64",
        ),
        (
            lambda name, data: (name, data.replace(b"cu13", b"cu12")),
            errors.DIFFERS,
            "transformer-engine-cu12",
        ),
        (
            lambda name, data: (
                name,
                data.replace(b"Requires-Dist: transformer_engine_cu13", b"X: y"),
            ),
            errors.MISSING,
            "transformer-engine-cu13",
        ),
        (
            lambda name, data: (name, data.replace(b"Version: 1.2.0", b"Version: 1.2.1")),
            errors.DIFFERS,
            None,
        ),
        (
            lambda name, data: (name, b"{" if name.endswith("rosetta-build.json") else data),
            errors.DAMAGED,
            None,
        ),
        (
            lambda name, data: ("../" + name if name.endswith("LICENSE") else name, data),
            errors.INVALID,
            "..",
        ),
    ],
)
def test_wheels_with_something_wrong_inside(
    te: Te,
    cache: Cache,
    wheel: Path,
    change: Callable[[str, bytes], tuple[str, bytes] | None],
    kind: str,
    value: str | None,
) -> None:
    _refused(te, cache, _again(wheel, change), kind, value)


def test_a_wheel_of_another_builder_is_taken_with_a_warning(
    te: Te, cache: Cache, wheel: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _again(wheel, lambda name, data: None if name.endswith("rosetta-build.json") else (name, data))
    addition.import_wheel(
        cache, wheel_build.make_plan(te.manifest(), *WANTED), wheel, _digest(wheel)
    )
    assert "sha256" in capfd.readouterr().err
    assert addition.prepare_addition(te.context(cache), te.manifest(), *WANTED).sha256 == _digest(
        wheel
    )
