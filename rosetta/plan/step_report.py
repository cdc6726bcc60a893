"""What a compiled step would do on a device: memory, kernels, traffic, products by precision,
communication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.plan import hlo_text, step_kernels
from rosetta.presets import preset_files

if TYPE_CHECKING:
    from rosetta.core.gpus import Gpu
    from rosetta.plan.t5x_step import CompiledStep

GIGA = 1e9
_MEMORY_FRACTION_FIELD = "env.XLA_PYTHON_CLIENT_MEM_FRACTION"


def summarize_step(compiled: CompiledStep) -> dict[str, Any]:
    """Return the figures, per device and step: bytes, counts and FLOPs.

    The JSON of `rosetta plan`.
    """
    program = hlo_text.parse_module(compiled.text)
    kernels, gemms = step_kernels.list_kernels(program), step_kernels.list_gemms(program)
    by_role: dict[str, dict[str, float]] = {}
    for each in gemms:
        role = f"{each.kind}{' again' if each.rematerialised else ''}"
        entry = by_role.setdefault(role, {"fp8": 0.0, "other": 0.0})
        entry["fp8" if each.fp8 else "other"] += each.flops * each.times
    left: dict[str, float] = {}
    for each in gemms:
        if not each.fp8:
            name = f"{each.product} ({each.kind}, {' x '.join(each.dtypes)})"
            left[name] = left.get(name, 0.0) + each.flops * each.times
    return {
        "memory": {
            "peak": compiled.peak,
            "arguments": compiled.arguments,
            "temporaries": compiled.temporaries,
        },
        "kernels": sum(each.times for each in kernels),
        "bytes": sum(each.times * each.bytes for each in kernels),
        "gemm_flops": sum(each.times * each.flops for each in gemms),
        "attention_flops": step_kernels.count_attention_flops(program),
        "gemms": {
            "fp8": sum(each.times for each in gemms if each.fp8),
            "other": sum(each.times for each in gemms if not each.fp8),
        },
        "flops_by_role": by_role,
        "not_fp8": left,
        "attention": step_kernels.count_attention_kernels(program),
        "collectives": _sum_collectives(step_kernels.list_collectives(program)),
        "compile": {"seconds": compiled.seconds, "rss": compiled.rss},
    }


def _sum_collectives(found: list[step_kernels.Collective]) -> list[dict[str, Any]]:
    """Alike collectives added up; `bytes_behind` are of those during which products or attention
    run.
    """
    summed: dict[tuple[str, str], dict[str, Any]] = {}
    for each in found:
        entry = summed.setdefault(
            (each.kind, each.dtype),
            {"kind": each.kind, "dtype": each.dtype, "bytes": 0.0, "times": 0, "bytes_behind": 0.0},
        )
        entry["bytes"] += each.bytes * each.times
        entry["times"] += each.times
        entry["bytes_behind"] += each.bytes * each.times if each.behind else 0.0
    return sorted(summed.values(), key=lambda entry: -entry["bytes"])


def describe_fit(peak: float, gpu: Gpu, what: str, gpu_count: int) -> dict[str, object]:
    """Return what was planned, and whether it fits the memory that JAX takes: the JSON's `run`.

    Args:
      peak: bytes that a step takes at most.
      gpu: that it is planned for.
      what: the model and its batch.
      gpu_count: of all nodes.
    """
    usable = (
        float(preset_files.load_common_layer().values[_MEMORY_FRACTION_FIELD].value) * gpu.memory
    )
    return {
        "what": what,
        "gpu": gpu.name,
        "gpus": gpu_count,
        "memory": gpu.memory,
        "usable": usable,
        "fits": peak <= usable,
    }


def _format_fit(found: dict[str, Any]) -> list[str]:
    """Return the lines that say whether the plan fits; none if that is not known."""
    run = found.get("run")
    if not run:
        return []
    peak, usable = found["memory"]["peak"] / GIGA, run["usable"] / GIGA
    verdict = "fits" if run["fits"] else "does not fit"
    return [
        f"plan         {run['what']}, on {run['gpus']} x {run['gpu']}",
        (
            f"{verdict:<12} {peak:.1f} GB of the {usable:.1f} GB that JAX takes of each GPU's "
            f"{run['memory'] / GIGA:.1f} GB"
        ),
    ]


def format_step_report(found: dict[str, Any]) -> str:
    """Return the figures for people."""
    memory = found["memory"]
    attention = (
        "an unknown number of"
        if found["attention_flops"] is None
        else f"{found['attention_flops'] / 1e12:.2f}"
    )
    kernels = [f"{times} x {name}" for name, times in sorted(found["attention"].items())]
    lines = [
        *_format_fit(found),
        (
            f"memory       {memory['peak'] / GIGA:.1f} GB at most "
            f"({memory['arguments'] / GIGA:.1f} of arguments, {memory['temporaries'] / GIGA:.1f} "
            "of temporaries)"
        ),
        (
            f"kernels      {found['kernels']:,} launches, {found['bytes'] / GIGA:,.0f} GB read "
            "and written"
        ),
        (
            f"products     {found['gemm_flops'] / 1e12:.2f} TFLOP, {found['gemms']['fp8']} in FP8 "
            f"and {found['gemms']['other']} not"
        ),
        *(
            (
                f"  {role:<14} {flops['fp8'] / 1e12:8.2f} TFLOP in FP8, "
                f"{flops['other'] / 1e12:8.2f} not"
            )
            for role, flops in sorted(found["flops_by_role"].items())
        ),
        (f"attention    {attention} TFLOP, {', '.join(kernels) or 'no fused kernels'}"),
    ]
    lines += [
        (
            f"{each['kind']:<18} {each['dtype']:<5} {each['times']:>5} x, "
            f"{each['bytes'] / GIGA:8.2f} GB, {each['bytes_behind'] / GIGA:.2f} GB of it behind "
            "products"
        )
        for each in found["collectives"]
    ]
    if found["gemms"]["fp8"]:
        lines += [
            "not in FP8:",
            *(
                f"  {flops / 1e12:8.3f} TFLOP  {name}"
                for name, flops in sorted(found["not_fp8"].items(), key=lambda item: -item[1])
            ),
        ]
    lines.append(
        f"compiled in {found['compile']['seconds']:.0f} s, "
        f"{found['compile']['rss'] / GIGA:.1f} GB of memory"
    )
    return "\n".join(lines)
