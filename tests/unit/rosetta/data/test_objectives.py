from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rosetta.data import objectives, shuffling, vocabularies
from tests.support import errors

BYTES = vocabularies.Vocabulary("byte", 100)
TOP = BYTES.size - 1
SENTINELS = np.array(BYTES.sentinel_ids, np.int32)


def restore_window(inputs: np.ndarray, targets: np.ndarray) -> list[int]:
    """Put the masked spans back where their sentinels stand."""
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in targets.tolist():
        if token == vocabularies.EOS:
            break
        if token > TOP - 100:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    restored: list[int] = []
    for token in inputs.tolist():
        if token == vocabularies.EOS:
            break
        restored += spans.pop(token) if token > TOP - 100 else [token]
    assert not spans
    return restored


@pytest.mark.parametrize("length", [2, 3, 7, 20, 100, 568])
@pytest.mark.parametrize("span", [2.0, 3.0, 20.0])
def test_span_corruption_loses_nothing_and_adds_nothing(length: int, span: float) -> None:
    tokens: Any = np.arange(8 * length, dtype=np.int32).reshape(8, length) % 200 + 3
    keys = shuffling.derive_keys(1, np.arange(8))
    inputs, targets = objectives.corrupt_spans(tokens, keys, SENTINELS, 0.15, span)
    for row in range(8):
        assert restore_window(inputs[row], targets[row]) == tokens[row].tolist()
    noise = min(max(round(length * 0.15), 1), length - 1)
    assert (targets <= TOP - 100).sum() == 8 * noise
    assert inputs[:, 0].max() <= TOP - 100  # a row begins with a token that is kept


def test_all_places_of_the_masked_spans_are_equally_likely() -> None:
    count, length = 20_000, 12
    masks = objectives.draw_noise_mask(
        length, shuffling.derive_keys(2, np.arange(count)), 0.3, 2.0
    )  # 4 masked in 2 spans, 8 kept in 2
    assert (masks.sum(axis=1) == 4).all()
    found, times = np.unique(masks, axis=0, return_counts=True)
    assert len(found) == 3 * 7  # ways to cut 4 into 2 pieces x ways to cut 8 into 2
    expected = count / len(found)
    assert (
        (times - expected) ** 2 / expected
    ).sum() < 45  # chi square with 20 degrees of freedom: 0.1 % lie above


def test_a_row_depends_on_its_own_key_alone() -> None:
    tokens = np.tile(np.arange(3, 103, dtype=np.int32), (4, 1))
    keys = shuffling.derive_keys(1, np.arange(4))
    together = objectives.corrupt_spans(tokens, keys, SENTINELS, 0.15, 3.0)
    for row in range(4):
        alone = objectives.corrupt_spans(
            tokens[row : row + 1], keys[row : row + 1], SENTINELS, 0.15, 3.0
        )
        for side in range(2):
            assert (alone[side][0] == together[side][row]).all()
    assert len({row.tobytes() for row in together[1]}) == 4


def test_window_lengths_are_those_of_t5() -> None:
    for inputs, targets, window in ((512, 114, 568), (1024, 229, 1137)):
        rule = objectives.make_objective("span_corruption", {"inputs": inputs, "targets": targets})
        assert rule.window_length == window
        rule.check_fits(BYTES if inputs <= 512 else vocabularies.Vocabulary("byte", 200))
        sides = rule.apply(
            [np.full(window, 5, np.int32)],
            shuffling.derive_keys(0, np.arange(1)),
            vocabularies.Vocabulary("byte", 200),
        )
        assert [int((side != 0).sum()) for side in sides] == [inputs, targets]


def test_short_and_empty_windows_still_make_rows() -> None:
    rule = objectives.make_objective("span_corruption", {"inputs": 32, "targets": 16})
    windows: list[Any] = [np.full(size, 7, np.int32) for size in (rule.window_length, 0, 1, 2, 9)]
    inputs, targets = rule.apply(windows, shuffling.derive_keys(0, np.arange(5)), BYTES)
    assert inputs.shape == (5, 32)
    assert targets.shape == (5, 16)
    assert inputs[1].tolist() == [1] + [0] * 31
    assert (inputs == vocabularies.EOS).sum(axis=1).tolist() == [1] * 5
    assert (targets == vocabularies.EOS).sum(axis=1).tolist() == [1] * 5
    assert restore_window(inputs[4], targets[4]) == [7] * 9


def test_prefix_lm_splits_a_window_at_any_place() -> None:
    rule = objectives.make_objective("prefix_lm", {"inputs": 12, "targets": 12})
    window: Any = np.arange(3, 14, dtype=np.int32)
    inputs, targets = rule.apply([window] * 4000, shuffling.derive_keys(0, np.arange(4000)), BYTES)
    cuts = (inputs != 0).sum(axis=1) - 1
    assert sorted(set(cuts.tolist())) == list(range(1, 11))
    assert np.bincount(cuts)[1:].min() > 300
    for row in (0, 1, 2):
        assert (
            inputs[row, : cuts[row]].tolist() + targets[row, : 11 - cuts[row]].tolist()
            == window.tolist()
        )
        assert inputs[row, cuts[row]] == targets[row, 11 - cuts[row]] == vocabularies.EOS


def test_lm_takes_the_window_as_it_is() -> None:
    rule = objectives.make_objective("lm", {"targets": 6})
    inputs, targets = rule.apply(
        [np.arange(3, 9, dtype=np.int32), np.array([4, 1], np.int32)],
        shuffling.derive_keys(0, np.arange(2)),
        BYTES,
    )
    assert inputs.shape == (2, 0)
    assert targets.tolist() == [[3, 4, 5, 6, 7, 8], [4, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("name", "lengths", "changes", "kind", "facts"),
    [
        ("masking", {"inputs": 8, "targets": 8}, {}, errors.UNKNOWN, {"value": "masking"}),
        ("span_corruption", {"inputs": 512}, {}, errors.MISSING, {"names": "targets"}),
        ("lm", {"inputs": 512}, {}, errors.MISSING, {"names": "targets"}),
        (
            "span_corruption",
            {"inputs": 8, "targets": 8},
            {"noise_density": 1.0},
            errors.INVALID,
            {"names": "1.0"},
        ),
        (
            "span_corruption",
            {"inputs": 8, "targets": 8},
            {"mean_noise_span_length": 0.5},
            errors.INVALID,
            {"names": "0.5"},
        ),
        (
            "span_corruption",
            {"inputs": 512, "targets": 100},
            {},
            errors.INVALID,
            {"where": "TASK_FEATURE_LENGTHS", "value": 100, "remedy": "114"},
        ),
        ("span_corruption", {"inputs": 2048, "targets": 512}, {}, errors.TOO_BIG, {"value": 114}),
    ],
)
def test_lengths_and_vocabularies_that_do_not_fit_are_refused(
    name: str,
    lengths: dict[str, int],
    changes: dict[str, Any],
    kind: str,
    facts: dict[str, Any],
) -> None:
    with errors.expect_user_error(kind, **facts):
        objectives.make_objective(name, lengths, **changes).check_fits(BYTES)


@pytest.mark.parametrize("density", [0.01, 0.15, 0.5, 0.99])
@pytest.mark.parametrize("span", [1.0, 3.0, 20.0])
def test_the_longest_window_that_fits(density: float, span: float) -> None:
    def needed(length: int) -> int:
        noise, spans = objectives._count_noise(length, density, span)
        return length - noise + spans + 1

    for inputs in [*range(300), 99_999, 999_999_999]:
        length = objectives.find_window_length(inputs, density, span)
        assert length == 2 or needed(length) <= inputs
        assert needed(length + 1) > inputs


@pytest.mark.parametrize(
    ("inputs", "targets", "span"), [(512, 128, 3.0), (64, 32, 3.0), (40, 30, 2.0), (64, 64, 20.0)]
)
def test_windows_of_rare_sizes_give_the_rows_that_they_give_alone(
    inputs: int, targets: int, span: float
) -> None:
    chance = np.random.default_rng(0)
    vocabulary = vocabularies.Vocabulary("ids:1000", 120)
    objective = objectives.make_objective(
        "span_corruption", {"inputs": inputs, "targets": targets}, mean_noise_span_length=span
    )
    for count in (1, 7, 60):
        sizes = chance.integers(0, objective.window_length + 1, count)
        windows = [chance.integers(3, 800, size).astype(np.int32) for size in sizes]
        keys = chance.integers(0, 1 << 62, count).astype(np.uint64)
        together = objective.apply(windows, keys, vocabulary)
        # A batch of equal rows is made in another way.
        repeated = objectives._ROWS_PER_SIZE
        for row, window in enumerate(windows):
            alone = objective.apply([window] * repeated, keys[[row] * repeated], vocabulary)
            for side, expected in zip(together, alone, strict=True):
                assert (side[row] == expected[0]).all()
