"""The first command that trains, for the banner of an image and for `rosetta` without a command.

The command works as it is shown: it trains a tiny model on a text of the environment. The builder
uses this module too.
"""

from __future__ import annotations

import shlex

# The settings of a tiny model, by framework. T5's lengths are short, because a CPU is slow.
_COMMANDS = {
    "t5x": "rosetta run t5x-tiny TRAIN_STEPS=100 ENC_SL=64 DEC_SL=32 MODEL_DIR=/tmp/tiny",
    "pax": (
        "rosetta pax train CONFIG=rosetta.pax.gpt.Tiny NUM_GPUS=1 MAX_STEPS=100 LOG_DIR=/tmp/tiny"
    ),
}


def make_first_command(distribution: str, accelerator: str, home: str) -> str:
    """Return a command that trains a tiny model; "" for a distribution of another framework.

    Args:
      distribution: The distribution of the environment, such as "pax-1.4".
      accelerator: The accelerator, such as "cuda13" or "cpu".
      home: The folder opt/rosetta of the environment, which has the text.
    """
    command = _COMMANDS.get(distribution.partition("-")[0])
    if command is None:
        return ""
    # rosetta never changes to the CPU by itself.
    platform = "JAX_PLATFORMS=cpu " if accelerator == "cpu" else ""
    text = shlex.quote(f"text:{home}/LICENSES/rosetta")
    return f"{platform}{command} DATA={text}"
