"""Which layers the switches choose for each family, what they come to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_current("jax", "flax", "praxis", "paxml")

import fiddle as fdl
from fiddle import printing
from praxis import layers
from praxis.layers import base_ops, transformers

from rosetta.core import transformer_engine
from rosetta.core.variables import choices
from rosetta.nn import remat
from rosetta.pax import attention, einsum, fp8_experts, learner, lora, switches
from rosetta.pax.run import experiment_checks
from tests.support import pax_training

FAMILIES = ("gpt", "llama", "gqa", "mqa", "glam")


@pytest.fixture(autouse=True)
def _unset_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENABLE_TE", "ENABLE_FP8", "NVTE_FUSED_ATTN"):
        monkeypatch.delenv(name, raising=False)


def _find_layer(task: Any) -> Any:
    return switches.find_layer_stack(task.model.lm_tpl).transformer_layer_params_tpl


def _list_classes(task: Any) -> dict[str, Any]:
    """The classes of a layer's parts."""
    layer = _find_layer(task)
    found = {
        "attention": layer.tr_atten_tpl,
        "feed": layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl,
        "learner": task.train.learner,
    }
    found |= {
        name.removesuffix("_tpl"): getattr(layer.tr_atten_tpl, name)
        for name in ("proj_tpl", "combined_qkv_proj_tpl", "headless_proj_tpl")
        if hasattr(layer.tr_atten_tpl, name)
    }
    return {name: fdl.get_callable(each) for name, each in found.items()}


@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_all_switches_off_nothing_is_changed(family: str, repeated: bool) -> None:
    made = pax_training.make_experiment(family, USE_REPEATED_LAYER=repeated)
    task = made.task()
    before = printing.as_str_flattened(task)
    assert made.apply_switches(task) is task
    assert printing.as_str_flattened(task) == before
    assert "rosetta.pax" not in before.replace("rosetta.pax.softmax", "")


@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("by", ["xla", "te"])
def test_fp8_is_for_every_projection(
    monkeypatch: pytest.MonkeyPatch, family: str, repeated: bool, by: str
) -> None:
    monkeypatch.setattr(transformer_engine, "require_transformer_engine", lambda: "2.20.2")
    asked = {"USE_FP8": True} if by == "xla" else {"ENABLE_TE": 1, "ENABLE_FP8": "1"}
    task = pax_training.make_experiment(family, USE_REPEATED_LAYER=repeated, **asked).task()
    layer = _find_layer(task)
    projections = [
        getattr(layer.tr_atten_tpl, name)
        for name in ("proj_tpl", "combined_qkv_proj_tpl", "headless_proj_tpl")
        if hasattr(layer.tr_atten_tpl, name)
    ]
    for each in (*projections, layer.tr_fflayer_tpl.fflayer_tpl.linear_tpl):
        assert (fdl.get_callable(each.einsum_tpl), each.einsum_tpl.by) == (einsum.Einsum, by)
    for name in ("qk_einsum_tpl", "pv_einsum_tpl"):
        assert fdl.get_callable(getattr(layer.tr_atten_tpl, name)) is base_ops.EinsumOp
    assert fdl.get_callable(task.train.learner) is learner.Learner
    assert not task.train.variable_norm_summary
    if family == "glam":
        layer = switches.find_layer_stack(task.model.lm_tpl).moe_layer_tpl
        assert (
            fdl.get_callable(layer),
            layer.product_tpl.by,
            fdl.get_callable(layer.einsum_tpl),
        ) == (fp8_experts.Experts, by, base_ops.EinsumOp)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("asked", "by"),
    [
        ({"ATTENTION": "cudnn"}, "cudnn"),
        ({"USE_CUDNN_FLASH_ATTENTION": True}, "cudnn"),
        ({"ENABLE_TE": True}, "te"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_attention_has_the_chosen_class(
    monkeypatch: pytest.MonkeyPatch, family: str, asked: Any, by: str, packed: bool
) -> None:
    monkeypatch.setattr(transformer_engine, "require_transformer_engine", lambda: "2.20.2")
    task = pax_training.make_experiment(
        family, FPROP_DTYPE="bfloat16", PACKED_INPUT=packed, **asked
    ).task()
    layer = _find_layer(task).tr_atten_tpl
    assert fdl.get_callable(layer) is (
        attention.MultiQueryAttention if family in ("gqa", "mqa") else attention.DotProductAttention
    )
    assert layer.by == by
    if hasattr(layer, "combined_qkv_proj_tpl"):
        template = layer.combined_qkv_proj_tpl.einsum_tpl
        assert fdl.get_callable(template) is einsum.RowMajorEinsum
    assert layer.packed == (packed and task.model.lm_tpl.packed_input)
    assert _list_classes(task)["learner"] is not learner.Learner


@pytest.mark.parametrize(
    ("attention_by", "policy"),
    [
        ("cudnn", remat.keep_products_and_attention),
        ("xla", layers.AutodiffCheckpointType.SAVE_DOT_WITH_NO_BATCH_DIM),
    ],
)
def test_repeated_layers_can_keep_fused_attention(attention_by: str, policy: Any) -> None:
    made = pax_training.make_experiment(
        "llama",
        FPROP_DTYPE="bfloat16",
        ATTENTION=attention_by,
        USE_REPEATED_LAYER=True,
        CHECKPOINT_POLICY=experiment_checks.SAVE_DOT_AND_ATTENTION,
    )
    for _ in range(2):  # Paxml asks for the task more than once
        assert made.task().model.lm_tpl.stacked_transformer_tpl.checkpoint_policy == policy


@pytest.mark.parametrize("family", FAMILIES[:-1])
@pytest.mark.parametrize("asked", choices.LORA_LAYERS)
def test_what_lora_adapts(family: str, asked: str) -> None:
    task = pax_training.make_experiment(
        family, USE_LORA=True, LORA_RANK=3, LORA_TARGET_LAYERS=asked
    ).task()
    found = {
        name: kind in lora.ADAPTED_CLASSES.values()
        for name, kind in _list_classes(task).items()
        if name not in ("attention", "learner")
    }
    assert found.pop("feed") == (asked != "attention")
    assert set(found.values()) == {asked != "mlp"}
    assert task.train.learner.bprop_variable_inclusion == [lora.KERNEL_PATTERN]


def test_switches_together() -> None:
    task = pax_training.make_experiment(
        "gqa",
        USE_LORA=True,
        USE_FP8=True,
        ATTENTION="cudnn",
        NUM_MICROBATCHES=4,
        FPROP_DTYPE="bfloat16",
    ).task()
    layer = _find_layer(task)
    assert fdl.get_callable(layer.tr_atten_tpl.proj_tpl) is lora.AttentionProjection
    assert fdl.get_callable(layer.tr_atten_tpl.proj_tpl.einsum_tpl) is einsum.Einsum
    assert task.train.learner.bprop_variable_inclusion == [
        lora.KERNEL_PATTERN,
        einsum.STATE_PATTERN,
    ]
    assert (
        task.train.learner.stochastic_gradient.count,
        task.train.learner.stochastic_gradient.by_weight,
    ) == (4, True)
    assert (
        not pax_training.make_experiment("glam", NUM_MICROBATCHES=2)
        .task()
        .train.learner.stochastic_gradient.by_weight
    )


@pytest.mark.parametrize(
    ("variables", "given", "expected"),
    [
        ({}, {}, ("off", "xla")),
        ({"ENABLE_FP8": "1"}, {}, ("xla", "xla")),
        ({"ENABLE_TE": "1"}, {}, ("off", "te")),
        ({"ENABLE_TE": "1", "ENABLE_FP8": "1"}, {}, ("te", "te")),
        (
            {"ENABLE_TE": "1", "ENABLE_FP8": "1"},
            {"ENABLE_TE": False, "ENABLE_FP8": 0},
            ("off", "xla"),
        ),
        ({"ENABLE_TE": "1", "NVTE_FUSED_ATTN": "0"}, {}, ("off", "xla")),
        ({"ENABLE_TE": "1"}, {"ATTENTION": "cudnn"}, ("off", "cudnn")),
    ],
)
def test_switches_are_resolved(
    monkeypatch: pytest.MonkeyPatch, variables: Any, given: Any, expected: Any
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = pax_training.make_experiment("gpt", **given).resolve_switches()
    assert (found.fp8, found.attention) == expected


@pytest.mark.parametrize("is_variable", [True, False])
@pytest.mark.parametrize("name", ["ENABLE_TE", "ENABLE_FP8"])
def test_a_switch_takes_every_word_of_a_truth_value(
    monkeypatch: pytest.MonkeyPatch, name: str, is_variable: bool
) -> None:
    """See tests/unit/rosetta/test_truth_values.py for what happens before the trainer starts."""

    def chosen(word: str) -> switches.ChosenSwitches:
        if is_variable:
            monkeypatch.setenv(name, word)
        given = {} if is_variable else {name: word}
        found: switches.ChosenSwitches = pax_training.make_experiment(
            "gpt", **given
        ).resolve_switches()
        return found

    assert chosen("1") != chosen("0")
    assert {chosen(word) for word in ("on", "True", " yes ")} == {chosen("1")}
    assert {chosen(word) for word in ("off", "FALSE", " no ")} == {chosen("0")}
    for word in ("maybe", "2", "o n"):
        with errors.expect_user_error(errors.INVALID, where=name, value=word):
            chosen(word)


@pytest.mark.parametrize(
    ("family", "given", "kind", "facts"),
    [
        (
            "gpt",
            {"USE_FP8": True, "ENABLE_TE": 1},
            errors.CONFLICT,
            {"where": "USE_FP8=True", "names": "XLA", "remedy": "ENABLE_TE=0"},
        ),
        ("gpt", {"ENABLE_TE": "maybe"}, errors.INVALID, {"where": "ENABLE_TE", "value": "maybe"}),
        ("gpt", {"ATTENTION": "flash"}, errors.INVALID, {"where": "ATTENTION", "value": "flash"}),
        (
            "gpt",
            {"ATTENTION": "cudnn"},
            errors.UNSUPPORTED,
            {"where": "FPROP_DTYPE=float32", "names": ("cuDNN", "bfloat16")},
        ),
        (
            "gpt",
            {"ATTENTION": "xla", "USE_CUDNN_FLASH_ATTENTION": True},
            errors.CONFLICT,
            {"where": "USE_CUDNN_FLASH_ATTENTION=True", "value": "xla"},
        ),
        (
            "gpt",
            {"USE_LORA": True, "LORA_TARGET_LAYERS": "heads"},
            errors.INVALID,
            {"where": "LORA_TARGET_LAYERS", "value": "heads"},
        ),
        (
            "gpt",
            {"USE_LORA": True, "LORA_RANK": 0},
            errors.INVALID,
            {"where": "LORA_RANK", "value": 0, "remedy": "1"},
        ),
        (
            "gpt",
            {"NUM_MICROBATCHES": 1.5},
            errors.INVALID,
            {"where": "NUM_MICROBATCHES", "value": 1.5},
        ),
        (
            "glam",
            {"USE_LORA": True},
            errors.UNSUPPORTED,
            {"where": "LORA_TARGET_LAYERS=all"},
        ),
    ],
)
def test_wrong_switches_are_refused(
    family: str, given: Any, kind: str, facts: dict[str, Any]
) -> None:
    with errors.expect_user_error(kind, **facts) as problem:
        pax_training.make_experiment(family, **given).task()
    assert "\n" not in str(problem.value)


def test_a_missing_transformer_engine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer_engine, "find_installed_version", lambda: None)
    monkeypatch.setenv("ENABLE_TE", "1")
    with errors.expect_user_error(errors.MISSING, where="Transformer Engine"):
        pax_training.make_experiment("gpt").task()


def test_a_pipeline_is_refused() -> None:
    made = pax_training.make_experiment("gpt", USE_FP8=False)
    task = made.task()
    task.model.lm_tpl.stacked_transformer_tpl = fdl.Config(transformers.PipelinedTransformer)
    made.USE_FP8 = True
    with errors.expect_user_error(
        errors.UNSUPPORTED, where="the switches", names="PipelinedTransformer"
    ):
        made.apply_switches(task)
