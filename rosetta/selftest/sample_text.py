"""Text made on the spot: enough structure that a tiny model learns some of it within twenty
steps.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from rosetta.core.atomic_files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUBJECTS = (
    "the river",
    "the mill",
    "a miller",
    "the baker",
    "an old mule",
    "the wind",
    "a heron",
    "the ferryman",
)
VERBS = ("carries", "watches", "follows", "remembers", "crosses", "measures", "repairs", "passes")
OBJECTS = (
    "the stone bridge",
    "a sack of grain",
    "the north road",
    "an iron wheel",
    "the evening bell",
    "a narrow boat",
)
PLACES = (
    "before the rain",
    "under the hill",
    "at the second lock",
    "by the water",
    "after the harvest",
)


def generate_sentences(count: int, seed: int) -> Iterator[str]:
    """Yield `count` ASCII sentences; the same ones for the same seed on every machine and
    Python.
    """
    # random() is the one method whose sequence Python promises to keep.
    draw = random.Random(seed).random  # noqa: S311

    def pick(words: tuple[str, ...]) -> str:
        return words[int(draw() * len(words))]

    for _ in range(count):
        yield f"{pick(SUBJECTS)} {pick(VERBS)} {pick(OBJECTS)} {pick(PLACES)}."


def write_text(path: Path, *, lines: int = 4096, per_line: int = 4, seed: int = 0) -> None:
    """Write `lines` lines of `per_line` sentences each (about 50 bytes a sentence) to `path`, whole
    or not at all.
    """
    text = list(generate_sentences(lines * per_line, seed))
    joined = (" ".join(text[at : at + per_line]) for at in range(0, len(text), per_line))
    write_atomic(path, "".join(f"{line}\n" for line in joined), None)
