from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support import required_modules

required_modules.need_modules("paxml")

import jax
from paxml import programs as upstream

from rosetta.core import gpus
from rosetta.health import progress
from rosetta.health.supervision import RunStopped
from rosetta.pax import programs
from rosetta.pax.run import flops


class Source:
    """An input of batches of 8 rows of 16 tokens."""

    name = "train"

    def get_next_padded(self) -> dict[str, Any]:
        return {"ids": np.zeros((8, 16), np.int32)}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> programs.TrainProgram:
    """A program whose steps are upstream's in nothing: step n gives the loss n + 1 and takes no time."""

    def run(self: Any, state: Any, step: int) -> Any:
        self._train_input.get_next_padded()
        self.train_step(step)
        return SimpleNamespace(
            state=state, loss=jax.numpy.float32(step + 1), new_train_step=step + 1
        )

    def train_step(_: Any, step: int) -> Any:
        summaries = {
            "learning/lr_aggregate_scalar": jax.numpy.float32(step / 100),
            "learning/raw_grad_norm_aggregate_scalar": jax.numpy.array([step, step + 2.0]),
            "learning/is_valid_step_scalar": jax.numpy.float32(1),
        }
        return step + 1, None, SimpleNamespace(summary_tensors=summaries)

    def setup(self: Any, task: Any, train_input: Any, partitioner: Any, _: Any) -> None:
        self._task, self._train_input, self._partitioner = task, train_input, partitioner
        self._train_unpadded_global_batch_size = 8
        self._train_summary_writer = None

    monkeypatch.setattr(upstream.SingleTaskTrainProgram, "run", run)
    monkeypatch.setattr(upstream.SingleTaskTrainProgram, "train_step", train_step)
    monkeypatch.setattr(upstream.SingleTaskTrainProgram, "setup", setup)
    monkeypatch.setattr(upstream.SingleTaskTrainProgram, "shutdown", lambda _: None)
    monkeypatch.setattr(programs.TrainProgram, "_write_scalars", lambda *_: None)
    monkeypatch.setattr(
        flops, "read_model_sizes", lambda _: flops.ModelSizes(2, 8, 32, 2, 2, 4, 2, 10)
    )
    made = programs.TrainProgram()
    task = SimpleNamespace(
        train=SimpleNamespace(num_train_steps=13, summary_interval_steps=5),
        model=SimpleNamespace(fprop_dtype=jax.numpy.bfloat16),
    )
    made.setup(task, Source(), SimpleNamespace(global_mesh=None), tmp_path)
    return made


def _train_steps(program: programs.TrainProgram, first: int, last: int) -> None:
    for step in range(first, last):
        program.run(SimpleNamespace(mdl_vars={"params": {}}), step)
    program.shutdown()


def _read_progress(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]


def test_each_period_and_the_end_have_a_report(
    program: programs.TrainProgram, tmp_path: Path
) -> None:
    _train_steps(program, 0, 13)
    assert [(line["step"], line["total"], line["loss"]) for line in _read_progress(tmp_path)] == [
        (5, 13, 3.0),
        (10, 13, 8.0),
        (13, 13, 12.0),
    ]
    assert all(0 <= line["input_wait"] <= 1 for line in _read_progress(tmp_path))


def test_learning_rate_and_gradient_norm_are_means(
    program: programs.TrainProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _train_steps(program, 0, 10)
    lines = [(line["learning_rate"], line["gradient_norm"]) for line in _read_progress(tmp_path)]
    assert lines == [(pytest.approx(0.02), 3.0), (pytest.approx(0.07), 8.0)]
    assert "rate 0.02  gradient 3 " in capsys.readouterr().err


def test_several_optimizers_report_the_main_rate_and_the_norm_of_all_gradients(
    program: programs.TrainProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The names are those of Paxml's MultiOptimizerLearner with apply_separate_scaling.
    values = {
        "lr_main": 0.25,
        "lr_bias": 0.5,
        "main/raw_grad_norm": 3.0,
        "bias/raw_grad_norm": 4.0,
        "applied_grad_norm": 7.0,
    }
    summaries = {
        f"learning/{name}_aggregate_scalar": jax.numpy.float32(value)
        for name, value in values.items()
    }

    def train_step(_: Any, step: int) -> Any:
        return step + 1, None, SimpleNamespace(summary_tensors=summaries)

    monkeypatch.setattr(upstream.SingleTaskTrainProgram, "train_step", train_step)
    _train_steps(program, 0, 10)
    lines = [(line["learning_rate"], line["gradient_norm"]) for line in _read_progress(tmp_path)]
    assert lines == [(0.25, 5.0), (0.25, 5.0)]


def test_a_resumed_run_keeps_to_the_periods(program: programs.TrainProgram, tmp_path: Path) -> None:
    _train_steps(program, 8, 13)
    assert [(line["step"], line["loss"]) for line in _read_progress(tmp_path)] == [
        (10, 9.5),
        (13, 12.0),
    ]


def test_the_step_that_compiles_is_in_the_loss_and_in_no_rate(
    program: programs.TrainProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    report = progress.make_report

    def noted(work: Any, step: int, total: Any, steps: int, *more: Any) -> Any:
        seen.append((step, steps))
        return report(work, step, total, steps, *more)

    monkeypatch.setattr(progress, "make_report", noted)
    _train_steps(program, 0, 13)
    assert seen == [(5, 4), (10, 5), (13, 3)]


def test_tokens_are_those_of_the_global_batch(
    program: programs.TrainProgram, tmp_path: Path
) -> None:
    _train_steps(program, 0, 5)
    (line,) = _read_progress(tmp_path)
    assert line["tokens_per_second"] == pytest.approx(8 * 16 * line["steps_per_second"])


@pytest.mark.parametrize(
    ("collection", "kind"), [("params", "bfloat16"), ("_overwrite_with_gradient", "fp8")]
)
def test_the_peak_is_that_of_the_precision_in_use(
    program: programs.TrainProgram, monkeypatch: pytest.MonkeyPatch, collection: str, kind: str
) -> None:
    asked = []
    monkeypatch.setattr(gpus, "find_peak_flops", lambda _, dtype: asked.append(dtype))
    program.run(None, 0)
    work = program._describe_work(SimpleNamespace(mdl_vars={collection: {}}))
    assert asked == [kind]
    assert (work.tokens, work.flops) == (
        128,
        flops.count_training_flops(flops.read_model_sizes(None), 16, 8),
    )


def test_errors_of_reports_do_not_end_the_training(
    program: programs.TrainProgram,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "make_report", lambda *_: 1 / 0)
    _train_steps(program, 0, 13)
    assert "rosetta: progress: ZeroDivisionError" in capsys.readouterr().err


def test_a_timed_input_returns_the_same_batches() -> None:
    timed = programs.TimedInput(Source())
    timed.get_next_padded()
    assert (timed.name, timed.shape) == ("train", (8, 16))
    assert timed.waited > 0


def test_an_evaluation_has_loss_and_accuracy_first() -> None:
    assert programs.make_evaluation_record(
        7, "BoolQ", {"boolq_acc": 0.5, "avg_xent": 2.0, "num_predictions": 3.0}
    ) == {
        "step": 7,
        "data": "BoolQ",
        "loss": 2.0,
        "accuracy": 0.5,
        "boolq_acc": 0.5,
        "avg_xent": 2.0,
        "num_predictions": 3.0,
    }
    assert "accuracy" not in programs.make_evaluation_record(7, "Pile", {"avg_xent": 2.0})


def test_values_for_each_example_keep_their_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    from paxml import trainer_lib
    from praxis import py_utils

    mesh = jax.sharding.Mesh(jax.devices()[:1], ("data",))
    labels = jax.device_put(
        np.ones((4, 3)), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    )
    step = trainer_lib.StepFnOutput(
        loss=None,
        weighted_scalars={},
        per_example_out=py_utils.NestedMap(labels=labels),
        summary_tensors={},
    )
    monkeypatch.setattr(upstream.SingleTaskEvalProgram, "eval_step", lambda *_, **__: step)
    found = programs.EvalProgram(None).eval_step(None)
    assert py_utils.maybe_unreplicate_for_fully_replicated(found).per_example_out.labels.shape == (
        4,
        3,
    )


def test_a_stopped_run_ends_as_after_its_last_step(
    program: programs.TrainProgram,
) -> None:
    assert program.should_run(None, 3)
    program._supervisor._stop_barrier.request("SIGTERM")
    assert not program.should_run(None, 4)
    assert program._supervisor.ending is not None
    assert program._supervisor.ending.step == 4
    program.shutdown()


def test_a_bad_loss_ends_the_run_without_a_checkpoint(program: programs.TrainProgram) -> None:
    program._supervisor.track_step(3, lambda: float("nan"))
    program._supervisor.step_tracker.wait_for_all()
    with pytest.raises(RunStopped):
        program.should_run(None, 4)
    with pytest.raises(RunStopped):
        program._supervisor.before_checkpoint(4, lambda: True)
    program.shutdown()
