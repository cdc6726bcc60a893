"""Muon moves each kernel as one matrix, whatever its dimensions, and leaves the rest to AdamW."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, required_modules

required_modules.need_modules("jax", "flax", "optax", "t5x.utils")

import jax
import numpy as np
import optax
from flax import traverse_util
from jax.sharding import PartitionSpec

from rosetta.t5x import muon

RATES = [1e-3, 2e-2, 5e-3]
BETA, DECAY = 0.95, 0.1
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Jordan's Newton-Schulz iteration
# A name, the names of the dimensions, the shape, and how it becomes matrices [count, rows,
# columns]: the order of the dimensions, and the shape after that. None: AdamW.
PARAMETERS: dict[str, Any] = {
    "mlp/kernel": (("embed", "mlp"), (4, 6), ((0, 1), (1, 4, 6))),
    "query/kernel": (("embed", "heads", "kv"), (4, 2, 3), ((0, 1, 2), (1, 4, 6))),
    "out/kernel": (("heads", "kv", "embed"), (2, 3, 4), ((0, 1, 2), (1, 6, 4))),
    "scanned_query/kernel": (
        ("embed", "layers", "heads", "kv"),
        (4, 3, 2, 2),
        ((1, 0, 2, 3), (3, 4, 4)),
    ),
    "scanned_out/kernel": (
        ("heads", "layers", "kv", "embed"),
        (2, 3, 2, 5),
        ((1, 0, 2, 3), (3, 4, 5)),
    ),
    "logits/kernel": (("embed", "vocab"), (4, 5), None),
    "three/kernel": (("mlp", "heads", "kv"), (2, 2, 2), None),
    "token_embedder/embedding": (("vocab", "embed"), (5, 4), None),
    "relative/rel_embedding": (("heads", "relpos_buckets"), (2, 3), None),
    "norm/scale": (("embed",), (4,), None),
    "scanned_norm/scale": (("embed", "layers"), (4, 3), None),
    "dense/bias": (("mlp",), (6,), None),
}


def _nest(values: dict[str, Any]) -> Any:
    return traverse_util.unflatten_dict(values, sep="/")


def _draw(seed: int) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    return {
        name: drawn.normal(size=shape).astype(np.float32)
        for name, (_, shape, _) in PARAMETERS.items()
    }


def _orthogonalize(matrix: np.ndarray) -> np.ndarray:
    """Five steps of the iteration, on the matrix with at most as many rows as columns."""
    if matrix.shape[0] > matrix.shape[1]:
        return _orthogonalize(matrix.T).T
    matrix = matrix / (np.linalg.norm(matrix) + 1e-8)
    first, third, fifth = COEFFICIENTS
    for _ in range(5):
        gram = matrix @ matrix.T
        matrix = first * matrix + (third * gram + fifth * gram @ gram) @ matrix
    return matrix


def _compute_update(name: str, first: Any, second: Any, grad: Any, step: int) -> Any:
    """One update for a rate of 1, before the weight decay, from the moments of the step."""
    layout = PARAMETERS[name][2]
    decay = 0.9 if layout is None else BETA
    # Nesterov's momentum looks one step ahead.
    momentum = decay * first / (1 - decay ** (step + 1)) + (1 - decay) * grad / (1 - decay**step)
    if layout is None:
        return momentum / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    order, shape = layout
    turned = momentum.transpose(order)
    matrices = [_orthogonalize(matrix) for matrix in turned.reshape(shape)]
    moved = np.stack(matrices).reshape(turned.shape).transpose(np.argsort(order))
    return 0.2 * np.sqrt(max(shape[1:])) * moved


def _train_in_numpy(start: dict[str, Any], gradients: list[dict[str, Any]]) -> dict[str, Any]:
    params = {name: value.astype(np.float64) for name, value in start.items()}
    first = {name: np.zeros_like(value) for name, value in params.items()}
    second = {name: np.zeros_like(value) for name, value in params.items()}
    for step, (grads, rate) in enumerate(zip(gradients, RATES, strict=True), 1):
        norm = np.sqrt(sum((grad.astype(np.float64) ** 2).sum() for grad in grads.values()))
        for name, value in grads.items():
            grad = value.astype(np.float64) / max(norm, 1.0)
            decay = 0.9 if PARAMETERS[name][2] is None else BETA
            first[name] = decay * first[name] + (1 - decay) * grad
            second[name] = 0.999 * second[name] + 0.001 * grad**2
            update = _compute_update(name, first[name], second[name], grad, step)
            params[name] = params[name] - rate * (update + DECAY * params[name])
    return params


def _make_optimizer() -> Any:
    made = muon.muon(weight_decay=DECAY)
    made.set_param_axes(
        _nest({name: PartitionSpec(*axes) for name, (axes, _, _) in PARAMETERS.items()})
    )
    return made


def test_updates_are_those_of_a_reference() -> None:
    start, gradients = _draw(0), [_draw(1), _draw(2), _draw(3)]
    target = _make_optimizer().create(_nest(start))
    for grads, rate in zip(gradients, RATES, strict=True):
        target = target.apply_gradient(_nest(grads), learning_rate=rate)
    trained = traverse_util.flatten_dict(target.target, sep="/")
    for name, expected in _train_in_numpy(start, gradients).items():
        np.testing.assert_allclose(trained[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_state_has_one_moment_of_matrices_and_the_layout_of_the_parameters() -> None:
    made = _make_optimizer()
    state = made.create(_nest(_draw(0)))
    axes = _nest({name: PartitionSpec(*names) for name, (names, _, _) in PARAMETERS.items()})
    layout = traverse_util.flatten_dict(made.derive_logical_axes(state, axes).state_dict(), sep="/")
    for name, (names, _, matrix) in PARAMETERS.items():
        arrays = {key: spec for key, spec in layout.items() if key.endswith(f"/{name}")}
        states = {key: spec for key, spec in arrays.items() if key.startswith("state/")}
        assert len(states) == (2 if matrix is None else 1), name
        assert set(states.values()) == {PartitionSpec(*names)}


def test_the_state_survives_a_checkpoint() -> None:
    made = _make_optimizer()
    before = made.create(_nest(_draw(0))).apply_gradient(_nest(_draw(1)), learning_rate=0.1)
    saved = jax.tree.map(np.asarray, before.state_dict())
    after = made.create(_nest(_draw(5))).restore_state(saved)
    jax.tree.map(np.testing.assert_array_equal, before.state_dict(), after.state_dict())
    jax.tree.map(
        np.testing.assert_array_equal,
        before.apply_gradient(_nest(_draw(2)), learning_rate=0.1).target,
        after.apply_gradient(_nest(_draw(2)), learning_rate=0.1).target,
    )


def test_without_names_of_dimensions_nothing_is_guessed() -> None:
    with pytest.raises(ValueError, match="set_param_axes"):
        muon.muon().create(_nest(_draw(0)))


def test_an_optax_without_muon_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(optax.contrib, "MuonDimensionNumbers")
    with errors.expect_user_error(
        errors.UNSUPPORTED, where="OPTIMIZER=muon", value=optax.__version__, remedy="adamw"
    ):
        muon.muon()
