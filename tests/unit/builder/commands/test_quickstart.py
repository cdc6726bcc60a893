"""Which distribution the quick start takes, and what it shows."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.commands import quickstart
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.packages import python_interpreter
from builder.pipeline import verification
from builder.upstream import source_tree
from rosetta.core.errors import UserError
from tests.support import errors

ROOT = Path(__file__).parents[4]
REPORT: dict[str, Any] = {
    "framework": "t5x",
    "ok": False,
    "problems": ["the loss did not fall"],
    "imports": {"modules": 90, "skipped": {"a": "why"}, "failed": {"t5x.x": "ImportError: no y"}},
    "runs": [
        {
            "devices": 1,
            "mesh": "data=1",
            "losses": {"5": 6.5, "10": 4.25},
            "resumed_from": 10,
            "resumed_losses": {"15": 3.0},
            "steps_per_second": 12.345,
            "wall_s": 3.0,
        },
        {
            "devices": 4,
            "mesh": "data=2 model=2",
            "losses": {"5": 6.5},
            "resumed_from": 5,
            "resumed_losses": {"10": 4.0},
            "steps_per_second": 10.0,
            "wall_s": 3.0,
        },
    ],
}


def _context(cache: Cache) -> Context:
    return Context(ROOT, ROOT / "manifest.yaml", cache, offline=True)


@pytest.fixture
def any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every distribution has its Python here, whichever runs these tests."""
    monkeypatch.setattr(python_interpreter, "find_interpreter", lambda *_: None)


@pytest.mark.usefixtures("any_python")
def test_takes_the_first_whose_sources_can_be_had_and_says_why(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = source_tree.patch_source

    def only_wheels(entry: Any, access: Any) -> Any:
        return real(entry, access) if entry.name == "t5x" else None

    monkeypatch.setattr(source_tree, "patch_source", only_wheels)
    name, reason = quickstart.choose_distribution(_context(cache))
    assert name == "pax-1.4"
    assert "t5x" in reason
    assert "\nt5x " in "\n" + capsys.readouterr().err


@pytest.mark.usefixtures("any_python")
def test_none_can_be_had(cache: Cache) -> None:
    with pytest.raises(UserError) as caught:
        quickstart.choose_distribution(_context(cache))
    assert "1.4" in str(caught.value)


def test_without_sources_and_the_wheels_python_both_ways_out_are_named(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on Debian 13, which has Python 3.13 alone, behind a network without GitHub."""
    find = python_interpreter.find_interpreter

    def find_without_311(pythons: Sequence[str], *_: str) -> object:
        return None if "3.13" in pythons else find(["3.99"], "3.99")

    monkeypatch.setattr(python_interpreter, "find_interpreter", find_without_311)
    with pytest.raises(UserError) as caught:
        quickstart.choose_distribution(_context(cache))
    assert "for t5x: --mirror DIR" in caught.value.do
    assert "; or for pax-1.4: install one" in caught.value.do
    assert "\n" not in str(caught.value)
    assert "\nt5x " not in "\n" + capsys.readouterr().err, "the error says it, in one line"


def test_the_curve_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    quickstart.draw_loss_curves(REPORT, path, "t5x")
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 600
    assert height > 300
    assert [file.name for file in tmp_path.iterdir()] == ["loss.png"]


def test_a_run_that_was_not_resumed_is_shown_too(tmp_path: Path) -> None:
    """The first run failed: what is known is shown, with the problem."""
    run: dict[str, Any] = REPORT["runs"][0] | {"resumed_from": None, "resumed_losses": {}}
    report = REPORT | {"runs": [run], "problems": ["training ended with status 134"]}
    quickstart.draw_loss_curves(report, tmp_path / "loss.png", "t5x")
    assert (tmp_path / "loss.png").read_bytes()[:4] == b"\x89PNG"
    text = verification.format_report(report)
    assert "not resumed" in text
    assert "PROBLEM     training ended with status 134" in text


def test_the_table_names_losses_speed_and_problems() -> None:
    text = verification.format_report(REPORT)
    for word in (
        "90 modules",
        "t5x.x: ImportError: no y",
        "6.5000",
        "3.0000",
        "12.35 steps/s",
        "resumed from step 10",
        "mesh data=2 model=2",
        "the loss did not fall",
        "NO",
    ):
        assert word in text, text


def test_verify_refuses_what_is_no_environment(tmp_path: Path) -> None:
    with errors.expect_user_error(errors.INVALID, where=tmp_path, remedy="--output env:"):
        verification.verify_environment(tmp_path, steps=1, devices="1", workdir="", root=ROOT)
    program = tmp_path / "opt/rosetta/bin/rosetta"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho oops >&2\nexit 7\n")
    program.chmod(0o755)
    (tmp_path / "opt/rosetta/lock.json").write_text("{}")
    with errors.expect_user_error(errors.FAILED, where=tmp_path, value=7):
        verification.verify_environment(tmp_path, steps=1, devices="1", workdir="", root=ROOT)
