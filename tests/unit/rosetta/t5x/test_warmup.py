"""The default warm-up fits the run, and a run that resumes keeps its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rosetta.t5x import warmup
from rosetta.t5x.run import checkpoint_record

FINETUNING = {"longest": 1000, "fraction": 6}
START = "/pre/checkpoint_1000"


@pytest.mark.parametrize(("total", "steps"), [(3, 1), (400, 66), (6000, 1000), (15000, 1000)])
def test_the_warmup_of_finetuning_is_a_share_of_a_short_run(total: int, steps: int) -> None:
    warmup.default_steps.cache_clear()
    assert warmup.default_steps(total, start=START, **FINETUNING) == steps


@pytest.mark.parametrize(
    ("record", "steps"),
    [
        ({"start": START, "warmup_steps": 50}, 50),
        ({"start": START}, 1000),  # from an older release
        ({"start": "/pre/checkpoint_5", "warmup_steps": 50}, 66),
        ({"warmup_steps": 10_000}, 66),  # the pretraining itself, with MAKE_FT_DIR=0
    ],
)
@pytest.mark.parametrize("start", [START, "/pre"])
def test_only_a_checkpoint_of_the_same_finetuning_sets_the_warmup(
    tmp_path: Path, record: dict[str, object], steps: int, start: str
) -> None:
    if start == "/pre" and record.get("start") == "/pre/checkpoint_5":
        steps = 50  # the folder's newest checkpoint when that run began
    (tmp_path / "checkpoint_1100").mkdir()
    checkpoint_record.write_record(
        str(tmp_path),
        checkpoint_record.Record(step=1100, scale_attn_logits=True, **record),  # type: ignore[arg-type]
    )
    warmup.default_steps.cache_clear()
    assert warmup.default_steps(400, str(tmp_path), start=start, **FINETUNING) == steps
