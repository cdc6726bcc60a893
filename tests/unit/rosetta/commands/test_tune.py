"""The command, with a program in the trainer's place; what a real one does is in test_trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rosetta import cli
from rosetta.core.errors import UserError
from rosetta.presets import preset_files, preset_run
from rosetta.tune import trial, trial_identity
from rosetta.tune.search import OK, Choice, Outcome
from tests.support import errors

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
            return Outcome("out-of-memory", reason="the run does not fit into memory")
        return Outcome(
            OK,
            100.0
            * (1.2 if choice.batch == 16 else 1.0)
            * (1.1 if "command-buffers" in choice.switches else 1.0),
        )

    monkeypatch.setattr(trial.Trials, "__call__", measure)
    monkeypatch.setattr(
        trial_identity, "list_xla_options", lambda flags: (flags,)
    )  # whatever jaxlib there is
    return made


def test_a_preset_that_can_be_used_is_written_with_its_evidence(
    trials: list[Choice], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(["tune", "t5x-tiny", "VOCAB=byte", "--try", "batch,command-buffers", "--json"])
        == 0
    )
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["settings"] == {"batch.per_gpu": "16", "ROSETTA_WITH": "command-buffers"}
    layer = preset_files.load_preset_chain("./t5x-tiny-tuned.yaml")[-1]
    assert (layer.extends, layer.values["batch.per_gpu"].value, layer.values["switches"].value) == (
        "t5x-tiny",
        16,
        ["command-buffers"],
    )
    assert layer.values["switches"].why == "command-buffers +10.0%, measured on 1 x CPU"
    run = preset_run.describe_run(
        "./t5x-tiny-tuned.yaml", accelerator=None, settings={}, environment={}
    )
    assert run.batch["per_gpu"] == 16
    lines = [json.loads(line) for line in Path("t5x-tiny-tuned.jsonl").read_text().splitlines()]
    assert lines[0]["preset"] == "t5x-tiny"
    assert lines[0]["settings"] == {"VOCAB": "byte"}
    assert (lines[0]["values"]["batch.per_gpu"], lines[0]["values"]["settings.VOCAB"]) == (
        "8",
        "byte",
    )
    assert len(lines) - 1 == len(trials)
    assert {each["outcome"]["kind"] for each in lines[1:]} == {"ok", "out-of-memory"}


def test_a_second_start_reuses_all_trials(trials: list[Choice]) -> None:
    assert cli.main(["tune", "t5x-tiny"]) == 0
    before, text = len(trials), Path("t5x-tiny-tuned.yaml").read_text()
    Path("t5x-tiny-tuned.yaml").unlink()
    assert cli.main(["tune", "t5x-tiny"]) == 0
    assert (len(trials), Path("t5x-tiny-tuned.yaml").read_text()) == (before, text)


def test_evidence_of_an_edited_preset_is_refused(trials: list[Choice]) -> None:
    Path("mine.yaml").write_text("extends: t5x-tiny\nbatch: {per_gpu: 4}\n")
    assert cli.main(["tune", "./mine.yaml"]) == 0
    before = len(trials)
    Path("mine.yaml").write_text("extends: t5x-tiny\nbatch: {per_gpu: 2}\n")
    with errors.expect_reported_error(errors.DIFFERS, names="batch.per_gpu", remedy="--evidence"):
        assert cli.main(["tune", "./mine.yaml"]) == 2
    assert len(trials) == before


def test_on_the_cpu_the_batch_alone_is_tried(trials: list[Choice]) -> None:
    assert cli.main(["tune", "t5x-tiny"]) == 0
    assert {choice.switches for choice in trials} == {()}


def test_a_setting_can_choose_the_cpu(
    trials: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS")
    assert cli.main(["tune", "t5x-tiny", "JAX_PLATFORMS=cpu"]) == 0
    assert trials
    assert json.loads(Path("t5x-tiny-tuned.jsonl").read_text().splitlines()[0])["card"] == "CPU"


def test_a_choice_that_cannot_be_described_is_left_out(
    trials: list[Choice], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = preset_run.describe_run

    def described(name: str, *, settings: dict[str, str], **more: Any) -> Any:
        if "combine" in settings:
            raise UserError("unknown sizes", "combine", "leave it")
        return whole(name, settings=settings, **more)

    monkeypatch.setattr(preset_run, "describe_run", described)
    assert cli.main(["tune", "t5x-tiny", "--try", "combine,command-buffers"]) == 0
    assert "combine: refused, combine: unknown sizes; leave it" in capsys.readouterr().err
    assert trials[-1].switches == ("command-buffers",)


def test_no_secret_is_written_or_printed(
    trials: list[Choice], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        cli.main(
            [
                "tune",
                "t5x-tiny",
                "VOCAB=byte",
                "WANDB_API_KEY=hunter22",
                "DATA=gs://me:swordfish@bucket/x",
            ]
        )
        == 0
    )
    assert trials
    said = capsys.readouterr()
    for text in (
        said.out,
        said.err,
        Path("t5x-tiny-tuned.yaml").read_text(),
        Path("t5x-tiny-tuned.jsonl").read_text(),
    ):
        assert "hunter22" not in text
        assert "swordfish" not in text
    assert "WANDB_API_KEY=..." in said.out


@pytest.mark.parametrize(
    ("words", "kind", "facts"),
    [
        (["t5x-huge"], errors.UNKNOWN, {"where": "preset", "value": "t5x-huge"}),
        (
            ["t5x-tiny", "--try", "everything"],
            errors.UNKNOWN,
            {"where": "--try", "value": "everything"},
        ),
        (["t5x-tiny", "word"], errors.INVALID, {"where": "rosetta tune", "value": "word"}),
        (["t5x-tiny", "NOSUCH=1"], errors.UNKNOWN, {"where": "command line", "value": "NOSUCH"}),
        (["t5x-tiny", "ROSETTA_WITH=pgle"], errors.CONFLICT, {"where": "ROSETTA_WITH"}),
        (
            ["t5x-tiny", "--output", "/proc/x.yaml"],
            errors.DENIED,
            {"where": "/proc", "value": "/proc"},
        ),
        (["t5x-tiny", "--steps", "0"], errors.INVALID, {"where": "rosetta tune"}),
    ],
)
def test_an_error_is_one_line_and_makes_no_trial(
    trials: list[Choice],
    words: list[str],
    kind: str,
    facts: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with errors.expect_reported_error(kind, **facts):
        assert cli.main(["tune", *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert trials == []
    assert list(Path().iterdir()) == []
