"""Weights that go from a run in bfloat16 to one in FP8 and back, by Paxml's own program and checkpoints.

To be run by a baked environment's Python (build.py test --inside env:DIR).
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paxml", reason="NOT TESTED: needs a baked environment of pax")

pytestmark = pytest.mark.upstream

ROOT = Path(__file__).resolve().parents[2]
STEPS = 8


def _started(folder: Path, name: str, *words: str) -> Any:
    """Train a tiny model, or go on with it."""
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "PYTHONPATH": str(ROOT),
    }
    argv = [
        sys.executable,
        "-P",
        "-m",
        "rosetta.pax.train",
        "--fdl_config=rosetta.pax.gpt.Tiny",
        f"--job_log_dir={folder / name}",
        f'--fdl.DATA="text:{folder}/text.txt"',
    ]
    argv += [
        f"--fdl.MAX_STEPS={STEPS}",
        "--fdl.SUMMARY_INTERVAL_STEPS=1",
        "--fdl.FPROP_DTYPE='bfloat16'",
        *words,
    ]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def _losses(folder: Path, name: str) -> list[float]:
    """Those that were reported, in order."""
    return [
        line["loss"]
        for line in map(json.loads, (folder / name / "progress.jsonl").read_text().splitlines())
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs in bfloat16, in FP8 from its weights, and in bfloat16 again from that one's."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(
        "".join(f"The quick brown fox {number} jumps over the lazy dog.\n" for number in range(400))
    )
    begin: list[str] = []
    for name, words in (("bfloat16", []), ("fp8", ["--fdl.USE_FP8=True"]), ("back", [])):
        done = _started(folder, name, *words, *begin)
        assert done.returncode == 0, done.stderr[-3000:]
        begin = [f'--fdl.CHECKPOINT_RESTORE_PATH="{folder / name}"']
    return folder


def test_each_begins_where_the_last_ended(runs: Path) -> None:
    """By the losses: a restored run's first is its predecessor's last, on other text, and far from a fresh one's."""
    losses = [_losses(runs, name) for name in ("bfloat16", "fp8", "back")]
    drop = losses[0][0] - losses[0][-1]
    assert drop > 0.05
    for before, after in itertools.pairwise(losses):
        assert after[0] < before[0] - 0.5 * drop


def test_a_folder_goes_on_as_it_was_begun(runs: Path) -> None:
    done = _started(runs, "bfloat16", "--fdl.USE_FP8=True")
    assert done.returncode == 2
    assert "has no FP8 state, and the run would have some" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
