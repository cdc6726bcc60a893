"""A user's own Flax module as a model of T5X."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

seqio = pytest.importorskip(
    "seqio", reason="NOT CHECKED: needs the packages of a baked environment"
)
pytest.importorskip("t5x", reason="NOT CHECKED: needs T5X's sources (a baked environment)")

import jax
import jax.numpy as jnp

from rosetta.t5x import optimizer, own_model
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

CODE = textwrap.dedent(
    """
    from typing import Any

    import jax.numpy as jnp
    from flax import linen as nn
    from flax.linen import partitioning


    class Mine(nn.Module):
        vocab_size: int
        dtype: Any = jnp.float32
        dropout_rate: float = 0.0
        width: int = 8

        @nn.compact
        def __call__(self, batch, *, deterministic):
            inputs = nn.Embed(self.vocab_size, self.width)(batch["encoder_input_tokens"])
            x = nn.Embed(self.vocab_size, self.width)(batch["decoder_input_tokens"])
            x = jnp.cumsum(x, axis=1) + inputs.mean(axis=1, keepdims=True)
            x = nn.Dropout(self.dropout_rate)(x, deterministic=deterministic)
            return nn.Dense(
                self.vocab_size,
                kernel_init=nn.with_logical_partitioning(
                    nn.initializers.lecun_normal(), ("embed", "vocab")
                ),
            )(x)


    class Decoder(nn.Module):
        vocab_size: int
        kind = "decoder"

        @nn.compact
        def __call__(self, batch, *, deterministic):
            x = nn.Embed(self.vocab_size, 8)(batch["decoder_input_tokens"])
            kernel = partitioning.param_with_axes(
                "kernel", nn.initializers.ones, (8, self.vocab_size), axes=("embed", "vocab")
            )
            return x @ kernel


    class Short(nn.Module):
        @nn.compact
        def __call__(self, batch, *, deterministic):
            return nn.Dense(3)(batch["decoder_input_tokens"][..., None].astype(float))


    class Counting(nn.Module):
        vocab_size: int

        @nn.compact
        def __call__(self, batch, *, deterministic):
            x = nn.Embed(self.vocab_size, 8)(batch["decoder_input_tokens"])
            x = nn.BatchNorm(use_running_average=deterministic)(x)
            return nn.Dense(self.vocab_size)(x)


    class Odd(nn.Module):
        kind = "diffusion"


    class Needy(nn.Module):
        width: int


    class Plain:
        pass
    """
)
LENGTHS = {"encoder_input_tokens": 6, "decoder_input_tokens": 5, "decoder_target_tokens": 5}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("own") / "own_module_of_test.py"
    file.write_text(CODE)
    return file


def make_config(path: Path, name: str = "Mine", **fields: Any) -> own_model.OwnConfig:
    return own_model.OwnConfig(
        f"{path}:{name}", fields, seqio.ByteVocabulary(extra_ids=0), dtype="float32"
    )


def make_model(path: Path, name: str = "Mine", **fields: Any) -> own_model.OwnModel:
    vocabulary = seqio.ByteVocabulary(extra_ids=0)
    return own_model.OwnModel(
        make_config(path, name, **fields),
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        optimizer_def=optimizer.adamw(),
    )


def make_batch(rows: int = 3) -> dict[str, Any]:
    chance = np.random.default_rng(0)
    batch = {
        name: jnp.asarray(chance.integers(3, 200, (rows, length)), jnp.int32)
        for name, length in LENGTHS.items()
    }
    return {**batch, "decoder_loss_weights": jnp.ones((rows, 5), jnp.int32)}


def make_variables(model: own_model.OwnModel) -> Any:
    shapes = {name: array.shape for name, array in make_batch().items()}
    return model.get_initial_variables(jax.random.PRNGKey(0), shapes)


def test_the_module_gets_its_fields(path: Path) -> None:
    module = make_config(path, width=16).make_module()
    assert (module.vocab_size, module.width, module.dropout_rate) == (384, 16, 0.0)
    assert module.dtype == jnp.float32


def test_loss_and_score_are_cross_entropies(path: Path) -> None:
    model = make_model(path)
    params = make_variables(model)["params"]
    batch = make_batch()
    loss, _ = model.loss_fn(params, batch, None)
    logits = model.module.apply({"params": params}, batch, deterministic=True)
    probabilities = jax.nn.log_softmax(logits)
    picked = jnp.take_along_axis(probabilities, batch["decoder_target_tokens"][..., None], -1)
    assert loss == pytest.approx(-float(picked.sum()), rel=1e-5)
    np.testing.assert_allclose(
        model.score_batch(params, batch), picked[..., 0].sum(axis=1), rtol=1e-5
    )


def test_dropout_depends_on_the_key_alone(path: Path) -> None:
    model = make_model(path, dropout_rate=0.5)
    params, batch = make_variables(model)["params"], make_batch()
    keys = [jax.random.PRNGKey(number) for number in (0, 0, 1)]
    first, again, other = (float(model.loss_fn(params, batch, key)[0]) for key in keys)
    assert first == again != other
    assert model.eval_fn(params, batch)[0] == model.loss_fn(params, batch, None)[0]


def test_predictions_are_the_likeliest_tokens_one_after_the_other(path: Path) -> None:
    model = make_model(path)
    params, batch = make_variables(model)["params"], make_batch()
    predicted = np.asarray(model.predict_batch(params, batch))
    for row in range(3):
        tokens: list[int] = []
        for place in range(5):
            shifted: Any = np.zeros((3, 5), np.int32)
            shifted[row, 1 : place + 1] = tokens
            logits = model.module.apply(
                {"params": params},
                {**batch, "decoder_input_tokens": jnp.asarray(shifted)},
                deterministic=True,
            )
            tokens.append(int(logits[row, place].argmax()))
            if tokens[-1] == 1:
                break
        assert predicted[row, : len(tokens)].tolist() == tokens
        assert not predicted[row, len(tokens) :].any()


def test_dimensions_have_the_names_that_the_module_gives(path: Path) -> None:
    names = make_variables(make_model(path))["params_axes"]
    assert names["Dense_0"]["kernel_axes"].names == ("embed", "vocab")
    assert names["Embed_0"]["embedding_axes"].names == (None, None)
    names = make_variables(make_model(path, "Decoder"))["params_axes"]
    assert names["kernel_axes"].names == ("embed", "vocab")


def test_the_kind_says_which_features_are_made(path: Path) -> None:
    assert make_model(path).FEATURE_CONVERTER_CLS is seqio.EncDecFeatureConverter
    model = make_model(path, "Decoder")
    assert model.FEATURE_CONVERTER_CLS is seqio.DecoderFeatureConverter
    with errors.expect_user_error(errors.UNSUPPORTED, where="MODEL=", value="decoder"):
        model.predict_batch(make_variables(model)["params"], make_batch())


@pytest.mark.parametrize(
    ("name", "fields", "kind", "facts"),
    [
        ("Missing", {}, errors.UNKNOWN, {"value": "Missing"}),
        ("Plain", {}, errors.UNSUPPORTED, {"value": "Plain"}),
        ("Odd", {}, errors.UNKNOWN, {"value": "diffusion"}),
        ("Needy", {}, errors.INVALID, {"names": "width"}),
        ("Mine", {"depth": 3}, errors.UNKNOWN, {"where": "MODEL_FIELDS", "value": "depth"}),
        ("Short", {}, errors.INVALID, {"value": (3, 5, 3)}),
        ("Counting", {}, errors.UNSUPPORTED, {"value": "batch_stats"}),
    ],
)
def test_a_class_that_does_not_fit_is_refused(
    path: Path, name: str, fields: dict[str, Any], kind: str, facts: dict[str, Any]
) -> None:
    with errors.expect_user_error(kind, **facts):
        make_variables(make_model(path, name, **fields))


def test_code_that_fails_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own_module_that_fails.py"
    file.write_text("1 / 0\n")
    with errors.expect_user_error(errors.INVALID, where="MODEL=", names="ZeroDivisionError"):
        make_model(file)
