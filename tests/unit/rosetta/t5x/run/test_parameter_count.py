from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rosetta.core import disk_space, system_queries
from rosetta.t5x.run import gin_files, gin_text, parameter_count
from tests.support import required_modules

PILE = {
    "TRAIN_STEPS": "1000000",
    "SAVE_PERIOD": "6000",
    "KEEP": "2",
    "OPTIMIZER": "@optimizer.adamw()",
    "utils.SaveCheckpointConfig.dtype": "'float32'",
}


def bound(size: str, family: str = "t5_1_1") -> dict[str, str]:
    return gin_text.read([gin_files.HOME / gin_files.model(family, size)], [gin_files.HOME])


@pytest.mark.parametrize(
    ("size", "published"),
    [("small", 77e6), ("base", 250e6), ("large", 780e6), ("xl", 2.85e9), ("xxl", 11.3e9)],
)
def test_published_sizes(size: str, published: float) -> None:
    assert parameter_count.kernels(bound(size)) == pytest.approx(published, rel=0.02)


def test_a_vocabulary_that_is_worked_out_later_is_not_known() -> None:
    assert parameter_count.kernels(bound("tiny")) is None
    assert parameter_count.room({**bound("tiny"), **PILE}, "/", [], 0, "MODEL_DIR") == ()


@pytest.mark.parametrize(
    ("changes", "own", "begun", "bytes_each", "times"),
    [
        ({}, [], 0, 12, 3),
        ({"KEEP": "None", "TRAIN_STEPS": "13000"}, [], 0, 12, 3),
        ({"KEEP": "None", "TRAIN_STEPS": "13000"}, [12000], 0, 12, 1),
        ({"OPTIMIZER": "@adafactor.Adafactor()"}, [], 0, 4, 3),
        ({"utils.SaveCheckpointConfig.dtype": "'bfloat16'"}, [], 0, 10, 3),
        ({"TRAIN_STEPS": "@pretrained.total_steps()", "FT_STEPS": "6000"}, [], 1000000, 12, 1),
        (
            {"TRAIN_STEPS": "@pretrained.total_steps()", "FT_STEPS": "6000"},
            [1006000],
            1000000,
            12,
            0,
        ),
        ({"utils.CheckpointConfig.save": "None"}, [], 0, 12, None),
    ],
)
def test_what_is_to_come(
    changes: dict[str, str],
    own: list[int],
    begun: int,
    bytes_each: int,
    times: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []

    def check(_folder: str, one: int, times: int, _name: str) -> tuple[str, ...]:
        asked.append((one, times))
        return ()

    monkeypatch.setattr(disk_space, "check", check)
    assert (
        parameter_count.room({**bound("small"), **PILE, **changes}, "/x", own, begun, "MODEL_DIR")
        == ()
    )
    count = parameter_count.kernels(bound("small"))
    assert count is not None
    assert asked == ([] if times is None else [(bytes_each * count, times)])


def test_a_run_that_is_through_needs_no_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system_queries, "room", lambda _: system_queries.Room(1, 0, 1))
    assert (
        parameter_count.room({**bound("small"), **PILE}, str(tmp_path), [1000000], 0, "MODEL_DIR")
        == ()
    )


@pytest.mark.parametrize(("family", "size"), [("t5_1_1", "small"), ("t5_1_0", "small")])
def test_never_more_than_the_network_has_and_hardly_less(family: str, size: str) -> None:
    required_modules.need("jax", "flax")
    import jax

    from rosetta.t5x.run.model_config import T5Config
    from tests.support import small_t5

    read = bound(size, family)
    names = (
        "vocab_size",
        "emb_dim",
        "num_heads",
        "head_dim",
        "mlp_dim",
        "num_encoder_layers",
        "num_decoder_layers",
        "mlp_activations",
        "logits_via_embedding",
    )
    fields: dict[str, Any] = {
        name: value
        for name in names
        if (value := gin_text.value(read, f"network.T5Config.{name}")) is not None
    }
    count = parameter_count.kernels(read)
    if count is None:
        pytest.skip("its vocabulary is worked out later")
    shapes = jax.eval_shape(lambda: small_t5.variables(T5Config(**fields)))["params"]
    real = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    assert 0.995 * real <= count <= real
