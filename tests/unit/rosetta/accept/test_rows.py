"""The rows of `rosetta accept` with tiny shapes on the CPU, and faults that they have to find."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="NOT CHECKED: needs the packages of a baked environment")
pytest.importorskip("flax", reason="NOT CHECKED: needs the packages of a baked environment")

import jax.numpy as jnp

from rosetta.accept import attention, kernels, products, saved_step
from rosetta.accept.setup import Machine, Setup
from rosetta.core import acceptance
from rosetta.nn import attention as nn_attention
from rosetta.nn import fp8, gradient_kernels, loss, mlp_kernels

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[4]
SETUP = Setup(
    Machine("cpu", "cpu", "0.0", 1, "", "", ""), tiny=True, plans=(), jobs=1, dumps_autotuning=False
)
# What a plain installation of JAX has.
PLAIN_PACKAGES = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "scipy")


def _find_package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _accept(python: str, folder: Path, *words: str, **variables: str) -> tuple[int, Any]:
    """Run the command in a process, and return its exit status and the file of results."""
    done = subprocess.run(
        [python, "-m", "rosetta", "accept", "--tiny", "--minutes", "60", *words],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    path = folder / acceptance.RESULT_FILE
    assert path.exists(), done.stderr
    return done.returncode, json.loads(path.read_text(encoding="utf-8"))


def _list_failures(document: Any) -> list[str]:
    return [f"{row['row']}: {row['reason']}" for row in document["rows"] if not row["ok"]]


def test_every_row_runs_on_the_cpu(tmp_path: Path) -> None:
    status, document = _accept(sys.executable, tmp_path, "--folder", str(tmp_path))
    assert status == 0, _list_failures(document)
    assert document["missing"] == []
    statuses = {row["row"]: row["status"] for row in document["rows"]}
    has_t5x = importlib.util.find_spec("t5x") is not None
    assert statuses == {
        **dict.fromkeys(("attention", "products", "kernels", "steps", "full", "saved"), "measured"),
        "te": "skipped",
        "nccl": "measured",
        "run": "measured" if has_t5x else "skipped",
    }
    for row in document["rows"]:
        for case in row["cases"]:
            if case["status"] == acceptance.MEASURED:
                assert case["numbers"] or case["checks"], case["case"]
            else:
                assert case["status"] == acceptance.SKIPPED
                assert case["reason"]
    switches = next(row for row in document["rows"] if row["row"] == "steps")["cases"][0]
    assert {"bf16", "fp8+fused"} <= {number["name"] for number in switches["numbers"]}
    assert {"schema", *(name for name in acceptance.RESULT_KEYS if "[" not in name)} == set(
        document
    )


def test_jax_alone_is_enough_for_rosetta_nn(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    venv.create(plain, symlinks=True)
    site = next(plain.glob("lib/python*/site-packages"))
    for name in PLAIN_PACKAGES:
        package = _find_package(name)
        (site / name).symlink_to(package)
        libraries = package.with_name(f"{name}.libs")
        if libraries.exists():
            (site / libraries.name).symlink_to(libraries)
    words = ("--only", "nn", "--folder", str(tmp_path))
    status, document = _accept(str(plain / "bin" / "python"), tmp_path, *words, PYTHONPATH="")
    assert status == 0, _list_failures(document)
    rows = {row["row"]: row for row in document["rows"]}
    assert {row["status"] for row in rows.values()} == {"measured"}
    assert list(rows) == list(acceptance.GROUPS["nn"])
    skipped = [
        case for row in rows.values() for case in row["cases"] if case["status"] == "skipped"
    ]
    assert len(skipped) == len(products.PROJECTIONS) + 4
    assert all("flax" in case["reason"] for case in skipped)


def _find_failed(measurement: Any) -> set[str]:
    return {check.name for check in measurement.checks if not check.ok}


@pytest.fixture
def shape() -> attention.Shape:
    shape = next(shape for shape in attention.SHAPES if shape.dropped)
    return replace(attention.shrink_shape(shape), padded=True)


def test_fused_attention_that_drops_nothing_is_found(
    shape: attention.Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fused(shape: attention.Shape, arguments: tuple[Any, ...]) -> Any:
        return attention.compute_fused(shape, arguments, "xla")

    assert all(check.ok for check in attention.check_against_reference(shape, fused))
    monkeypatch.setattr(nn_attention, "zero_dropped_keys", lambda value, _: value)
    checks = attention.check_against_reference(shape, fused)
    assert {check.name for check in checks if not check.ok} >= {"error of the output"}


def test_a_wrong_gradient_of_fused_attention_is_found(shape: attention.Shape) -> None:
    @jax.custom_vjp
    def wrong(x: Any) -> Any:
        return x

    wrong.defvjp(lambda x: (x, None), lambda _, gradient: (1.05 * gradient,))

    def fused(shape: attention.Shape, arguments: tuple[Any, ...]) -> Any:
        query, key, value, bias, *rest = arguments
        return attention.compute_fused(shape, (query, key, value, wrong(bias), *rest), "xla")

    checks = attention.check_against_reference(shape, fused)
    assert [check.name for check in checks if not check.ok] == ["error of the gradient of the bias"]


def test_a_wrong_fp8_projection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _find_failed(kernels.measure_fp8_projection(SETUP))
    rescale = fp8.rescale_product
    monkeypatch.setattr(
        fp8, "rescale_product", lambda product, *rest: rescale(product * 1.03, *rest)
    )
    assert len(_find_failed(kernels.measure_fp8_projection(SETUP))) == 3


@pytest.mark.parametrize("name", kernels.UNIT_SIZES)
def test_wrong_kernels_of_the_mlp_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _find_failed(kernels.measure_fused_unit(SETUP, name))
    unit = getattr(mlp_kernels, name)
    wrong_unit = replace(unit, compute=lambda *arrays: unit.compute(*arrays) * 1.1)
    monkeypatch.setattr(mlp_kernels, name, wrong_unit)
    assert _find_failed(kernels.measure_fused_unit(SETUP, name)) == {
        f"error of the {name}" for name in kernels.UNIT_NAMES[: 6 + unit.has_bias]
    }


@pytest.mark.parametrize("name", kernels.UNIT_SIZES)
def test_each_result_of_the_backward_kernel_is_compared(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    differentiate = mlp_kernels.differentiate_unit

    def spoil(*arguments: Any, **options: Any) -> Any:
        back, transposed, hidden, amaxes, *bias_sums = differentiate(*arguments, **options)
        copies = (copy[..., ::-1] for copy in (transposed, hidden))
        amaxes = amaxes.at[..., 0].multiply(0.5).at[..., -1].multiply(0.5)
        return back, *copies, amaxes, *(sums[:, ::-1] for sums in bias_sums)

    monkeypatch.setattr(mlp_kernels, "differentiate_unit", spoil)
    failed = _find_failed(kernels.measure_fused_unit(SETUP, name))
    unit = getattr(mlp_kernels, name)
    assert failed == {f"error of the {name}" for name in kernels.UNIT_NAMES[2 : 6 + unit.has_bias]}


def test_wrong_joined_gradients_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _find_failed(kernels.measure_joined_gradients(SETUP))
    join = gradient_kernels.join_gradients

    def spoil(*arguments: Any, **options: Any) -> Any:
        result, transposed, amaxes = join(*arguments, **options)
        return result[::-1], transposed[:, ::-1], amaxes.at[..., 0].multiply(0.5)

    monkeypatch.setattr(gradient_kernels, "join_gradients", spoil)
    assert _find_failed(kernels.measure_joined_gradients(SETUP)) == {
        f"error of the {name}" for name in kernels.JOINED_NAMES
    }


def test_an_fp8_product_of_another_kind_is_found() -> None:
    hopper = replace(SETUP, machine=replace(SETUP.machine, platform="gpu", capability="9.0"))
    product = products.shrink_product(products.PRODUCTS[0])
    failed = _find_failed(products.measure_product(hopper, product))
    assert [name for name in failed if "cuBLASLt" in name]
    failed = _find_failed(products.measure_projection(hopper, product))
    assert [name for name in failed if "cuBLASLt" in name]


def test_a_wrong_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    product = products.shrink_product(products.PRODUCTS[0])
    assert not _find_failed(products.measure_product(SETUP, product))
    multiply = products.multiply
    monkeypatch.setattr(products, "multiply", lambda a, b: multiply(a, b).at[0, 0].add(9.0))
    assert _find_failed(products.measure_product(SETUP, product)) == {
        "error of bf16",
        "error of fp8",
    }


def test_a_wrong_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _find_failed(kernels.measure_chunked_loss(SETUP))

    def scale_loss(*arguments: Any) -> Any:
        return jax.tree.map(lambda part: part * 1.001, loss.chunked_cross_entropy(*arguments))

    monkeypatch.setattr(
        kernels,
        "chunked_cross_entropy",
        scale_loss,
    )
    assert len(_find_failed(kernels.measure_chunked_loss(SETUP))) == 3


def test_a_gpu_without_fp8_multiplies_in_bfloat16_only() -> None:
    ampere = replace(
        SETUP, machine=replace(SETUP.machine, platform="gpu", capability="8.0"), tiny=True
    )
    product = products.shrink_product(products.PRODUCTS[0])
    measurement = products.measure_product(ampere, product)
    assert {check.name for check in measurement.checks} == {"error of bf16"}
    assert "FP8 needs" in measurement.notes[0]
    assert jnp.bfloat16 in products.list_types(ampere, product)["bf16"]


def test_a_loaded_step_that_computes_another_loss_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("optax")
    assert _find_failed(saved_step.measure_saved_step(SETUP)) == set()

    save_and_load = saved_step.save_and_load

    def load_wrong_step(compiled: Any) -> tuple[Any, int]:
        loaded, size = save_and_load(compiled)

        def run(*arguments: Any) -> Any:
            state, fp8_state, loss = loaded(*arguments)
            return state, fp8_state, loss * 1.01

        return run, size

    monkeypatch.setattr(saved_step, "save_and_load", load_wrong_step)
    assert _find_failed(saved_step.measure_saved_step(SETUP)) != set()
