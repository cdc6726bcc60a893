"""The rows `te` and `nccl`: Transformer Engine's products, and the rates between GPUs."""

from __future__ import annotations

import functools

import jax

from rosetta.accept import compiler_options, projection
from rosetta.accept.numerics import check_errors, describe_timings
from rosetta.accept.records import Check, Measurement, Number, SkipCase
from rosetta.accept.setup import Case, Setup, load_module, make_case
from rosetta.bench import bandwidth, device_timing
from rosetta.core import gpus, transformer_engine
from rosetta.selftest import all_reduce

TE_LIMIT = 0.02
_TURNS = 5


def list_te_cases(setup: Setup) -> list[Case]:
    """Return the cases of the row `te`."""
    return [make_case("fp8-projection", lambda: measure_transformer_engine(setup))]


def list_nccl_cases(setup: Setup) -> list[Case]:
    """Return the cases of the row `nccl`."""
    return [make_case("all-gpus", lambda: measure_links(setup))]


def measure_transformer_engine(setup: Setup) -> Measurement:
    """Compare an FP8 projection of Transformer Engine with that of XLA, forward and backward.

    Raises:
        SkipCase: There is no Transformer Engine, or no GPU that it runs on.
    """
    if absence := transformer_engine.explain_absence():
        raise SkipCase(f"Transformer Engine is not installed: {absence}")
    fp8 = load_module("rosetta.nn.fp8", "flax")
    if not setup.on_gpu or not setup.supports(gpus.FP8):
        raise SkipCase(gpus.FP8.requirement)
    te = load_module("rosetta.nn.transformer_engine")
    arrays = projection.make_arrays(*((32, 32, 32) if setup.tiny else (16384, 1024, 1024)))
    functions = {
        name: device_timing.DeviceFunction(
            functools.partial(projection.compute_in_fp8, module),
            [arrays],
            turn_seconds=setup.turn_seconds,
            compiler_options=compiler_options.resolve_options(setup, precision),
        )
        for name, module, precision in (
            ("XLA", fp8, compiler_options.FP8_XLA),
            ("Transformer Engine", te, compiler_options.FP8_TE),
        )
    }
    results = {name: function.compiled([arrays])[0][:3] for name, function in functions.items()}
    timings = device_timing.time_functions(functions, _TURNS)
    ratio = timings["Transformer Engine"].ratio(timings["XLA"])
    counts, fp8_checks = compiler_options.check_fp8_products(
        setup, "XLA", functions["XLA"].compiled.as_text()
    )
    numbers = (
        *describe_timings(timings),
        Number("Transformer Engine, time beside XLA's", ratio, ""),
        *counts,
    )
    checks = check_errors(projection.NAMES, results["Transformer Engine"], results["XLA"], TE_LIMIT)
    return Measurement(numbers, (*checks, *fp8_checks))


def measure_links(setup: Setup) -> Measurement:
    """Measure the rates between all GPUs, and check a sum over them.

    Raises:
        SkipCase: There is one GPU.
    """
    devices = jax.local_devices()
    if len(devices) < 2:
        raise SkipCase("this machine has one device")
    measured = bandwidth.measure_all_devices(
        bandwidth.list_process_hosts(), 2**12 if setup.tiny else 2**26, print
    )
    numbers = [
        Number("all-reduce", measured.all_reduce, "GB/s"),
        Number("all-gather", measured.all_gather, "GB/s"),
    ]
    numbers += [
        Number(f"between {' and '.join(pair.between)}", pair.rate, "GB/s")
        for pair in measured.pairs
    ]
    wrong = all_reduce.count_wrong_elements(all_reduce.sum_over_devices(devices))
    check = Check("wrong elements of a sum over all devices", float(sum(wrong)), 0.0)
    return Measurement(tuple(numbers), (check,))
