"""Sets that can only be read from their beginning on: shuffled by blocks, with marks to go on from.

The stream is cut into blocks of about BLOCK letters. Inside a block rows are drawn by position as
from any corpus, in an order keyed by the block. A mark says where a block begins, in the stream and
in example numbers; with one, going on costs one block. The last two blocks stay in memory: a
mixture draws its rows in another order, which goes to and fro over a block's end.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.data import Array, bad_records, documents, rows, shuffling, text_corpora
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.data.data_spec import Spec
    from rosetta.data.objectives import Objective
    from rosetta.data.vocabularies import Vocabulary

BLOCK_LETTERS = 1 << 24
MAX_MARKS = 64  # marks
MAX_HELD_BLOCKS = 2  # blocks


class DocumentCorpus:
    """Documents in memory as a corpus, addressed by letter."""

    def __init__(self, texts: list[str]) -> None:
        self.held = texts
        self.ends = np.cumsum([len(text) for text in texts])
        self.size = int(self.ends[-1])

    def read_texts(self, start: int, stop: int) -> list[str]:
        found = []
        number = int(np.searchsorted(self.ends, start, side="right"))
        while (
            number < len(self.held)
            and (first := int(self.ends[number - 1]) if number else 0) < stop
        ):
            text = self.held[number]
            piece = text_corpora.extract_part(
                text, max(start - first, 0) / len(text), min((stop - first) / len(text), 1.0)
            )
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
      record: how many records of the set come before it.
    """

    block: int = 0
    example: int = 0
    stretch: int = 0
    state: Any = None
    record: int = 0


class Stream:
    """Rows of a streamed Hugging Face set."""

    def __init__(
        self,
        spec: Spec,
        objective: Objective,
        vocab: Vocabulary,
        seed: int,
        *,
        field: str,
        split: str,
        block: int = BLOCK_LETTERS,
    ) -> None:
        self.spec, self.objective, self.vocab, self.seed = spec, objective, vocab, seed
        self.field, self.split, self.letters = field, split, block
        self.marks: collections.deque[Mark] = collections.deque([Mark()], maxlen=MAX_MARKS)
        self.data: Any = None
        self.reading: Iterator[Any] | None = None
        self.held: dict[
            int, tuple[Mark, DocumentCorpus, int]
        ] = {}  # by the block's number: its mark, its text, how many examples it has
        self.record = 0  # records of the set that were read
        self.next = 0  # the block that the stream stands before

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "data": None, "reading": None, "held": {}}

    def _seek(self, mark: Mark) -> None:
        if self.data is None:
            self.data = documents.open_hugging_face(self.spec, self.split)
        self.data.load_state_dict(mark.state) if mark.state is not None else self._rewind()
        self.reading = documents.read_opened_set(self.data, self.spec)
        self.record = mark.record

    def _rewind(self) -> None:
        self.data = documents.open_hugging_face(self.spec, self.split)

    def _read(self, mark: Mark) -> tuple[Mark, DocumentCorpus, int]:
        """Take the block at the mark, and note where the next one begins."""
        if self.reading is None or self.next != mark.block:
            self._seek(mark)
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
                self.reading = documents.read_opened_set(self.data, self.spec)
                self.record = 0
                continue
            self.record += 1
            try:
                text = documents.get_record_text(record, self.field, self.spec)
            except RecordFault as fault:
                bad_records.stop_or_skip(fault.locate(str(self.spec), f"record {self.record:,}"))
                continue
            if text.strip():
                texts.append(text)
                count += len(text)
        held = DocumentCorpus(texts or [" "])
        stretch = mark.stretch or rows.estimate_stretch(held, self.objective, self.vocab)
        size = max(1, held.size // stretch)
        here = dataclasses.replace(mark, stretch=stretch)
        self.held.pop(mark.block, None)
        while len(self.held) >= MAX_HELD_BLOCKS:
            del self.held[next(iter(self.held))]  # the one read first
        self.held[mark.block], self.next = (here, held, size), mark.block + 1
        if self.marks[-1].block <= mark.block:
            self.marks.append(
                Mark(
                    mark.block + 1,
                    mark.example + size,
                    stretch,
                    self.data.state_dict(),
                    self.record,
                )
            )
        return self.held[mark.block]

    def _block(self, example: int) -> tuple[Mark, DocumentCorpus, int]:
        for found in self.held.values():
            if found[0].example <= example < found[0].example + found[2]:
                return found
        mark = self._before(example)
        if mark is None:
            raise ValueError(f"example {example} lies before all marks")
        found = self._read(mark)
        while example >= found[0].example + found[2]:
            found = self._read(
                next(mark for mark in self.marks if mark.block == found[0].block + 1)
            )
        return found

    def _before(self, example: int) -> Mark | None:
        # A copy: a checkpoint asks for its mark while the loader's thread reads on.
        return next((mark for mark in reversed(tuple(self.marks)) if mark.example <= example), None)

    def read_rows(self, examples: Array) -> rows.Rows:
        made: list[Array] = [np.zeros(0, np.int32)] * len(examples)
        keys: Array = np.empty(len(examples), np.uint64)
        for place in np.argsort(examples, kind="stable").tolist():
            mark, held, size = self._block(int(examples[place]))
            within = np.array([int(examples[place]) - mark.example])
            index = int(
                shuffling.permute_indices(
                    within, size, shuffling.derive_key(self.seed, 7, mark.block)
                )[0]
            )
            texts = held.read_texts(index * mark.stretch, (index + 1) * mark.stretch)
            made[place] = rows.encode_window(texts, self.objective, self.vocab)
            keys[place] = shuffling.derive_key(self.seed, 8, mark.block, index)
        return rows.make_unpacked_rows(*self.objective.apply(made, keys, self.vocab))

    def mark(self, example: int) -> dict[str, Any]:
        """Return the last mark at or before a running example number."""
        return dataclasses.asdict(self._before(example) or Mark())

    def resume(self, kept: dict[str, Any]) -> None:
        """Go on from a mark that `mark` gave."""
        self.marks = collections.deque([Mark(**kept)], maxlen=MAX_MARKS)
        self.held, self.reading = {}, None

    def describe(self) -> str:
        return f"stream {self.spec}#{self.spec.split or self.split}"
