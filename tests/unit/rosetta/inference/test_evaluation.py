"""Scores and metrics of evaluation sets, compared with what whole texts give by hand."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "paxml", "tensorstore")

import numpy as np

from rosetta import cli
from rosetta.data import vocabularies
from rosetta.inference import evaluation, evaluation_sets, generation
from rosetta.inference.decoding import Decoding
from rosetta.inference.evaluation_sets import Question, QuestionSet
from tests.support import small_gpt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.long

SIZES = {"vocab": 264, "positions": 64}
BYTES = vocabularies.Vocabulary("byte", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small GPT that reads bytes."""
    return small_gpt.write_checkpoint(tmp_path_factory.mktemp("bytes"), **SIZES)


@pytest.fixture(scope="module")
def evaluator(folder: Path) -> evaluation.Evaluator:
    return evaluation.Evaluator(small_gpt.open_model(folder), BYTES, (0,), 3)


@pytest.fixture(scope="module")
def reference(folder: Path) -> small_gpt.Reference:
    return small_gpt.Reference(folder, **SIZES)


def _encode(text: str) -> list[int]:
    return [byte + 3 for byte in text.encode()]


def _score(reference: small_gpt.Reference, prompt: str, answer: str) -> float:
    """Return the log probability of an answer, computed token by token from whole texts."""
    begin, ids = [0, *_encode(prompt)], _encode(answer)
    logits = reference.compute_logits([begin + ids[:size] for size in range(len(ids))])
    logits -= logits.max(-1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return float(sum(log_probabilities[size, number] for size, number in enumerate(ids)))


def test_last_words(evaluator: evaluation.Evaluator, reference: small_gpt.Reference) -> None:
    pairs = [("the old", " man"), ("a", " b"), ("one two three four", " five"), ("x y", " zz")]
    questions = [Question(prompt, (word,)) for prompt, word in pairs]
    found = evaluator.measure_likelihoods(
        QuestionSet("lambada", "", evaluation_sets.LAST_WORD, questions)
    )
    total = sum(_score(reference, *pair) for pair in pairs)
    assert found["perplexity"] == pytest.approx(math.exp(-total / 4), rel=1e-3)
    assert found["accuracy"] == 0.0


def test_what_is_likeliest_is_what_the_model_writes(evaluator: evaluation.Evaluator) -> None:
    prompt = [0, *_encode("abc")]
    ((answer,),) = generation.generate_answers(
        evaluator.model, [prompt], Decoding(5), generation.Stops()
    )
    changed = [*answer.ids[:3], (answer.ids[3] + 1) % 264, answer.ids[4]]
    texts = [prompt + answer.ids, prompt + changed, prompt + changed]
    scores = evaluator.model.score(texts, [4, 4, 8], 16)
    assert [score.likeliest for score in scores[:2]] == [True, False]
    assert scores[0].logprob == pytest.approx(sum(answer.logprobs), abs=1e-3)
    assert scores[2].logprob > scores[1].logprob  # only the last token counts


def test_choices(evaluator: evaluation.Evaluator, reference: small_gpt.Reference) -> None:
    questions, right = [], 0
    for number in range(7):
        prompt, choices = f"question {number * 31}: is it so? ", ("yes", "no", "it is")
        scores = [_score(reference, prompt, choice) for choice in choices]
        questions.append(Question(prompt, choices, number % 3))
        right += max(range(3), key=scores.__getitem__) == number % 3
    found = evaluator.measure_likelihoods(
        QuestionSet("mine", "", evaluation_sets.CHOICE, questions)
    )
    assert found == {"accuracy": right / 7}
    flipped = [Question(q.prompt, q.choices[::-1], 2 - q.answer) for q in questions]
    again = evaluator.measure_likelihoods(QuestionSet("f", "", evaluation_sets.CHOICE, flipped))
    assert again == found


def test_a_long_prompt_loses_its_beginning(
    evaluator: evaluation.Evaluator, capsys: pytest.CaptureFixture[str]
) -> None:
    short = "b" * 61
    found = [
        evaluator.measure_likelihoods(
            QuestionSet("l", "", evaluation_sets.LAST_WORD, [Question(prompt, (" c",))])
        )
        for prompt in (short, "a" * 30 + short)
    ]
    assert found[0] == found[1]
    assert "1 of 1" in capsys.readouterr().err


def _measure_lengths(targets: Sequence[str], answers: Sequence[str]) -> dict[str, float]:
    return {"targets": len("".join(targets)), "answers": len("".join(answers))}


def test_free_answers(evaluator: evaluation.Evaluator) -> None:
    prompts = ["abc", "x"]
    found = generation.generate_answers(
        evaluator.model,
        [[0, *_encode(prompt)] for prompt in prompts],
        Decoding(4, (BYTES.eos,)),
        generation.Stops(BYTES, ("\n",)),
    )
    written = [(own[0].text or "").strip() for own in found]
    questions = [Question("abc", (f" {written[0]} ",)), Question("x", (f"{written[1]}!",))]
    questions_set = QuestionSet("mine", "", evaluation_sets.TEXT, questions)
    decoding = Decoding(4, (BYTES.eos,))
    assert evaluator.measure_answers(questions_set, decoding, None) == {"accuracy": 0.5}
    lengths = evaluator.measure_answers(questions_set, decoding, ("m", _measure_lengths))
    assert lengths == {
        "targets": len(written[0] + written[1]) + 3,
        "answers": len("".join(written)),
    }
    with errors.expect_user_error(errors.TOO_BIG, where="record 1"):
        evaluator.measure_answers(questions_set, Decoding(62, (BYTES.eos,)), None)


def test_the_command(
    folder: Path,
    reference: small_gpt.Reference,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    passages = ["the old man", "one two three"]
    (tmp_path / "passages.txt").write_text("".join(f"{passage}\n" for passage in passages))
    rows = [
        {"question": "is it", "passage": passage, "answer": bool(number)}
        for number, passage in enumerate(passages)
    ]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"lambada={tmp_path}/passages.txt", f"boolq={tmp_path}/b.jsonl", "--vocab", "byte"]
    options = [str(folder), *words, "--precision", "float32"]
    assert cli.main(["pax", "eval", *options, "--json"]) == 0
    lambada, boolq = json.loads(capsys.readouterr().out)["result"]["sets"]
    total = _score(reference, "the old", " man") + _score(reference, "one two", " three")
    assert lambada["metrics"]["perplexity"] == pytest.approx(math.exp(-total / 2), rel=1e-3)
    right = 0
    for row in rows:
        prompt = f"{row['passage']}\nquestion: is it?\nanswer:"
        is_yes = _score(reference, prompt, "yes") > _score(reference, prompt, "no")
        right += is_yes == row["answer"]
    assert (boolq["records"], boolq["metrics"]) == (2, {"accuracy": right / 2})


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.MISSING, []),
        (errors.MISSING, ["lambda"]),
        (errors.MISSING, ["mine=absent.jsonl"]),
        (errors.MISSING, ["lambada=absent.txt"]),
    ],
)
def test_wrong_command_lines(
    kind: str, words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pax", "eval", str(folder), *words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == kind


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pax", "eval", "--list", "--json"]) == 0
    sets: list[Any] = json.loads(capsys.readouterr().out)["result"]["sets"]
    assert {"lambada", "boolq", "squad", "glue", "super_glue"} <= {item["name"] for item in sets}


def test_the_perplexity_of_a_diverged_model_is_infinite() -> None:
    assert evaluation.compute_perplexity(1000.0) == math.inf
    assert evaluation.compute_perplexity(0.0) == 1.0
