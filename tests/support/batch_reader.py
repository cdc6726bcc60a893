"""Read batches as a trainer does, in a process that a test may kill.

    python -m tests.support.batch_reader RECIPE.json STATE.json STEPS

A line `STEP HASH` is printed for each batch. After every third step the position is saved to
STATE.json, as a checkpoint does, and a process that finds the file continues from there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rosetta.data import batch_hashes, data_recipe, pipeline, prefetch

BATCH = 8
SAVE_PERIOD = 3


def main() -> None:
    """Read the batches that the command line asks for."""
    recipe_path, state_path, steps = sys.argv[1:]
    recipe = data_recipe.Recipe(**json.loads(Path(recipe_path).read_text()))
    batches = pipeline.Batches(recipe, BATCH)
    first = 0
    if Path(state_path).exists():
        state = json.loads(Path(state_path).read_text())
        first = state["step"]
        batches.resume(state, first)
    loader = prefetch.Loader(batches, first)
    for step in range(first, int(steps)):
        batch = next(loader)
        if step % SAVE_PERIOD == 0:
            temporary = Path(f"{state_path}.part")
            temporary.write_text(json.dumps(batches.make_state(step)))
            os.replace(temporary, state_path)
        print(step, batch_hashes.hash_batch(batch), flush=True)
    loader.close()


if __name__ == "__main__":
    main()
