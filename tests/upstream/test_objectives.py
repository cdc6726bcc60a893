"""Every objective trains on real text in the real trainer, is killed, and resumes with its batches.

To be run by a baked environment's Python (build.py test --inside env:DIR). About two minutes for
each case on two cores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("t5x", reason="NOT TESTED: needs a baked environment of t5x")

from rosetta.core import run_folders
from rosetta.data import batch_hashes, data_recipe, pipeline, seqio_features, vocabularies
from tests.support import baked_runs
from tests.support.documentation_blocks import ROOT, read_page

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.upstream, pytest.mark.long]

TEXT = f"text:{ROOT}/docs/**/*.md"
LENGTH, BATCH, SAVED, STEPS = 64, 8, 40, 120
LOSS_FALLS = 0.7  # from the first to the last report
COMMON = (
    *("t5x", "pretrain", "PREC=float32", "VOCAB=byte", f"BSIZE_PER_GPU={BATCH}"),
    *(f"ENC_SL={LENGTH}", "LEARNING_RATE=5e-3", f"SAVE_PERIOD={SAVED}", "STATS_PERIOD=10"),
)
TINY = "T5_SIZE=tiny"
ENCODER_DECODER, ENCODER = seqio_features.ENCODER_DECODER, seqio_features.ENCODER
# The words of the command line, and the kind of features.
CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "t5-encoder": (("T5_FAMILY=t5_encoder", TINY, "OBJECTIVE=mlm"), ENCODER),
    "bert-nsp": (("T5_FAMILY=bert", TINY, "OBJECTIVE=mlm_nsp"), ENCODER),
    "bert-sop": (("T5_FAMILY=bert", TINY, "OBJECTIVE=mlm_sop"), ENCODER),
    "bert-words": (("T5_FAMILY=bert", TINY, "OBJECTIVE=mlm_whole_word"), ENCODER),
    "prefix-lm": ((TINY, "OBJECTIVE=prefix_lm", f"DEC_SL={LENGTH}"), ENCODER_DECODER),
    "own-model": (
        ("MODEL=my_model.py:MyModel", "OBJECTIVE=span_corruption", "DEC_SL=32"),
        ENCODER_DECODER,
    ),
}


def write_own_model(folder: Path) -> None:
    """Write the module of the page about own models."""
    blocks = read_page("docs/how-to/train-your-own-model.md")
    (text,) = (block.text for block in blocks if "<<'MODULE'" in block.text)
    source = text.partition("<<'MODULE'\n")[2].partition("\nMODULE")[0]
    (folder / "my_model.py").write_text(f"{source}\n")


def read_logged_hashes(file: Path) -> Iterator[tuple[int, str]]:
    for line in file.read_text().splitlines():
        record = json.loads(line)
        yield record["step"], record["hash"]


def list_expected_hashes(words: tuple[str, ...], kind: str) -> list[str]:
    """Return the hashes of the batches of a run that was never interrupted."""
    settings: Any = dict(word.split("=", 1) for word in words if "=" in word)
    vocabulary = vocabularies.load_vocabulary("byte")
    objective = settings["OBJECTIVE"]
    recipe = data_recipe.Recipe(
        data=TEXT,
        objective=objective,
        vocab=vocabulary.name,
        extra_ids=vocabulary.extra_ids,
        inputs=LENGTH,
        targets=int(settings.get("DEC_SL", LENGTH)),
    )
    batches = pipeline.Batches(recipe, BATCH, kind=kind)
    return [batch_hashes.hash_batch(batches.make_batch(step)) for step in range(STEPS)]


def train_and_kill(folder: Path, *words: str, end: int, killed: int) -> dict[int, float]:
    """Train until a step, and kill the run on the way there, after a step; return the losses."""
    command = (*COMMON, f"DATA={TEXT}", *words, f"TRAIN_STEPS={end}", "MODEL_DIR=run")
    variables = {
        "ROSETTA_BATCH_LOG": str(folder / "hashes"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
    }
    run = folder / "run"
    baked_runs.kill_when(
        baked_runs.start(folder, *command, variables=variables),
        lambda: max(baked_runs.read_losses(run), default=0) >= killed,
    )
    saved = run_folders.list_checkpoint_steps(str(run))
    assert saved
    assert max(saved) < end, "it was done before it was killed: train for longer"
    shown = baked_runs.run(folder, *command, variables=variables)
    assert f"step {max(saved)}" in shown or f"checkpoint_{max(saved)}" in shown, shown[-3000:]
    return baked_runs.read_losses(run)


@pytest.mark.parametrize("case", sorted(CASES))
def test_an_objective_trains_and_resumes(case: str, tmp_path: Path) -> None:
    words, kind = CASES[case]
    write_own_model(tmp_path)
    losses = train_and_kill(tmp_path, *words, end=STEPS, killed=SAVED + 20)
    print(f"{case}: the loss fell from {losses[min(losses)]:.3f} to {losses[STEPS]:.3f}")
    assert losses[STEPS] < losses[min(losses)] - LOSS_FALLS
    logged = list(read_logged_hashes(tmp_path / "hashes"))
    expected = list_expected_hashes(words, kind)
    # The steps after the checkpoint were trained twice, before and after the kill.
    assert len(logged) > STEPS
    assert {step for step, _ in logged} == set(range(STEPS))
    assert [made for _, made in logged] == [expected[step] for step, _ in logged]


def test_a_t5_is_adapted_to_language_modelling(tmp_path: Path) -> None:
    start = 40
    baked_runs.run(
        tmp_path,
        *(*COMMON, f"DATA={TEXT}", TINY, "DEC_SL=32", f"TRAIN_STEPS={start}", "MODEL_DIR=first"),
    )
    words = (TINY, "OBJECTIVE=prefix_lm", f"DEC_SL={LENGTH}", "INITIAL_CHECKPOINT_PATH=first")
    losses = train_and_kill(tmp_path, *words, end=start + STEPS, killed=start + SAVED + 20)
    print(f"the loss fell from {losses[min(losses)]:.3f} to {losses[max(losses)]:.3f}")
    assert min(losses) > start
    assert losses[start + STEPS] < losses[min(losses)] - LOSS_FALLS / 2
    logged = list(read_logged_hashes(tmp_path / "hashes"))
    first: dict[int, str] = {}
    for step, made in logged:
        assert first.setdefault(step, made) == made
    assert len(logged) > len(first) == STEPS
    assert set(first) == set(range(start, start + STEPS))
