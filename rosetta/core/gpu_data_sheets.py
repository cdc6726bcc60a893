"""Figures of NVIDIA's data centre cards, from their public data sheets and the CUDA programming
guide's table of compute capabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

from rosetta.core.errors import UNKNOWN, UserError

FRACTION = (
    0.85  # of a card's memory, which JAX takes: XLA_PYTHON_CLIENT_MEM_FRACTION of the presets
)


@dataclass(frozen=True)
class Card:
    """A card as XLA's compiler wants it described. Bytes, bytes per second, GHz."""

    name: str
    major: int
    cores: int
    bandwidth: int
    memory: int
    l2: int
    clock: float
    shared_per_core: int = 233472
    shared_per_block: int = 232448
    minor: int = 0

    def text(self) -> str:
        """Return it as the text of XLA's GpuTargetConfigProto."""
        lines = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": self.shared_per_core,
            "threads_per_core_limit": 2048,
            "core_count": self.cores,
            "fpus_per_core": 128 if self.major >= 9 else 64,
            "block_dim_limit_x": 2147483647,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": self.bandwidth,
            "l2_cache_size": self.l2,
            "clock_rate_ghz": self.clock,
            "device_memory_size": self.memory,
            "shared_memory_per_block_optin": self.shared_per_block,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        info = " ".join(f"{name}: {value}" for name, value in lines.items())
        capability = f"cuda_compute_capability {{ major: {self.major} minor: {self.minor} }}"
        versions = "dnn_version_info { major: 9 minor: 10 } runtime_version { major: 12 minor: 9 }"
        return (
            f'gpu_device_info {{ {info} {capability} }} platform_name: "CUDA" {versions} '
            f'device_description_str: "{self.name}"'
        )


CARDS = {
    "a100": Card(
        "NVIDIA A100-SXM4-80GB",
        8,
        108,
        2_039_000_000_000,
        84_974_239_744,
        41_943_040,
        1.41,
        167936,
        166912,
    ),
    "h100": Card(
        "NVIDIA H100 80GB HBM3", 9, 132, 3_352_320_000_000, 84_929_347_584, 52_428_800, 1.98
    ),
    "h200": Card("NVIDIA H200", 9, 132, 4_800_000_000_000, 150_754_820_096, 52_428_800, 1.98),
    "gh200": Card(
        "NVIDIA GH200 480GB", 9, 132, 4_000_000_000_000, 101_468_602_368, 62_914_560, 1.98
    ),
    "b200": Card("NVIDIA B200", 10, 148, 8_000_000_000_000, 191_503_990_784, 132_644_864, 1.965),
}


def named(name: str) -> Card:
    """Return a card by its short name.

    Raises:
      UserError: it is not known.
    """
    if name.lower() not in CARDS:
        raise UserError(
            f"there is no description of {name!r}",
            "--card",
            f"choose one of: {', '.join(CARDS)}",
            kind=UNKNOWN,
            value=name,
        )
    return CARDS[name.lower()]


def describe_fit(peak: float, card: Card, what: str, gpus: int) -> dict[str, object]:
    """Return what was planned, and whether it fits a card: the JSON's `run`.

    Args:
      peak: bytes that a step takes at most.
      card: that it is planned for.
      what: the model and its batch.
      gpus: of all nodes.
    """
    usable = FRACTION * card.memory
    return {
        "what": what,
        "gpu": card.name,
        "gpus": gpus,
        "memory": card.memory,
        "usable": usable,
        "fits": peak <= usable,
    }
