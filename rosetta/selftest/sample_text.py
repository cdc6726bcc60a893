"""Generate the text on which the self-test and bench/startup.py train.

It has enough structure that a tiny model learns some of it within twenty steps.
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
    """Yield ASCII sentences, the same for the same seed on every machine and Python."""
    # random() is the only method whose sequence Python promises to keep.
    draw = random.Random(seed).random  # noqa: S311

    def pick(phrases: tuple[str, ...]) -> str:
        return phrases[int(draw() * len(phrases))]

    for _ in range(count):
        yield f"{pick(SUBJECTS)} {pick(VERBS)} {pick(OBJECTS)} {pick(PLACES)}."


def write_text(path: Path, *, lines: int = 4096, per_line: int = 4, seed: int = 0) -> None:
    """Write lines of sentences to a file, atomically.

    Args:
        path: The file.
        lines: The number of lines.
        per_line: The number of sentences in a line. A sentence has about 50 bytes.
        seed: The seed of the sentences.
    """
    sentences = list(generate_sentences(lines * per_line, seed))
    joined = (
        " ".join(sentences[start : start + per_line])
        for start in range(0, len(sentences), per_line)
    )
    write_atomic(path, "".join(f"{line}\n" for line in joined), None)
