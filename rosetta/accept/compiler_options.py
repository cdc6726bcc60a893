"""The XLA flags of training for functions that are timed, and a check of their FP8 products."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from rosetta.accept.records import Check, Number
from rosetta.core import gpus, xla_flags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.accept.setup import Setup

BF16, FP8_XLA, FP8_TE = "bf16", "fp8-xla", "fp8-te"
# What FP8 needs of XLA on one device. It is used where presets cannot be read: without PyYAML.
PLAIN_FLAGS: Mapping[str, Mapping[str, Any]] = {
    FP8_XLA: {"xla_gpu_enable_triton_gemm": False},
}
FP8_PRODUCT = "__cublas$lt$matmul$f8"


@functools.cache
def resolve_options(setup: Setup, precision: str) -> Mapping[str, Any]:
    """Return the XLA flags of training T5-large that this jaxlib has, flag without dashes -> value.

    Args:
        setup: What to measure. A CPU needs no flags.
        precision: A precision of presets.
    """
    if not setup.on_gpu:
        return {}
    if importlib.util.find_spec("yaml") is None:
        return _drop_unknown_flags(PLAIN_FLAGS.get(precision, {}))
    # rosetta.presets needs PyYAML.
    launch_flags = importlib.import_module("rosetta.presets.launch_flags")
    gpu = gpus.find_similar_gpu(setup.machine.gpu, setup.capability)
    accelerator = gpu.short_name if gpu else None
    flags = launch_flags.resolve_default_flags(
        "t5x", "large", precision=precision, accelerator=accelerator
    )
    return _drop_unknown_flags(flags)


def _drop_unknown_flags(flags: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the flags that the XLA of this Python takes. XLA would refuse the whole program."""
    known = dict(flags)
    while known:
        try:
            refused = xla_flags.find_refused_flag(xla_flags.format_flags(known), sys.executable)
        except LookupError:  # JAX is only found with variables of this process
            break
        if refused is None or known.pop(refused.name, None) is None:
            break
    return known


def check_fp8_products(
    setup: Setup, name: str, text: str
) -> tuple[tuple[Number, ...], tuple[Check, ...]]:
    """Return how many products of a program are in FP8, and a check that there is one.

    Args:
        setup: What to measure. On a CPU, FP8 is emulated, and there is nothing to check.
        name: The name of the program.
        text: The optimised module.
    """
    if not setup.on_gpu:
        return (), ()
    count = text.count(f'"{FP8_PRODUCT}"')
    return (
        (Number(f"{name}, products of cuBLASLt in FP8", count, ""),),
        (Check(f"{name} without a product of cuBLASLt in FP8 (programs)", float(not count), 0.0),),
    )
