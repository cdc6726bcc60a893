"""An experiment that cannot run is refused in one line, before JAX is asked for anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rosetta.core.errors import UserError
from rosetta.pax.run import experiment_checks


class Small:
    """What an experiment has by class; overrides go to the instance, as Fiddle's do."""

    FPROP_DTYPE: Any = "bfloat16"
    NUM_LAYERS: Any = 2
    NUM_HEADS = 4
    MODEL_DIMS = 64
    HIDDEN_DIMS = 256
    DIMS_PER_HEAD: Any = 16
    VOCAB_SIZE = 512
    MAX_SEQ_LEN = 32
    MAX_STEPS: Any = 3
    USE_MQA = False
    NUM_KV_HEADS: Any = None
    LR_SCHEDULE = "linear_rampup_cosine_decay"
    LR_COS_WARMUP = 10
    LR_COS_DECAY_START: Any = None
    LR_COS_DECAY_END = 100
    ICI_MESH_SHAPE: Any = (1, 4, 1)
    DCN_MESH_SHAPE: Any = (1, 2, 1)
    PERCORE_BATCH_SIZE: Any = 2


class Experts(Small):
    NUM_EXPERTS = 4
    GROUPS_PER_PART = 1


def _made(kind: type = Small, **given: Any) -> Any:
    made = kind()
    vars(made).update(given)
    return made


def test_what_is_right_passes() -> None:
    experiment_checks.check(_made(), 8)
    experiment_checks.check(
        _made(Experts, DCN_MESH_SHAPE=None, DIMS_PER_HEAD=None, LR_SCHEDULE="constant"), 4
    )
    experiment_checks.check(_made(ICI_MESH_SHAPE=[1, 2, 2], PERCORE_BATCH_SIZE=0.5), 8)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"NUM_LAYER": 3},
            "--fdl.NUM_LAYER: there is no such hyper-parameter; did you mean NUM_LAYERS?",
        ),
        (
            {"num_layers": 3},
            "--fdl.num_layers: there is no such hyper-parameter; did you mean NUM_LAYERS?",
        ),
        (
            {"R_COS_MIN_RATIO": 0.1, "ZZZ": 1},
            "--fdl.R_COS_MIN_RATIO: there is no such hyper-parameter; ",
        ),
        ({"FPROP_DTYPE": "bf16"}, "FPROP_DTYPE: it is 'bf16'; choose one of: bfloat16, float32"),
        ({"NUM_LAYERS": 0}, "NUM_LAYERS: it is 0; give a whole number of at least 1"),
        ({"NUM_LAYERS": "2"}, "NUM_LAYERS: it is '2'; give a whole number of at least 1"),
        ({"MAX_STEPS": 1.5}, "MAX_STEPS: it is 1.5; give a whole number of at least 0"),
        (
            {"NUM_HEADS": 5},
            "MODEL_DIMS=64: NUM_HEADS=5 x DIMS_PER_HEAD=16 is 80; make MODEL_DIMS their product, 80",
        ),
        (
            {"DIMS_PER_HEAD": 8},
            "MODEL_DIMS=64: NUM_HEADS=4 x DIMS_PER_HEAD=8 is 32; make MODEL_DIMS their product, 32, or set DIMS_PER_HEAD=16",
        ),
        (
            {"DIMS_PER_HEAD": None, "NUM_HEADS": 5},
            "NUM_HEADS=5: 5 heads do not divide MODEL_DIMS=64; give a divisor of it",
        ),
        (
            {"USE_MQA": True, "NUM_KV_HEADS": 3},
            "NUM_KV_HEADS=3: they do not divide NUM_HEADS=4; give a divisor of it",
        ),
        ({"USE_MQA": True}, "NUM_KV_HEADS: it is None; give a whole number of at least 1"),
        (
            {"LR_SCHEDULE": "cosine"},
            "LR_SCHEDULE: it is 'cosine'; choose one of: linear_rampup_cosine_decay, linear_rampup_exponential_decay, constant",
        ),
        (
            {"LR_COS_DECAY_START": 5},
            "LR_COS_DECAY_START=5: the warm-up ends later, at LR_COS_WARMUP=10; give at least 10",
        ),
        (
            {"LR_COS_WARMUP": 100},
            "LR_COS_DECAY_END=100: the decay begins at 101; give more than 101",
        ),
        (
            {"ICI_MESH_SHAPE": [1, 4]},
            "ICI_MESH_SHAPE: it is [1, 4]; give [data, fsdp, tensor], three whole numbers",
        ),
        (
            {"ICI_MESH_SHAPE": None},
            "ICI_MESH_SHAPE: it is None; give [data, fsdp, tensor], three whole numbers",
        ),
        (
            {"ICI_MESH_SHAPE": [1, 8, 1]},
            "ICI_MESH_SHAPE=[1,8,1] x DCN_MESH_SHAPE=[1,2,1]: it is a mesh of 16 devices, and there are 8; make their product 8, as with --fdl.ICI_MESH_SHAPE=[1,8,1] --fdl.DCN_MESH_SHAPE=[1,1,1]",
        ),
        (
            {"USE_EXPERT_PARALLEL": True},
            "--fdl.USE_EXPERT_PARALLEL: there is no such hyper-parameter; ",
        ),
        (
            {"PERCORE_BATCH_SIZE": 0.3},
            "PERCORE_BATCH_SIZE=0.3: times 8 devices it is 2.4 rows; give a multiple of 1/8",
        ),
        (
            {"PERCORE_BATCH_SIZE": 0.5},
            "PERCORE_BATCH_SIZE=0.5: its 4 rows do not divide among the 8 parts that data and fsdp make of them; give a multiple of 1, or another mesh",
        ),
        (
            {"PERCORE_BATCH_SIZE": 0},
            "PERCORE_BATCH_SIZE=0: it is no number above 0; give the rows a device, or a fraction",
        ),
    ],
)
def test_what_is_not_is_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        experiment_checks.check(_made(**given), 8)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_experts_come_in_every_second_layer() -> None:
    with pytest.raises(UserError, match="NUM_LAYERS=3: layers come in pairs"):
        experiment_checks.check(_made(Experts, NUM_LAYERS=3), 8)


def test_groups_of_tokens_divide_a_part_of_the_batch() -> None:
    """Two rows of 32 tokens a part."""
    experiment_checks.check(_made(Experts, GROUPS_PER_PART=16), 8)
    with pytest.raises(
        UserError,
        match=r"GROUPS_PER_PART=3: a part of the batch has 64 tokens, which do not divide by it; give a divisor of them",
    ):
        experiment_checks.check(_made(Experts, GROUPS_PER_PART=3), 8)


def test_expert_parallelism_of_upstreams_is_refused() -> None:
    with pytest.raises(
        UserError, match="USE_EXPERT_PARALLEL: experts are laid over the data axis here"
    ):
        experiment_checks.mesh(SimpleNamespace(USE_EXPERT_PARALLEL=True), 8)


def test_the_mesh_is_the_product_of_both() -> None:
    assert experiment_checks.mesh(
        _made(ICI_MESH_SHAPE=[2, 4, 1], DCN_MESH_SHAPE=[3, 1, 2]), 48
    ) == [6, 4, 2]


@pytest.mark.parametrize("given", ["float32", float])
def test_precision_by_name_or_type(given: Any) -> None:
    if given is float:
        with pytest.raises(UserError, match="FPROP_DTYPE: it is 'float'"):
            experiment_checks.precision(given)
    else:
        assert experiment_checks.precision(given) == given


def test_a_fraction_is_counted_in_whole_rows() -> None:
    assert experiment_checks.batch(1 / 3, 6) == 2
    assert experiment_checks.batch(0.125, 8) == 1
