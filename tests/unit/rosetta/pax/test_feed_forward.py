"""Praxis' feed-forward layer with fused kernels has the variables and results of Praxis' own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_current("jax", "flax", "praxis")

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from praxis import base_hyperparams, base_layer, pax_fiddle
from praxis.layers import activations, transformers

from rosetta.core import log
from rosetta.nn import fp8_mlp
from rosetta.pax import einsum, feed_forward, gpt_layers, switches
from tests.support import pax_training

AXES = ["replica", "data", "mdl"]
BATCH, LENGTH, DIMS, HIDDEN = 2, 32, 32, 64
SCALES = {"input_scale": 0.01, "kernel_scale": 0.002, "output_grad_scale": 1e-5}


def _make_template(kind: Any, **settings: Any) -> Any:
    template = pax_fiddle.Config(
        kind,
        name="ffn",
        input_dims=DIMS,
        hidden_dims=HIDDEN,
        activation_tpl=pax_fiddle.Config(activations.GELU),
        **settings,
    )
    template.fflayer_tpl.linear_tpl.einsum_tpl = pax_fiddle.Config(einsum.Einsum)
    template.weight_split_dims_mapping.ffn0 = ["data", "mdl"]
    template.weight_split_dims_mapping.ffn1 = ["mdl", "data"]
    template.activation_split_dims_mapping.ffn0 = [("replica", "data"), None, "mdl"]
    template.activation_split_dims_mapping.ffn1 = [("replica", "data"), None, "mdl"]
    template.mesh_axis_names = AXES
    template.ici_mesh_shape = [1, 1, 1]
    return template


def _make_variables(layer: Any) -> Any:
    """Return variables with random biases, and FP8 scales that clip some numbers."""
    inputs, paddings = _make_inputs()
    variables = layer.init(jax.random.key(0), inputs, paddings)
    random = np.random.default_rng(1)

    def change(path: Any, leaf: Any) -> Any:
        name = path[-1].key
        if name == "b":
            return jnp.asarray(random.normal(size=leaf.shape), leaf.dtype)
        return leaf * SCALES.get(name, 1.0)

    return jax.tree_util.tree_map_with_path(change, variables)


def _make_inputs() -> tuple[Any, Any]:
    inputs = np.random.default_rng(0).normal(size=(BATCH, LENGTH, DIMS))
    paddings = np.arange(LENGTH)[None, :] >= np.array([[LENGTH], [LENGTH - 5]])
    return jnp.asarray(inputs, jnp.float32), jnp.asarray(paddings, jnp.float32)


def _find_mesh() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), AXES)


def _differentiate(layer: Any, variables: Any, inputs: Any, paddings: Any) -> Any:
    weights = jnp.cos(jnp.arange(inputs.size, dtype=jnp.float32)).reshape(inputs.shape)

    def compute_loss(variables: Any, inputs: Any) -> Any:
        outputs = layer.apply(variables, inputs, paddings)
        return jnp.sum(outputs.astype(jnp.float32) * weights), outputs

    compute = jax.value_and_grad(compute_loss, argnums=(0, 1), has_aux=True)
    with (
        _find_mesh(),
        base_layer.JaxContext.new_context(hparams=base_layer.JaxContext.HParams(do_eval=False)),
    ):
        kernels = str(jax.make_jaxpr(compute)(variables, inputs)).count("name=gelu_")
        return jax.jit(compute)(variables, inputs), kernels


def _make_layers(**settings: Any) -> tuple[Any, Any]:
    """Return Praxis' layer, and ours with interpreted kernels."""
    return tuple(
        base_hyperparams.instantiate(template)
        for template in (
            _make_template(transformers.TransformerFeedForward, **settings),
            _make_template(feed_forward.FusedFeedForward, is_asked=True, **settings),
        )
    )


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("apply_padding_first", [True, False])
def test_results_are_those_of_praxis(has_bias: bool, apply_padding_first: bool) -> None:
    settings = {"has_bias": has_bias, "apply_padding_first": apply_padding_first}
    plain, fused = _make_layers(**settings)
    variables = _make_variables(plain)
    (found, found_kernels), (expected, expected_kernels) = (
        _differentiate(layer, variables, *_make_inputs()) for layer in (fused, plain)
    )
    assert (found_kernels, expected_kernels) == (2, 0)
    assert jax.tree.structure(found) == jax.tree.structure(expected)

    def compare(one: Any, other: Any) -> None:
        largest = float(np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * largest)

    jax.tree.map(compare, found, expected)


def test_bfloat16_is_no_less_exact() -> None:
    variables = _make_variables(_make_layers()[0])
    inputs, paddings = _make_inputs()
    (exact, _), *others = (
        _differentiate(layer, variables, inputs.astype(dtype), paddings)
        for dtype in (jnp.float32, jnp.bfloat16)
        for layer in _make_layers(fprop_dtype=dtype)[: 1 if dtype == jnp.float32 else 2]
    )

    def compute_error(found: Any) -> float:
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True)
        errors = [
            np.linalg.norm(np.asarray(one, np.float32) - np.asarray(other, np.float32))
            / (np.linalg.norm(np.asarray(other, np.float32)) + 1e-30)
            for one, other in pairs
        ]
        return float(np.linalg.norm(errors))

    # Most of both errors comes from the norm before the products, which is the same.
    plain_error, fused_error = (compute_error(found) for found, _kernels in others)
    assert 0 < fused_error <= 1.01 * plain_error


def test_variables_are_those_of_praxis() -> None:
    plain, fused = (
        jax.eval_shape(layer.init, jax.random.key(0), *_make_inputs()) for layer in _make_layers()
    )
    assert plain == fused
    names = [path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(fused)]
    assert names.count("kernel_amax_history") == names.count("kernel_scale") == 2


def test_a_step_of_decoding_is_computed_by_xla(capsys: pytest.CaptureFixture[str]) -> None:
    log.forget_shown()
    plain, fused = _make_layers()
    variables = _make_variables(plain)
    inputs = _make_inputs()[0][:, 0]
    with _find_mesh():
        results = [layer.apply(variables, inputs) for layer in (plain, fused)]
    np.testing.assert_array_equal(*results)
    assert "a step of decoding" in capsys.readouterr().err


def test_a_cpu_does_not_interpret_the_kernels_by_default() -> None:
    layer = base_hyperparams.instantiate(_make_template(feed_forward.FusedFeedForward))
    assert _differentiate(layer, _make_variables(layer), *_make_inputs())[1] == 0


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({}, ""),
        ({"use_gated_activation": True}, "gate"),
        ({"activation_tpl": pax_fiddle.Config(activations.SiLU)}, "GELU"),
        ({"activation_tpl": pax_fiddle.Config(gpt_layers.ExactGELU)}, "GELU"),
        ({"relu_dropout_prob": 0.1}, "dropout"),
    ],
)
def test_what_the_kernels_cannot_compute(settings: dict[str, Any], word: str) -> None:
    template = _make_template(transformers.TransformerFeedForward)
    for name, value in settings.items():
        setattr(template, name, value)
    problem = feed_forward.find_problem(template)
    assert word in problem
    assert bool(problem) == bool(word)


@pytest.mark.parametrize(
    ("family", "given", "expected"),
    [
        ("gpt", {}, True),
        ("gpt", {"FUSED_GELU": True}, True),
        ("gpt", {"FUSED_GELU": False}, False),
        ("gpt", {"USE_LORA": True}, False),
        ("llama", {}, False),
    ],
)
def test_experiments(family: str, given: dict[str, Any], expected: bool) -> None:
    task = pax_training.make_experiment(family, USE_FP8=True, **given).task()
    stack = switches.find_layer_stack(task.model.lm_tpl)
    template = stack.transformer_layer_params_tpl.tr_fflayer_tpl
    assert (fdl.get_callable(template) is feed_forward.FusedFeedForward) == expected
    if expected:
        assert template.is_asked == bool(given)


def test_a_kernel_that_was_asked_for_in_vain_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.forget_shown()
    pax_training.make_experiment("gpt", FUSED_GELU=True).task()
    assert "FP8" in capsys.readouterr().err


@pytest.mark.parametrize("repeated", [True, False])
def test_training_has_the_losses_of_praxis_layer(
    repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    apply_mlp = fp8_mlp.apply_mlp

    def count_call(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return apply_mlp(*arguments, **options)

    monkeypatch.setattr(fp8_mlp, "apply_mlp", count_call)
    fused, plain = (
        pax_training.Run(
            pax_training.make_experiment(
                "gpt", USE_FP8=True, FUSED_GELU=is_fused, USE_REPEATED_LAYER=repeated
            )
        )
        for is_fused in (True, False)
    )
    losses = fused.steps(4)
    assert calls
    calls.clear()
    np.testing.assert_allclose(losses, plain.steps(4), rtol=1e-4)
    assert not calls
    assert losses[-1] < losses[0]
    assert fused.fp8.keys() == plain.fp8.keys()
    for name, state in fused.fp8.items():
        np.testing.assert_allclose(state, plain.fp8[name], rtol=1e-2, atol=1e-6, err_msg=name)
