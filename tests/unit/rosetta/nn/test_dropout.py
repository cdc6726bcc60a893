from __future__ import annotations

import types
from typing import Any

import pytest

from tests.support import required_modules

required_modules.need_modules("jax", "flax")

import jax
import numpy as np

from rosetta.nn import dropout

BATCH, WIDTHS = 64, {"a": 30, "b": 7, "c": 200}


def drawn(seed: int) -> Any:
    keys = {"dropout": jax.random.key(seed)}
    return dropout.draw_masks(types.SimpleNamespace(make_rng=keys.__getitem__), 0.25, BATCH, WIDTHS)


@pytest.fixture(scope="module")
def masks() -> dict[str, Any]:
    return {name: np.asarray(mask) for name, mask in drawn(0).items()}


def test_each_mask_has_its_width(masks: dict[str, Any]) -> None:
    assert {name: mask.shape for name, mask in masks.items()} == {
        name: (BATCH, width) for name, width in WIDTHS.items()
    }
    assert {mask.dtype for mask in masks.values()} == {np.dtype(bool)}


def test_the_share_of_kept_values(masks: dict[str, Any]) -> None:
    whole = np.concatenate(list(masks.values()), axis=1)
    deviation = (0.75 * 0.25 / whole.size) ** 0.5
    assert abs(whole.mean() - 0.75) < 5 * deviation


def test_masks_and_rows_are_independent(masks: dict[str, Any]) -> None:
    a, c = masks["a"], masks["c"]
    assert abs(np.corrcoef(a.ravel(), c[:, :30].ravel())[0, 1]) < 0.15
    assert abs(np.corrcoef(c[0], c[1])[0, 1]) < 0.4


def test_another_key_gives_another_mask(masks: dict[str, Any]) -> None:
    other = drawn(1)
    assert (np.asarray(other["c"]) != masks["c"]).mean() > 0.3


def test_apply_mask_scales_kept_values_in_the_type_of_the_input() -> None:
    x = jax.numpy.full((2, 4), 3.0, "bfloat16")
    kept = np.array([[True, False, True, True]])
    dropped = dropout.apply_mask(x, kept, 0.25)
    assert dropped.dtype == x.dtype
    assert np.asarray(dropped, np.float32).tolist() == [[4.0, 0.0, 4.0, 4.0]] * 2
    assert dropout.apply_mask(x, None, 0.25) is x
