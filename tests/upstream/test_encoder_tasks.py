"""An encoder learns classes and numbers of real text, is killed, resumes, is evaluated and infers.

To be run by a baked environment's Python (build.py test --inside env:DIR). Some minutes on two
cores: each run starts TensorFlow and compiles.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("t5x", reason="NOT TESTED: needs a baked environment of t5x")

from rosetta.core import run_folders
from tests.support import baked_runs, hugging_face_classifier
from tests.support.documentation_blocks import ROOT

pytestmark = [pytest.mark.upstream, pytest.mark.long]

TORCH = os.environ.get("ROSETTA_TEST_TORCH", "")  # a Python that has transformers
TEXT = f"text:{ROOT}/docs/**/*.md"
LENGTH, SAVED, STEPS, STARTED = 96, 80, 320, 20
BERT = ("T5_FAMILY=bert", "T5_SIZE=tiny", "PREC=float32", "VOCAB=byte", f"ENC_SL={LENGTH}")
TRAINING = (*BERT, "BSIZE_PER_GPU=16", "STATS_PERIOD=20", f"SAVE_PERIOD={SAVED}")
FINETUNING = (
    *("t5x", "finetune", *TRAINING, "MODEL_DIR=pretrained", "FT_DIR=tuned", f"FT_STEPS={STEPS}"),
    *("WARMUP_STEPS=20", "LEARNING_RATE=1e-3", f"EVAL_PERIOD={SAVED}"),
)
CLASSIFICATION = ("FT_TASK=classification", "LABELS=code,prose", "TEXT_FIELD=first,second,label")
REGRESSION = ("FT_TASK=regression", "TEXT_FIELD=first,share")


def read_lines(pattern: str, count: int) -> list[str]:
    """Return lines of the files of this repository, from its beginning."""
    lines: list[str] = []
    for path in sorted(ROOT.glob(pattern)):
        lines += [line.strip() for line in path.read_text().splitlines() if len(line) > 30]
        if len(lines) >= count:
            break
    return lines[:count]


def write_records(folder: Path) -> None:
    """Write pairs of lines of prose and of code, with the kind of the second and a number."""
    chance = random.Random(0)  # noqa: S311 (made-up pairs)
    kinds = {
        "prose": read_lines("docs/how-to/*.md", 600),
        "code": read_lines("rosetta/**/*.py", 600),
    }
    rows = []
    for number in range(500):
        label = chance.choice(["code", "prose"])
        first = chance.choice(chance.choice([*kinds.values()]))
        second = chance.choice(kinds[label])
        letters = sum(character.isalpha() for character in first)
        row: dict[str, Any] = {"id": f"r{number}", "first": first, "second": second}
        # Half of the labels are numbers, as in GLUE.
        row["label"] = ["code", "prose"].index(label) if number % 2 else label
        row["share"] = letters / len(first)
        rows.append(row)
    for name, part in (("train", rows[:400]), ("dev", rows[400:])):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))


def read_metrics(folder: Path) -> dict[str, float]:
    (file,) = folder.rglob("*-metrics.jsonl")
    metrics: dict[str, float] = json.loads(file.read_text().splitlines()[-1])
    return metrics


def read_predictions(folder: Path) -> list[dict[str, Any]]:
    (file,) = [path for path in folder.glob("*-predict.jsonl-*") if path.suffix != ".COMPLETED"]
    return [json.loads(line) for line in file.read_text().splitlines()]


def finetune_and_resume(folder: Path, *words: str) -> dict[int, float]:
    """Finetune the pretrained model, kill the run and resume it; return the losses by step."""
    command = (*FINETUNING, *words, "DATA=jsonl:train.jsonl", "EVAL_DATA=jsonl:dev.jsonl")
    variables = {
        "ROSETTA_BATCH_LOG": str(folder / "hashes"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
    }
    tuned = folder / "tuned"
    process = baked_runs.start(folder, *command, variables=variables)
    baked_runs.kill_when(
        process, lambda: max(baked_runs.read_losses(tuned), default=0) >= STARTED + SAVED + 20
    )
    assert max(run_folders.list_checkpoint_steps(str(tuned))) < STARTED + STEPS
    baked_runs.run(folder, *command, variables=variables)
    hashes: dict[int, str] = {}
    records = [json.loads(line) for line in (folder / "hashes").read_text().splitlines()]
    for record in records:
        assert hashes.setdefault(record["step"], record["hash"]) == record["hash"]
    assert len(records) > len(hashes) == STEPS
    return baked_runs.read_losses(tuned)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with records and a BERT that has begun to learn the next sentence."""
    folder = tmp_path_factory.mktemp("encoder")
    write_records(folder)
    baked_runs.run(
        folder,
        *("t5x", "pretrain", *TRAINING, "OBJECTIVE=mlm_nsp", f"DATA={TEXT}"),
        *(f"TRAIN_STEPS={STARTED}", "LEARNING_RATE=5e-3", "MODEL_DIR=pretrained"),
    )
    return folder


def test_hidden_tokens_are_evaluated(pretrained: Path) -> None:
    baked_runs.run(
        pretrained,
        *("t5x", "eval", *BERT, "OBJECTIVE=mlm_nsp", f"DATA=text:{ROOT}/docs/how-to/*.md"),
        *("BSIZE=64", "CHECKPOINT_PATH=pretrained", "OUTPUT_DIR=masked"),
    )
    metrics = read_metrics(pretrained / "masked")
    print(f"hidden tokens: {metrics}")
    losses = baked_runs.read_losses(pretrained / "pretrained")
    # The run reported the mean loss of its steps, which fell on the way.
    assert 2 < metrics["loss"] < losses[STARTED]
    assert 5 < metrics["accuracy"] < 60
    assert metrics["sentence_loss"] == pytest.approx(0.69, abs=0.2)
    assert 30 < metrics["sentence_accuracy"] < 70


def test_pairs_of_texts_are_classified(pretrained: Path) -> None:
    losses = finetune_and_resume(pretrained, *CLASSIFICATION)
    first, last = losses[min(losses)], losses[max(losses)]
    print(f"classification: the loss fell from {first:.3f} to {last:.3f}")
    assert last < first - 0.2
    words = (*BERT, *CLASSIFICATION, "BSIZE=32", "CHECKPOINT_PATH=tuned")
    baked_runs.run(
        pretrained, "t5x", "eval", *words, "DATA=jsonl:dev.jsonl", "OUTPUT_DIR=evaluated"
    )
    metrics = read_metrics(pretrained / "evaluated")
    print(f"classification: {metrics}")
    assert metrics["accuracy"] > 75
    # The evaluation during training has the same loss.
    reports = baked_runs.read_reports(pretrained / "tuned")
    (trained,) = [
        values
        for report in reports
        if report["step"] == STARTED + STEPS and "evaluation" in report
        for values in report["evaluation"].values()
    ]
    print(f"at the end of training: {trained}")

    records = [json.loads(line) for line in (pretrained / "dev.jsonl").open()]
    for record in records:
        del record["label"]
    text = "".join(f"{json.dumps(record)}\n" for record in records)
    (pretrained / "questions.jsonl").write_text(text)
    baked_runs.run(
        pretrained, "t5x", "infer", *words, "DATA=jsonl:questions.jsonl", "OUTPUT_DIR=inferred"
    )
    predictions = read_predictions(pretrained / "inferred")
    assert [line["id"] for line in predictions] == [record["id"] for record in records]
    print(f"classification: {predictions[0]}")
    right = 0
    labels = [json.loads(line)["label"] for line in (pretrained / "dev.jsonl").open()]
    for line, label in zip(predictions, labels, strict=True):
        assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert line["probability"] == max(line["probabilities"].values())
        assert line["probabilities"][line["prediction"]] == line["probability"]
        right += line["prediction"] == label or ["code", "prose"].index(line["prediction"]) == label
    assert right == pytest.approx(metrics["accuracy"] * len(records) / 100)


@pytest.mark.skipif(not TORCH, reason="NOT CHECKED: ROSETTA_TEST_TORCH names no Python")
def test_a_converted_bert_says_what_transformers_says(pretrained: Path) -> None:
    """transformers makes a BERT, rosetta finetunes it, and both classify the same records."""
    program = str(Path(hugging_face_classifier.__file__))
    text = "".join(path.read_text() for path in sorted(ROOT.glob("docs/how-to/*.md")))
    (pretrained / "text.txt").write_text(text)

    def run_transformers(*words: str) -> None:
        subprocess.run([TORCH, program, *words], cwd=pretrained, check=True, capture_output=True)

    run_transformers("write", "hf", "text.txt")
    baked_runs.run(pretrained, "convert", "bert", "hf", "start", "--to", "t5x")
    model = (
        *("T5_FAMILY=bert", "T5_SIZE=small", "PREC=float32", "ROSETTA_GIN=start/model.gin"),
        *("VOCAB=start", "ENC_SL=40", *CLASSIFICATION),
    )
    baked_runs.run(
        pretrained,
        *("t5x", "finetune", *model, "BSIZE_PER_GPU=16", "STATS_PERIOD=20", "LEARNING_RATE=1e-3"),
        *("MODEL_DIR=start", "FT_DIR=mine", "FT_STEPS=120", "DATA=jsonl:train.jsonl"),
    )
    losses = baked_runs.read_losses(pretrained / "mine")
    first, last = losses[min(losses)], losses[max(losses)]
    print(f"a converted BERT: the loss fell from {first:.3f} to {last:.3f}")
    assert last < first - 0.2
    baked_runs.run(
        pretrained,
        *("t5x", "infer", *model, "DATA=jsonl:dev.jsonl", "CHECKPOINT_PATH=mine", "BSIZE=32"),
        "OUTPUT_DIR=said",
    )
    baked_runs.run(pretrained, "convert", "bert", "mine", "back", "--to", "hf")
    for file in (pretrained / "hf").glob("tokenizer*"):
        shutil.copy(file, pretrained / "back")
    run_transformers("classify", "back", "dev.jsonl", "expected.jsonl", "40")
    expected = [json.loads(line) for line in (pretrained / "expected.jsonl").open()]
    said = [list(line["probabilities"].values()) for line in read_predictions(pretrained / "said")]
    differences = [
        abs(first - second)
        for mine, theirs in zip(said, expected, strict=True)
        for first, second in zip(mine, theirs, strict=True)
    ]
    print(f"the largest difference of a probability: {max(differences):.1e}")
    assert max(differences) < 1e-4


def test_numbers_are_learned(pretrained: Path) -> None:
    for name in ("tuned", "compiled"):
        if (pretrained / name).exists():
            (pretrained / name).rename(pretrained / f"{name}-classes")
    (pretrained / "hashes").unlink(missing_ok=True)
    losses = finetune_and_resume(pretrained, *REGRESSION)
    first, last = losses[min(losses)], losses[max(losses)]
    print(f"regression: the loss fell from {first:.4f} to {last:.4f}")
    assert last < first / 2
    words = (*BERT, *REGRESSION, "BSIZE=32", "CHECKPOINT_PATH=tuned", "DATA=jsonl:dev.jsonl")
    baked_runs.run(pretrained, "t5x", "eval", *words, "OUTPUT_DIR=measured")
    metrics = read_metrics(pretrained / "measured")
    print(f"regression: {metrics}")
    baked_runs.run(pretrained, "t5x", "infer", *words, "OUTPUT_DIR=numbers")
    predictions = read_predictions(pretrained / "numbers")
    shares = [json.loads(line)["share"] for line in (pretrained / "dev.jsonl").open()]
    errors = [
        (line["prediction"] - share) ** 2 for line, share in zip(predictions, shares, strict=True)
    ]
    assert sum(errors) / len(errors) == pytest.approx(metrics["loss"], rel=1e-4)
