"""The program with which the self-test sums an array over all devices in one collective.

On GPUs, NCCL computes the sum. The numbers are whole and small, so the sum has to be exactly right.

Usage: python -m rosetta.selftest.all_reduce RESULT

The program writes one JSON object to the file RESULT: the number of devices, their kind, and the
number of wrong elements on each device.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

ELEMENTS = 1 << 20  # on each device; 4 MiB of float32, so that NCCL uses its bandwidth protocols
_PERIOD = 1021  # a prime, so that a part that is shifted or swapped gives another sum


def make_values(device: int) -> Any:
    """Return the array of one device, float32 [ELEMENTS], with whole numbers.

    Their sum over 1,000 devices is below 2^24. So float32 has every partial sum exactly, in
    whatever order the devices add.
    """
    return ((np.arange(ELEMENTS) * (device + 1)) % _PERIOD).astype(np.float32)


def sum_over_devices(devices: Any) -> list[Any]:
    """Return the sum of all devices' arrays, as each device has it after one all-reduce.

    Args:
        devices: The devices of JAX.
    """
    values = np.stack([make_values(index) for index in range(len(devices))])
    summed = jax.pmap(lambda row: jax.lax.psum(row, "devices"), "devices", devices=devices)(values)
    return list(np.asarray(summed))


def count_wrong_elements(summed: list[Any]) -> list[int]:
    """Return for each device how many elements of its sum differ from the sum of whole numbers."""
    expected: Any = np.zeros(ELEMENTS, np.int64)
    for device in range(len(summed)):
        expected += make_values(device).astype(np.int64)
    return [int(np.count_nonzero(row != expected)) for row in summed]


def main(result: str) -> None:
    """Compute the sum on all devices that JAX sees, and write what came out."""
    devices = jax.local_devices()
    document = {"devices": len(devices), "kind": devices[0].device_kind, "wrong": list[int]()}
    if len(devices) > 1:
        document["wrong"] = count_wrong_elements(sum_over_devices(devices))
    Path(result).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
