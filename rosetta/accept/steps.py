"""The rows `steps` and `full`: training steps of T5-large on one device, without T5X.

Each mode is first compiled by a process of its own, all at the same time, into JAX's cache of
compiled programs. A mode that cannot be compiled is then left out, and the others are measured in
turns. A prediction is computed from the compiled program that was measured.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from rosetta.accept import predictions
from rosetta.accept.records import Check, Measurement, Number, SkipCase
from rosetta.accept.setup import Case, Setup, load_module, make_case
from rosetta.bench import device_timing
from rosetta.bench.timing import Timings
from rosetta.plan import hlo_text, step_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rosetta.bench import modes, t5

PACKAGES = ("flax", "optax", "yaml")
# What a mode may be called in `rosetta bench t5 --modes`. The first one is compared with.
SWITCH_MODES = (
    "bf16",
    "bf16+cudnn",
    "bf16+mlp+cudnn",
    "bf16+fused+transposed+cudnn",
    "bf16+mlp+cudnn+logits16",
    "fp8+fused+transposed+cudnn",
    "fp8+fused+transposed+cudnn+no-geglu",
    "fp8+fused+cudnn",
)
DROPOUT_MODES = ("bf16+mlp", "bf16+mlp+cudnn")
# What `rosetta t5x pretrain` computes on an H100, without and with FP8.
DEFAULT_MODES = ("bf16+mlp+cudnn", "fp8+fused+transposed+cudnn")
NO_COMMAND_BUFFERS = {"xla_gpu_enable_command_buffer": ""}
# How much the loss may rise above the first loss. All modes train one state.
LOSS_GROWTH = 1.05
_GIGA = 1e9
# A chain of products that are too short to fill a GPU: the time is that of launches.
_CHAIN_LENGTH, _CHAIN_SIZE = 200, 128


@dataclass(frozen=True)
class Variant:
    """A mode with flags of XLA.

    Attributes:
        name: The name in the results.
        mode: The name of the mode.
        xla_flags: Flags that replace those of the presets, without dashes.
    """

    name: str
    mode: str
    xla_flags: Mapping[str, Any]


def list_step_cases(setup: Setup) -> list[Case]:
    """Return the cases of the row `steps`."""
    buffers = [
        Variant(f"{mode}{suffix}", mode, flags)
        for mode in DEFAULT_MODES
        for suffix, flags in (("", {}), (" without command buffers", NO_COMMAND_BUFFERS))
    ]
    return [
        _make_step_case(setup, "switches", _list_variants(SWITCH_MODES), layers=4),
        _make_step_case(setup, "dropout", _list_variants(DROPOUT_MODES), layers=4, dropout=0.1),
        make_case("launch-gap", lambda: measure_launch_gap(setup)),
        _make_step_case(setup, "command-buffers", buffers, layers=4),
    ]


def list_full_cases(setup: Setup) -> list[Case]:
    """Return the cases of the row `full`."""
    return [_make_step_case(setup, "t5-large", _list_variants(DEFAULT_MODES), with_plans=True)]


def _list_variants(names: Sequence[str]) -> list[Variant]:
    """Return modes as variants without flags."""
    return [Variant(name, name, {}) for name in names]


def _make_step_case(
    setup: Setup,
    name: str,
    variants: Sequence[Variant],
    *,
    layers: int = 0,
    dropout: float = 0.0,
    with_plans: bool = False,
) -> Case:
    """Return the case that measures variants in turns, and compiles them ahead."""
    jobs: dict[str, Callable[[], None]] = {}
    for variant in _adapt_variants(setup, variants):
        jobs[variant.name] = functools.partial(_compile_variant, setup, variant, layers, dropout)

    def measure(failures: Mapping[str, str]) -> Measurement:
        return measure_variants(setup, variants, layers, dropout, failures, with_plans=with_plans)

    return Case(name, measure, jobs)


def _adapt_variants(setup: Setup, variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants to measure: the first and the last one in a tiny acceptance.

    A CPU has no cuDNN and no command buffers.
    """
    if setup.tiny:
        variants = [variants[0], variants[-1]]
    if setup.on_gpu:
        return list(variants)
    adapted = dict[str, Variant]()
    for variant in variants:
        mode = variant.mode.replace("+cudnn", "")
        adapted.setdefault(mode, Variant(mode, mode, {}))
    return list(adapted.values())


def load_bench() -> tuple[Any, Any]:
    """Return the modules rosetta.bench.modes and rosetta.bench.t5.

    Raises:
        SkipCase: A package that they need is missing.
    """
    names = ("rosetta.bench.modes", "rosetta.bench.t5")
    modes_module, t5_module = (load_module(name, *PACKAGES) for name in names)
    return modes_module, t5_module


def make_task(setup: Setup, layers: int, dropout: float) -> t5.Task:
    """Return the step: 32 sequences of 512 and 128 tokens, or a tiny one."""
    _modes, bench = load_bench()
    if setup.tiny:
        task: t5.Task = bench.Task("tiny", 2, 8, 8, dropout, 1, 2, layers=min(layers, 1))
    else:
        task = bench.Task("large", 32, 512, 128, dropout, 8, 3, layers=layers)
    return task


def _compile_variant(setup: Setup, variant: Variant, layers: int, dropout: float) -> None:
    """Compile a variant into JAX's cache."""
    modes, t5 = load_bench()
    mode = modes.parse_mode(variant.mode)
    if not _explain_unsupported(mode):
        t5.compile_mode(make_task(setup, layers, dropout), mode, variant.xla_flags)


def _explain_unsupported(mode: modes.Mode) -> str:
    """Return why the device cannot run a mode; "" if it can."""
    bench_modes, bench = load_bench()
    device = jax.devices()[0]
    reason: str = bench_modes.explain_unsupported_mode(
        mode, device.platform, bench.read_compute_capability(device)
    )
    return reason


def measure_variants(
    setup: Setup,
    variants: Sequence[Variant],
    layers: int,
    dropout: float,
    failures: Mapping[str, str],
    *,
    with_plans: bool,
) -> Measurement:
    """Measure the variants that can be compiled, in turns.

    Args:
        setup: What to measure.
        variants: The variants. The first one is compared with.
        layers: Layers of the encoder, and of the decoder; 0 for all.
        dropout: The rate of dropout.
        failures: Name of a variant -> why it could not be compiled.
        with_plans: Whether to compare with the plans of the setup.

    Raises:
        SkipCase: A package is missing, or no variant can run.
    """
    _modes, t5 = load_bench()
    selection = _select_variants(setup, variants, failures)
    checks, notes = list(selection.checks), list(selection.notes)
    if not selection.chosen:
        raise SkipCase("; ".join(notes))
    task = make_task(setup, layers, dropout)
    result, candidates = t5.measure_modes(task, selection.chosen, say=print)
    numbers = list[Number]()
    first_loss = next(iter(candidates.values())).first_loss
    for row in result["modes"]:
        name, seconds = row["mode"], row["seconds"]
        numbers += _describe_step(row)
        checks.append(Check(f"loss of {name}", float(row["loss"]), LOSS_GROWTH * first_loss))
        text = candidates[name].compiled.as_text()
        numbers += predictions.predict_step(setup, text, name, seconds, task)
        if with_plans:
            compared = predictions.compare_with_plans(
                setup,
                name,
                seconds=seconds,
                peak=row["peak_bytes"],
                fp8=selection.chosen[name][0].fp8,
                task=task,
            )
            numbers += compared.numbers
            checks += compared.checks
            notes += compared.notes
    if with_plans:
        measured_fp8 = {mode.fp8 for mode, _ in selection.chosen.values()}
        notes += predictions.describe_plans_without_step(setup, measured_fp8)
    return Measurement((*numbers, *_read_used_memory()), tuple(checks), tuple(notes))


@dataclass(frozen=True)
class _Selection:
    """The variants that can be measured, by name, and what to say about the others."""

    chosen: Mapping[str, tuple[modes.Mode, Mapping[str, Any]]]
    checks: Sequence[Check]
    notes: Sequence[str]


def _select_variants(
    setup: Setup, variants: Sequence[Variant], failures: Mapping[str, str]
) -> _Selection:
    """Return the variants that the device supports and that could be compiled."""
    modes, _t5 = load_bench()
    chosen, checks, notes = {}, [], []
    for variant in _adapt_variants(setup, variants):
        mode = modes.parse_mode(variant.mode)
        if reason := _explain_unsupported(mode):
            notes.append(f"{variant.name} is left out: {reason}")
        elif variant.name in failures:
            notes.append(f"{variant.name} was not compiled: {failures[variant.name]}")
            checks.append(Check(f"{variant.name} compiles (failures)", 1.0, 0.0))
        else:
            chosen[variant.name] = (mode, variant.xla_flags)
    return _Selection(chosen, checks, notes)


def _read_used_memory() -> list[Number]:
    """Return the most memory that this process has used on the device, if it tells."""
    used = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return [Number("memory in use at most, all modes", used / _GIGA, "GB")] if used else []


def _describe_step(row: Mapping[str, Any]) -> list[Number]:
    """Return the time of a mode, its rate, its ratio to the first mode and its memory."""
    name = row["mode"]
    spread = Timings(tuple(row["samples"])).spread
    numbers = [
        Number(name, row["seconds"] * 1e3, "ms", spread),
        Number(f"{name}, rate", row["sequences_per_second"], "sequences/s"),
        Number(f"{name}, time beside the first", row["ratio"], ""),
    ]
    if row["mfu"] is not None:
        numbers.append(Number(f"{name}, MFU", row["mfu"], ""))
    if row["peak_bytes"] is not None:
        numbers.append(Number(f"{name}, memory of the program", row["peak_bytes"] / _GIGA, "GB"))
    return numbers


def measure_launch_gap(setup: Setup) -> Measurement:
    """Measure a chain of tiny products, with and without command buffers.

    Each product needs the one before it. The number of kernels is that of the compiled program.
    """
    length = 10 if setup.tiny else _CHAIN_LENGTH
    matrix = jax.random.normal(jax.random.key(0), (_CHAIN_SIZE, _CHAIN_SIZE)) * 0.01

    def multiply_chain(matrix: Any) -> Any:
        result = matrix
        for _ in range(length):
            result = jnp.tanh(result @ matrix)
        return result

    flags: dict[str, dict[str, Any]] = {"with command buffers": {}}
    if setup.on_gpu:
        flags["without command buffers"] = NO_COMMAND_BUFFERS
    functions = {
        name: device_timing.DeviceFunction(
            multiply_chain,
            [(matrix.astype(jnp.bfloat16),)],
            turn_seconds=setup.turn_seconds,
            compiler_options=options,
        )
        for name, options in flags.items()
    }
    numbers = list[Number]()
    for name, timed in device_timing.time_functions(functions, 5).items():
        module = hlo_text.parse_module(functions[name].compiled.as_text())
        kernels = sum(kernel.times for kernel in step_kernels.list_kernels(module))
        numbers.append(Number(f"{name}, kernels", kernels, "kernels"))
        numbers.append(
            Number(
                f"{name}, kernel and gap", timed.median * 1e6 / max(kernels, 1), "us", timed.spread
            )
        )
    notes = () if setup.on_gpu else ("a CPU has no command buffers",)
    return Measurement(tuple(numbers), (), notes)
