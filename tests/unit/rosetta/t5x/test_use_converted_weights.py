"""Other programs read the converted weights, as docs/how-to/use-converted-weights.md says.

ROSETTA_TEST_TORCH names a Python with torch and transformers. What needs ctranslate2 or gguf is
checked if that Python has it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "ml_dtypes", "tensorstore")
sentencepiece: Any = required_modules.need_modules("sentencepiece")

import jax
import numpy as np

from rosetta import cli
from rosetta.data import vocabularies
from tests.support import (
    converted_t5,
    documentation_blocks,
    hugging_face_t5,
    llama_weights,
    tokenizer_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.long

PYTHON = os.environ.get("ROSETTA_TEST_TORCH", "")
PAGE = "docs/how-to/use-converted-weights.md"
RUN_HERE = "run by test_use_converted_weights"  # what the page says of the bash blocks to run
FAMILIES, SHAPES = ("t5_1_0", "t5_1_1", "mt5", "umt5"), ("wide", "deep")
CASES = [f"{family}-{shape}" for family in FAMILIES for shape in SHAPES]
ROWS, SENTINELS = 20, 10
UNUSED = 8  # rows of the embedding without an id
TOLERANCE = 1e-3  # of the logarithm of a token's probability


def _run(folder: Path, *words: object) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={
            "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
        },
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done.stdout


def _need(*modules: str) -> None:
    """Skip the test unless the other Python has modules."""
    if not PYTHON:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    done = subprocess.run(
        [PYTHON, "-c", f"import {', '.join(modules)}"], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(
            f"NOT CHECKED: the Python of ROSETTA_TEST_TORCH has not {' and '.join(modules)}"
        )


def _get_version(module: str) -> int:
    """Return the first number of a module's version in the other Python."""
    words = (PYTHON, "-c", f"import {module}; print({module}.__version__)")
    return int(_run(Path.cwd(), *words).partition(".")[0])


def _convert(*words: object) -> None:
    assert cli.main(["convert", *map(str, words)]) == 0


def _train_vocabulary(path: Path, size: int, **options: Any) -> Path:
    """Train a SentencePiece model with exactly `size` pieces."""
    lines = [line for line in tokenizer_lines.make_lines(3000, sentinels=0) if line.isascii()]
    with path.open("wb") as body:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=body, vocab_size=size, **options
        )
    return path


def _make_vocabulary(folder: Path, shape: str) -> vocabularies.Vocabulary:
    """Return a vocabulary that leaves UNUSED rows of the embedding of a shape."""
    size = hugging_face_t5.SHAPES[shape]["vocab_size"] - SENTINELS - UNUSED
    special_ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    model = _train_vocabulary(folder / f"{shape}.model", size, **special_ids)
    return vocabularies.load_vocabulary(str(model), SENTINELS)


def _make_rows(vocabulary: vocabularies.Vocabulary) -> dict[str, Any]:
    """Return rows of ids with sentinels among them, padded with zeros, and the decoder's inputs."""
    rng = np.random.default_rng(0)
    inputs: Any = np.zeros((ROWS, 40), np.int64)
    targets: Any = np.zeros((ROWS, 24), np.int64)
    for rows in (inputs, targets):
        for row in rows:
            ids = rng.integers(3, vocabulary.size, rng.integers(4, len(row)))
            row[: len(ids) + 1] = [*ids, vocabulary.eos]
    decoder = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    return {"inputs": inputs, "targets": targets, "decoder": decoder}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with models from transformers that were converted to T5X and back."""
    _need("torch", "transformers")
    folder = tmp_path_factory.mktemp("models")
    by_shape = {shape: _make_vocabulary(folder, shape) for shape in SHAPES}
    _run(folder, PYTHON, hugging_face_t5.__file__, "write", folder, *CASES)
    for name in CASES:
        vocabulary = by_shape[name.rpartition("-")[2]]
        _convert("t5", folder / name / "hf", folder / name / "t5x", "--to", "t5x")
        _convert(
            *("t5", folder / name / "t5x", folder / name / "back", "--to", "hf"),
            *("--vocab", vocabulary.name, "--extra-ids", SENTINELS),
        )
        np.savez(folder / name / "rows.npz", **_make_rows(vocabulary))
    return folder


@pytest.fixture(scope="module")
def translated(root: Path) -> Path:
    """Return the folder in which CTranslate2 has computed from each model."""
    _need("ctranslate2")
    program = Path(converted_t5.__file__).with_name("ctranslate2_t5.py")
    _run(root, PYTHON, program, root, *CASES)
    return root


def _compute_scores(folder: Path) -> tuple[Any, Any]:
    """Return the scores of the targets and the greedy answers that our network gives."""
    rows = dict(np.load(folder / "rows.npz"))
    config, params = converted_t5.read_checkpoint(folder / "t5x")
    rows["logits"] = np.zeros((0, np.load(folder / "hf.npz")["logits"].shape[-1]))
    logits = converted_t5.compute_logits(config, params, rows)
    scores = np.take_along_axis(
        np.asarray(jax.nn.log_softmax(logits)), rows["targets"][..., None], axis=-1
    )[..., 0]
    return scores * (rows["targets"] > 0), converted_t5.decode_greedily(config, params, rows)


def _cut_at_end(rows: Iterable[Any], length: int) -> list[list[int]]:
    """Return the ids of each row before the first padding or end token."""
    answers = []
    for row in rows:
        ends = np.flatnonzero(row[:length] < 2)
        answers.append([int(token) for token in row[: ends[0] if len(ends) else length]])
    return answers


def _is_scaled_wrongly(case: str) -> bool:
    """Return whether CTranslate2 scales a model's output, as that of a tied one, and it should not.

    transformers 5 says of every model that it is tied, and scales no output of mT5.
    """
    is_scaled = hugging_face_t5.CASES[case]["tie_word_embeddings"] and not case.startswith("mt5")
    return _get_version("transformers") > 4 and not is_scaled


@pytest.mark.parametrize("case", CASES)
def test_ctranslate2_gives_our_scores_and_greedy_tokens(case: str, translated: Path) -> None:
    theirs = np.load(translated / case / "ct2.npz")
    scores, answers = _compute_scores(translated / case)
    length = theirs["answers"].shape[1]
    # CTranslate2 calls the rows without an id <extra_id_0> and so on, which are sentinels, too. It
    # has other names for those of umT5, which the tokenizer does not know.
    first = hugging_face_t5.CASES[case]["vocab_size"] - UNUSED
    named = vocabularies.UNK if case.startswith("umt5") else 2 * first - 1 - answers
    answers = np.where(answers < first, answers, named)
    expected = _cut_at_end(answers, length)
    assert len(expected) == ROWS
    assert np.mean([len(answer) for answer in expected]) > length / 2
    assert _cut_at_end(theirs["answers"], length) == expected
    difference = np.abs(scores - theirs["scores"]).max()
    # If this is no longer so, the page no longer needs to say "below 5".
    assert (difference > 1) if _is_scaled_wrongly(case) else (difference < TOLERANCE)


def _write_llama(folder: Path) -> None:
    """Write llama-7b-tuned, a small LLaMA with groups of heads and a tokenizer."""
    sizes = llama_weights.MODELS["groups"]
    weights = llama_weights.make_weights(sizes)
    meta = llama_weights.write_meta_folder(folder / "meta", sizes, weights)
    _train_vocabulary(meta / "tokenizer.model", sizes.vocab, model_type="bpe")
    _convert("llama", meta, folder / "llama-7b-tuned", "--to", "hf")


# Compares what transformers computes from the GGUF file with what it computes from the folder.
_COMPARE = """
import torch
from transformers import AutoModelForCausalLM

models = [
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **words).eval()
    for folder, words in (
        ("llama-7b-tuned", {}),
        (".", {"gguf_file": "llama-7b-tuned.gguf"}),
    )
]
ids = torch.arange(3, 35)[None]
with torch.no_grad():
    expected, actual = (model(input_ids=ids).logits for model in models)
assert expected.abs().max() > 1
assert torch.equal(expected, actual), (expected - actual).abs().max()
"""


@pytest.mark.parametrize("section", ["transformers", "CTranslate2", "GGUF"])
def test_the_programs_of_the_page_run(section: str, root: Path, tmp_path: Path) -> None:
    _need({"CTranslate2": "ctranslate2", "GGUF": "gguf"}.get(section, section))
    text = (documentation_blocks.ROOT / PAGE).read_text(encoding="utf-8")
    part = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = documentation_blocks.parse_page(PAGE, part)
    if section == "GGUF":
        _write_llama(tmp_path)
    else:
        (tmp_path / "ro-t5-base").symlink_to(root / "t5_1_1-wide" / "back")
    outputs = []
    for block in blocks:
        if block.language == "python":
            outputs.append(_run(tmp_path, PYTHON, "-c", block.text))
        elif RUN_HERE in block.comment:
            _run(tmp_path, "bash", "-ec", block.text)
    assert outputs
    if section == "GGUF":
        _run(tmp_path, PYTHON, "-c", _COMPARE)
    else:
        assert len(outputs[0].strip()) > 10
