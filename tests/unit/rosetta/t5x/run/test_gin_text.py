from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rosetta
from rosetta.t5x.run import gin_text

HOME = Path(rosetta.__file__).parents[1]


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        'with "quotes"',
        "back\\slash",
        "new\nline",
        "'",
        "ü",
        "%M",
        {"train": "/a b"},
        (1, 1, 1, 2),
        None,
        20,
        0.5,
        True,
        {"inputs": 1, "targets": {"x": None}},
    ],
)
def test_a_gin_literal_means_the_value(value: object) -> None:
    # Gin reads literals as Python does.
    assert ast.literal_eval(gin_text.literal(value)) == value


def test_what_is_bound_last_counts(tmp_path: Path) -> None:
    (tmp_path / "inner.gin").write_text(
        "A = 1  # one\nB = %A\nnetwork.T5Config:\n  num_heads = 6\n  vocab_size = @padded()\nE = 'x#y'  # z\n"
    )
    (tmp_path / "outer.gin").write_text(
        "import x\ninclude 'inner.gin'\ninclude 'nowhere.gin'\nA = 'two'\n\n  \nnetwork.T5Config.mlp_dim = 8\nC = %C\nD = {'inputs':\n  1}\n"
    )
    found = gin_text.read([tmp_path / "outer.gin"], [tmp_path])
    names = (
        "A",
        "B",
        "C",
        "D",
        "E",
        "network.T5Config.num_heads",
        "network.T5Config.mlp_dim",
        "network.T5Config.vocab_size",
        "other",
    )
    assert [gin_text.value(found, name) for name in names] == [
        "two",
        "two",
        None,
        None,
        "x#y",
        6,
        8,
        None,
        None,
    ]


RUNS = {
    "pile_pretrain": "span_corruption",
    "mnli2_finetune_adam": "mnli",
    "squad1_finetune_adam": "squad",
}
HEADS = {"small": 6, "base": 12, "large": 16, "xl": 32, "xxl": 64}
EXAMPLES = HOME / "overlay/t5x/t5x/contrib/gpu/t5/t5_1_1/examples"
needs_overlay = pytest.mark.skipif(
    not EXAMPLES.is_dir(), reason="NOT CHECKED: the overlay is in the checkout"
)


@needs_overlay
@pytest.mark.parametrize("size", list(HEADS))
@pytest.mark.parametrize("run", list(RUNS))
def test_our_files_say_all_that_is_checked_before_a_run(size: str, run: str) -> None:
    found = gin_text.read([EXAMPLES / f"{size}_{run}.gin"], [HOME])
    assert gin_text.value(found, "OBJECTIVE") == RUNS[run]
    assert gin_text.value(found, "network.T5Config.vocab_size") == 32128
    assert gin_text.value(found, "network.T5Config.num_heads") == HEADS[size]
    assert str(gin_text.value(found, "DATA")).startswith("tfds:")
    assert str(gin_text.value(found, "VOCAB")).endswith("sentencepiece.model")


@needs_overlay
def test_gin_finds_the_same() -> None:
    pytest.importorskip("t5x", reason="NOT CHECKED: needs the packages of a baked environment")
    from rosetta.t5x import gin_evaluation

    file = EXAMPLES / "small_squad1_finetune_adam.gin"
    found = gin_text.read([file], [HOME])
    lines = [
        "MODEL_DIR = '/m'",
        "INITIAL_CHECKPOINT_PATH = '/m/checkpoint_1'",
        "VOCAB = 'ids:32128'",
        "DATA = 'synthetic'",
        "EVAL_DATA = 'synthetic'",
    ]
    with gin_evaluation.arguments([str(file)], lines) as given:
        config = given["model"].module.config
        assert {
            name: gin_text.value(found, f"network.T5Config.{name}")
            for name in ("num_heads", "mlp_dim", "vocab_size")
        } == {
            "num_heads": config.num_heads,
            "mlp_dim": config.mlp_dim,
            "vocab_size": config.vocab_size,
        }
        assert gin_text.value(found, "TASK_FEATURE_LENGTHS") == dict(
            given["train_dataset_cfg"].task_feature_lengths
        )
        assert gin_text.value(found, "FT_STEPS") == given["total_steps"] - 1
