"""The XLA flags of the functions that `rosetta accept` times."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from rosetta.accept import compiler_options
from rosetta.accept.setup import Machine, Setup
from rosetta.core import xla_flags
from rosetta.presets import launch_flags

SETUP = Setup(
    Machine("NVIDIA H200", "gpu", "9.0", 1, "", "", ""),
    tiny=False,
    plans=(),
    jobs=1,
    dumps_autotuning=False,
)
TRITON = "xla_gpu_enable_triton_gemm"


@pytest.fixture(autouse=True)
def forget_options(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler_options.resolve_options.cache_clear()
    monkeypatch.setattr(xla_flags, "find_refused_flag", lambda *_: None)


def test_fp8_is_compiled_as_in_training() -> None:
    options = compiler_options.resolve_options(SETUP, compiler_options.FP8_XLA)
    assert options == launch_flags.resolve_default_flags(
        "t5x", "large", precision="fp8-xla", accelerator="h200"
    )
    assert options[TRITON] is False
    assert TRITON not in compiler_options.resolve_options(SETUP, compiler_options.BF16)


def test_jax_alone_has_the_flag_of_the_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    presets = compiler_options.resolve_options(SETUP, compiler_options.FP8_XLA)
    compiler_options.resolve_options.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    plain = compiler_options.resolve_options(SETUP, compiler_options.FP8_XLA)
    assert plain[TRITON] is False
    assert plain.items() <= presets.items()


def test_a_flag_that_xla_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(flags: list[str], _: str) -> Any:
        if any(TRITON in flag for flag in flags):
            return xla_flags.RefusedFlag(TRITON, "", "")
        return None

    monkeypatch.setattr(xla_flags, "find_refused_flag", refuse)
    options = compiler_options.resolve_options(SETUP, compiler_options.FP8_XLA)
    assert TRITON not in options
    assert options


@pytest.mark.parametrize(
    ("text", "count"),
    [
        pytest.param('custom_call_target="__cublas$lt$matmul$f8"', 1, id="fp8"),
        pytest.param('custom_call_target="__cublas$lt$matmul"', 0, id="bf16"),
        pytest.param('backend_config={"kind":"__triton_gemm"}', 0, id="triton"),
    ],
)
def test_a_product_that_is_not_in_fp8_fails_the_check(text: str, count: int) -> None:
    (number,), (check,) = compiler_options.check_fp8_products(SETUP, "fp8", text)
    assert number.value == count
    assert check.ok is bool(count)
