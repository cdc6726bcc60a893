"""Layers with our FP8 kernels, compiled for GPUs that are not here."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax", "t5x.utils")

from rosetta.plan import step_kernels
from tests.support import fp8_kernel_runs


class Layer(NamedTuple):
    """A layer of tests/support/fp8_kernel_gradients.py.

    Attributes:
        name: Its name.
        kernel: The start of its kernels' names.
        kernels: The number of its kernels.
        products: The number of its FP8 products.
    """

    name: str
    kernel: str
    kernels: int
    products: int


LAYERS = (
    Layer("mlp", "geglu", 2, 6),
    Layer("biased mlp", "gelu", 2, 6),
    Layer("joined", "join_gradients", 1, 3),
)
CASES = [(layer, gpu) for layer in LAYERS for gpu in ("h100", "h200", "b200")]
CASES += [(LAYERS[0], gpu) for gpu in ("l4", "rtx-pro-6000")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0].name} {case[1]}")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A layer, what XLA makes of it for a GPU, and the folder of its PTX."""
    layer, gpu = request.param
    folder = tmp_path_factory.mktemp("ptx")
    return layer, fp8_kernel_runs.compile_layer(layer.name, gpu, folder), folder


def test_compiled_steps(compiled: Any) -> None:
    """A step has the kernels and FP8 products only, and gathers no more than without them."""
    layer, steps, _folder = compiled
    assert set(steps) == {"data", "fsdp", "tensor parallel"}
    assert steps["fsdp"]["plain"]["gathers"]
    for step in steps.values():
        calls = dict(step["fused"]["calls"])
        assert sum(calls.pop(target, 0) for target in step_kernels.PALLAS_CALLS) == layer.kernels
        assert calls == {"__cublas$lt$matmul$f8": layer.products}
        assert step["fused"]["has cubin"]
        assert step["fused"]["gathers"] == step["plain"]["gathers"]


def test_no_spills(compiled: Any) -> None:
    """The kernels need no memory for registers that do not fit."""
    layer, _steps, folder = compiled
    fp8_kernel_runs.assert_no_spills(folder, layer.kernel, layer.kernels)
