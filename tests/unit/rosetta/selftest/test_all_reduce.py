"""The sum over all devices is compared element by element with a sum of whole numbers."""

from __future__ import annotations

from tests.support import required_modules

required_modules.need_modules("jax")

import jax
import numpy as np

from rosetta.selftest import all_reduce


def test_the_sum_of_the_devices_at_hand_is_exact() -> None:
    summed = all_reduce.sum_over_devices(jax.local_devices())
    assert all_reduce.count_wrong_elements(summed) == [0] * len(jax.local_devices())


def test_each_wrong_element_counts() -> None:
    values = [all_reduce.make_values(device) for device in range(3)]
    right = np.sum(values, axis=0)
    wrong = right.copy()
    wrong[[3, 70]] += 1
    shifted = np.roll(right, 1)
    counts = all_reduce.count_wrong_elements([right, wrong, shifted])
    assert counts[:2] == [0, 2]
    assert counts[2] > all_reduce.ELEMENTS / 2
    # A sum that lacks one device's part is wrong nearly everywhere.
    assert all_reduce.count_wrong_elements([values[0], right])[0] > all_reduce.ELEMENTS / 2


def test_float32_has_every_sum_exactly() -> None:
    largest = max(int(all_reduce.make_values(device).max()) for device in range(8))
    assert largest * 1000 < 1 << 24
