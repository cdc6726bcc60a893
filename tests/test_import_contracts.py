"""The contracts on imports in pyproject.toml ignore nothing but programs that are started by name.

`build.py test` runs lint-imports, which checks the contracts themselves.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# `python -m rosetta.doctor` and its like hand over to the command line; the scripts start
# `python -m rosetta.t5x.launch`, a public name for a program that is in rosetta.launch.
STARTED_BY_NAME = frozenset(
    {
        "rosetta.doctor.__main__",
        "rosetta.launch.__main__",
        "rosetta.presets.__main__",
        "rosetta.pax.launch",
        "rosetta.t5x.launch",
    }
)


def test_only_programs_that_are_started_by_name_are_ignored() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    ignored = {name for contract in contracts for name in contract.get("ignore_imports", ())}
    others = {name for name in ignored if name.partition(" -> ")[0] not in STARTED_BY_NAME}
    assert not others, "imports follow the direction of docs/explanation/architecture.md"
