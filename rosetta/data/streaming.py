"""Rows of Hugging Face sets that can only be read from their beginning: streams.

The stream is cut into blocks of about BLOCK_CHARACTERS characters. Inside a block, rows are drawn
by position, as from any corpus, in an order keyed by the block. A mark says where a block begins,
in the stream and in running example numbers. With a mark, which checkpoints store, resuming costs
one block. The last two blocks stay in memory: a mixture draws its rows in another order, which goes
back and forth across the end of a block.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rosetta.data import Array, bad_records, documents, rows, shuffling, text_corpora
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.data.data_spec import Spec
    from rosetta.data.objectives import Objective
    from rosetta.data.vocabularies import Vocabulary

BLOCK_CHARACTERS = 1 << 24
MAX_MARKS = 64
MAX_HELD_BLOCKS = 2

# The first words of the keys that are derived from a seed, see rows.
_BLOCK_KEY, _ROW_KEY = 7, 8


class DocumentCorpus:
    """Documents in memory as a corpus, addressed by character.

    Attributes:
        documents: The texts.
        ends: Where each document ends.
        size: The number of characters.
    """

    def __init__(self, texts: list[str]) -> None:
        self.documents = texts
        self.ends = np.cumsum([len(text) for text in texts])
        self.size = int(self.ends[-1])

    def read_texts(self, start: int, stop: int) -> list[str]:
        """Return the documents, or the parts of documents, that lie in [start, stop)."""
        number, bounds = text_corpora.find_documents(self.ends, start, stop)
        texts = self.documents[number : number + len(bounds)]
        if not texts:
            return []
        return text_corpora.extract_range(texts, bounds[0], bounds[-1], start, stop)

    def describe(self) -> str:
        """Return the number of documents."""
        return f"{len(self.documents)} documents"


@dataclasses.dataclass(frozen=True)
class Mark:
    """Where a block begins. Checkpoints store the fields by their names.

    Attributes:
        block: The number of the block since the run began.
        example: The running number of its first row.
        stretch: The characters that make a round of windows, estimated from the first block.
        state: The state of the stream; None at its beginning.
        record: The number of records of the set before the block.
    """

    block: int = 0
    example: int = 0
    stretch: int = 0
    state: Any = None
    record: int = 0


class Block(NamedTuple):
    """A block in memory.

    Attributes:
        mark: Where the block begins.
        corpus: Its documents.
        row_count: The number of rows that are drawn from it.
    """

    mark: Mark
    corpus: DocumentCorpus
    row_count: int

    def has_example(self, example: int) -> bool:
        """Return whether a running number lies in the block."""
        return self.mark.example <= example < self.mark.example + self.row_count


class Stream:
    """Rows of a streamed Hugging Face set.

    Attributes:
        spec: The set.
        objective: The objective.
        vocabulary: The vocabulary.
        seed: The seed of the order.
        field: The field of records that has the text.
        split: The split, if the spec names none.
        block_characters: The least number of characters of a block.
        marks: The marks of the last blocks.
        dataset: The opened set; None before the first record is read.
        records: The records that follow; None before the first is read.
        held_blocks: The blocks in memory, by number.
        record_number: The number of records of the set that were read.
        next_block: The number of the block that the stream would read next.
    """

    def __init__(
        self,
        spec: Spec,
        objective: Objective,
        vocabulary: Vocabulary,
        seed: int,
        *,
        field: str,
        split: str,
        block: int = BLOCK_CHARACTERS,
    ) -> None:
        self.spec = spec
        self.objective = objective
        self.vocabulary = vocabulary
        self.seed = seed
        self.field = field
        self.split = split
        self.block_characters = block
        self.marks: collections.deque[Mark] = collections.deque([Mark()], maxlen=MAX_MARKS)
        self.dataset: Any = None
        self.records: Iterator[Any] | None = None
        self.held_blocks: dict[int, Block] = {}
        self.record_number = 0
        self.next_block = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: another process opens the set itself."""
        return {**self.__dict__, "dataset": None, "records": None, "held_blocks": {}}

    def _seek(self, mark: Mark) -> None:
        """Move the stream to a mark."""
        if self.dataset is None or mark.state is None:
            self._rewind()
        if mark.state is not None:
            self.dataset.load_state_dict(mark.state)
        self.records = documents.read_opened_set(self.dataset, self.spec)
        self.record_number = mark.record

    def _rewind(self) -> None:
        """Open the set, whose stream is then at its beginning."""
        self.dataset = documents.open_hugging_face(self.spec, self.split)

    def _read_block(self, mark: Mark) -> Block:
        """Read the block at a mark, and note where the next one begins."""
        if self.records is None or self.next_block != mark.block:
            self._seek(mark)
        corpus = DocumentCorpus(self._read_block_texts() or [" "])
        stretch = mark.stretch or rows.estimate_stretch(corpus, self.objective, self.vocabulary)
        row_count = rows.Grid.make(self.objective, stretch).count_windows(corpus.size)
        block = Block(dataclasses.replace(mark, stretch=stretch), corpus, row_count)
        self.held_blocks.pop(mark.block, None)
        while len(self.held_blocks) >= MAX_HELD_BLOCKS:
            first_read = next(iter(self.held_blocks))
            del self.held_blocks[first_read]
        self.held_blocks[mark.block] = block
        self.next_block = mark.block + 1
        if self.marks[-1].block <= mark.block:
            self.marks.append(
                Mark(
                    mark.block + 1,
                    mark.example + row_count,
                    stretch,
                    self.dataset.state_dict(),
                    self.record_number,
                )
            )
        return block

    def _read_block_texts(self) -> list[str]:
        """Read documents until they have the characters of a block. At its end, the set begins
        again.

        Raises:
            UserError: The set cannot be read, or a record is bad and BAD_RECORDS is "stop".
        """
        texts: list[str] = []
        characters = rewinds = 0
        while characters < self.block_characters:
            record = next(self.records, None) if self.records is not None else None
            if record is None:
                rewinds += 1
                if rewinds == 2:  # A set without any text would be read for ever.
                    break
                self._rewind()
                self.records = documents.read_opened_set(self.dataset, self.spec)
                self.record_number = 0
                continue
            self.record_number += 1
            try:
                text = documents.get_record_text(record, self.field, self.spec)
            except RecordFault as fault:
                place = f"record {self.record_number:,}"
                bad_records.stop_or_skip(fault.locate(str(self.spec), place))
                continue
            if text.strip():
                texts.append(text)
                characters += len(text)
        return texts

    def _find_block(self, example: int) -> Block:
        """Return the block that a running number lies in, and read it if necessary."""
        for block in self.held_blocks.values():
            if block.has_example(example):
                return block
        mark = self._find_mark_before(example)
        if mark is None:
            raise ValueError(f"example {example} lies before all marks")
        block = self._read_block(mark)
        while example >= block.mark.example + block.row_count:
            following = block.mark.block + 1
            block = self._read_block(next(mark for mark in self.marks if mark.block == following))
        return block

    def _find_mark_before(self, example: int) -> Mark | None:
        """Return the last mark at or before a running number; None if all marks are after it."""
        # A copy: a checkpoint asks for its mark while the loader's thread reads on.
        for mark in reversed(tuple(self.marks)):
            if mark.example <= example:
                return mark
        return None

    def read_rows(self, examples: Array) -> rows.Rows:
        """Return the rows of running numbers, int64 [n]."""
        texts: list[list[str]] = [[]] * len(examples)
        keys: Array = np.empty(len(examples), np.uint64)
        turns: Array = np.zeros(len(examples), np.int64)
        positions = np.argsort(examples, kind="stable")
        while len(positions):
            block = self._find_block(int(examples[positions[0]]))
            places = examples[positions] - block.mark.example
            count = int(np.searchsorted(places, block.row_count))
            in_block, positions = positions[:count], positions[count:]
            parts, keys[in_block], turns[in_block] = self._read_places(block, places[:count])
            for position, part in zip(in_block.tolist(), parts, strict=True):
                texts[position] = part
        windows = rows.encode_windows(texts, self.objective, self.vocabulary, turns)
        return rows.make_rows_from_windows(
            windows, keys, self.objective, self.vocabulary, turns=turns
        )

    def _read_places(self, block: Block, places: Array) -> tuple[list[list[str]], Array, Array]:
        """Return the documents, the keys and the turns of the rows at places of a block."""
        number = block.mark.block
        block_key = shuffling.derive_key(self.seed, _BLOCK_KEY, number)
        indices = shuffling.permute_indices(places, block.row_count, block_key)
        grid = rows.Grid.make(self.objective, block.mark.stretch)
        starts, sizes, turns = grid.locate_windows(indices)
        texts = [
            block.corpus.read_texts(start, stop)
            for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        ]
        row_key = shuffling.derive_key(self.seed, _ROW_KEY, number)
        return texts, shuffling.extend_key(row_key, indices), turns

    def find_mark(self, example: int) -> dict[str, Any]:
        """Return the last mark at or before a running number, as JSON."""
        return dataclasses.asdict(self._find_mark_before(example) or Mark())

    def resume(self, stored_mark: dict[str, Any]) -> None:
        """Continue from a mark that `find_mark` returned."""
        self.marks = collections.deque([Mark(**stored_mark)], maxlen=MAX_MARKS)
        self.held_blocks = {}
        self.records = None

    def describe(self) -> str:
        """Return the set and its split."""
        return f"stream {self.spec}#{self.spec.split or self.split}"
