"""docs/reference/gpus.md, from rosetta's table of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rosetta.core import gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rosetta.core.gpus import Feature, Gpu, Source

_HEAD = """# GPUs

*Reference. Generated from rosetta/core/gpus.py by `python build.py docs`: edit there.*

These options take the short names of this page: `rosetta explain --accelerator`, `rosetta run
--accelerator`, `rosetta submit --accelerator` and `rosetta plan --card`. So does the key
`accelerators` of a preset. `rosetta bench` and the progress lines of a run find the GPU by the name
that nvidia-smi prints. They compute MFU with its peak.

A GPU is found by the words of its name, whatever the case. All words of the table must be in the
name; the GPU with the most words wins. A share of a GPU (MIG, vGPU) is not found, because it does
not have the whole GPU's figures.

A GPU that is not found takes the values of presets from another row: the first one with the same
[compute capability](#compute-capabilities). If there is no such row, and the first number of the
capability is 9 or more, it is the first row with the same first number. Other GPUs get only the
values that do not depend on the GPU.
"""
_CHIP = """
Memory is what CUDA reports, and what XLA sees; nvidia-smi prints up to 2% more. NVLink counts
both directions of all links. The node is the usual one; a dash means that there is none. Shared
memory is that of one multiprocessor (SM), and the most that one thread block can ask for.
"""
_PEAKS = """
Dense products in TFLOP/s (`int8`: TOP/s) at boost clock, accumulated in float32 (`int8`: in
int32). Figures that NVIDIA prints with sparsity are halved. GeForce GPUs multiply float16 and FP8
twice as fast when they accumulate in float16; the table has the slower figure. `fp32` is without
tensor cores. XLA multiplies float32 in TF32 where the GPU has it, so the MFU of a float32 run is
that of TF32.
"""
_SOURCES = """
The numbers are those of the list below. "Chip" is SMs, L2 and boost clock; "links" is NVLink and
PCIe. The figures were compared with stored copies of these documents, and with quotations from
them, on 2026-11-29. Shared memory is from the [CUDA C++ Programming
Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities).
"""
_FEATURES = (
    gpus.FP8,
    gpus.MXFP8,
    gpus.NVFP4,
    gpus.CUDNN_ATTENTION,
    gpus.TRANSFORMER_ENGINE,
)
_SUBJECTS = ("peaks", "chip", "memory", "bandwidth", "links", "node")
_TYPES = ("bf16", "fp16", "tf32", "fp32", "fp8", "int8", "nvfp4")


def render() -> str:
    """Return the whole page."""
    sections = [
        _HEAD,
        _render_table(("short name", "names", "words", "values of presets"), map(_names, _all())),
        "\n## Compute capabilities\n",
        _render_table(("feature", "from", "GPUs"), map(_feature, _FEATURES)),
        "",
        _render_table(
            ("short name", "generation", "capability", *(feature.name for feature in _FEATURES)),
            map(_capabilities, _all()),
        ),
        f"\n## Memory, chip and links\n{_CHIP}",
        _render_table(
            (
                "short name",
                "memory, GB",
                "bandwidth, GB/s",
                "SMs",
                "L2, MiB",
                "boost, GHz",
                "shared, KiB",
                "NVLink, GB/s",
                "PCIe",
                "GPUs of a node",
            ),
            map(_chip, _all()),
        ),
        f"\n## Peaks\n{_PEAKS}",
        _render_table(("short name", *_TYPES), map(_peaks, _all())),
        f"\n## Sources\n{_SOURCES}",
        _render_table(("short name", *_SUBJECTS), map(_source_numbers, _all())),
        "",
        *(
            f"{number}. [{source.title}]({source.url})"
            for source, number in _numbered_sources().items()
        ),
        "\n## Not verified\n",
        "These figures could not be checked against a source.\n",
        _render_table(("short name", "figure", "why"), _unverified()),
        "",
    ]
    return "\n".join(sections)


def _all() -> Iterable[Gpu]:
    return gpus.GPUS.values()


def _render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("| --- ", "|---") for line in lines)


def _names(gpu: Gpu) -> list[str]:
    base = f"as `{gpu.preset_base}`" if gpu.preset_base else ""
    return [f"`{gpu.short_name}`", ", ".join(gpu.names), gpu.words, base]


def _feature(feature: Feature) -> list[str]:
    oldest = ".".join(map(str, feature.oldest))
    return [feature.name, oldest, feature.needs]


def _capabilities(gpu: Gpu) -> list[str]:
    has = ["yes" if feature.supported_by(gpu.capability) else "no" for feature in _FEATURES]
    capability = ".".join(map(str, gpu.capability))
    return [f"`{gpu.short_name}`", gpu.architecture.name, capability, *has]


def _chip(gpu: Gpu) -> list[str]:
    shared = (gpu.architecture.shared_per_sm, gpu.architecture.shared_per_block)
    return [
        f"`{gpu.short_name}`",
        f"{gpu.memory / gpus.GIGA:.2f}",
        f"{gpu.bandwidth / gpus.GIGA:,.0f}",
        str(gpu.sms),
        f"{gpu.l2 / gpus.MIB:g}",
        f"{gpu.clock:g}",
        " / ".join(f"{size // gpus.KIB}" for size in shared),
        f"{gpu.nvlink / gpus.GIGA:,.0f}" if gpu.nvlink else "-",
        str(gpu.pcie or "not verified"),
        str(gpu.gpus_per_node or "-"),
    ]


def _peaks(gpu: Gpu) -> list[str]:
    peaks = [f"{gpu.peaks[kind]:g}" if kind in gpu.peaks else "-" for kind in _TYPES]
    return [f"`{gpu.short_name}`", *peaks]


def _numbered_sources() -> dict[Source, int]:
    """Return source -> number, in the order in which the table of GPUs names them."""
    used = (source for gpu in _all() for group in gpu.sources.values() for source in group)
    return {source: number for number, source in enumerate(dict.fromkeys(used), 1)}


def _source_numbers(gpu: Gpu) -> list[str]:
    numbers = _numbered_sources()
    cells = (gpu.sources.get(subject, ()) for subject in _SUBJECTS)
    return [
        f"`{gpu.short_name}`",
        *(", ".join(str(numbers[source]) for source in sources) or "-" for sources in cells),
    ]


def _unverified() -> Iterable[list[str]]:
    for gpu in _all():
        for figure, why in gpu.unverified.items():
            yield [f"`{gpu.short_name}`", figure, why]
