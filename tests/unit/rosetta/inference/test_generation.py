"""Text from models of Pax, compared with transformers and with lists of all texts.

ROSETTA_TEST_TORCH names the Python that has transformers.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "paxml", "tensorstore")

import numpy as np

from rosetta import cli
from rosetta.inference import generation, model_files
from rosetta.inference.decoding import Decoding
from rosetta.pax.run import model_record
from tests.support import hugging_face_causal, small_gpt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.long

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")
PROMPTS = [[3], [2, 4, 5], [5, 5, 2, 3]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small GPT."""
    return small_gpt.write_checkpoint(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return small_gpt.open_model(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> small_gpt.Reference:
    return small_gpt.Reference(folder)


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert cli.main(["pax", "generate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["result"]


@pytest.mark.parametrize(
    "case", ["gpt2-odd", "gpt2-deep", "neox-wide", "llama2-odd", "llama3-wide"]
)
def test_greedy_tokens_are_those_of_transformers(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prompts have different lengths: one of them continues its own answer."""
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    hugging_face_causal.run_transformers(PYTHON, "write", tmp_path, case)
    kind = "llama" if case in hugging_face_causal.LLAMA_CASES else "gpt"
    words = ["--repeated"] if case in ("gpt2-odd", "neox-wide") else []
    pax = tmp_path / case / "pax"
    assert cli.main(["convert", kind, str(tmp_path / case / "hf"), str(pax), *words]) == 0
    expected = np.load(tmp_path / case / "hf.npz")
    answers = expected["answers"].tolist()
    prompts = expected["ids"][:, : hugging_face_causal.PROMPT_LENGTH].tolist()
    prompts.append(prompts[0] + answers[0][:14])
    (tmp_path / "prompts").write_text("".join(" ".join(map(str, ids)) + "\n" for ids in prompts))
    options = ["--ids", "--file", str(tmp_path / "prompts"), "--precision", "float32"]
    result = _run(capsys, str(pax), *options, "--max-tokens", "36", "--batch", "3")
    ids = [prompt["answers"][0]["ids"] for prompt in result["prompts"]]
    assert ids == [answer[:36] for answer in answers] + [answers[0][14:50]]
    assert len({number for answer in ids for number in answer}) > 1


def _compute_log_probabilities(logits: Any) -> Any:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _score_all_texts(
    reference: small_gpt.Reference, prompt: list[int], longest: int, penalty: float
) -> list[tuple[float, list[int]]]:
    """Return all texts after a prompt that end within so many tokens, best first."""
    others = [number for number in range(small_gpt.ARCHITECTURE.vocab) if number != small_gpt.END]
    scored = []
    begins = [
        list(begin) for size in range(longest) for begin in itertools.product(others, repeat=size)
    ]
    logits = reference.compute_logits([prompt + begin for begin in begins])
    steps = {
        tuple(begin): row
        for begin, row in zip(begins, _compute_log_probabilities(logits), strict=True)
    }
    for begin in begins:
        text = [*begin, small_gpt.END]
        total = sum(steps[tuple(text[:size])][number] for size, number in enumerate(text))
        scored.append((float(total / ((5 + len(text)) / 5) ** penalty), text))
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 2.5])
def test_wide_beams_find_the_best_of_all_texts(
    penalty: float, model: Any, reference: small_gpt.Reference
) -> None:
    decoding = Decoding(3, (small_gpt.END,), beams=30, length_penalty=penalty).check()
    found = generation.generate_answers(model, PROMPTS, decoding, generation.Stops())
    for prompt, answers in zip(PROMPTS, found, strict=True):
        best = _score_all_texts(reference, prompt, 3, penalty)[:30]
        assert [answer.ids for answer in answers] == [text for _, text in best]
        np.testing.assert_allclose([a.score for a in answers], [s for s, _ in best], rtol=1e-4)


def _search_with_beams(
    reference: small_gpt.Reference, prompt: list[int], longest: int, beams: int, penalty: float
) -> list[int]:
    """Return the best text of a beam search without a cache."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for size in range(1, longest + 1):
        logits = reference.compute_logits([prompt + text for _, text in live])
        grown = []
        for (score, text), row in zip(live, _compute_log_probabilities(logits), strict=True):
            for number, value in enumerate(row):
                if number == small_gpt.END:
                    norm = ((5 + size) / 5) ** penalty
                    ended.append(((score + value) / norm, [*text, number]))
                else:
                    grown.append((score + value, [*text, number]))
        live = sorted(grown, reverse=True)[:beams]
    return max(ended)[1]


def test_few_beams_find_what_a_plain_search_finds(
    model: Any, reference: small_gpt.Reference
) -> None:
    decoding = Decoding(6, (small_gpt.END,), beams=2, length_penalty=3.0).check()
    found = generation.generate_answers(model, PROMPTS, decoding, generation.Stops())
    expected = [_search_with_beams(reference, prompt, 6, 2, 3.0) for prompt in PROMPTS]
    assert [answers[0].ids for answers in found] == expected
    assert max(map(len, expected)) > 2


def _expect_distribution(logits: Any, decoding: Decoding) -> Any:
    """Return the probabilities of tokens: of the K likeliest, those that first reach P together."""
    probabilities = np.exp(_compute_log_probabilities(logits / decoding.temperature))
    order = np.argsort(-probabilities)
    kept = order[: decoding.top_k or len(order)]
    shares = probabilities[kept] / probabilities[kept].sum()
    if decoding.top_p is not None:
        kept = kept[np.cumsum(shares) - shares < decoding.top_p]
    result = np.zeros_like(probabilities)
    result[kept] = probabilities[kept] / probabilities[kept].sum()
    return result


def _measure_difference(counts: Any, expected: Any) -> float:
    """Return the chi-square statistic of counts, infinite if something impossible was drawn."""
    if counts[expected == 0].any():
        return float("inf")
    expected_counts = expected[expected > 0] * counts.sum()
    return float(((counts[expected > 0] - expected_counts) ** 2 / expected_counts).sum())


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 3},
        {"temperature": 1.4, "top_p": 0.7},
        {"temperature": 0.8, "top_k": 4, "top_p": 0.8},
    ],
    ids=str,
)
def test_tokens_are_drawn_with_their_probabilities(
    values: dict[str, Any], model: Any, reference: small_gpt.Reference
) -> None:
    decoding = Decoding(1, samples=3000, **values).check()
    logits = reference.compute_logits(PROMPTS)
    found = generation.generate_answers(model, PROMPTS, decoding, generation.Stops(), seed=5)
    for row, answers in zip(logits, found, strict=True):
        drawn = [answer.ids[0] for answer in answers]
        counts = np.bincount(drawn, minlength=small_gpt.ARCHITECTURE.vocab)
        expected = _expect_distribution(row, decoding)
        assert _measure_difference(counts, expected) < 20.5  # 1 of 1,000 with 5 degrees of freedom
        hotter = _expect_distribution(row, Decoding(1, temperature=2 * decoding.temperature))
        assert _measure_difference(counts, hotter) > 100
        log_probabilities = _compute_log_probabilities(row)
        assert answers[0].score == pytest.approx(log_probabilities[drawn[0]], abs=1e-4)


def test_an_answer_does_not_depend_on_the_batch(model: Any) -> None:
    decoding = Decoding(8, (small_gpt.END,), temperature=1.0, samples=3).check()

    def generate(prompts: Sequence[Sequence[int]], **options: Any) -> list[list[list[int]]]:
        found = generation.generate_answers(model, prompts, decoding, generation.Stops(), **options)
        return [[answer.ids for answer in answers] for answers in found]

    together = generate(PROMPTS, batch=3, seed=1)
    assert generate(PROMPTS, batch=1, seed=1) == together
    assert generate([*PROMPTS, [2] * 8], batch=2, seed=1)[:3] == together
    assert generate(PROMPTS, batch=3, seed=2) != together
    assert len({str(ids) for answers in together for ids in answers}) > 3


def test_a_stop_token_ends_an_answer(model: Any) -> None:
    greedy = Decoding(6).check()
    (whole,) = generation.generate_answers(model, PROMPTS[:1], greedy, generation.Stops())
    assert whole[0].end == generation.CUT
    assert len(whole[0].ids) == 6
    last = whole[0].ids[2]
    stopped = Decoding(6, (last,)).check()
    (cut,) = generation.generate_answers(model, PROMPTS[:1], stopped, generation.Stops())
    assert cut[0].end == generation.STOPPED
    assert cut[0].ids == whole[0].ids[: whole[0].ids.index(last) + 1]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.MISSING, ["text"]),  # no vocabulary
        (errors.INVALID, ["--ids", "6"]),
        (errors.TOO_BIG, ["--ids", "3 " * 16]),
        (errors.TOO_BIG, ["--ids", "3", "--max-tokens", "16"]),
        (errors.TOO_BIG, ["text", "--vocab", "byte"]),
        (errors.DIFFERS, ["--ids", "3", "--fdl", "NUM_LAYERS=2"]),
        (errors.DIFFERS, ["--ids", "3", "--fdl", "HIDDEN_DIMS=8"]),
        (errors.UNKNOWN, ["--ids", "3", "--fdl", "HIDDEN_DIM=8"]),
        (errors.INVALID, ["--ids", "3", "--fdl", "HIDDEN_DIMS"]),
        (errors.UNKNOWN, ["--ids", "3", "--config", "Pile127M"]),
        (errors.UNSUPPORTED, ["--ids", "3", "--config", "PileGLaM126M64E"]),
        (errors.TOO_BIG, ["--ids", "3", "--fdl", "ICI_MESH_SHAPE=[1,1,64]"]),
        (errors.INVALID, ["--ids", "3", "--fdl", "ICI_MESH_SHAPE=2"]),
        (errors.CONFLICT, ["--ids", "3", "--vocab", "byte"]),
        (errors.CONFLICT, ["--ids", "3", "--length-penalty", "1"]),
    ],
    ids=str,
)
def test_wrong_command_lines(
    kind: str, words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pax", "generate", str(folder), *words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == kind


def test_a_checkpoint_without_a_record(tmp_path: Path) -> None:
    folder = small_gpt.write_checkpoint(tmp_path / "model")
    (folder / model_record.FILE).unlink()
    files = model_files.find_model_files(str(folder))
    with errors.expect_user_error(errors.MISSING, remedy="--config"):
        model_files.make_experiment(files, None, (), None)
    settings = small_gpt.ARCHITECTURE.make_fdl_settings()
    words = [f"{name}={value}" for name, value in settings.items()]
    experiment = model_files.make_experiment(files, "Synthetic126M", words, None)
    assert experiment.NUM_LAYERS == 1
    with errors.expect_user_error(errors.MISSING):
        model_files.find_model_files(str(tmp_path))


def test_a_trained_model_continues_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run records the experiment and the vocabulary, so that only a prompt is needed."""
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    words = {
        "CONFIG": "Pile126M",
        "DATA": f"text:{tmp_path}/text",
        "VOCAB_PATH": "byte",
        "MAX_STEPS": 150,
        "LOG_DIR": tmp_path / "run",
        "NUM_GPUS": 1,
        "PREC": "float32",
        "ICI_MESH_SHAPE": "[1,1,1]",
        "PERCORE_BATCH_SIZE": 4,
        "MAX_SEQ_LEN": 64,
        "LEARNING_RATE": "3e-3",
        "fdl.LR_COS_WARMUP": 5,
        "fdl.DCN_MESH_SHAPE": "[1,1,1]",
        "fdl.ACTIVATION_CLS": "ReLU",
        "fdl.NUM_LAYERS": 2,
        "fdl.NUM_HEADS": 4,
        "fdl.DIMS_PER_HEAD": 16,
        "fdl.MODEL_DIMS": 64,
        "fdl.HIDDEN_DIMS": 176,
        "fdl.VOCAB_SIZE": 264,
    }
    done = subprocess.run(
        [sys.executable, "-m", "rosetta", "pax", "train"]
        + [f"{name}={value}" for name, value in words.items()],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert cli.main(["pax", "generate", str(tmp_path / "run"), "the quick brown"]) == 0
    assert capsys.readouterr().out == " fox jumps over the lazy dog\n"
    options = ["--stop", "lazy", "--top-k", "1", "--samples", "2"]
    result = _run(capsys, str(tmp_path / "run"), "the quick brown", "jumps", *options)
    assert result["vocabulary"] == "byte"
    texts = [[answer["text"] for answer in prompt["answers"]] for prompt in result["prompts"]]
    assert texts[0] == [" fox jumps over the "] * 2
    assert texts[1] == [" over the "] * 2
