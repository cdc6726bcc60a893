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
from rosetta.core.errors import UserError
from tests.support import te_project

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
    made = addition.addition(te.context(elsewhere), te.manifest(), *WANTED)
    return Path(shutil.copy(made.wheel, tmp_path / made.wheel.name))


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_pins_and_wheel(te: Te, cache: Cache) -> None:
    assert not addition.built(te.context(cache), te.manifest(), *WANTED)
    added = addition.addition(te.context(cache), te.manifest(), *WANTED)
    assert [pin.text for pin in added.pins] == [
        "nvidia-cudnn-frontend==1",
        "transformer-engine-cu13==1",
    ]
    assert (added.version, added.sha256) == (te_project.VERSION, _digest(added.wheel))
    assert added.wheel.is_relative_to(cache.root)
    assert added.glibc.startswith("2.")
    assert addition.built(te.context(cache), te.manifest(), *WANTED)


def test_an_imported_wheel_needs_no_compiler(
    te: Te, cache: Cache, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = wheel_build.plan(te.manifest(), *WANTED)
    assert addition.imported(cache, plan) is None
    addition.take(cache, plan, wheel, _digest(wheel))
    wheel.unlink()
    monkeypatch.setenv("PATH", "")
    te.index.requests.clear()
    assert addition.built(te.context(cache), te.manifest(), *WANTED)
    added = addition.addition(te.context(cache, offline=True), te.manifest(), *WANTED)
    assert added.wheel.name == wheel.name
    assert te.index.requests == []
    assert addition.drop(cache, plan)
    assert not addition.drop(cache, plan)
    with pytest.raises(
        UserError, match=r"no C\+\+ compiler for amd64 is here.*apt-get install g\+\+"
    ):
        addition.addition(te.context(cache), te.manifest(), *WANTED)


def test_no_cross_compiler(
    tmp_path: Path, index: Index, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    te_project.need("arm64")
    te = te_project.make(tmp_path / "repo", index, "arm64")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        UserError,
        match=r"no C\+\+ compiler for arm64.*apt-get install g\+\+-aarch64-linux-gnu, or make the wheel on an arm64 machine.*--import",
    ):
        addition.addition(te.context(cache), te.manifest(), "l", "cuda13", "arm64", "3.13")
    assert not addition.built(te.context(cache), te.manifest(), "l", "cuda13", "arm64", "3.13")


def test_another_lock_does_not_take_the_imported_wheel(te: Te, cache: Cache, wheel: Path) -> None:
    addition.take(cache, wheel_build.plan(te.manifest(), *WANTED), wheel, _digest(wheel))
    lock = te.root / "locks/l/common.txt"
    lock.write_text(lock.read_text().replace("jaxlib==1", "jaxlib==2"))
    changed = wheel_build.plan(te.manifest(), *WANTED)
    assert addition.imported(cache, changed) is None
    with pytest.raises(
        UserError, match="was compiled from or against other packages than the locks name"
    ):
        addition.take(cache, changed, wheel, _digest(wheel))


def _again(wheel: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        files = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files:
            if changed := change(name, data):
                archive.writestr(*changed)
    return wheel


def _refused(te: Te, cache: Cache, wheel: Path, message: str, sha256: str = "") -> None:
    with pytest.raises(UserError, match=message):
        addition.take(
            cache, wheel_build.plan(te.manifest(), *WANTED), wheel, sha256 or _digest(wheel)
        )
    assert addition.imported(cache, wheel_build.plan(te.manifest(), *WANTED)) is None
    assert not list(cache.path("wheels").glob("te-import*"))


def test_wheels_that_are_not_taken(te: Te, cache: Cache, wheel: Path, tmp_path: Path) -> None:
    _refused(te, cache, wheel, "has the sha256 [0-9a-f]{64}, not 0000", "0" * 64)
    _refused(te, cache, tmp_path / "none.whl", "cannot be read", "0" * 64)
    for name, message in {
        wheel.name.replace(
            "1.2.0", "1.2.1"
        ): r"is transformer-engine-jax 1\.2\.1, not transformer-engine-jax 1\.2\.0",
        wheel.name.replace(
            "x86_64", "aarch64"
        ): "is for cp313-cp313-linux_aarch64, not for cp313-cp313-linux_x86_64",
        wheel.name.replace("cp313", "cp312"): "is for cp312-cp312-linux_x86_64",
        wheel.name.replace("_jax", "_torch"): "is transformer-engine-torch",
        "x.whl": "is not the file name of a wheel",
    }.items():
        _refused(te, cache, Path(shutil.copy(wheel, tmp_path / name)), message)
    (tmp_path / "sub").mkdir()
    broken = tmp_path / "sub" / wheel.name
    broken.write_bytes(wheel.read_bytes()[:-100])
    _refused(te, cache, broken, "is not a sound zip file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda name, data: None if name.endswith(".so") else (name, data),
            "holds no compiled module",
        ),
        (
            lambda name, data: (name.replace("cpython-313", "cpython-312"), data),
            "holds .*cpython-312.*, not ",
        ),
        (
            lambda name, data: (
                name,
                data.replace(b"\x3e\x00", b"\xb7\x00", 1) if name.endswith(".so") else data,
            ),
            "is not compiled for amd64",
        ),
        (
            lambda name, data: (name, b"MZ" + data if name.endswith(".so") else data),
            "is not compiled for amd64",
        ),
        (
            lambda name, data: (name, data.replace(b"cu13", b"cu12")),
            "asks for transformer-engine-cu12, not for transformer-engine-cu13",
        ),
        (
            lambda name, data: (
                name,
                data.replace(b"Requires-Dist: transformer_engine_cu13", b"X: y"),
            ),
            "does not ask for transformer-engine-cu13",
        ),
        (
            lambda name, data: (name, data.replace(b"Version: 1.2.0", b"Version: 1.2.1")),
            "names another project or version",
        ),
        (
            lambda name, data: (name, b"{" if name.endswith("rosetta-build.json") else data),
            "is broken",
        ),
        (lambda name, data: ("../" + name if name.endswith("LICENSE") else name, data), r"\.\."),
    ],
)
def test_wheels_with_something_wrong_inside(
    te: Te,
    cache: Cache,
    wheel: Path,
    change: Callable[[str, bytes], tuple[str, bytes] | None],
    message: str,
) -> None:
    _refused(te, cache, _again(wheel, change), message)


def test_a_wheel_of_another_builder_is_taken_with_a_warning(
    te: Te, cache: Cache, wheel: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _again(wheel, lambda name, data: None if name.endswith("rosetta-build.json") else (name, data))
    addition.take(cache, wheel_build.plan(te.manifest(), *WANTED), wheel, _digest(wheel))
    assert "only the sha256 vouches for it" in capfd.readouterr().err
    assert addition.addition(te.context(cache), te.manifest(), *WANTED).sha256 == _digest(wheel)
