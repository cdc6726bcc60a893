"""What the scripts' tests do not see from outside; they have the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rosetta.errors import UserError
from rosetta.launch import run


def test_the_interpreter() -> None:
    assert run.python({}) == sys.executable
    assert run.python({"PYTHON": sys.executable}) == sys.executable
    with pytest.raises(UserError, match="PYTHON=/nowhere: it is no program"):
        run.python({"PYTHON": "/nowhere"})


def test_what_is_compiled_is_kept_where_it_can_be_and_nobody_chose(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert run.compiled(home, 1) == {"JAX_COMPILATION_CACHE_DIR": f"{tmp_path}/.rosetta/compiled"}
    assert run.compiled({**home, "ROSETTA_HOME": "/r"}, 1) == {"JAX_COMPILATION_CACHE_DIR": "/r/compiled"}
    assert run.compiled(home, 2) == {}
    assert run.compiled({"HOME": "/nowhere"}, 1) == {}
    for name in run.CACHE:
        assert run.compiled({**home, name: ""}, 1) == {}


def test_several_runs_are_shown_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    both = [run.Command([name], {"XLA_FLAGS": "x", "TOKEN": "secret"}, None, ()) for name in ("a", "b")]
    assert run.script("x", ["--dry-run", "w"], lambda given: both if given == ["w"] else [], "docs/x.md") == 0
    out = capsys.readouterr().out
    assert out.index('"a"') < out.index('"b"')
    assert "secret" not in out
    assert run.script("x", ["--other"], lambda _: both, "docs/x.md") == 2
    assert "there is no --other; its one option is --dry-run; docs/x.md of rosetta has" in capsys.readouterr().err
