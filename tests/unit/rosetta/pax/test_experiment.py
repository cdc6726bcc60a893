"""Experiments as a command line has them: hyper-parameters reach the task, what is wrong is one line, what differs is said."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "paxml")

import fiddle as fdl
import jax.numpy as jnp
import numpy as np
from absl import flags
from paxml import experiment_registry
from praxis import layers, optimizers, schedules
from praxis.layers import glam as praxis_glam
from praxis.layers import models

from rosetta.pax import configs, embedding, experiment, softmax, switches

SMALL = {
    "NUM_LAYERS": 2,
    "NUM_HEADS": 4,
    "MODEL_DIMS": 64,
    "HIDDEN_DIMS": 256,
    "DIMS_PER_HEAD": 16,
    "VOCAB_SIZE": 512,
    "MAX_SEQ_LEN": 32,
    "ICI_MESH_SHAPE": [1, 1, 1],
    "DCN_MESH_SHAPE": [1, 1, 1],
    "PERCORE_BATCH_SIZE": 4,
}
NAMES = [
    name
    for name, kind in vars(configs).items()
    if isinstance(kind, type) and issubclass(kind, experiment.Experiment)
]


@pytest.fixture(autouse=True)
def _parse_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENABLE_TE", "ENABLE_FP8", "DATA", "EVAL_DATA", "VOCAB_PATH"):
        monkeypatch.delenv(name, raising=False)
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["test"])


def _make_experiment(name: str, **given: Any) -> Any:
    made = getattr(configs, name)()
    for hyper, value in {**SMALL, **given}.items():
        setattr(made, hyper, value)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_found_by_its_name(name: str) -> None:
    kind = getattr(configs, name)
    assert experiment_registry.get(f"rosetta.pax.configs.{kind.__name__}") is kind


def test_the_old_aliases() -> None:
    assert configs.GPT5B is configs.Pile5B
    assert configs.GPT175B is configs.Pile175B


def test_hyper_parameters_reach_the_task() -> None:
    made = _make_experiment(
        "Synthetic126M",
        MAX_STEPS=7,
        FPROP_DTYPE="float32",
        LEARNING_RATE=0.5,
        ADAM_BETA1=0.0,
        WEIGHT_DECAY=0.0,
        LR_COS_WARMUP=3,
        LR_COS_DECAY_END=9,
        INIT_STD=0.5,
        LAYERNORM_EPSILON=0.25,
        INPUT_DROPOUT_PROB=0.125,
        CHECKPOINT_EVERY_N_STEPS=11,
        USE_REPEATED_LAYER=True,
        CHECKPOINT_POLICY="save_dot_only",
        ACTIVATION_CLS="SiLU",
        ICI_MESH_SHAPE=(1, 1, 1),
        PACKED_INPUT=True,
    )
    task = made.task()
    assert task.train.num_train_steps == 7
    assert task.train.save_interval_steps == 11
    assert task.model.fprop_dtype == jnp.float32
    assert task.model.ici_mesh_shape == [1, 1, 1]
    assert task.model.lm_tpl.packed_input is True
    assert task.model.params_init.scale == 0.5
    adam = task.train.learner.optimizer
    assert fdl.get_callable(adam) is optimizers.Adam
    assert (adam.learning_rate, adam.beta1, adam.weight_decay) == (0.5, 0.0, 0.0)
    assert fdl.get_callable(adam.lr_schedule) is schedules.LinearRampupCosineDecay
    assert (
        adam.lr_schedule.warmup_steps,
        adam.lr_schedule.decay_start,
        adam.lr_schedule.decay_end,
    ) == (3, 4, 9)
    stack = switches.find_layer_stack(task.model.lm_tpl)
    assert stack.input_dropout_prob == 0.125
    assert stack.transformer_layer_params_tpl.ln_tpl.epsilon == 0.25
    assert (
        fdl.get_callable(stack.transformer_layer_params_tpl.tr_fflayer_tpl.activation_tpl)
        is layers.activations.SiLU
    )
    assert (
        task.model.lm_tpl.stacked_transformer_tpl.checkpoint_policy
        is layers.AutodiffCheckpointType.SAVE_DOT_ONLY
    )


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("constant", schedules.Constant),
        ("linear_rampup_exponential_decay", schedules.LinearRampupExponentialDecay),
    ],
)
def test_other_schedules(kind: str, found: Any) -> None:
    assert (
        fdl.get_callable(_make_experiment("Synthetic126M", LR_SCHEDULE=kind).make_schedule())
        is found
    )


def test_experts_are_grouped_by_the_mesh() -> None:
    task = _make_experiment(
        "SyntheticGLaM64B64E",
        NUM_EXPERTS=4,
        ICI_MESH_SHAPE=[2, 4, 8],
        DCN_MESH_SHAPE=[1, 3, 1],
        GROUPS_PER_PART=5,
    ).task()
    assert switches.find_layer_stack(task.model.lm_tpl).moe_layer_tpl.num_groups == 5 * 24
    assert task.model.lm_tpl.packed_input is False


def test_grouped_queries_have_heads_of_their_own() -> None:
    layer = switches.find_layer_stack(
        _make_experiment("SyntheticLLaMA70B", NUM_KV_HEADS=2, USE_REPEATED_LAYER=True)
        .task()
        .model.lm_tpl
    ).transformer_layer_params_tpl
    assert layer.tr_atten_tpl.num_kv_heads == 2


@pytest.mark.parametrize("name", ["SyntheticLLaMA7B", "SyntheticLLaMA70B"])
def test_llama_looks_its_embedding_up_as_told(name: str) -> None:
    given = {"NUM_KV_HEADS": 2} if name == "SyntheticLLaMA70B" else {}
    exact, product = (
        _make_experiment(name, EMBEDDING_LOOKUP_STYLE=style, **given)
        .task()
        .model.lm_tpl.separate_embedding_tpl
        for style in ("exact", "matmul")
    )
    assert fdl.get_callable(exact.array_lookup) is embedding.ExactLookup
    assert exact.array_lookup.table_split == exact.weight_split_dims_mapping.wt
    assert exact.array_lookup.table_split is not None
    assert (exact.lookup_style, product.lookup_style) == ("index", "matmul")


def test_boolq_is_told_the_answers_tokens() -> None:
    model = _make_experiment("LLaMA7B", TRUE_TOKEN=5, FALSE_TOKEN=[6]).task().model
    assert model.eval_task == "boolq"
    np.testing.assert_array_equal(model.boolq_yn_tokens, [5, 6])


def test_differences_from_upstream_are_listed() -> None:
    lines = {
        name: getattr(configs, name)().list_differences()
        for name in (
            "Pile126M",
            "Pile5B",
            "Pile175B",
            "PileGLaM126M64E",
            "PileGLaM64B64E",
            "LLaMA7B",
        )
    }
    assert lines["Pile126M"] == [
        "PACKED_INPUT=False, not True as upstream's: the published runs do not pack (--fdl.PACKED_INPUT=True is upstream's)"
    ]
    assert [line.split("=")[0] for line in lines["Pile5B"]] == [
        "PACKED_INPUT",
        "INPUT_DROPOUT_PROB",
    ]
    assert lines["Pile175B"][1:] == [
        "VOCAB_SIZE=50257 is 50304 in products, unlike upstream's; checkpoints have 50257"
    ]
    assert [line.split("=")[0] for line in lines["PileGLaM126M64E"]] == [
        "PACKED_INPUT",
        "PERCORE_BATCH_SIZE",
    ]
    assert [line.split("=")[0] for line in lines["PileGLaM64B64E"]] == [
        "PACKED_INPUT",
        "MAX_SEQ_LEN",
        "GROUPS_PER_PART",
    ]
    assert lines["LLaMA7B"] == []
    assert (
        _make_experiment("Pile5B", PACKED_INPUT=True, INPUT_DROPOUT_PROB=0.1).list_differences()
        == []
    )


def test_a_valid_experiment_logs_its_differences(capsys: pytest.CaptureFixture[str]) -> None:
    _make_experiment("Synthetic126M").validate()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rosetta: PACKED_INPUT=False, not True ")
    assert "--fdl.PACKED_INPUT=True" in line


@pytest.mark.parametrize(
    ("name", "given", "where", "facts"),
    [
        (
            "Synthetic126M",
            {"ICI_MESH_SHAPE": [2, 1, 1]},
            "ICI_MESH_SHAPE=[2,1,1] x DCN_MESH_SHAPE=[1,1,1]",
            (" 2 devices", " 1; "),
        ),
        (
            "Synthetic126M",
            {"PERCORE_BATCH_SIZE": 0.5},
            "PERCORE_BATCH_SIZE=0.5",
            ("1 devices", "0.5 rows"),
        ),
        (
            "Synthetic126M",
            {"NUM_HEADS": 3},
            "MODEL_DIMS=64",
            ("NUM_HEADS=3 x DIMS_PER_HEAD=16", "48"),
        ),
        ("Synthetic126M", {"FPROP_DTYPE": "half"}, "FPROP_DTYPE", ("'half'",)),
        (
            "Synthetic126M",
            {"CHECKPOINT_POLICY": "nothing"},
            "CHECKPOINT_POLICY",
            ("'nothing'", "save_nothing"),
        ),
        (
            "Synthetic126M",
            {"ACTIVATION_CLS": "gelu"},
            "ACTIVATION_CLS",
            ("'gelu'",),
        ),
        (
            "SyntheticLLaMA7B",
            {"USE_MQA": True, "NUM_KV_HEADS": 3},
            "NUM_KV_HEADS=3",
            ("NUM_HEADS=4",),
        ),
        (
            "Synthetic126M",
            {"LORA_RANKS": 3},
            "--fdl.LORA_RANKS",
            ("mean LORA_RANK?",),
        ),
        ("Synthetic126M", {"USE_LORA": True, "LORA_RANK": 0}, "LORA_RANK", ("0",)),
        (
            "Synthetic126M",
            {"CHECKPOINT_RESTORE_PATH": "/nowhere"},
            "CHECKPOINT_RESTORE_PATH=/nowhere",
            ("checkpoint_N",),
        ),
    ],
)
def test_a_wrong_experiment_is_one_line_and_status_2(
    name: str,
    given: dict[str, Any],
    where: str,
    facts: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        _make_experiment(name, **given).validate()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rosetta: {where}: ")
    for fact in facts:
        assert fact in line


def test_praxis_1_4_has_no_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment.Experiment, "MODEL_CLASS", models.LanguageModel)
    with errors.expect_user_error(errors.UNSUPPORTED, where="Lambada126M", names="Praxis 1.4.0"):
        _make_experiment("Lambada126M").task()


def test_praxis_1_4_needs_glam_with_repeated_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = praxis_glam.GlamUniTransformerLmHParams

    def old(**more: Any) -> Any:
        """As in 1.4.0: it knows no `repeat`."""
        assert "repeat" not in more
        return whole(**more)

    monkeypatch.setattr(praxis_glam, "GlamUniTransformerLmHParams", old)
    with errors.expect_user_error(
        errors.UNSUPPORTED, where="USE_REPEATED_LAYER=False", names=("Praxis 1.4.0", "GLaM")
    ):
        _make_experiment("SyntheticGLaM126M64E", NUM_EXPERTS=4).task()
    _make_experiment("SyntheticGLaM64B64E", NUM_EXPERTS=4).task()


def test_a_checkpoint_is_read_as_that_of_a_plain_model(tmp_path: Any) -> None:
    (tmp_path / "checkpoints/checkpoint_00000004").mkdir(parents=True)
    for given in ({}, {"USE_LORA": True}):
        task = _make_experiment(
            "SyntheticLLaMA7B",
            CHECKPOINT_RESTORE_PATH=str(tmp_path),
            CHECKPOINT_IGNORE_RULES=["mine"],
            **given,
        ).task()
        ((folder, rules),) = task.train.init_from_checkpoint_rules.items()
        assert folder == str(tmp_path / "checkpoints")
        assert all(
            word in pattern
            for word, pattern in zip(
                ["lora", "amax_history", "mine"], rules.ignore_rules, strict=True
            )
        )
        plain = _make_experiment("SyntheticLLaMA7B").task()
        assert rules.task_p.model == plain.model
        assert (task.model == plain.model) is not bool(given)


@pytest.mark.parametrize(("size", "expected"), [(1, 128), (128, 128), (50257, 50304)])
def test_padding(size: int, expected: int) -> None:
    assert softmax.compute_padded_size(size) == expected
