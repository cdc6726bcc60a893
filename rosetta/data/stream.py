"""Sets that can only be read from their beginning on: shuffled by blocks, with marks to go on from.

The stream is cut into blocks of about BLOCK letters. Inside a block rows are drawn by position as from any corpus, in an order
keyed by the block. A mark says where a block begins, in the stream and in example numbers; with one, going on costs one block.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.data import Array, documents, order, rows, windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.data.objectives import Objective
    from rosetta.data.spec import Spec
    from rosetta.data.vocabulary import Vocabulary

BLOCK = 1 << 24
KEPT = 64


class Held:
    """Documents in memory as a corpus, addressed by letter."""

    def __init__(self, texts: list[str]) -> None:
        self.held = texts
        self.ends = np.cumsum([len(text) for text in texts])
        self.size = int(self.ends[-1])

    def texts(self, start: int, stop: int) -> list[str]:
        found = []
        number = int(np.searchsorted(self.ends, start, side="right"))
        while number < len(self.held) and (first := int(self.ends[number - 1]) if number else 0) < stop:
            text = self.held[number]
            piece = windows.share(text, max(start - first, 0) / len(text), min((stop - first) / len(text), 1.0))
            found += [piece] if piece.strip() else []
            number += 1
        return found

    def describe(self) -> str:
        return f"{len(self.held)} documents"


@dataclasses.dataclass(frozen=True)
class Mark:
    """Where a block begins.

    Attributes:
      block: its number since the run began.
      example: the running number of its first row.
      stretch: letters a window takes, from the first block.
      state: the stream's own, None at its very beginning.
    """

    block: int = 0
    example: int = 0
    stretch: int = 0
    state: Any = None


class Stream:
    """Rows of a streamed Hugging Face set."""

    def __init__(self, spec: Spec, objective: Objective, vocab: Vocabulary, seed: int, *, field: str, split: str, block: int = BLOCK) -> None:
        self.spec, self.objective, self.vocab, self.seed = spec, objective, vocab, seed
        self.field, self.split, self.letters = field, split, block
        self.marks: collections.deque[Mark] = collections.deque([Mark()], maxlen=KEPT)
        self.data: Any = None
        self.reading: Iterator[Any] | None = None
        self.now: tuple[Mark, Held, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "data": None, "reading": None, "now": None}

    def _seek(self, mark: Mark) -> None:
        if self.data is None:
            self.data = documents.open_hugging_face(self.spec, self.split)
        self.data.load_state_dict(mark.state) if mark.state is not None else self._rewind()
        self.reading = iter(self.data)

    def _rewind(self) -> None:
        self.data = documents.open_hugging_face(self.spec, self.split)

    def _read(self, mark: Mark) -> None:
        """Take the block at the mark, the stream standing there, and note where the next one begins."""
        texts: list[str] = []
        count = turned = 0
        while count < self.letters:
            record = next(self.reading, None) if self.reading is not None else None
            if record is None:
                # The set's end: it begins again. A set without any text would turn for ever.
                turned += 1
                if turned == 2:
                    break
                self._rewind()
                self.reading = iter(self.data)
                continue
            text = documents.field_of(record, self.field, self.spec)
            if text.strip():
                texts.append(text)
                count += len(text)
        held = Held(texts or [" "])
        stretch = mark.stretch or rows.stretch(held, self.objective, self.vocab)
        size = max(1, held.size // stretch)
        here = dataclasses.replace(mark, stretch=stretch)
        self.now = here, held, size
        if self.marks[-1].block <= mark.block:
            self.marks.append(Mark(mark.block + 1, mark.example + size, stretch, self.data.state_dict()))

    def _block(self, example: int) -> tuple[Mark, Held, int]:
        if self.now is None or not self.now[0].example <= example < self.now[0].example + self.now[2]:
            known = [mark for mark in self.marks if mark.example <= example]
            if not known:
                raise ValueError(f"example {example} lies before all marks")
            following = self.now is not None and known[-1].block == self.now[0].block + 1
            if not following:
                self._seek(known[-1])
            self._read(known[-1])
            while self.now is not None and example >= self.now[0].example + self.now[2]:
                self._read(next(mark for mark in self.marks if mark.block == self.now[0].block + 1))
        assert self.now is not None  # noqa: S101 (for the type checker: _read has set it)
        return self.now

    def rows(self, examples: Array) -> rows.Rows:
        made: list[Array] = [np.zeros(0, np.int32)] * len(examples)
        keys: Array = np.empty(len(examples), np.uint64)
        for place in np.argsort(examples, kind="stable").tolist():
            mark, held, size = self._block(int(examples[place]))
            within = np.array([int(examples[place]) - mark.example])
            index = int(order.permute(within, size, order.key(self.seed, 7, mark.block))[0])
            texts = held.texts(index * mark.stretch, (index + 1) * mark.stretch)
            made[place] = rows.encoded(texts, self.objective, self.vocab)
            keys[place] = order.key(self.seed, 8, mark.block, index)
        return rows.plain(*self.objective.apply(made, keys, self.vocab))

    def mark(self, example: int) -> dict[str, Any]:
        """Return the last mark at or before a running example number."""
        known = [mark for mark in self.marks if mark.example <= example]
        return dataclasses.asdict(known[-1] if known else Mark())

    def resume(self, kept: dict[str, Any]) -> None:
        """Go on from a mark that `mark` gave."""
        self.marks = collections.deque([Mark(**kept)], maxlen=KEPT)
        self.now = self.reading = None

    def describe(self) -> str:
        return f"stream {self.spec}#{self.spec.split or self.split}"
