"""An experiment that cannot run is refused in one line, before JAX is asked for anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rosetta.pax.run import experiment_checks
from tests.support import errors


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


def _make_experiment(kind: type = Small, **given: Any) -> Any:
    made = kind()
    vars(made).update(given)
    return made


def test_a_valid_experiment_passes() -> None:
    experiment_checks.check_experiment(_make_experiment(), 8)
    experiment_checks.check_experiment(
        _make_experiment(Experts, DCN_MESH_SHAPE=None, DIMS_PER_HEAD=None, LR_SCHEDULE="constant"),
        4,
    )
    experiment_checks.check_experiment(
        _make_experiment(ICI_MESH_SHAPE=[1, 2, 2], PERCORE_BATCH_SIZE=0.5), 8
    )


@pytest.mark.parametrize(
    ("given", "kind", "facts"),
    [
        (
            {"NUM_LAYER": 3},
            errors.UNKNOWN,
            {
                "where": "--fdl.NUM_LAYER",
                "value": "NUM_LAYER",
                "names": "hyper-parameter",
                "remedy": "NUM_LAYERS",
            },
        ),
        (
            {"num_layers": 3},
            errors.UNKNOWN,
            {
                "where": "--fdl.num_layers",
                "value": "num_layers",
                "names": "hyper-parameter",
                "remedy": "NUM_LAYERS",
            },
        ),
        (
            {"R_COS_MIN_RATIO": 0.1, "ZZZ": 1},
            errors.UNKNOWN,
            {
                "where": "--fdl.R_COS_MIN_RATIO",
                "value": "R_COS_MIN_RATIO",
                "names": "hyper-parameter",
            },
        ),
        (
            {"FPROP_DTYPE": "bf16"},
            errors.INVALID,
            {"where": "FPROP_DTYPE", "value": "bf16", "remedy": ("bfloat16", "float32")},
        ),
        ({"NUM_LAYERS": 0}, errors.INVALID, {"where": "NUM_LAYERS", "value": 0, "remedy": "1"}),
        ({"NUM_LAYERS": "2"}, errors.INVALID, {"where": "NUM_LAYERS", "value": "2", "remedy": "1"}),
        ({"MAX_STEPS": 1.5}, errors.INVALID, {"where": "MAX_STEPS", "value": 1.5, "remedy": "0"}),
        (
            {"NUM_HEADS": 5},
            errors.CONFLICT,
            {
                "where": "MODEL_DIMS=64",
                "value": 64,
                "names": ("NUM_HEADS=5", "DIMS_PER_HEAD=16", "80"),
                "remedy": "80",
            },
        ),
        (
            {"DIMS_PER_HEAD": 8},
            errors.CONFLICT,
            {
                "where": "MODEL_DIMS=64",
                "value": 64,
                "names": ("NUM_HEADS=4", "DIMS_PER_HEAD=8", "32"),
                "remedy": ("32", "DIMS_PER_HEAD=16"),
            },
        ),
        (
            {"DIMS_PER_HEAD": None, "NUM_HEADS": 5},
            errors.INVALID,
            {"where": "NUM_HEADS=5", "value": 5, "names": "MODEL_DIMS=64"},
        ),
        (
            {"USE_MQA": True, "NUM_KV_HEADS": 3},
            errors.INVALID,
            {"where": "NUM_KV_HEADS=3", "value": 3, "names": "NUM_HEADS=4"},
        ),
        ({"USE_MQA": True}, errors.INVALID, {"where": "NUM_KV_HEADS", "remedy": "1"}),
        (
            {"LR_SCHEDULE": "cosine"},
            errors.INVALID,
            {
                "where": "LR_SCHEDULE",
                "value": "cosine",
                "remedy": ("linear_rampup_cosine_decay", "linear_rampup_exponential_decay"),
            },
        ),
        (
            {"LR_COS_DECAY_START": 5},
            errors.CONFLICT,
            {
                "where": "LR_COS_DECAY_START=5",
                "value": 5,
                "names": ("warm-up", "LR_COS_WARMUP=10", "10"),
            },
        ),
        (
            {"LR_COS_WARMUP": 100},
            errors.CONFLICT,
            {"where": "LR_COS_DECAY_END=100", "value": 100, "names": "101", "remedy": "101"},
        ),
        (
            {"ICI_MESH_SHAPE": [1, 4]},
            errors.INVALID,
            {"where": "ICI_MESH_SHAPE", "value": [1, 4]},
        ),
        (
            {"ICI_MESH_SHAPE": None},
            errors.INVALID,
            {"where": "ICI_MESH_SHAPE"},
        ),
        (
            {"ICI_MESH_SHAPE": [1, 8, 1]},
            errors.CONFLICT,
            {
                "where": "ICI_MESH_SHAPE=[1,8,1] x DCN_MESH_SHAPE=[1,2,1]",
                "value": 16,
                "remedy": ("--fdl.ICI_MESH_SHAPE=[1", "--fdl.DCN_MESH_SHAPE=[1"),
            },
        ),
        (
            {"USE_EXPERT_PARALLEL": True},
            errors.UNKNOWN,
            {
                "where": "--fdl.USE_EXPERT_PARALLEL",
                "value": "USE_EXPERT_PARALLEL",
                "names": "hyper-parameter",
            },
        ),
        (
            {"PERCORE_BATCH_SIZE": 0.3},
            errors.INVALID,
            {
                "where": "PERCORE_BATCH_SIZE=0.3",
                "value": 0.3,
                "names": ("8", "2.4"),
                "remedy": "1/8",
            },
        ),
        (
            {"PERCORE_BATCH_SIZE": 0.5},
            errors.INVALID,
            {"where": "PERCORE_BATCH_SIZE=0.5", "value": 4, "names": "8", "remedy": "1"},
        ),
        (
            {"PERCORE_BATCH_SIZE": 0},
            errors.INVALID,
            {"where": "PERCORE_BATCH_SIZE=0", "value": 0},
        ),
    ],
)
def test_a_wrong_value_is_one_line(given: dict[str, Any], kind: str, facts: dict[str, Any]) -> None:
    with errors.expect_user_error(kind, **facts) as caught:
        experiment_checks.check_experiment(_make_experiment(**given), 8)
    assert "\n" not in str(caught.value)


def test_experts_come_in_every_second_layer() -> None:
    with errors.expect_user_error(errors.INVALID, where="NUM_LAYERS=3", value=3):
        experiment_checks.check_experiment(_make_experiment(Experts, NUM_LAYERS=3), 8)


def test_groups_of_tokens_divide_a_part_of_the_batch() -> None:
    """Two rows of 32 tokens a part."""
    experiment_checks.check_experiment(_make_experiment(Experts, GROUPS_PER_PART=16), 8)
    with errors.expect_user_error(errors.INVALID, where="GROUPS_PER_PART=3", value=3, names="64"):
        experiment_checks.check_experiment(_make_experiment(Experts, GROUPS_PER_PART=3), 8)


def test_expert_parallelism_of_upstreams_is_refused() -> None:
    with errors.expect_user_error(errors.UNSUPPORTED, where="USE_EXPERT_PARALLEL"):
        experiment_checks.compute_mesh(SimpleNamespace(USE_EXPERT_PARALLEL=True), 8)


def test_the_mesh_is_the_product_of_both() -> None:
    assert experiment_checks.compute_mesh(
        _make_experiment(ICI_MESH_SHAPE=[2, 4, 1], DCN_MESH_SHAPE=[3, 1, 2]), 48
    ) == [6, 4, 2]


@pytest.mark.parametrize("given", ["float32", float])
def test_precision_by_name_or_type(given: Any) -> None:
    if given is float:
        with errors.expect_user_error(errors.INVALID, where="FPROP_DTYPE", value="float"):
            experiment_checks.read_precision(given)
    else:
        assert experiment_checks.read_precision(given) == given


def test_a_fraction_is_counted_in_whole_rows() -> None:
    assert experiment_checks.compute_batch(1 / 3, 6) == 2
    assert experiment_checks.compute_batch(0.125, 8) == 1
