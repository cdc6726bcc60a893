from __future__ import annotations

import pytest

from rosetta.core.gpu_peaks import PEAKS, mfu, peak_flops


@pytest.mark.parametrize(
    ("card", "dtype", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 80GB HBM3", "fp8", 1978.9),
        ("NVIDIA H100 PCIe", "bfloat16", 756.0),
        ("NVIDIA H200", "bfloat16", 989.4),
        ("NVIDIA GH200 480GB", "fp8", 1978.9),
        ("NVIDIA B200", "bfloat16", 2250.0),
        ("NVIDIA GB200", "bfloat16", 2500.0),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312.0),
        ("NVIDIA A10", "bfloat16", 125.0),
        ("NVIDIA A10G", "bfloat16", 70.0),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("NVIDIA L40S", "fp8", 733.0),
        ("Tesla V100-SXM2-16GB", "float16", 125.0),
    ],
)
def test_peaks_by_the_names_cards_have(card: str, dtype: str, tera: float) -> None:
    assert peak_flops(card, dtype) == pytest.approx(tera * 1e12)


def test_what_is_not_known_has_no_peak_and_no_mfu() -> None:
    assert peak_flops("cpu", "bfloat16") is None
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp8") is None  # it has none
    assert peak_flops("NVIDIA L40", "bfloat16") is None  # not an L4
    assert peak_flops("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert mfu(1.0, 1.0, 1, None) is None


def test_mfu() -> None:
    assert mfu(6e12, 2.0, 3, 4e12) == pytest.approx(0.25)


def test_fp8_is_twice_bfloat16_where_there_is_any() -> None:
    for peaks in PEAKS.values():
        if "fp8" in peaks:
            assert peaks["fp8"] / peaks["bfloat16"] == pytest.approx(2.0, rel=0.02)
