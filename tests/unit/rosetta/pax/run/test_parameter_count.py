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
def test_the_count_does_not_exceed_published_sizes(config: str, published: float) -> None:
    found = parameter_count.count_parameters(hyper_parameters.resolve_values(config, {}))
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
        ({"MAX_STEPS": "100", "CHECKPOINT_EVERY_N_STEPS[0]": "10"}, 12, None),
        ({"MAX_STEPS": "100", "NUM_KV_HEADS.count": "1"}, 12, None),
    ],
)
def test_the_checkpoints_of_a_run_are_counted(
    hyper: dict[str, str], bytes_each: int, times: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def check(_folder: str, one: int, times: int, _name: str) -> tuple[str, ...]:
        asked.append((one, times))
        return ()

    monkeypatch.setattr(disk_space, "check_checkpoints_fit", check)
    small = {
        "NUM_LAYERS": "1",
        "MODEL_DIMS": "8",
        "HIDDEN_DIMS": "16",
        "NUM_HEADS": "2",
        "DIMS_PER_HEAD": "4",
        "VOCAB_SIZE": "100",
    }
    assert parameter_count.check_disk_space("Synthetic126M", "/x", {**small, **hyper}) == ()
    kernels = 8 * 100 + 4 * 8 * 8 + 2 * 8 * 16
    assert asked == ([] if times is None else [(bytes_each * kernels, times)])


def test_a_users_experiment_is_not_counted() -> None:
    assert parameter_count.check_disk_space("my.own.Experiment", "/x", {}) == ()
    assert parameter_count.check_disk_space("my.own.Synthetic126M", "/x", {}) == ()


@pytest.mark.parametrize("word", ["--exp=mine.Experiment", "--fdl_config=mine.make", "--fiddler=f"])
def test_a_run_of_another_experiment_is_not_counted(word: str) -> None:
    assert hyper_parameters.resolve_values("Synthetic126M", {"MAX_STEPS": "1"}, [word]) == {}
