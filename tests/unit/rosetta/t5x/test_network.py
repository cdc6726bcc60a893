"""Every switch computes the same model: logits, loss and all gradients, at positions that are no padding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from rosetta.core import log
from rosetta.nn import attention
from rosetta.t5x import layers
from tests.support import small_t5

SWITCHES: dict[str, dict[str, Any]] = {
    "fused": {"fuse_qkv": True},
    "fused attention": {"fuse_qkv": True, "fuse_mlp": False},
    "fused MLP": {"fuse_mlp": True},
    "transposed": {"transpose_batch_sequence": True},
    "scanned": {"scan_layers": True},
    "remat minimal": {"remat": "minimal"},
    "remat full": {"remat": "full"},
    "scanned, remat": {"scan_layers": True, "remat": "minimal"},
    "all": {
        "fuse_qkv": True,
        "transpose_batch_sequence": True,
        "scan_layers": True,
        "remat": "minimal",
    },
}


@pytest.fixture(scope="module")
def plain() -> Any:
    given = small_t5.make_batch()
    found = small_t5.initialize_variables(small_t5.make_config())
    return (
        found,
        given,
        small_t5.compute_loss_and_gradient(
            small_t5.Transformer(small_t5.make_config()), found, given
        ),
    )


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_a_switch_changes_nothing(plain: Any, switches: dict[str, Any]) -> None:
    variables, given, expected = plain
    small_t5.assert_trees_close(
        small_t5.compute_loss_and_gradient(
            small_t5.Transformer(small_t5.make_config(**switches)), variables, given
        ),
        expected,
    )


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_the_parameters_do_not_depend_on_it(plain: Any, switches: dict[str, Any]) -> None:
    small_t5.assert_trees_close(
        small_t5.initialize_variables(small_t5.make_config(**switches))["params"],
        plain[0]["params"],
        0,
        0,
    )


DECODERS = {
    "fused": {"fuse_qkv": True},
    "transposed": {"transpose_batch_sequence": True},
    "scanned": {"scan_layers": True},
    "remat": {"remat": "minimal"},
    "all": SWITCHES["all"],
}


@pytest.fixture(scope="module")
def alone() -> Any:
    """A decoder's variables, a call of it over a prefix, packed rows, and the plain one's logits, loss and gradients for both."""
    given = small_t5.make_packed_batch()
    inputs, targets = given["decoder_input_tokens"], given["decoder_target_tokens"]
    variables = {
        "params": small_t5.DecoderOnly(small_t5.make_config()).init(
            jax.random.key(0), inputs, targets, enable_dropout=False
        )["params"]
    }
    hows = (
        {"decoder_causal_attention": (jnp.arange(inputs.shape[1]) < 4) * jnp.ones_like(inputs)},
        {"decoder_segment_ids": given["decoder_segment_ids"]},
    )

    def evaluated(module: Any) -> Any:
        def both(params: Any, how: Any) -> Any:
            logits = module.apply({"params": params}, inputs, targets, enable_dropout=False, **how)
            return small_t5.compute_loss(logits, given), logits * given["decoder_loss_weights"][
                ..., None
            ]

        return [
            jax.jit(jax.value_and_grad(both, has_aux=True))(variables["params"], how)
            for how in hows
        ]

    return evaluated, evaluated(small_t5.DecoderOnly(small_t5.make_config()))


@pytest.mark.parametrize("switches", DECODERS.values(), ids=DECODERS)
def test_a_switch_changes_nothing_in_a_decoder_alone(alone: Any, switches: dict[str, Any]) -> None:
    evaluated, expected = alone
    small_t5.assert_trees_close(
        evaluated(small_t5.DecoderOnly(small_t5.make_config(**switches))), expected
    )


@pytest.mark.parametrize(
    "model",
    [
        {"mlp_activations": ("relu",), "logits_via_embedding": True},
        {"scale_attn_logits": True},
        {"float32_attention_logits": True},
        {"relative_bias": "layer"},
    ],
    ids=["T5 1.0", "scaled logits", "float32 logits", "umT5"],
)
def test_other_models(model: dict[str, Any]) -> None:
    given, variables = (
        small_t5.make_batch(),
        small_t5.initialize_variables(small_t5.make_config(**model)),
    )
    expected = small_t5.compute_loss_and_gradient(
        small_t5.Transformer(small_t5.make_config(**model)), variables, given
    )
    small_t5.assert_trees_close(
        small_t5.compute_loss_and_gradient(
            small_t5.Transformer(small_t5.make_config(**model, **SWITCHES["all"])), variables, given
        ),
        expected,
    )


@pytest.mark.parametrize("switches", [{}, SWITCHES["all"]], ids=["plain", "all"])
def test_packed_examples_are_computed_as_if_alone(switches: dict[str, Any]) -> None:
    """Two examples in a row give the logits that each gives in a row of its own."""
    module = small_t5.Transformer(small_t5.make_config(**switches))
    variables = small_t5.initialize_variables(small_t5.make_config())
    one, two = small_t5.make_tokens(3, 8, [8, 8]), small_t5.make_tokens(4, 6, [6, 6])
    alone = {
        "encoder_input_tokens": one,
        "decoder_target_tokens": two,
        "decoder_input_tokens": jnp.pad(two[:, :-1], ((0, 0), (1, 0))),
    }
    together = {name: value.reshape(1, -1) for name, value in alone.items()}
    together["encoder_segment_ids"] = jnp.repeat(jnp.array([[1, 2]]), 8, axis=1)
    together["decoder_segment_ids"] = jnp.repeat(jnp.array([[1, 2]]), 6, axis=1)
    small_t5.assert_trees_close(
        small_t5.apply_network(module, variables, together).reshape(2, 6, -1),
        small_t5.apply_network(module, variables, alone),
    )


@pytest.mark.parametrize("missing", ["encoder_segment_ids", "decoder_segment_ids"])
@pytest.mark.parametrize("decode", [False, True])
def test_segments_of_one_side_are_refused(missing: str, decode: bool) -> None:
    given = small_t5.make_packed_batch()
    del given[missing]
    with pytest.raises(ValueError, match="packed"):
        small_t5.apply_network(
            small_t5.Transformer(small_t5.make_config()),
            small_t5.initialize_variables(small_t5.make_config()),
            given,
            decode=decode,
            mutable=["cache"],
        )


@pytest.mark.parametrize(
    "switches",
    [{}, {"transpose_batch_sequence": True}, SWITCHES["all"]],
    ids=["plain", "transposed", "all"],
)
@pytest.mark.parametrize("bias", ["stack", "layer"])
def test_decoding_a_token_at_a_time_gives_the_logits_of_the_whole(
    bias: str, switches: dict[str, Any]
) -> None:
    module = small_t5.Transformer(small_t5.make_config(relative_bias=bias, **switches))
    given = small_t5.make_batch()
    variables = small_t5.initialize_variables(small_t5.make_config(relative_bias=bias))
    whole = small_t5.apply_network(
        module,
        variables,
        {**given, "decoder_target_tokens": jnp.ones_like(given["decoder_target_tokens"])},
    )
    encoded = module.apply(
        variables, given["encoder_input_tokens"], enable_dropout=False, method=module.encode
    )
    _, made = small_t5.apply_network(
        module,
        variables,
        {**given, "decoder_target_tokens": jnp.ones_like(given["decoder_target_tokens"])},
        decode=True,
        mutable=["cache"],
    )
    cache, length = made["cache"], whole.shape[1]

    @jax.jit
    def step(cache: Any, token: Any) -> Any:
        return module.apply(
            {**variables, "cache": cache},
            encoded,
            given["encoder_input_tokens"],
            token,
            token,
            enable_dropout=False,
            decode=True,
            max_decode_length=length,
            mutable=["cache"],
            method=module.decode,
        )

    for index in range(length):
        logits, made = step(cache, given["decoder_input_tokens"][:, index : index + 1])
        cache = made["cache"]
        np.testing.assert_allclose(
            logits[:, 0], whole[:, index], rtol=1e-4, atol=1e-5, err_msg=f"token {index}"
        )


@pytest.mark.parametrize("bias", ["stack", "layer"])
def test_a_decoder_alone_sees_its_prefix_in_both_directions_and_decodes_after_a_prompt(
    bias: str,
) -> None:
    module = small_t5.DecoderOnly(small_t5.make_config(relative_bias=bias))
    prompt = jnp.asarray([[0, 5, 9, 7, 0, 0], [0, 4, 0, 0, 0, 0]], jnp.int32)
    lengths = jnp.asarray([3, 1], jnp.int32)
    prefix = (jnp.arange(6)[None] <= lengths[:, None]).astype(jnp.int32)
    variables = module.init(jax.random.key(0), prompt, prompt, enable_dropout=False)
    variables = {"params": variables["params"]}

    def logits(inputs: Any) -> Any:
        return module.apply(
            variables,
            inputs,
            jnp.ones_like(inputs),
            decoder_causal_attention=prefix,
            enable_dropout=False,
        )

    # A later token of the prefix reaches an earlier position; a token after the prefix does not.
    assert not np.allclose(logits(prompt)[0, 1], logits(prompt.at[0, 3].set(8))[0, 1])
    np.testing.assert_allclose(
        logits(prompt)[1, 1], logits(prompt.at[1, 3].set(8))[1, 1], rtol=1e-5
    )

    _, made = module.apply(
        variables,
        jnp.ones_like(prompt),
        jnp.ones_like(prompt),
        enable_dropout=False,
        decode=True,
        mutable=["cache"],
    )
    how: dict[str, Any] = {
        "decoder_causal_attention": prefix,
        "enable_dropout": False,
        "prefill": True,
        "prefill_lengths": lengths,
    }
    _, made = module.apply(
        {**variables, "cache": made["cache"]}, prompt, prefix, mutable=["cache"], **how
    )
    following = jnp.take_along_axis(prompt, lengths[:, None], axis=1)
    found, _ = module.apply(
        {**variables, "cache": made["cache"]},
        following,
        following,
        enable_dropout=False,
        decode=True,
        max_decode_length=6,
        mutable=["cache"],
    )
    expected = jnp.take_along_axis(logits(prompt), lengths[:, None, None], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def _compute_fused_attention_by_xla(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[tuple[tuple[int, ...], bool, bool]], list[bool]]:
    """Send the calls that are made to cuDNN to the same public function's XLA implementation.

    cuDNN would not take float32. Here all is float32, so that comparisons are of arguments and not
    of rounding.

    Returns:
        Two lists that grow as networks are traced: for each call the shape of the queries, whether
        it is causal and whether it has a bias; and for each choice of an implementation whether it
        has a bias.
    """
    real = attention.compute_fused_attention
    calls: list[tuple[tuple[int, ...], bool, bool]] = []
    biased: list[bool] = []

    def by_xla(query: Any, key: Any, value: Any, **how: Any) -> Any:
        calls.append((query.shape, how["mask"].causal, how["relative"] is not None))
        return real(query, key, value, **{**how, "implementation": "xla"})

    def find_no_problem(**how: Any) -> str:
        biased.append(how["biased"])
        return ""

    monkeypatch.setattr(attention, "compute_fused_attention", by_xla)
    monkeypatch.setattr(attention, "find_cudnn_problem", find_no_problem)
    return calls, biased


@pytest.mark.parametrize("bias", ["stack", "layer"])
@pytest.mark.parametrize("scanned", [False, True], ids=["", "scanned"])
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_cudnns_arguments_compute_the_same(
    bias: str, scanned: bool, scaled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that is made for cuDNN, with its lengths, bias, scale and causality, through the same public function's XLA implementation."""
    model: dict[str, Any] = {"relative_bias": bias, "scale_attn_logits": scaled}
    plain = small_t5.make_config(**model)
    settings = small_t5.make_config(**model, attention="cudnn", scan_layers=scanned)
    given, variables = small_t5.make_batch(), small_t5.initialize_variables(plain)
    calls, biased = _compute_fused_attention_by_xla(monkeypatch)
    found = small_t5.compute_loss_and_gradient(small_t5.Transformer(settings), variables, given)
    assert biased == [True, True, False]  # of the encoder, of the decoder, to the encoder
    # Traced once for each of two encoder layers, and twice in each of two decoder layers.
    assert len(calls) == (3 if scanned else 6)
    assert {(causal, biased) for _, causal, biased in calls} == {
        (False, True),
        (True, True),
        (False, False),
    }
    expected = small_t5.compute_loss_and_gradient(small_t5.Transformer(plain), variables, given)
    small_t5.assert_trees_close(found, expected, atol=5e-6)  # gradients of up to about 1


def test_a_bias_for_each_layer_is_used_by_that_layer_alone() -> None:
    """The copies of a stack's bias give its result; a change in any layer gives another."""
    given, stack = small_t5.make_batch(), small_t5.make_config()
    layered = small_t5.Transformer(small_t5.make_config(relative_bias="layer"))
    variables = small_t5.initialize_variables(stack)
    expected = small_t5.apply_network(small_t5.Transformer(stack), variables, given)
    params = dict(variables["params"])
    for side in ("encoder", "decoder"):
        own = dict(params[side])
        table = own.pop("relpos_bias")
        layers_ = {
            f"layers_{index}": {**own[f"layers_{index}"], "relpos_bias": table} for index in (0, 1)
        }
        params[side] = {**own, **layers_}
    initialised = small_t5.initialize_variables(small_t5.make_config(relative_bias="layer"))
    assert jax.tree.map(jnp.shape, initialised["params"]) == jax.tree.map(jnp.shape, params)
    found = small_t5.apply_network(layered, {"params": params}, given)
    np.testing.assert_array_equal(found, expected)
    for side in ("encoder", "decoder"):
        for index in (0, 1):
            changed = jax.tree.map(lambda leaf: leaf, params)
            table = changed[side][f"layers_{index}"]["relpos_bias"]["rel_embedding"]
            changed[side][f"layers_{index}"]["relpos_bias"]["rel_embedding"] = table + jnp.arange(
                32
            )
            other = small_t5.apply_network(layered, {"params": changed}, given)
            assert float(jnp.abs(other - expected).max()) > 0.01


def test_a_fallback_is_logged_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.forget_shown()
    given = small_t5.make_batch()
    module = small_t5.Transformer(small_t5.make_config(attention="cudnn"))
    small_t5.apply_network(module, small_t5.initialize_variables(small_t5.make_config()), given)
    said = capsys.readouterr().err
    assert said.count("attention by XLA instead of cuDNN: activations in float32") == 1


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"transpose_batch_sequence": True},
        {"scan_layers": True},
        {"remat": "minimal"},
        SWITCHES["all"],
    ],
    ids=["plain", "transposed", "scanned", "remat", "all"],
)
def test_dropout_beside_a_fused_kernel_drops_what_xla_drops(
    switches: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeroed values of dropped keys give the loss and the gradients of dropped weights."""
    given, variables = small_t5.make_batch(), small_t5.initialize_variables(small_t5.make_config())

    def compute(implementation: str, rate: float = 0.3, seed: int = 5) -> Any:
        config = small_t5.make_config(
            **{**switches, "attention": implementation, "dropout_rate": rate}
        )
        return small_t5.compute_loss_and_gradient(
            small_t5.Transformer(config),
            variables,
            given,
            enable_dropout=True,
            rngs={"dropout": jax.random.key(seed)},
        )

    expected = compute("xla")
    calls, _ = _compute_fused_attention_by_xla(monkeypatch)
    found = compute("cudnn")
    assert calls
    # The division by the probability of keeping a key rounds at another place; logits are up to 3.
    small_t5.assert_trees_close(found, expected, atol=1e-5)
    # Neither another seed nor a fault in the division passes for the same.
    for other in (compute("cudnn", seed=6), compute("cudnn", rate=0.31)):
        assert not np.allclose(other[0], expected[0], rtol=1e-5)


PLACES = (
    "attention",
    "weights",
    "hidden",
    "mlp",
    "cross",
    "cross_weights",
    "encoder's input",
    "encoder_norm",
    "decoder's input",
    "decoder_norm",
)


@pytest.mark.parametrize("switches", [{}, SWITCHES["all"]], ids=["plain", "all"])
@pytest.mark.parametrize("place", PLACES)
def test_dropout_follows_its_key_in_every_place(
    place: str, switches: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All places but one are without it: six that a layer draws for, and four outside the layers, in the order in which they come."""
    draw, module, outside = layers.draw_dropout_masks, nn.Dropout, itertools.cycle(PLACES[6:])

    def only(*given: Any) -> dict[str, Any]:
        return {name: kept if name == place else None for name, kept in draw(*given).items()}

    monkeypatch.setattr(layers, "draw_dropout_masks", only)
    monkeypatch.setattr(
        nn,
        "Dropout",
        lambda *args, **how: module(*args, **how) if next(outside) == place else lambda x, **_: x,
    )
    given, variables = small_t5.make_batch(), small_t5.initialize_variables(small_t5.make_config())
    made = small_t5.Transformer(small_t5.make_config(dropout_rate=0.5, **switches))
    one, two, again = (
        small_t5.apply_network(
            made, variables, given, enable_dropout=True, rngs={"dropout": jax.random.key(seed)}
        )
        for seed in (1, 2, 1)
    )
    assert not np.allclose(one, two)
    np.testing.assert_array_equal(one, again)


@pytest.mark.parametrize("transposed", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("scanned", [False, True], ids=["", "scanned"])
def test_dropout_drops_the_same_features_along_the_length_and_others_in_each_row(
    transposed: bool, scanned: bool
) -> None:
    """Layers without attention (its `out` is zero) treat equal tokens of a row alike, so their activations differ only by what is dropped."""
    settings = small_t5.make_config(
        dropout_rate=0.5, transpose_batch_sequence=transposed, scan_layers=scanned
    )
    variables = small_t5.initialize_variables(small_t5.make_config())
    encoder = variables["params"]["encoder"]
    for index in range(2):
        layer = encoder[f"layers_{index}"]
        encoder[f"layers_{index}"] = {
            **layer,
            "attention": jax.tree.map(jnp.zeros_like, layer["attention"]),
        }
    module = small_t5.Transformer(settings)
    encoded = module.apply(
        variables,
        jnp.full((2, 5), 7, jnp.int32),
        enable_dropout=True,
        method=module.encode,
        rngs={"dropout": jax.random.key(3)},
    )
    rows = np.asarray(encoded)
    for row in rows:
        # The encoder's last dropout is upstream's, which does not look at the length: its zeros are left out.
        kept = [values[values != 0] for values in row.T]
        assert all(np.allclose(values, values[0], rtol=1e-5) for values in kept if len(values))
    assert not np.allclose(np.abs(rows[0]).max(axis=0), np.abs(rows[1]).max(axis=0))
