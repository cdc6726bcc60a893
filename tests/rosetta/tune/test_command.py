"""The command, with a program in the trainer's place; what a real one does is in test_trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.presets import describe, files
from rosetta.tune import planned, trial
from rosetta.tune.search import OK, Choice, Outcome

DARK = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "JAX_PLATFORMS": "cpu", "ROSETTA_SITE": ""}


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Choice]:
    made: list[Choice] = []
    for name, value in DARK.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)

    def measure(self: trial.Trials, choice: Choice, _: int) -> Outcome:
        self.describe(choice, "/nowhere")  # each is a run that can be described
        made.append(choice)
        if (choice.batch or 8) > 16:
            return Outcome("out-of-memory", reason="it does not fit into memory")
        return Outcome(OK, 100.0 * (1.2 if choice.batch == 16 else 1.0) * (1.1 if "command-buffers" in choice.switches else 1.0))

    monkeypatch.setattr(trial.Trials, "__call__", measure)
    return made


def test_a_preset_that_can_be_used_is_written_with_its_evidence(trials: list[Choice], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "t5x-tiny", "VOCAB=byte", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["settings"] == {"batch.per_gpu": "16", "ROSETTA_WITH": "command-buffers"}
    layer = files.chain("./t5x-tiny-tuned.yaml")[-1]
    assert (layer.extends, layer.values["batch.per_gpu"].value, layer.values["switches"].value) == ("t5x-tiny", 16, ["command-buffers"])
    assert layer.values["switches"].why == "command-buffers +10.0%, measured on 1 x CPU"
    run = describe.describe("./t5x-tiny-tuned.yaml", accelerator=None, settings={}, environment={})
    assert run.batch["per_gpu"] == 16
    lines = [json.loads(line) for line in Path("t5x-tiny-tuned.jsonl").read_text().splitlines()]
    assert lines[0]["preset"] == "t5x-tiny"
    assert lines[0]["settings"] == {"VOCAB": "byte"}
    assert len(lines) - 1 == len(trials)
    assert {each["outcome"]["kind"] for each in lines[1:]} == {"ok", "out-of-memory"}


def test_a_second_start_tries_nothing_again(trials: list[Choice]) -> None:
    assert cli.main(["tune", "t5x-tiny"]) == 0
    before, text = len(trials), Path("t5x-tiny-tuned.yaml").read_text()
    Path("t5x-tiny-tuned.yaml").unlink()
    assert cli.main(["tune", "t5x-tiny"]) == 0
    assert (len(trials), Path("t5x-tiny-tuned.yaml").read_text()) == (before, text)


def test_no_secret_is_written_or_said(trials: list[Choice], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", "t5x-tiny", "VOCAB=byte", "WANDB_API_KEY=hunter22", "DATA=gs://me:swordfish@bucket/x"]) == 0
    assert trials
    said = capsys.readouterr()
    for text in (said.out, said.err, Path("t5x-tiny-tuned.yaml").read_text(), Path("t5x-tiny-tuned.jsonl").read_text()):
        assert "hunter22" not in text
        assert "swordfish" not in text
    assert "WANDB_API_KEY=..." in said.out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["t5x-huge"], "there is no preset"), (["t5x-tiny", "--try", "everything"], "'everything' cannot be tried"), (["t5x-tiny", "word"], "'word' is no setting"),
        (["t5x-tiny", "NOSUCH=1"], "there is no setting"), (["t5x-tiny", "ROSETTA_WITH=pgle"], "switches are what is tried"), (["t5x-tiny", "--nodes", "2"], "a trial is made on this machine"),
        (["t5x-tiny", "--card", "h1000"], "there is no description of"), (["t5x-tiny", "--output", "/proc/x.yaml"], "cannot be written"), (["t5x-tiny", "--steps", "0"], "whole number"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_and_nothing_is_tried(trials: list[Choice], words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tune", *words]) == 2
    err = capsys.readouterr().err
    assert what in err
    assert len(err.splitlines()) == 1
    assert trials == []


class TestPlanned:
    @pytest.mark.parametrize(
        ("peak", "behind", "kind", "rate"), [(50e9, 10.0, "ok", 32.0), (50e9, 5.0, "ok", 24.0), (50e9, 0.0, "ok", 16.0), (80e9, 10.0, "out-of-memory", 0.0)]
    )
    def test_a_plan_is_judged_by_memory_and_by_what_is_waited_for(self, peak: float, behind: float, kind: str, rate: float) -> None:
        run = describe.describe("t5x-large", accelerator="h100", settings={}, environment={}, site=files.Layer("site", {}))
        result: dict[str, Any] = {"memory": {"peak": peak}, "collectives": [{"bytes": 10.0, "bytes_behind": behind}]}
        found = planned.judged(result, run, "h100", {})
        assert (found.kind, found.rate) == (kind, rate)

    @pytest.mark.parametrize("name", [name for name in files.presets() if name not in ("t5x", "pax")])
    def test_every_preset_has_words_that_plan_takes(self, name: str) -> None:
        run = describe.describe(name, accelerator="h100", settings={}, environment={}, site=files.Layer("site", {}))
        args = cli.parser().parse_args(["plan", *planned.words(run, "h100"), "--json"])
        assert args.gpus == run.nodes * run.gpus_per_node
