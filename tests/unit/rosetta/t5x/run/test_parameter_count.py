from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from rosetta.core import disk_space, system_queries
from rosetta.t5x.run import network_fields, parameter_count
from rosetta.t5x.run.gin_text import Reference
from tests.support import required_modules, shipped_gin

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("size", "published"),
    [("small", 77e6), ("base", 250e6), ("large", 780e6), ("xl", 2.85e9), ("xxl", 11.3e9)],
)
def test_published_sizes(size: str, published: float) -> None:
    assert parameter_count.count_kernel_parameters(
        shipped_gin.read_pretraining(size=size)
    ) == pytest.approx(published, rel=0.02)


def test_a_vocabulary_that_is_worked_out_later_is_not_known() -> None:
    tiny = shipped_gin.read_pretraining(size="tiny")
    assert parameter_count.count_kernel_parameters(tiny) is None
    assert parameter_count.check_checkpoint_space(tiny, "/", [], 0, "MODEL_DIR") == ()


def test_a_decoder_alone_has_no_encoder() -> None:
    found = parameter_count.count_kernel_parameters(
        shipped_gin.read_configuration("decoder_only/base", "runs/pretrain")
    )
    assert found == 32128 * 768 + 12 * (4 * 768 * 768 + 3 * 768 * 2048)


@pytest.mark.parametrize(
    ("values", "own", "begun", "bytes_each", "times"),
    [
        ({}, [], 0, 12, 3),
        ({"KEEP": None, "TRAIN_STEPS": 13000}, [], 0, 12, 3),
        ({"KEEP": None, "TRAIN_STEPS": 13000}, [12000], 0, 12, 1),
        ({"KEEP": Reference("mine.keep"), "TRAIN_STEPS": 13000}, [], 0, 12, None),
        ({"OPTIMIZER": Reference("t5x.adafactor.Adafactor")}, [], 0, 4, 3),
        ({"OPTIMIZER": Reference("rosetta.t5x.optimizer.adamw_rms")}, [], 0, 12, 3),
        ({"OPTIMIZER": Reference("rosetta.t5x.muon.muon")}, [], 0, 8, 3),
        ({"utils.SaveCheckpointConfig.dtype": "bfloat16"}, [], 0, 10, 3),
        ({"KEEP_BEST": "loss", "KEEP": 1}, [], 0, 12, 3),  # the best, the newest, the next one
        ({"KEEP_BEST": "loss", "KEEP": 1}, [6000], 0, 12, 2),
        (
            {"KEEP_BEST": "loss", "KEEP": 1, f"{parameter_count.TRACKER}.keeps_older": True},
            *([3000, 6000], 0, 12, 3),
        ),
        ({"FT_STEPS": 6000}, [], 1000000, 12, 2),
        ({"FT_STEPS": 6000}, [1006000], 1000000, 12, 0),
        ({"FT_STEPS": 6000}, [], 0, 12, None),
        ({"utils.CheckpointConfig.save": None}, [], 0, 12, None),
    ],
)
def test_what_is_to_come(
    values: dict[str, Any],
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

    monkeypatch.setattr(disk_space, "check_checkpoints_fit", check)
    made = shipped_gin.read_finetuning if "FT_STEPS" in values else shipped_gin.read_pretraining
    assert parameter_count.check_checkpoint_space(made(values), "/x", own, begun, "MODEL_DIR") == ()
    count = parameter_count.count_kernel_parameters(made())
    assert count is not None
    assert asked == ([] if times is None else [(bytes_each * count, times)])


def test_a_run_that_is_through_needs_no_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        system_queries, "query_free_space", lambda _: system_queries.FileSystemSpace(1, 0, 1)
    )
    configuration = shipped_gin.read_pretraining()
    assert (
        parameter_count.check_checkpoint_space(
            configuration, str(tmp_path), [1000000], 0, "MODEL_DIR"
        )
        == ()
    )


@pytest.mark.parametrize(
    ("family", "size"), [("t5_1_1", "small"), ("t5_1_0", "small"), ("umt5", "small")]
)
def test_never_more_than_the_network_has_and_hardly_less(family: str, size: str) -> None:
    required_modules.need_modules("jax", "flax")
    import jax

    from rosetta.t5x.run.model_config import T5Config
    from tests.support import small_t5

    configuration = shipped_gin.read_configuration(f"{family}/{size}")
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
    layered = {"relative_bias": "layer"} if family == "umt5" else {}
    fields = {name: network_fields.read_field(configuration, name) for name in names}
    count = parameter_count.count_kernel_parameters(configuration)
    assert count is not None
    made: Any = T5Config
    shapes = jax.eval_shape(lambda: small_t5.initialize_variables(made(**fields, **layered)))[
        "params"
    ]
    real = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    assert 0.995 * real <= count <= real
