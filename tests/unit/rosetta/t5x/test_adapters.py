"""LoRA adapters of T5: their formula, the network with them, and what of them is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "flax", "t5x.utils")

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from rosetta.nn import fp8_mlp, lora
from rosetta.nn.dense import Projection, apply_projections
from rosetta.t5x import adapters
from rosetta.t5x.layers import Mlp
from rosetta.t5x.run import checkpoint_record
from rosetta.t5x.run.model_config import Lora
from tests.support import small_t5

RANK, ALPHA = 3, 7.0


def compute_peft_layer(weight: Any, lora_a: Any, lora_b: Any, x: Any) -> Any:
    """What peft's lora.Linear computes, in its layout: W [out, in], A [r, in], B [out, r]."""
    scaling = ALPHA / RANK
    return x @ weight.T + ((x @ lora_a.T) @ lora_b.T) * scaling


def fill_adapters(params: Any, seed: int = 0) -> Any:
    """Give each adapter random values: zero would hide mistakes."""
    drawn = np.random.default_rng(seed)
    flat = flatten_dict(flax.core.unfreeze(params), sep="/")
    filled = {
        name: drawn.normal(size=leaf.shape).astype(np.float32) * 0.1
        if lora.is_adapter(name)
        else np.asarray(leaf)
        for name, leaf in flat.items()
    }
    return unflatten_dict(filled, sep="/")


def merge_by_numpy(params: Any) -> Any:
    """The parameters of a network without adapters, by peft's formula: W + scaling B A."""
    flat = {name: np.asarray(leaf) for name, leaf in flatten_dict(params, sep="/").items()}
    merged = {name: leaf for name, leaf in flat.items() if "lora" not in name}
    for name, first in flat.items():
        if name.endswith("/lora_a"):
            owner = name.removesuffix("/lora_a")
            product = first.astype(np.float64) @ flat[f"{owner}/lora_b"].astype(np.float64)
            kernel = merged[f"{owner}/kernel"].astype(np.float64)
            merged[f"{owner}/kernel"] = (kernel + ALPHA / RANK * product).astype(np.float32)
    return unflatten_dict(merged, sep="/")


def test_a_projection_is_what_peft_defines() -> None:
    drawn = np.random.default_rng(1)
    weight, lora_a, lora_b, x = (
        drawn.normal(size=shape).astype(np.float32)
        for shape in ((5, 6), (RANK, 6), (5, RANK), (8, 6))
    )
    adapter = lora.Adapter(jnp.asarray(lora_a.T), jnp.asarray(lora_b.T), ALPHA / RANK)
    projection = Projection(jnp.asarray(weight.T), adapter=adapter)
    expected = compute_peft_layer(weight, lora_a, lora_b, x.astype(np.float64))
    tolerance = 1e-5 * np.abs(expected).max()
    for divisor in (1.0, 2.0):
        divided = projection.divide(jnp.float32(divisor))
        (found,) = apply_projections(jnp.asarray(x), [divided], jnp.float32)
        np.testing.assert_allclose(found, expected / divisor, rtol=0, atol=tolerance)


def test_initial_values_are_those_of_peft() -> None:
    first = np.asarray(lora.make_initial_value("a/lora_a", (400, 50), jax.random.key(0)))
    limit = 1 / np.sqrt(400)  # Kaiming's uniform initialisation with a = sqrt(5)
    assert 0.99 * limit < np.abs(first).max() <= limit
    np.testing.assert_allclose(first.std(), limit / np.sqrt(3), rtol=0.02)
    assert not np.asarray(lora.make_initial_value("a/lora_b", (50, 7), jax.random.key(0))).any()


@pytest.mark.parametrize(
    ("targets", "switches"),
    [
        (("query", "value"), {}),
        (("query", "value"), {"fuse_qkv": True, "transpose_batch_sequence": True}),
        (("all",), {"fuse_qkv": True}),
        (("key", "wo"), {"scan_layers": True, "remat": "full"}),
        (("mlp",), {"mlp_activations": ("relu",), "relative_bias": "layer"}),
    ],
    ids=["default", "fused", "all", "scanned", "one activation"],
)
def test_logits_are_those_of_the_merged_model(
    targets: tuple[str, ...], switches: dict[str, Any]
) -> None:
    batch = small_t5.make_batch()
    adapted = small_t5.make_config(lora=Lora(RANK, ALPHA, targets), **switches)
    params = fill_adapters(small_t5.initialize_variables(adapted, batch)["params"])
    count = sum(name.endswith("lora_a") for name in flatten_dict(params, sep="/"))
    assert count > 0
    plain = small_t5.make_config(**switches)
    found = small_t5.apply_network(small_t5.Transformer(adapted), {"params": params}, batch)
    merged = merge_by_numpy(params)
    expected = small_t5.apply_network(small_t5.Transformer(plain), {"params": merged}, batch)
    largest = float(jnp.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * largest)
    # The adapters matter: without them, the logits are others.
    base = {
        name: leaf for name, leaf in flatten_dict(params, sep="/").items() if "lora" not in name
    }
    others = small_t5.apply_network(
        small_t5.Transformer(plain), {"params": unflatten_dict(base, sep="/")}, batch
    )
    assert float(jnp.abs(others - expected).max()) > 1e-2 * largest


@pytest.mark.parametrize(("target", "is_fused"), [("attention", True), ("wo", False)])
def test_the_fused_gated_unit_has_no_adapters(
    target: str, is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: Any = SimpleNamespace(interpret=True)
    monkeypatch.setattr(fp8_mlp, "choose_placement", lambda *_: (placed, ""))
    config = small_t5.make_config(
        lora=Lora(2, 2, (target,)), fp8="xla", fuse_qkv=True, fused_geglu=True
    )
    x = jnp.zeros((2, 4, config.emb_dim))
    module = Mlp(config).bind({})
    placement = module._choose_kernel_placement(x, ("batch", "length", "mlp"), None)
    assert (placement is placed) == is_fused


def test_targets_choose_the_kernels() -> None:
    chosen = Lora(2, 2, ("attention", "wi"))
    kernels = ("query", "key", "value", "out", "wi", "wi_0", "wi_1", "wo", "logits_dense")
    assert [name for name in kernels if chosen.has_target(name)] == list(kernels[:-2])


@pytest.mark.parametrize(
    ("values", "kind", "where"),
    [
        ({"rank": 0, "alpha": 4.0}, errors.CONFLICT, "LORA_ALPHA"),
        ({"rank": None, "targets": "query"}, errors.CONFLICT, "LORA_TARGETS"),
        ({"rank": -1}, errors.INVALID, "LORA_RANK"),
        ({"rank": 2, "alpha": 0.0}, errors.INVALID, "LORA_ALPHA"),
        ({"rank": 2, "targets": "query,q"}, errors.UNKNOWN, "LORA_TARGETS"),
    ],
    ids=["alpha alone", "targets alone", "rank", "alpha", "targets"],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], kind: str, where: str) -> None:
    with errors.expect_user_error(kind, where=where):
        adapters.make_lora(**values)


def test_the_default_scale_is_one() -> None:
    assert adapters.make_lora(8) == Lora(8, 8.0, ("query", "value"))
    assert adapters.make_lora(None) is None


def make_record(chosen: Lora | None) -> checkpoint_record.Record:
    config = small_t5.make_config(lora=chosen)
    return checkpoint_record.Record(
        step=1, scale_attn_logits=False, lora=adapters.describe_lora(config)
    )


NAMES = ("target/encoder/layers_0/attention/query/kernel",)
ADAPTED = (*NAMES, "target/encoder/layers_0/attention/query/lora_a")
EIGHT = Lora(8, 16, ("query",))
FOUR = ("value", "key", "query", "out")


@pytest.mark.parametrize(
    ("names", "saved", "wanted", "starts", "kind"),
    [
        (NAMES, None, None, True, None),
        (NAMES, None, EIGHT, True, None),  # new adapters
        (ADAPTED, EIGHT, EIGHT, False, None),
        (ADAPTED, Lora(8, 16, ("out", "attention")), Lora(8, 16, FOUR), False, None),
        (ADAPTED, EIGHT, Lora(8, 16, FOUR), False, errors.DIFFERS),
        (NAMES, None, EIGHT, False, errors.DIFFERS),  # a run that resumes
        (ADAPTED, EIGHT, None, True, errors.DIFFERS),  # the adapters would be lost
        (ADAPTED, EIGHT, Lora(8, 8, ("query",)), False, errors.DIFFERS),  # another strength
        (ADAPTED, None, EIGHT, True, errors.MISSING),  # no record
    ],
    ids=[
        "none",
        "new",
        "same",
        "same kernels",
        "more kernels",
        "added later",
        "lost",
        "other alpha",
        "no record",
    ],
)
def test_adapters_of_a_checkpoint_are_those_of_the_run(
    names: tuple[str, ...], saved: Lora | None, wanted: Lora | None, starts: bool, kind: str | None
) -> None:
    record, config = make_record(saved), small_t5.make_config(lora=wanted)
    assert adapters.parse_lora(record) == saved
    if kind is None:
        adapters.check_checkpoint("checkpoint_1", names, record, config, starts=starts)
        return
    with errors.expect_user_error(kind, where="checkpoint_1"):
        adapters.check_checkpoint("checkpoint_1", names, record, config, starts=starts)
