"""Report the figures of a compiled step for one device, as JSON and as text.

The figures are memory, kernels, matrix products, attention and communication. rosetta.plan.pax_step
adds the traffic of a Pax step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.plan import hlo_text, step_kernels, step_time
from rosetta.presets import preset_files

if TYPE_CHECKING:
    from rosetta.core.gpus import Gpu
    from rosetta.plan.t5x_step import CompiledStep

GIGA = 1e9
_MEMORY_FRACTION_FIELD = "env.XLA_PYTHON_CLIENT_MEM_FRACTION"


def summarize_step(compiled: CompiledStep) -> dict[str, Any]:
    """Return the figures of a step for one device, in bytes, counts and FLOPs.

    They are part of the JSON of `rosetta plan`. `compile` is about the compilation: its seconds,
    and the memory of its process.
    """
    module = hlo_text.parse_module(compiled.text)
    kernels, gemms = step_kernels.list_kernels(module), step_kernels.list_gemms(module)
    fp8_gemms = [gemm for gemm in gemms if gemm.fp8]
    other_gemms = [gemm for gemm in gemms if not gemm.fp8]
    return {
        "memory": {
            "peak": compiled.peak,
            "arguments": compiled.arguments,
            "temporaries": compiled.temporaries,
        },
        "kernels": sum(kernel.times for kernel in kernels),
        "bytes": sum(kernel.times * kernel.bytes for kernel in kernels),
        "gemm_flops": sum(gemm.times * gemm.flops for gemm in gemms),
        "attention_flops": step_kernels.count_attention_flops(module),
        "gemms": {
            "fp8": sum(gemm.times for gemm in fp8_gemms),
            "other": sum(gemm.times for gemm in other_gemms),
        },
        "flops_by_role": _sum_flops_by_role(gemms),
        "not_fp8": _sum_flops_by_product(other_gemms),
        "attention": step_kernels.count_attention_kernels(module),
        "collectives": _sum_collectives(step_kernels.list_collectives(module)),
        "compile": {"seconds": compiled.seconds, "rss": compiled.rss},
    }


def _sum_flops_by_role(gemms: list[step_kernels.Gemm]) -> dict[str, dict[str, float]]:
    """Sum the FLOPs of matrix products by role, in FP8 and in other types.

    A role is a kind such as "wgrad", with "again" if the product is rematerialised.
    """
    by_role: dict[str, dict[str, float]] = {}
    for gemm in gemms:
        role = f"{gemm.kind} again" if gemm.rematerialised else gemm.kind
        entry = by_role.setdefault(role, {"fp8": 0.0, "other": 0.0})
        entry["fp8" if gemm.fp8 else "other"] += gemm.flops * gemm.times
    return by_role


def _sum_flops_by_product(gemms: list[step_kernels.Gemm]) -> dict[str, float]:
    """Sum the FLOPs of matrix products by layer and projection, with their kind and types."""
    by_product: dict[str, float] = {}
    for gemm in gemms:
        name = f"{gemm.product} ({gemm.kind}, {' x '.join(gemm.dtypes)})"
        by_product[name] = by_product.get(name, 0.0) + gemm.flops * gemm.times
    return by_product


def _sum_collectives(collectives: list[step_kernels.Collective]) -> list[dict[str, Any]]:
    """Return the collectives summed by kind and type, the one with the most bytes first.

    `bytes_behind` is the part of `bytes` whose communication is hidden: matrix products, attention
    or loops run between its start and its end.
    """
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    for collective in collectives:
        kind, dtype = collective.kind, collective.dtype
        entry = sums.setdefault(
            (kind, dtype),
            {"kind": kind, "dtype": dtype, "bytes": 0.0, "times": 0, "bytes_behind": 0.0},
        )
        total_bytes = collective.bytes * collective.times
        entry["bytes"] += total_bytes
        entry["times"] += collective.times
        entry["bytes_behind"] += total_bytes if collective.behind else 0.0
    return sorted(sums.values(), key=lambda entry: -entry["bytes"])


def describe_fit(peak: float, gpu: Gpu, what: str, gpu_count: int) -> dict[str, Any]:
    """Return whether a step fits into the memory that JAX takes of a GPU.

    The result also says what was planned. It is `run` in the JSON of `rosetta plan`.

    Args:
        peak: The peak memory of the step, in bytes.
        gpu: The GPU that the step is planned for.
        what: The model and its batch, as text.
        gpu_count: The number of GPUs, of all nodes together.
    """
    memory_fraction = preset_files.load_common_layer().values[_MEMORY_FRACTION_FIELD].value
    usable = float(memory_fraction) * gpu.memory
    return {
        "what": what,
        "gpu": gpu.name,
        "gpus": gpu_count,
        "memory": gpu.memory,
        "usable": usable,
        "fits": peak <= usable,
    }


def _format_fit(report: dict[str, Any]) -> list[str]:
    """Return what was planned, whether it fits, or what to change; nothing without `run`."""
    run = report.get("run")
    if not run:
        return []
    peak, usable = report["memory"]["peak"] / GIGA, run["usable"] / GIGA
    verdict = "fits" if run["fits"] else "does not fit"
    return [
        f"plan         {run['what']}, on {run['gpus']} x {run['gpu']}",
        (
            f"{verdict:<12} {peak:.1f} GB of the {usable:.1f} GB that JAX takes of each GPU's "
            f"{run['memory'] / GIGA:.1f} GB"
        ),
        *([] if run["fits"] else [_format_change(run.get("change"))]),
    ]


def _format_change(change: dict[str, Any] | None) -> str:
    """Return the smallest change that is estimated to fit as a line."""
    if change is None:
        return "change       more GPUs, or GPUs with more memory; --search says how many"
    return (
        f"change       {' '.join(change['words'])}: estimated to fit, with "
        f"{change['estimated_peak'] / GIGA:.1f} GB"
    )


def format_step_report(report: dict[str, Any]) -> str:
    """Format the result of `summarize_step` as text, with its `run` and `time` if it has them."""
    memory, gemms = report["memory"], report["gemms"]
    lines = [
        *_format_fit(report),
        *(step_time.format_time(report["time"]) if "time" in report else []),
        (
            f"memory       {memory['peak'] / GIGA:.1f} GB at most "
            f"({memory['arguments'] / GIGA:.1f} of arguments, {memory['temporaries'] / GIGA:.1f} "
            "of temporaries)"
        ),
        (
            f"kernels      {report['kernels']:,} launches, {report['bytes'] / GIGA:,.0f} GB read "
            "and written"
        ),
        (
            f"products     {report['gemm_flops'] / 1e12:.2f} TFLOP, {gemms['fp8']} in FP8 "
            f"and {gemms['other']} not"
        ),
    ]
    for role, flops in sorted(report["flops_by_role"].items()):
        lines.append(
            f"  {role:<14} {flops['fp8'] / 1e12:8.2f} TFLOP in FP8, "
            f"{flops['other'] / 1e12:8.2f} not"
        )
    lines.append(_format_attention(report))
    lines += [
        (
            f"{entry['kind']:<18} {entry['dtype']:<5} {entry['times']:>5} x, "
            f"{entry['bytes'] / GIGA:8.2f} GB, {entry['bytes_behind'] / GIGA:.2f} GB of it behind "
            "products"
        )
        for entry in report["collectives"]
    ]
    if gemms["fp8"]:
        lines.append("not in FP8:")
        for name, flops in sorted(report["not_fp8"].items(), key=lambda item: -item[1]):
            lines.append(f"  {flops / 1e12:8.3f} TFLOP  {name}")
    lines.append(
        f"compiled in {report['compile']['seconds']:.0f} s, "
        f"{report['compile']['rss'] / GIGA:.1f} GB of memory"
    )
    return "\n".join(lines)


def _format_attention(report: dict[str, Any]) -> str:
    """Format the FLOPs of attention, and the number of each fused attention kernel, as a line."""
    flops = report["attention_flops"]
    amount = "an unknown number of" if flops is None else f"{flops / 1e12:.2f}"
    kernels = [f"{times} x {name}" for name, times in sorted(report["attention"].items())]
    return f"attention    {amount} TFLOP, {', '.join(kernels) or 'no fused kernels'}"
