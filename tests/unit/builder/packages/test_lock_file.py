"""Reading hashed requirements."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from builder.packages import lock_file
from rosetta.core.errors import UserError
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

A, B = "a" * 64, "b" * 64


def _read(tmp_path: Path, text: str) -> list[lock_file.Pin]:
    (tmp_path / "lock.txt").write_text(text)
    return lock_file.read_lock(tmp_path / "lock.txt")


def test_reads_what_uv_writes(tmp_path: Path) -> None:
    text = f"# inputs: x\nJAX_x==0.10.2 ; python_full_version < '3.12' \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n    # via jax\nnumpy==2.0 --hash=sha256:{A}\n"
    pins = _read(tmp_path, text)
    assert [(pin.name, pin.version, pin.hashes) for pin in pins] == [
        ("jax-x", "0.10.2", (A, B)),
        ("numpy", "2.0", (A,)),
    ]
    old, new = (
        lock_file.marker_environment(version, f"{version}.1", "amd64")
        for version in ("3.11", "3.12")
    )
    assert pins[0].applies_to(old)
    assert not pins[0].applies_to(new)
    assert pins[1].applies_to(new)
    assert _read(tmp_path, "".join(pin.requirement_lines() for pin in pins)) == pins


def test_machine_decides(tmp_path: Path) -> None:
    (pin,) = _read(tmp_path, f"tensorflow==2 ; platform_machine == 'aarch64' --hash=sha256:{A}\n")
    assert pin.applies_to(lock_file.marker_environment("3.11", "3.11.2", "arm64"))
    assert not pin.applies_to(lock_file.marker_environment("3.11", "3.11.2", "amd64"))


@pytest.mark.parametrize(
    "line",
    [
        "numpy==2.0",
        "numpy>=2 --hash=sha256:" + A,
        "numpy @ https://example.com/n.whl --hash=sha256:" + A,
        "numpy==2 --hash=md5:" + A,
        "-e .",
        "--index-url x",
    ],
)
def test_what_is_not_locked_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError) as caught:
        _read(tmp_path, f"# a comment\n{line}\n")
    assert caught.value.where.endswith("lock.txt:2")


def test_missing_lock_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        lock_file.read_lock(tmp_path / "none.txt")
    assert "build.py lock" in caught.value.do


@pytest.mark.parametrize("cut", ["helper==1.0 \\\n", f"helper==1.0 \\\n    --hash=sha256:{A} \\\n"])
def test_a_cut_off_lock_is_refused(tmp_path: Path, cut: str) -> None:
    with errors.expect_user_error(errors.DAMAGED, where="lock.txt:2", remedy="build.py lock"):
        _read(tmp_path, f"numpy==2.0 --hash=sha256:{A}\n{cut}")


def test_the_sum_in_the_head_is_checked(tmp_path: Path) -> None:
    body = f"numpy==2.0 \\\n    --hash=sha256:{A}\n"
    head = f"# pins: {hashlib.sha256(body.encode()).hexdigest()}\n"
    assert len(_read(tmp_path, head + body)) == 1
    with errors.expect_user_error(errors.DAMAGED, where="lock.txt", remedy="git checkout"):
        _read(tmp_path, head + body.replace("2.0", "2.1"))


@pytest.mark.parametrize("marker", ["platform_machine ~= 'x'", "'x' in extras"])
def test_a_marker_that_means_nothing_is_refused(tmp_path: Path, marker: str) -> None:
    with pytest.raises(UserError):
        _read(tmp_path, f"numpy==2.0 ; {marker} --hash=sha256:{A}\n")
