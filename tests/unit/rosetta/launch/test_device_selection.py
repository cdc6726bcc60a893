from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from rosetta.core.gpu_query import DetectedGpu
from rosetta.launch import device_selection

if TYPE_CHECKING:
    from pathlib import Path

H100 = DetectedGpu("H100", (9, 0))


@pytest.mark.parametrize(
    ("flags", "on_cpu", "cards", "count"),
    [
        ("", True, 2, 1),
        ("--a --xla_force_host_platform_device_count=4 --b", True, 2, 4),
        ("--xla_force_host_platform_device_count=4", False, 2, 2),
        ("", False, 0, 1),
    ],
)
def test_devices_of_a_process(flags: str, on_cpu: bool, cards: int, count: int) -> None:
    assert (
        device_selection.count_devices([H100] * cards, {"XLA_FLAGS": flags}, on_cpu=on_cpu) == count
    )


def test_a_file_of_flags_counts(tmp_path: Path) -> None:
    """The devices that it makes are seen, and a flag that is added comes after its flags."""
    file = tmp_path / "flags"
    file.write_text("--xla_a=1 --xla_force_host_platform_device_count=4\n")
    assert device_selection.count_devices([], {"XLA_FLAGS": str(file)}, on_cpu=True) == 4
    file.write_text("--xla_a=1\n")
    wanted = SimpleNamespace(gpus=2, processes=1)
    env, _ = device_selection.select_devices(wanted, [], {"XLA_FLAGS": str(file)}, on_cpu=True)
    assert env == {"XLA_FLAGS": "--xla_a=1 --xla_force_host_platform_device_count=2"}


def test_what_cannot_be_asked_is_left_as_it_is() -> None:
    assert device_selection.select_devices(
        SimpleNamespace(gpus=8, processes=1), [], {"A": "b"}, on_cpu=False
    ) == (
        {"A": "b"},
        (),
    )


def test_cards_named_by_the_user_are_shared_out_in_his_order() -> None:
    env, notes = device_selection.select_devices(
        SimpleNamespace(gpus=2, processes=1),
        [H100] * 3,
        {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b,GPU-c"},
        on_cpu=False,
    )
    assert env == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert notes == ("2 of 3 GPUs are used (CUDA_VISIBLE_DEVICES=GPU-a,GPU-b)",)
