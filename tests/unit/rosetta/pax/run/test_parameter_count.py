from __future__ import annotations

import pytest

from rosetta.core import disk_space
from rosetta.pax.run import hyper_parameters, parameter_count

SIZES = {
    "Synthetic126M": 126e6,
    "Synthetic5B": 5.04e9,
    "Synthetic175B": 174.6e9,
    "SyntheticGLaM64B64E": 1.15e12,
    "LLaMA7B": 6.74e9,
    "LLaMA13B": 13.0e9,
    "LLaMA70B": 69.0e9,
}


@pytest.mark.parametrize(("config", "published"), SIZES.items())
def test_published_sizes_which_it_does_not_exceed(config: str, published: float) -> None:
    stated = hyper_parameters.read(config)
    found = parameter_count.kernels({name: hyper_parameters.value(stated, name) for name in stated})
    assert found is not None
    assert 0.95 * published < found <= published


@pytest.mark.parametrize(
    ("hyper", "bytes_each", "times"),
    [
        ({"MAX_STEPS": "100"}, 12, 2),
        ({"MAX_STEPS": "600000"}, 12, 11),
        (
            {"MAX_STEPS": "100", "CHECKPOINT_EVERY_N_STEPS": "10", "CHECKPOINT_MAX_TO_KEEP": "3"},
            12,
            4,
        ),
        ({"MAX_STEPS": "100", "USE_LORA": "True"}, 4, 2),
        ({"MAX_STEPS": "0"}, 12, 0),
    ],
)
def test_what_is_to_come(
    hyper: dict[str, str], bytes_each: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def check(_folder: str, one: int, times: int, _name: str) -> tuple[str, ...]:
        asked.append((one, times))
        return ()

    monkeypatch.setattr(disk_space, "check", check)
    small = {
        "NUM_LAYERS": "1",
        "MODEL_DIMS": "8",
        "HIDDEN_DIMS": "16",
        "NUM_HEADS": "2",
        "DIMS_PER_HEAD": "4",
        "VOCAB_SIZE": "100",
    }
    assert parameter_count.room("Synthetic126M", "/x", {**small, **hyper}) == ()
    assert asked == [(bytes_each * (8 * 100 + 4 * 8 * 8 + 2 * 8 * 16), times)]


def test_an_experiment_of_ones_own_is_not_known() -> None:
    assert parameter_count.room("my.own.Experiment", "/x", {}) == ()
