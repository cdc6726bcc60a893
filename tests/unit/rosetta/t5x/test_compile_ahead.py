from __future__ import annotations

import types
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax")

import jax

from rosetta.t5x import compile_ahead

STATE = {"w": jax.ShapeDtypeStruct((3,), "float32")}
BATCH = {"x": jax.ShapeDtypeStruct((2, 3), "int32")}
MODEL = object()


class FakeTrainer:
    made: list[dict[str, Any]]
    closed = 0
    fails = False

    def __init__(self, **arguments: Any) -> None:
        FakeTrainer.made.append(arguments)
        self._partitioned_train_step = "the step"

    def close(self) -> None:
        FakeTrainer.closed += 1


def compiled(step: str, state: Any, batch: Any) -> tuple[Any, ...]:
    if FakeTrainer.fails:
        raise RuntimeError("does not compile")
    return step, state, batch


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("made", []), ("closed", 0), ("fails", False)):
        monkeypatch.setattr(FakeTrainer, name, value, raising=False)
    monkeypatch.setattr(compile_ahead, "_jobs", [])


def begin(seed: int | None = 0) -> None:
    compile_ahead.start_compilation(
        FakeTrainer,
        model=MODEL,
        state=STATE,
        axes="axes",
        partitioner=types.SimpleNamespace(compile=compiled),
        shapes={"x": (2, 3)},
        types={"x": "int32"},
        seed=seed,
    )


def take(model: Any = MODEL, state: Any = None, batch: Any = None, seed: int = 0) -> Any:
    return compile_ahead.take_compiled_step(
        model=model,
        state=state or STATE,
        batch=batch or BATCH,
        key=compile_ahead.derive_trainer_key(seed),
    )


def test_the_compiled_step_is_returned_once() -> None:
    begin()
    step, state, batch = take()
    assert (step, state) == ("the step", STATE)
    assert batch == BATCH
    assert take() is None
    assert FakeTrainer.made[0]["train_state_axes"] == "axes"
    assert FakeTrainer.closed == 1


def test_the_key_is_that_of_t5xs_trainer() -> None:
    _, second = jax.random.split(jax.random.PRNGKey(5), 2)
    assert (compile_ahead.derive_trainer_key(5) == second).all()


@pytest.mark.parametrize(
    "other",
    [
        {"model": object()},
        {"seed": 1},
        {"state": {"w": jax.ShapeDtypeStruct((4,), "float32")}},
        {"batch": {"x": jax.ShapeDtypeStruct((2, 3), "float32")}},
        {"batch": {"y": jax.ShapeDtypeStruct((2, 3), "int32")}},
    ],
    ids=["model", "seed", "state", "rows", "feature"],
)
def test_another_run_compiles_again_and_logs_it(
    other: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    begin()
    assert take(**other) is None
    assert "compiled again" in capsys.readouterr().err


def test_a_step_that_does_not_compile_is_left_to_the_trainer() -> None:
    FakeTrainer.fails = True
    begin()
    assert take() is None
    assert FakeTrainer.closed == 1


def test_without_a_seed_nothing_is_compiled_ahead() -> None:
    begin(seed=None)
    assert not FakeTrainer.made
    assert take() is None
