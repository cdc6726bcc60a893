from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from rosetta.core import gpus
from rosetta.core.gpus import GPUS, Gpu
from tests.support import errors

ROSETTA = Path(__file__).parents[4] / "rosetta"
every_gpu = pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)


@pytest.mark.parametrize(
    ("name", "short_name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-PCIE-16GB", "v100-pcie"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
    ],
)
def test_a_gpu_is_found_by_the_name_that_nvidia_smi_prints(name: str, short_name: str) -> None:
    assert gpus.find_gpu(name) is GPUS[short_name]


@every_gpu
def test_the_names_in_the_table_find_their_gpu(gpu: Gpu) -> None:
    assert [gpus.find_gpu(name) for name in gpu.names] == [gpu] * len(gpu.names)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "NVIDIA T4",
        "NVIDIA H800",
        "NVIDIA A100X",
        "Tesla V100S-PCIE-32GB",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 D v2",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA B200 MIG 1g.23gb",
        "NVIDIA A10-24Q",
    ],
)
def test_other_products_and_shares_of_a_gpu_are_unknown(name: str) -> None:
    assert gpus.find_gpu(name) is None
    assert gpus.find_peak_flops(name, "bfloat16") is None


@pytest.mark.parametrize(
    ("name", "capability", "short_name"),
    [
        ("NVIDIA H100 80GB HBM3", (0, 0), "h100"),
        ("NVIDIA H800", (9, 0), "h100"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0), "h100"),
        ("NVIDIA A800-SXM4-80GB", (8, 0), "a100"),
        ("NVIDIA RTX A6000", (8, 6), "a10"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), "l40s"),
        ("NVIDIA B100", (10, 0), "b200"),
        ("NVIDIA B300 of another name", (10, 3), "b300"),
        ("NVIDIA GB10", (12, 1), "rtx-pro-6000"),
    ],
)
def test_an_unknown_gpu_is_like_the_first_of_its_capability(
    name: str, capability: tuple[int, int], short_name: str
) -> None:
    assert gpus.find_similar_gpu(name, capability) is GPUS[short_name]


@pytest.mark.parametrize("capability", [(0, 0), (6, 0), (7, 5), (8, 7), (11, 0), (13, 0)])
def test_a_gpu_of_an_unknown_generation_has_no_similar_gpu(capability: tuple[int, int]) -> None:
    assert gpus.find_similar_gpu("NVIDIA of tomorrow", capability) is None


def test_an_unknown_short_name_is_refused() -> None:
    assert gpus.get_gpu("RTX-4090", "--card") is GPUS["rtx-4090"]
    with errors.expect_user_error(
        errors.UNKNOWN, where="--card", value="p100", remedy=("a100", "b300")
    ):
        gpus.get_gpu("p100", "--card")


def test_peaks_by_the_types_that_jax_names() -> None:
    h100, v100 = GPUS["h100"], GPUS["v100"]
    assert h100.peak_flops("bfloat16") == pytest.approx(989.4e12)
    assert h100.peak_flops("float32") == h100.peaks["tf32"] * 1e12, "XLA multiplies in TF32"
    assert v100.peak_flops("float32") == v100.peaks["fp32"] * 1e12, "Volta has no TF32"
    assert (v100.peak_flops("bfloat16"), v100.peak_flops("fp8")) == (None, None)
    assert gpus.find_peak_flops("NVIDIA H100 PCIe", "fp8") == pytest.approx(1513e12)


@every_gpu
def test_peaks_agree_with_each_other(gpu: Gpu) -> None:
    sixteen = gpu.peaks["fp16"]
    assert gpu.peaks.get("bf16", sixteen) == sixteen
    if "tf32" in gpu.peaks:
        assert gpu.peaks["tf32"] == pytest.approx(sixteen / 2, rel=0.02)
    if "fp8" in gpu.peaks:
        assert gpu.peaks["fp8"] == pytest.approx(sixteen * 2, rel=0.03)
    if "nvfp4" in gpu.peaks:
        assert gpu.peaks["nvfp4"] >= gpu.peaks["fp8"] * 2
    if "fp32" in gpu.peaks:
        of_cores = gpu.sms * gpu.architecture.fp32_cores_per_sm * 2 * gpu.clock / 1000
        assert gpu.peaks["fp32"] == pytest.approx(of_cores, rel=0.03)


@every_gpu
def test_a_gpu_has_peaks_of_what_its_hardware_has(gpu: Gpu) -> None:
    assert gpu.peaks.keys() <= {"bf16", "fp16", "tf32", "fp32", "fp8", "int8", "nvfp4"}
    assert ("bf16" in gpu.peaks) == (gpu.capability >= (8, 0))
    assert "fp8" not in gpu.peaks or gpus.FP8.supported_by(gpu.capability)
    assert "nvfp4" not in gpu.peaks or gpus.NVFP4.supported_by(gpu.capability)


@every_gpu
def test_figures_are_in_their_units(gpu: Gpu) -> None:
    assert 15e9 < gpu.memory < 300e9
    assert 0.3e12 <= gpu.bandwidth <= 8e12
    assert 6 * 2**20 <= gpu.l2 <= 136 * 2**20
    assert 1.3 < gpu.clock < 2.7
    assert 50 < gpu.sms < 200
    assert gpu.nvlink in (0, *(rate * 10**9 for rate in (300, 600, 900, 1800)))
    assert gpu.pcie in (None, 3, 4, 5, 6)
    assert gpu.gpus_per_node in (None, 4, 8)
    assert all(1 < peak < 20_000 for peak in gpu.peaks.values())
    assert gpu.architecture.shared_per_block <= gpu.architecture.shared_per_sm


@every_gpu
def test_every_figure_has_a_source_or_says_that_it_was_not_checked(gpu: Gpu) -> None:
    figures = {
        "peaks": gpu.peaks,
        "chip": ("sms", "l2", "clock"),
        "memory": ("memory",),
        "bandwidth": ("bandwidth",),
        "links": ("nvlink", "pcie"),
        **({"node": ("gpus_per_node",)} if gpu.gpus_per_node else {}),
    }
    assert gpu.sources.keys() == figures.keys()
    for subject, names in figures.items():
        assert gpu.sources[subject] or set(names) <= gpu.unverified.keys(), subject
    fields = {field.name for field in dataclasses.fields(gpu)}
    assert gpu.unverified.keys() <= fields | gpu.peaks.keys()
    assert all(gpu.unverified.values())
    assert gpu.pcie is not None or "pcie" in gpu.unverified


@every_gpu
def test_the_preset_base_of_a_gpu_has_no_preset_base(gpu: Gpu) -> None:
    if gpu.preset_base:
        base = GPUS[gpu.preset_base]
        assert not base.preset_base
        assert base.capability[0] == gpu.capability[0]


def test_no_other_file_has_figures_of_gpus() -> None:
    """Outside of the table, no line has a GPU's name with a figure of it, or a capability."""
    names = {word for gpu in GPUS.values() for word in gpu.words.split() if re.search(r"\d", word)}
    name = re.compile(rf"\b({'|'.join(sorted(names))})\b", re.IGNORECASE)
    figure = re.compile(r"\d\s*(TFLOPS?|TFLOP/s|[GT]B/s|[GM]Hz|SMs)\b|\b\d[\d_]{9,}\b")
    capability = re.compile(r"\((8|9|10|12), [0-9]\)")
    threshold = re.compile(r"_threshold_bytes: \{value: \d+")  # of XLA, not of a GPU
    found = [
        f"{path.relative_to(ROSETTA)}:{number}: {line.strip()}"
        for path in sorted(ROSETTA.rglob("*"))
        if path.suffix in (".py", ".yaml", ".gin") and path != ROSETTA / "core/gpus.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (name.search(line) and figure.search(threshold.sub("", line))) or capability.search(line)
    ]
    assert found == []
