"""Corpora of running text that are read by position, without reading what comes before.

A corpus is the text of a text, jsonl, tfrecord or tfds source. It is addressed by its stored size:
bytes of text files, and bytes of records. `rows.Windows` cuts it into stretches of equal size, each
of which holds enough text for a window of tokens. A cut moves to the edge of a word, in a way that
depends on its place alone, so neighbouring stretches share no word and lose none. No index is
needed, whatever the size of the corpus. Tables and compressed files are read from text stores.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import mmap
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from rosetta.core.errors import MISSING, UserError
from rosetta.data import (
    bad_records,
    compressed_files,
    data_spec,
    json_lines,
    table_files,
    text_stores,
    tfrecord,
)
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data import Array
    from rosetta.data.data_spec import Spec
    from rosetta.data.text_stores import TextStore

# The bytes or characters by which a cut may move to reach a space. Scripts without spaces are cut
# between characters.
CUT_REACH = 64
CHUNK_BYTES = 1 << 24  # the bytes in which lines are counted at a time
LONG_DOCUMENT_BYTES = 1 << 16  # A document of at least this size is kept in memory.
MAX_HELD_BYTES = 1 << 27  # the size of all documents that are kept
_SPACE, _BYTE_SPACE = re.compile(r"\s"), re.compile(rb"\s")


class Corpus(Protocol):
    """Text that is addressed by its stored size."""

    @property
    def size(self) -> int:
        """The size of the corpus in units of its own, such as bytes as stored."""
        ...

    def read_texts(self, start: int, stop: int) -> list[str]:
        """Return the documents, or the parts of documents, that lie in [start, stop)."""
        ...

    def describe(self) -> str:
        """Return a text that changes if the corpus does."""
        ...


def find_byte_cut(text: bytes | mmap.mmap, place: int, size: int) -> int:
    """Return where a cut near a place of UTF-8 bytes falls.

    Args:
        text: The bytes.
        place: The place where the text should be cut.
        size: The size of the text in bytes.

    Returns:
        The place after the next white space if it is within CUT_REACH, else the beginning of the
        character at or after `place`.
    """
    if place <= 0 or place >= size:
        return min(max(place, 0), size)
    space = _BYTE_SPACE.search(text, place - 1, place + CUT_REACH)
    if space:
        return space.end()
    if place + CUT_REACH >= size:
        return size  # The cut would be in the last word.
    while place < size and text[place] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        place += 1
    return place


def find_character_cut(text: str, place: int) -> int:
    """Return where a cut near a place of a string falls.

    Returns:
        The place after the next white space if it is within CUT_REACH, else `place` itself.
    """
    if place <= 0 or place >= len(text):
        return min(max(place, 0), len(text))
    space = _SPACE.search(text, place - 1, place + CUT_REACH)
    if space:
        return space.end()
    return len(text) if place + CUT_REACH >= len(text) else place


def extract_part(text: str, start: float, stop: float) -> str:
    """Return the part of a document between two fractions of its length, cut between words."""
    first = find_character_cut(text, round(start * len(text)))
    last = find_character_cut(text, round(stop * len(text)))
    return text[first:last]


def extract_range(
    texts: Sequence[str], first: tuple[int, int], last: tuple[int, int], start: int, stop: int
) -> list[str]:
    """Return the parts of consecutive documents that lie in a range of the corpus.

    Args:
        texts: The texts of the documents, of which only the first and the last may extend past the
            range.
        first: Where the first document begins and ends, in units of the corpus.
        last: The same for the last document, which may be the first one.
        start: Where the range begins.
        stop: Where it ends.

    Returns:
        The parts, cut between words, without blank ones.
    """
    parts = list(texts)
    if len(parts) > 1:
        parts[-1] = _cut_document(parts[-1], last, start, stop)
    if parts:
        parts[0] = _cut_document(parts[0], first, start, stop)
    return [part for part in parts if part and not part.isspace()]


def _cut_document(text: str, bounds: tuple[int, int], start: int, stop: int) -> str:
    """Return the part of a document between its bounds that lies in a range, see extract_range."""
    first, last = bounds
    if not text or (start <= first and stop >= last):
        return text
    size = last - first
    return extract_part(text, max(start - first, 0) / size, min((stop - first) / size, 1.0))


def find_documents(ends: Array, start: int, stop: int) -> tuple[int, list[tuple[int, int]]]:
    """Find the documents of a corpus that have a part in a range.

    Args:
        ends: Where each document ends, in units of the corpus.
        start: Where the range begins.
        stop: Where it ends.

    Returns:
        The number of the first document, and where each begins and ends.
    """
    number = int(ends.searchsorted(start, side="right"))
    last_ends = ends[max(number - 1, 0) : int(ends.searchsorted(stop)) + 1].tolist()
    edges = last_ends if number else [0, *last_ends]
    return number, list(itertools.pairwise(edges))


class FileRange(NamedTuple):
    """A range of bytes of one of several files.

    Attributes:
        file: The number of the file.
        start: Where the range begins in the file.
        stop: Where it ends.
    """

    file: int
    start: int
    stop: int


def split_range(ends: Sequence[int], start: int, stop: int) -> list[FileRange]:
    """Split a range of a sequence of files into ranges of files.

    Args:
        ends: Where each file ends in the sequence.
        start: Where the range begins.
        stop: Where it ends, at most at the end of the last file.
    """
    ranges = []
    number = bisect.bisect_right(ends, start)
    while start < stop:
        file_start = ends[number - 1] if number else 0
        range_end = min(stop, ends[number])
        if range_end > start:
            ranges.append(FileRange(number, start - file_start, range_end - file_start))
            start = range_end
        number += 1
    return ranges


class _MappedFiles:
    """Several files as one sequence of bytes. Each is mapped into memory when it is first read."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        sizes = [os.path.getsize(path) for path in paths]
        self.ends = list(itertools.accumulate(sizes))  # where each file ends in the sequence
        self.size = self.ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: another process maps the files itself."""
        return {name: value for name, value in self.__dict__.items() if name != "maps"}

    @functools.cached_property
    def maps(self) -> dict[int, mmap.mmap]:
        """The files that are mapped so far, by number."""
        return {}

    def map_file(self, number: int) -> mmap.mmap:
        """Return the bytes of a file."""
        if number not in self.maps:
            with open(self.paths[number], "rb") as file:
                self.maps[number] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.maps[number]

    def split_range(self, start: int, stop: int) -> list[FileRange]:
        """Split a range of the sequence into ranges of files."""
        return split_range(self.ends, start, min(stop, self.size))

    def describe(self) -> str:
        """Return the names of the files and their ends in the sequence."""
        return ";".join(
            f"{os.path.basename(path)}={end}"
            for path, end in zip(self.paths, self.ends, strict=True)
        )


class TextCorpus(_MappedFiles):
    """UTF-8 text files with one document per line."""

    def read_texts(self, start: int, stop: int) -> list[str]:
        """Return the lines in [start, stop), in bytes; the first and the last are cut."""
        texts: list[str] = []
        for part in self.split_range(start, stop):
            body = self.map_file(part.file)
            size = len(body)
            first = find_byte_cut(body, part.start, size)
            last = find_byte_cut(body, part.stop, size)
            text = bad_records.decode_text(body[first:last], self.paths[part.file])
            texts += [line.rstrip("\r") for line in text.split("\n") if line.strip()]
        return texts


class HeldDocument(NamedTuple):
    """A document in memory.

    Attributes:
        start: Where it begins, in bytes of its file (jsonl) or of the corpus (tfrecord).
        end: Where it ends.
        text: Its text; "" for an empty or a skipped record.
    """

    start: int
    end: int
    text: str


class LongDocumentCache:
    """The texts of the long documents that were read last.

    Many windows lie in each of them, and it is parsed only once.
    """

    def __init__(self) -> None:
        # By the number of the file and the start of the document.
        self.held: dict[tuple[int, int], HeldDocument] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: another process reads the documents itself."""
        return {"held": {}}

    def find(self, file_number: int, place: int) -> HeldDocument | None:
        """Return the held document that a place of a file lies in."""
        for (file, start), document in self.held.items():
            if file == file_number and start <= place < document.end:
                return document
        return None

    def add(self, file_number: int, document: HeldDocument) -> None:
        """Hold a document if it is long, and let go of those that were read first."""
        if document.end - document.start < LONG_DOCUMENT_BYTES:
            return
        self.held[file_number, document.start] = document
        while len(self.held) > 1 and self._count_bytes() > MAX_HELD_BYTES:
            del self.held[next(iter(self.held))]

    def _count_bytes(self) -> int:
        """Return the size of all held documents."""
        return sum(document.end - document.start for document in self.held.values())


class _Lines(NamedTuple):
    """The texts of consecutive lines.

    Attributes:
        texts: The texts.
        first: Where the first line begins and ends, in bytes of the file.
        last: The same for the last line.
    """

    texts: list[str]
    first: tuple[int, int]
    last: tuple[int, int]


class JsonlCorpus(_MappedFiles):
    """Files of JSON objects with a text field, one object per line.

    Attributes:
        field: The field that has the text.
        long_documents: The long documents that were read last.
    """

    def __init__(self, paths: Sequence[str], field: str) -> None:
        super().__init__(paths)
        self.field = field
        self.long_documents = LongDocumentCache()

    def read_texts(self, start: int, stop: int) -> list[str]:
        """Return the texts in [start, stop), in bytes of the files.

        A range within a line gives the same share of the line's text.
        """
        texts: list[str] = []
        for part in self.split_range(start, stop):
            place = self._find_line_start(part.file, part.start)
            while place < part.stop:
                block = self._read_block(part.file, place, part.stop)
                texts += extract_range(block.texts, block.first, block.last, part.start, part.stop)
                place = block.last[1] + 1
        return texts

    def _find_line_start(self, file_number: int, place: int) -> int:
        """Return where the line begins that a place of a file lies in."""
        document = self.long_documents.find(file_number, place)
        if document:
            return document.start
        return self.map_file(file_number).rfind(b"\n", 0, place) + 1

    def _read_block(self, file_number: int, start: int, stop: int) -> _Lines:
        """Return some of the lines from `start` on: a long one, or short ones up to `stop`.

        Raises:
            BadRecordError: A line cannot be used, and BAD_RECORDS is "stop".
        """
        document = self.long_documents.find(file_number, start)
        if document:
            bounds = document.start, document.end
            return _Lines([document.text], bounds, bounds)
        body = self.map_file(file_number)
        block_stop = min(stop, start + LONG_DOCUMENT_BYTES // 2)
        end = body.find(b"\n", block_stop - 1, start + LONG_DOCUMENT_BYTES)
        if end < 0:  # The last line of the block is long, or the last one of the file.
            end = body.find(b"\n", start)
            end = len(body) if end < 0 else end
        lines = body[start:end].split(b"\n")
        texts = self._parse_lines(file_number, lines, start)
        first, last = (start, start + len(lines[0])), (end - len(lines[-1]), end)
        if len(lines) == 1:
            self.long_documents.add(file_number, HeldDocument(start, end, texts[0]))
        return _Lines(texts, first, last)

    def _parse_lines(self, file_number: int, lines: Sequence[bytes], start: int) -> list[str]:
        """Return the texts of consecutive lines of a file, the first of which begins at `start`.

        The text of a blank line and of a skipped one is "".

        Raises:
            BadRecordError: A line cannot be used, and BAD_RECORDS is "stop".
        """
        path = self.paths[file_number]
        texts = []
        for number, line in enumerate(lines):
            text = ""
            if line and not line.isspace():
                try:
                    text = json_lines.parse_text(line, self.field, path)
                except RecordFault as fault:
                    lines_before = count_lines(self.map_file(file_number), start) + number
                    bad_records.stop_or_skip(fault.locate(path, f"line {lines_before + 1:,}"))
            texts.append(text)
        return texts


def count_lines(body: mmap.mmap, stop: int) -> int:
    """Return the number of line ends before a place."""
    count = 0
    for start in range(0, stop, CHUNK_BYTES):
        count += body[start : min(start + CHUNK_BYTES, stop)].count(b"\n")
    return count


class TfrecordCorpus:
    """The records of TFRecord files with a text feature.

    Attributes:
        records: The records.
        field: The feature that has the text.
        long_documents: The long documents that were read last.
        ends: Where each record ends in the corpus.
        size: The bytes of all records.
    """

    def __init__(self, paths: Sequence[str], field: str) -> None:
        self.records = tfrecord.Records(paths)
        self.field = field
        self.long_documents = LongDocumentCache()
        self.ends = np.cumsum(self.records.sizes)
        self.size = int(self.ends[-1]) if len(self.ends) else 0
        if not self.size:
            raise UserError(
                "there is no record in the files",
                paths[0],
                "name files with records in them",
                kind=MISSING,
            )

    def read_texts(self, start: int, stop: int) -> list[str]:
        """Return the texts in [start, stop), in bytes of the records.

        A range within a record gives the same share of the record's text.
        """
        number, bounds = find_documents(self.ends, start, stop)
        texts = [
            self._read_text(number + place, *document) if document[1] > document[0] else ""
            for place, document in enumerate(bounds)
        ]
        return extract_range(texts, bounds[0], bounds[-1], start, stop) if texts else []

    def _read_text(self, number: int, start: int, end: int) -> str:
        """Return the text of a record of the bytes [start, end); "" if the record is skipped.

        Raises:
            BadRecordError: The record cannot be used, and BAD_RECORDS is "stop".
        """
        # Places in the corpus are unique, so all files count as file 0.
        is_long = end - start >= LONG_DOCUMENT_BYTES
        if is_long and (document := self.long_documents.find(0, start)):
            return document.text
        text = ""
        try:
            path = self.records.find_file(number)
            text = tfrecord.parse_text(self.records[number], self.field, path)
        except RecordFault as fault:
            bad_records.stop_or_skip(fault.locate(*self.records.find_place(number)))
        if is_long:
            self.long_documents.add(0, HeldDocument(start, end, text))
        return text

    def describe(self) -> str:
        """Return the names of the files and the numbers of their records."""
        return self.records.describe()


class StoredCorpus:
    """Files whose texts are in text stores, addressed by the bytes of these texts.

    Attributes:
        stores: The store of each file.
        file_ends: Where each file ends in the corpus.
        size: The number of bytes of all texts.
    """

    def __init__(self, stores: Sequence[TextStore]) -> None:
        self.stores = tuple(stores)
        self.file_ends = list(itertools.accumulate(store.size for store in stores))
        self.size = self.file_ends[-1]
        if not self.size:
            raise UserError(
                "there is no text in the files",
                stores[0].path,
                "name files with text in them",
                kind=MISSING,
            )

    def read_texts(self, start: int, stop: int) -> list[str]:
        """Return the documents, or the parts of documents, that lie in [start, stop)."""
        texts: list[str] = []
        for part in split_range(self.file_ends, start, min(stop, self.size)):
            texts += _read_stored_texts(self.stores[part.file], part.start, part.stop)
        return texts

    def describe(self) -> str:
        """Return the names of the files, and the numbers and sizes of their documents."""
        return ";".join(
            f"{os.path.basename(store.path)}={len(store.ends)}/{store.size}"
            for store in self.stores
        )


def _read_stored_texts(store: TextStore, start: int, stop: int) -> list[str]:
    """Return the documents of a store that lie in [start, stop); the first and the last are cut."""
    body = store.texts
    _, bounds = find_documents(store.ends, start, stop)
    first = _find_document_cut(body, start, *bounds[0])
    last = bounds[-1][1]
    if stop < last:
        last = _find_document_cut(body, stop, *bounds[-1])
    edges = [first, *(end for _, end in bounds[:-1]), last]
    texts = [body[begin:end].decode() for begin, end in itertools.pairwise(edges)]
    return [text for text in texts if text and not text.isspace()]


def _find_document_cut(body: mmap.mmap, place: int, start: int, end: int) -> int:
    """Return where a cut near a place falls in the document of the bytes [start, end)."""
    if place <= start:
        return start
    near = body[place - 1 : min(place + 2 * CUT_REACH, end)]
    return place - 1 + find_byte_cut(near, 1, len(near))


def open_corpus(spec: Spec, field: str, split: str = "train") -> Corpus:
    """Return the corpus of a tfds spec, of one of data_spec.FILE_KINDS, or of a saved hf set.

    Args:
        spec: The source.
        field: The field or feature of records that has the text.
        split: The split of a tfds or hf set whose spec names none.

    Raises:
        UserError: The files are missing, empty or damaged.
    """
    if spec.kind == "tfds":
        from rosetta.data import tfds

        return TfrecordCorpus(tfds.find_shards(spec, split), field)
    if tables := table_files.list_tables(spec, split):
        return StoredCorpus([text_stores.open_store(path, kind, field) for path, kind in tables])
    paths = data_spec.find_files(spec)
    has_compressed = any(path.endswith(compressed_files.SUFFIXES) for path in paths)
    if spec.kind == "arrayrecord" or (has_compressed and spec.kind != "tfrecord"):
        return StoredCorpus([text_stores.open_store(path, spec.kind, field) for path in paths])
    if spec.kind == "text":
        return TextCorpus(paths)
    return JsonlCorpus(paths, field) if spec.kind == "jsonl" else TfrecordCorpus(paths, field)
