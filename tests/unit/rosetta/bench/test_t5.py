from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rosetta.commands import bench

jax = pytest.importorskip("jax", reason="NOT CHECKED: needs the packages of a baked environment")
pytest.importorskip("flax", reason="NOT CHECKED: needs the packages of a baked environment")

from jax.experimental.compilation_cache import compilation_cache

from rosetta.bench import modes, t5
from rosetta.presets import t5x_model_options
from rosetta.t5x.run.model_config import T5Config
from tests.support import errors

ROOT = Path(__file__).parents[4]
TASK = t5.Task("tiny", batch=2, inputs=8, targets=4, steps=1, turns=2)


@pytest.fixture(scope="module", autouse=True)
def _smaller() -> Any:
    real = modes.read_size_fields
    narrow = {
        "vocab_size": 64,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "emb_dim": 16,
        "mlp_dim": 16,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modes, "read_size_fields", lambda name: real(name) | narrow)
        yield


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """The result of a benchmark, with the lines that it logged and its candidates."""
    lines: list[str] = []
    candidates: list[t5.Candidate] = []
    fresh: list[bool] = []
    real = t5.Candidate

    def make(*args: Any) -> t5.Candidate:
        candidates.append(real(*args))
        fresh.append(not any(np.any(leaf) for leaf in _histories(candidates[-1].fp8_state)))
        return candidates[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(t5, "Candidate", make)
        measured = t5.run_benchmark(
            TASK, ["f32", "f32+fp8+fused", "cudnn"], skip=True, say=lines.append
        )
    return measured | {"lines": lines, "candidates": candidates, "fresh": fresh}


def test_every_mode_is_measured_against_the_first(result: dict[str, Any]) -> None:
    first, second = result["modes"]
    assert (first["mode"], first["ratio"]) == ("f32", 1.0)
    pairs = [b / a for a, b in zip(first["samples"], second["samples"], strict=True)]
    assert second["ratio"] == pytest.approx(sum(pairs) / 2)  # the median of two
    assert first["sequences_per_second"] == pytest.approx(2 / first["seconds"])
    assert result["ok"]
    assert first["mfu"] is None  # a CPU's peak is not known


def test_the_modes_train_one_state(result: dict[str, Any]) -> None:
    counts = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(result["candidates"][0].shared.state)
        if getattr(path[-1], "name", "") == "count"
    ]
    assert [int(count) for count in counts] == [
        6
    ]  # two modes, a step each to warm up and in each of two turns


def test_what_the_device_cannot_do_is_said_or_refused(result: dict[str, Any]) -> None:
    assert "cudnn is left out: cuDNN needs a GPU" in result["lines"]
    with errors.expect_user_error(
        errors.UNSUPPORTED, where="bench t5 --modes cudnn", names=("cuDNN", "GPU")
    ):
        t5.run_benchmark(TASK, ["cudnn"], skip=False, say=print)


def test_the_table_names_each_mode(result: dict[str, Any]) -> None:
    text = bench.format_table(result)
    assert "f32+fp8+fused" in text
    assert "No MFU" in text


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.")

    monkeypatch.setattr(t5, "Candidate", full)
    with errors.expect_user_error(errors.TOO_BIG, where="bench t5 --batch 2", names="f32"):
        t5.run_benchmark(TASK, ["f32"], skip=False, say=print)


def test_another_failure_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: no such kernel")

    monkeypatch.setattr(t5, "Candidate", broken)
    with pytest.raises(jax.errors.JaxRuntimeError):
        t5.run_benchmark(TASK, ["f32"], skip=False, say=print)


def test_a_loss_that_is_no_number_fails_and_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t5, "compute_mean_loss", lambda *_: jax.numpy.float32(float("nan")))
    measured = t5.run_benchmark(TASK, ["f32"], skip=False, say=print)
    assert not measured["ok"]
    json.dumps(measured, allow_nan=False)
    assert (
        bench.format_table(measured).splitlines()[-1]
        == "The loss is not finite in f32; all modes train one state."
    )


def test_on_a_gpu_the_options_are_the_trainers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    run = t5.SharedState(TASK, T5Config(**modes.read_size_fields("tiny")))
    run.place.platform = "gpu"

    def options(fp8: str, size: str, accelerator: str | None) -> dict[str, Any]:
        seen.append((fp8, size, accelerator))
        return {}

    monkeypatch.setattr(t5x_model_options, "resolve_xla_flags", options)
    for name in ("f32", "f32+fp8"):
        mode = modes.parse_mode(name)
        t5.Candidate(mode, T5Config(**modes.read_size_fields("tiny") | mode.fields), run)
    assert seen == [("off", "tiny", None), ("xla", "tiny", None)]


def test_a_step_that_was_compiled_ahead_comes_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    real = t5._compile_step

    def compile_step(*arguments: Any) -> Any:
        events.clear()
        compiled = real(*arguments)
        events[:] = [event for event in events if event.endswith(("cache_hits", "cache_misses"))]
        return compiled

    monkeypatch.setattr(t5, "_compile_step", compile_step)
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        mode = modes.parse_mode("f32+fp8")
        t5.compile_mode(TASK, mode)
        assert events == ["/jax/compilation_cache/cache_misses"]
        fields = t5.read_model_fields(TASK)
        shared = t5.SharedState(TASK, T5Config(**fields))
        t5.Candidate(mode, T5Config(**fields | mode.fields), shared)
        assert events == ["/jax/compilation_cache/cache_hits"]
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def test_the_layers_of_a_task_replace_those_of_the_size() -> None:
    fields = t5.read_model_fields(dataclasses.replace(TASK, layers=3))
    assert (fields["num_encoder_layers"], fields["num_decoder_layers"]) == (3, 3)
    assert t5.read_model_fields(TASK)["num_encoder_layers"] == 1


def test_fp8_state_belongs_to_its_mode_and_moves_on(result: dict[str, Any]) -> None:
    plain, fp8 = result["candidates"]
    assert result["fresh"] == [True, True]
    assert not plain.fp8_state
    assert len(_histories(fp8.fp8_state)) > 10
    assert all(np.any(leaf) for leaf in _histories(fp8.fp8_state))
    assert fp8.estimate_peak_bytes() > 0


def _histories(own: Any) -> list[Any]:
    leaves = jax.tree_util.tree_leaves_with_path(own)
    return [leaf for path, leaf in leaves if path[-1].key == "input_amax_history"]


def test_loss_in_slices_is_the_same_loss() -> None:
    config = T5Config(**modes.read_size_fields("tiny"), dropout_rate=0.0)
    batch = t5.make_random_batch(TASK, config.vocab_size)

    def both(key: Any) -> tuple[Any, Any]:
        variables = {"params": t5._initialize_variables(config, key, batch)["params"]}
        sliced = dataclasses.replace(config, loss_chunks=3)
        return t5.compute_mean_loss(config, variables, batch, key), t5.compute_mean_loss(
            sliced, variables, batch, key
        )

    whole, sliced = jax.jit(both)(jax.random.key(1))
    assert float(whole) == pytest.approx(float(sliced), rel=1e-5)


def test_the_kernel_of_the_mlp_on_several_devices() -> None:
    """Each device runs the kernels on its part of the batch."""
    script = """
from unittest import mock
from rosetta.bench import modes, t5
from rosetta.nn import mlp_kernels

task = t5.Task("tiny", batch=8, inputs=8, targets=4, devices=2, layers=1)
fields = {"dtype": "float32", "fp8": "xla", "fuse_qkv": True, "fused_geglu": True}
narrow = modes.read_size_fields("tiny") | {"vocab_size": 64, "emb_dim": 16, "mlp_dim": 16}
modes.read_size_fields = lambda name: narrow
with mock.patch.object(
    mlp_kernels, "differentiate_unit", wraps=mlp_kernels.differentiate_unit
) as kernel:
    t5.compile_mode(task, modes.Mode("interpreted", fields))
print([call.args[1].shape for call in kernel.call_args_list])
"""
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # The tokens of half a batch: four sequences, of the decoder (4 tokens) and the encoder (8).
    assert done.stdout.splitlines()[-1] == "[(16, 2, 16), (32, 2, 16)]"


def test_batches_and_devices_that_do_not_fit_are_refused() -> None:
    config = T5Config(**modes.read_size_fields("tiny"))
    with errors.expect_user_error(errors.TOO_BIG, where="bench t5 --devices", value=999):
        t5.SharedState(dataclasses.replace(TASK, devices=999), config)
    if len(jax.devices()) > 1:
        with errors.expect_user_error(
            errors.INVALID, where="bench t5 --batch", value=3, remedy="2"
        ):
            t5.SharedState(dataclasses.replace(TASK, devices=2, batch=3), config)


def test_the_batch_is_shifted_targets_and_the_same_each_time() -> None:
    batch, again = t5.make_random_batch(TASK, 64), t5.make_random_batch(TASK, 64)
    assert {name: array.tolist() for name, array in batch.items()} == {
        name: array.tolist() for name, array in again.items()
    }
    assert (
        batch["decoder_input_tokens"][:, 1:].tolist()
        == batch["decoder_target_tokens"][:, :-1].tolist()
    )
    assert not batch["decoder_input_tokens"][:, 0].any()
