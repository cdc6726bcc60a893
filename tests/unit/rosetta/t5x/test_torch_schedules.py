"""The rates that options of t5-experiments ask for are those of transformers, in each step."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from rosetta.launch.t5_experiments import options, schedule
from tests.support import required_modules

required_modules.need_modules("jax", "t5x")

from t5x import utils

from rosetta.t5x import optimizer

STEPS = 12
# Prints the rate of each step, with the values of the options as JSON in its first argument.
TRANSFORMERS = """
import json, sys
import torch
from transformers import get_scheduler
values = json.loads(sys.argv[1])
parameter = torch.nn.Parameter(torch.ones(1))
adam = torch.optim.AdamW([parameter], lr=values["lr"])
steps = values["num_training_steps"] or values["iters"]
rates = get_scheduler(values["lr_scheduler"], adam, values["num_warmup_steps"], steps)
printed = []
for _ in range(values["iters"]):
    printed.append(adam.param_groups[0]["lr"])
    adam.step()
    rates.step()
print(json.dumps(printed))
"""


def compute_rates(values: dict[str, Any]) -> list[float]:
    """Return the rate of each step, as the gin files bind T5X's schedule."""
    training = schedule.choose_training(values)
    variables, gin = training.variables, training.gin
    prefix = "utils.create_learning_rate_scheduler."
    peak, last = float(variables["LEARNING_RATE"]), gin["LAST_RATE"]
    warmup = gin.get(f"{prefix}warmup_steps", int(variables.get("WARMUP_STEPS", 0)))
    rate_of = utils.create_learning_rate_scheduler(
        factors=gin[f"{prefix}factors"],
        base_learning_rate=peak,
        warmup_steps=warmup,
        decay_factor=optimizer.decay_per_step(gin.get("SCHEDULE_STEPS", STEPS), warmup, last),
        steps_per_cycle=gin.get(f"{prefix}steps_per_cycle", STEPS),
        min_learning_rate=optimizer.last_rate(peak, last),
    )
    return [float(rate_of(step)) for step in range(values["iters"])]


@pytest.mark.parametrize(
    "given",
    [
        {"lr_scheduler": "constant"},
        {"lr_scheduler": "constant_with_warmup", "num_warmup_steps": 4},
        {"lr_scheduler": "linear", "num_warmup_steps": 3},
        {"lr_scheduler": "linear", "num_warmup_steps": 3, "num_training_steps": 20},
        {"lr_scheduler": "polynomial", "num_warmup_steps": 3},
        {"lr_scheduler": "cosine", "num_warmup_steps": 0},
        {"lr_scheduler": "cosine", "num_warmup_steps": 3},
        {"lr_scheduler": "cosine_with_restarts", "num_warmup_steps": 3, "num_training_steps": 20},
    ],
    ids=lambda given: " ".join(map(str, given.values())),
)
def test_rates(given: dict[str, Any]) -> None:
    python = os.environ.get("ROSETTA_TEST_TORCH", "")
    if not python:
        pytest.skip("NOT CHECKED: ROSETTA_TEST_TORCH names no Python with torch and transformers")
    values = options.fill_defaults(options.PRETRAINING, {"lr": 1e-3, "iters": STEPS, **given})
    done = subprocess.run(
        [python, "-c", TRANSFORMERS, json.dumps(values)], stdout=subprocess.PIPE, check=True
    )
    # T5X's rate is nowhere below the last one, 1e-7 for polynomial, and so not in step 0 either.
    assert compute_rates(values) == pytest.approx(json.loads(done.stdout), rel=1e-5, abs=1.01e-7)


@pytest.mark.parametrize("warms_up", [False, True])
def test_relative_steps(warms_up: bool) -> None:
    """Adafactor's own rate: at most 0.01, then 1 / sqrt(step); with a rise of 1e-6 in each step."""
    given = {"optimizer": "Adafactor", "relative_step": True, "warmup_init": warms_up, "iters": 1}
    training = schedule.choose_training(options.fill_defaults(options.PRETRAINING, given))
    rate_of = utils.create_learning_rate_scheduler(
        factors=training.gin["utils.create_learning_rate_scheduler.factors"],
        base_learning_rate=float(training.variables["LEARNING_RATE"]),
        warmup_steps=int(training.variables["WARMUP_STEPS"]),
        min_learning_rate=training.gin["LAST_RATE"],
    )
    for step in (1, 100, 9_999, 10_000, 10_001, 40_000, 1_000_000):
        highest = 1e-6 * step if warms_up else 1e-2
        assert float(rate_of(step)) == pytest.approx(min(highest, step**-0.5), rel=1e-5)
