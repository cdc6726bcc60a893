"""Upstream's layers as Transformer Engine's and back: shapes and names as version 2.20 has them, every bit kept, what does not fit named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rosetta.core.errors import UserError
from rosetta.nn import te_map

D, W, F, LAYERS = 6, 8, 10, 3


def _leaf(rng: Any, shape: tuple[int, ...], layer_axis: int | None) -> np.ndarray:
    if layer_axis is not None:
        shape = (*shape[:layer_axis], LAYERS, *shape[layer_axis:])
    made: np.ndarray = rng.normal(size=shape).astype(np.float32)
    return made


def _layer(
    kind: str, gated: bool = True, layer_axis: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """A layer of upstream's tree with random parameters."""
    rng = np.random.default_rng(seed)

    def leaf(*shape: int) -> np.ndarray:
        return _leaf(rng, shape, layer_axis)

    def attention() -> dict[str, Any]:
        return {
            **{name: {"kernel": leaf(D, W)} for name in ("query", "key", "value")},
            "out": {"kernel": leaf(W, D)},
        }

    inner = ("wi_0", "wi_1") if gated else ("wi",)
    found: dict[str, Any] = {
        "pre_mlp_layer_norm": {"scale": leaf(D)},
        "mlp": {**{name: {"kernel": leaf(D, F)} for name in inner}, "wo": {"kernel": leaf(F, D)}},
    }
    if kind == "encoder":
        found |= {"attention": attention(), "pre_attention_layer_norm": {"scale": leaf(D)}}
    else:
        found |= {
            "self_attention": attention(),
            "pre_self_attention_layer_norm": {"scale": leaf(D)},
        }
    if kind == "decoder":
        found |= {
            "encoder_decoder_attention": attention(),
            "pre_cross_attention_layer_norm": {"scale": leaf(D)},
        }
    return found


def _flat(tree: Any, before: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {before: tree}
    return {
        path: leaf
        for name, child in tree.items()
        for path, leaf in _flat(child, f"{before}/{name}".strip("/")).items()
    }


def _assert_same(one: Any, other: Any) -> None:
    one, other = _flat(one), _flat(other)
    assert sorted(one) == sorted(other)
    for path, leaf in one.items():
        assert leaf.dtype == other[path].dtype
        np.testing.assert_array_equal(leaf, other[path], err_msg=path)


def test_a_decoder_layer_fused() -> None:
    layer = _layer("decoder")
    found = te_map.layer_to_te(layer, "decoder")
    assert {path: leaf.shape for path, leaf in _flat(found).items()} == {
        "self_attention/qkv/scale": (D,),
        "self_attention/qkv/kernel": (D, 3, W),
        "self_attention/out/kernel": (W, D),
        "encoder_decoder_attention/query/scale": (D,),
        "encoder_decoder_attention/query/kernel": (D, W),
        "encoder_decoder_attention/kv/kernel": (D, 2, W),
        "encoder_decoder_attention/out/kernel": (W, D),
        "mlp/scale": (D,),
        "mlp/wi_kernel": (D, 2, F),
        "mlp/wo_kernel": (F, D),
    }
    qkv = found["self_attention"]["qkv"]
    for index, name in enumerate(("query", "key", "value")):
        np.testing.assert_array_equal(
            qkv["kernel"][:, index], layer["self_attention"][name]["kernel"]
        )
    np.testing.assert_array_equal(
        found["encoder_decoder_attention"]["kv"]["kernel"][:, 1],
        layer["encoder_decoder_attention"]["value"]["kernel"],
    )
    np.testing.assert_array_equal(qkv["scale"], layer["pre_self_attention_layer_norm"]["scale"])
    np.testing.assert_array_equal(
        found["encoder_decoder_attention"]["query"]["scale"],
        layer["pre_cross_attention_layer_norm"]["scale"],
    )
    np.testing.assert_array_equal(found["mlp"]["wi_kernel"][:, 1], layer["mlp"]["wi_1"]["kernel"])


def test_an_encoder_layer_unfused() -> None:
    found = te_map.layer_to_te(_layer("encoder", gated=False), "encoder", fused=False)
    assert {path: leaf.shape for path, leaf in _flat(found).items()} == {
        "attention/query/scale": (D,),
        "attention/query/kernel": (D, W),
        "attention/key/kernel": (D, W),
        "attention/value/kernel": (D, W),
        "attention/out/kernel": (W, D),
        "mlp/scale": (D,),
        "mlp/wi_kernel": (D, 1, F),
        "mlp/wo_kernel": (F, D),
    }


def test_a_decoder_alone_is_called_as_an_encoder() -> None:
    found = te_map.layer_to_te(_layer("decoder_only"), "decoder_only")
    assert set(found) == {"attention", "mlp"}


@pytest.mark.parametrize("kind", te_map.KINDS)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("layer_axis", [None, 0, 1])
def test_there_and_back(kind: str, gated: bool, fused: bool, layer_axis: int | None) -> None:
    layer = _layer(kind, gated, layer_axis)
    there = te_map.layer_to_te(layer, kind, fused=fused, layer_axis=layer_axis)
    _assert_same(te_map.layer_from_te(there, kind, fused=fused, layer_axis=layer_axis), layer)


@pytest.mark.parametrize("layer_axis", [0, 1])
def test_stacked_layers_are_the_single_ones(layer_axis: int) -> None:
    stacked = _layer("decoder", layer_axis=layer_axis)
    there = _flat(te_map.layer_to_te(stacked, "decoder", layer_axis=layer_axis))

    def single(tree: Any) -> Any:
        return (
            {name: single(child) for name, child in tree.items()}
            if isinstance(tree, dict)
            else np.take(tree, 1, layer_axis)
        )

    for path, leaf in _flat(te_map.layer_to_te(single(stacked), "decoder")).items():
        np.testing.assert_array_equal(np.take(there[path], 1, layer_axis), leaf, err_msg=path)


@pytest.mark.parametrize("decoder", ["decoder", "decoder_only"])
def test_whole_trees_and_moments(decoder: str) -> None:
    """The moments of Adam have the parameters' shapes, and go the same way."""

    def tree(seed: int) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        found: dict[str, Any] = {
            "decoder": {"relpos_bias": {"rel_embedding": _leaf(rng, (2, 32), None)}}
        }
        found["decoder"] |= {
            f"layers_{index}": _layer(decoder, seed=seed + index) for index in range(2)
        }
        if decoder == "decoder":
            found |= {"token_embedder": {"embedding": _leaf(rng, (12, D), None)}}
            found["encoder"] = {
                "layers_0": _layer("encoder", seed=seed),
                "encoder_norm": {"scale": _leaf(rng, (D,), None)},
            }
        return found

    state = {"param_states": tree(1), "target": tree(2)}
    for each in state.values():
        there = te_map.to_te(each)
        assert "wi_kernel" in there["decoder"]["layers_1"]["mlp"]
        assert there["decoder"]["relpos_bias"] == each["decoder"]["relpos_bias"]
        _assert_same(te_map.from_te(there), each)
    assert "wi_0" in state["target"]["decoder"]["layers_0"]["mlp"]  # what was given is left alone


def _broken(path: str, leaf: Any) -> dict[str, Any]:
    tree = {"encoder": {"layers_0": _layer("encoder")}, "decoder": {}}
    *folders, name = path.split("/")
    inner: Any = tree
    for folder in folders:
        inner = inner.setdefault(folder, {})
    if leaf is None:
        del inner[name]
    else:
        inner[name] = leaf
    return tree


@pytest.mark.parametrize(
    ("path", "leaf", "says"),
    [
        (
            "encoder/layers_0/attention/key/kernel",
            np.zeros((D, W + 1)),
            "has 9 where encoder/layers_0/attention/query/kernel has 8",
        ),
        ("encoder/layers_0/pre_mlp_layer_norm/scale", np.zeros((D + 1,)), "has 7 where"),
        ("encoder/layers_0/mlp/wo/kernel", np.zeros((D, F)), "where"),
        ("encoder/layers_0/mlp/wi_1/kernel", np.zeros((D,)), "Adafactor's factored moments"),
        ("encoder/layers_0/mlp/wi_1/kernel", object(), "Adafactor's factored moments"),
        ("encoder/layers_0/attention/out/kernel", None, "is missing"),
        ("encoder/layers_0/attention/out/bias", np.zeros((D,)), "has no counterpart"),
    ],
)
def test_what_does_not_fit_is_named(path: str, leaf: Any, says: str) -> None:
    with pytest.raises(UserError) as problem:
        te_map.to_te(_broken(path, leaf))
    assert problem.value.where == path
    assert says in str(problem.value)


def test_what_does_not_fit_on_the_way_back_is_named() -> None:
    there = te_map.to_te({"encoder": {"layers_0": _layer("encoder")}})
    there["encoder"]["layers_0"]["attention"]["qkv"]["kernel"] = np.zeros((D, 2, W))
    with pytest.raises(
        UserError,
        match="encoder/layers_0/attention/qkv/kernel: has 2 where Transformer Engine's layout has 3",
    ):
        te_map.from_te(there)
    with pytest.raises(UserError, match="encoder/layers_0/mlp/wi_kernel: is missing"):
        te_map.from_te({"encoder": {"layers_0": _layer("encoder")}})


def test_what_its_layer_cannot_compute() -> None:
    sizes: dict[str, Any] = {
        "emb_dim": 768,
        "num_heads": 12,
        "head_dim": 64,
        "mlp_activations": ("gelu", "linear"),
    }
    assert te_map.unfit(**sizes) == ""
    assert "6 heads of 64" in te_map.unfit(
        **{**sizes, "emb_dim": 512, "num_heads": 6}
    )  # T5 1.1 small
    assert "order" in te_map.unfit(**{**sizes, "mlp_activations": ("linear", "gelu")})
