"""GPT, LLaMA and GLaM through Transformer Engine up to its interface, by the stand-in of tests/unit/rosetta/nn/test_transformer_engine.py. None of its kernels runs here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_current("jax", "flax", "praxis", "paxml")

import numpy as np

from tests.support import pax_training
from tests.unit.rosetta.nn.test_transformer_engine import engine  # noqa: F401 (a fixture)

SHAPES = {
    "gpt": (64, 3, 64),
    "llama": (64, 3, 64),
    "gqa": (64, 32),
    "glam": (64, 64),
}  # of a kernel of queries, with keys and values where they are in one


@pytest.fixture
def axes() -> set[str]:
    """Those of the mesh, for the stand-in."""
    return {"replica", "data", "mdl"}


def _compute_gradients(family: str, start: Any = None, **switches: Any) -> tuple[Any, Any, Any]:
    """A step's loss, the parameters before it, and the run."""
    run = pax_training.Run(
        pax_training.make_experiment(
            family,
            **{"NUM_LAYERS": 2, "USE_REPEATED_LAYER": True, "FPROP_DTYPE": "bfloat16", **switches},
        ),
        start=start,
    )
    start = run.params
    return run.steps(1)[0], start, run


@pytest.mark.parametrize("family", SHAPES)
def test_fp8_of_transformer_engine_equals_xlas(engine: Any, family: str) -> None:  # noqa: F811
    expected, start, by_xla = _compute_gradients(family, USE_FP8=True)
    found, _, by_te = _compute_gradients(
        family, start, ENABLE_TE=True, ENABLE_FP8=True, ATTENTION="xla"
    )
    assert SHAPES[family] in engine
    assert {"dp_resource": "replica", "fsdp_resource": "data", "tp_resource": "mdl"} in engine
    assert abs(found / expected - 1) < 1e-3
    assert by_te.fp8.keys() == by_xla.fp8.keys()  # a checkpoint does not know who computed
    for name, leaf in by_te.fp8.items():
        np.testing.assert_allclose(leaf, by_xla.fp8[name], rtol=0.02, err_msg=name)


@pytest.mark.parametrize(
    ("family", "packed"), [("gpt", False), ("gpt", True), ("gqa", False), ("glam", False)]
)
def test_attention_of_transformer_engine_equals_xlas(
    engine: Any,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    family: str,
    packed: bool,
) -> None:
    how = {"PACKED_INPUT": packed}
    expected, start, _ = _compute_gradients(family, **how)
    found, _, _ = _compute_gradients(family, start, ENABLE_TE=True, **how)
    assert abs(found / expected - 1) < 1e-3
    kept = (
        "packed examples" if packed else "an extra logit" if family == "glam" else ""
    )  # what XLA does instead, and says
    assert (
        f"attention by XLA instead of Transformer Engine: {kept}" in capsys.readouterr().err
    ) == bool(kept)
    assert (
        {"dp_resource": "replica", "fsdp_resource": "data", "tp_resource": "mdl"} in engine
    ) != bool(kept)
