"""An environment whose `rosetta plan` prints a fixed result, and goldens for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from builder.pipeline.step_plans import figures
from builder.pipeline.step_plans.goldens import Golden, Record, write_golden

if TYPE_CHECKING:
    from pathlib import Path

JAXLIB = "0.10.2"
SOURCES = {"t5x": "a" * 40}


def make_report(**changes: Any) -> dict[str, Any]:
    """Return the result of `rosetta plan --json` for a small step."""
    report = {
        "memory": {"peak": 7_000_000_000},
        "kernels": 1000,
        "bytes": 45e9,
        "flops_by_role": {
            "fprop": {"fp8": 3e12, "other": 0.0},
            "wgrad": {"fp8": 0.0, "other": 1e12},
        },
        "collectives": [
            {"kind": "all-reduce", "dtype": "f32", "bytes": 2e8, "times": 2},
            {"kind": "all-reduce", "dtype": "bf16", "bytes": 3e8, "times": 3},
            {"kind": "all-gather", "dtype": "bf16", "bytes": 1e8, "times": 1},
        ],
        "time": {"seconds": {"likely": 0.0288}},
        "compile": {"seconds": 61.23},
    }
    return {**report, **changes}


def make_environment(folder: Path, report: dict[str, Any], distribution: str = "t5x") -> Path:
    """Make an environment that plans a step, and that writes its words to `words`."""
    packages = folder / "opt/rosetta/env/lib/python3.11/site-packages"
    (packages / f"jaxlib-{JAXLIB}.dist-info").mkdir(parents=True)
    sources = {name: {"commit": commit} for name, commit in SOURCES.items()}
    (folder / "opt/rosetta/lock.json").write_text(
        json.dumps({"distribution": distribution, "sources": sources})
    )
    (folder / "bin").mkdir()
    python = folder / "bin/python"
    python.write_text(
        f'#!/bin/sh\necho "$PYTHONPATH" "$@" >> "{folder}/words"\ncat "{folder}/document.json"\n'
    )
    python.chmod(0o755)
    write_document(folder, {"result": report, "error": None})
    return folder


def write_document(environment: Path, document: dict[str, Any]) -> None:
    """Set what `rosetta plan --json` prints in an environment."""
    (environment / "document.json").write_text(json.dumps(document))


def write_recorded(
    folder: Path,
    name: str,
    *,
    distribution: str = "t5x",
    jaxlib: str = JAXLIB,
    cheap: bool = True,
    **changes: Any,
) -> Golden:
    """Write a golden that was recorded from `make_report(**changes)`, and return it."""
    golden = Golden(
        name,
        distribution,
        "t5x --size tiny",
        cheap,
        Record("python3 build.py test", jaxlib, SOURCES, 60.0),
        figures.read_figures(make_report(**changes)),
    )
    write_golden(folder, golden)
    return golden
