"""Running text by position: any stretch of a corpus can be read without reading what comes before
it.

A corpus is cut into equal stretches of its stored size. A text stretch is sized so that nearly all
give a full window of tokens; where it begins and ends moves to a word's edge, in a way that depends
on the place alone, so that neighbours share no word and lose none. No index is needed, whatever the
size of the corpus.
"""

from __future__ import annotations

import codecs
import functools
import mmap
import os
import re
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rosetta.core.errors import INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.data import bad_records, data_spec, json_lines, tfrecord
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.data_spec import Spec

# Bytes or letters a cut may move to find a space: scripts without spaces are cut between letters.
CUT_REACH = 64
HEAD_BYTES = 4096  # bytes
MAX_DAMAGED_SHARE = 0.01  # of a head's letters: text in Western languages and Latin 1 has more
MAX_CHECKED_FILES = 64  # files
CHUNK_BYTES = 1 << 24  # bytes that lines are counted in at a time
LONG_DOCUMENT_BYTES = 1 << 16  # bytes of a document from which on it is held
MAX_HELD_BYTES = 1 << 27  # bytes of such documents that are held
COMPRESSED_SUFFIXES = (".gz", ".zst", ".bz2", ".xz")


class Corpus(Protocol):
    """Text addressed by stored size."""

    @property
    def size(self) -> int:
        """Return how much there is, in units of its own (bytes as stored)."""
        ...

    def read_texts(self, start: int, stop: int) -> list[str]:
        """Return the documents, or parts of documents, that lie in [start, stop)."""
        ...

    def describe(self) -> str:
        """Return what a changed corpus would change."""
        ...


def find_byte_cut(text: bytes | mmap.mmap, place: int, size: int) -> int:
    """Return where a cut at `place` of UTF-8 bytes really falls: behind the next white space if it
    is near, else before a letter.
    """
    if place <= 0 or place >= size:
        return min(max(place, 0), size)
    near = text[place - 1 : place + CUT_REACH]
    space = re.search(rb"\s", near)
    if space:
        return place - 1 + space.end()
    if place + CUT_REACH >= size:
        return size  # the last word
    while place < size and text[place] & 0xC0 == 0x80:
        place += 1
    return place


def find_letter_cut(text: str, place: int) -> int:
    """Return the same for a str: white space within reach, else the place itself."""
    if place <= 0 or place >= len(text):
        return min(max(place, 0), len(text))
    space = re.search(r"\s", text[place - 1 : place + CUT_REACH])
    if space:
        return place - 1 + space.end()
    return len(text) if place + CUT_REACH >= len(text) else place


def extract_part(text: str, start: float, stop: float) -> str:
    """Return the part of a document that lies between two fractions of it, cut at words."""
    return text[
        find_letter_cut(text, round(start * len(text))) : find_letter_cut(
            text, round(stop * len(text))
        )
    ]


def check_uncompressed(paths: Sequence[str]) -> None:
    """Raise UserError where one of the files is compressed."""
    packed = next((path for path in paths if path.endswith(COMPRESSED_SUFFIXES)), None)
    if packed:
        raise UserError(
            "a compressed file cannot be read by position",
            packed,
            "decompress it, or cache it once with rosetta data cache, which reads it as it is",
            kind=UNSUPPORTED,
        )


def check_text_head(head: bytes, path: str) -> None:
    """Raise UserError where a text file begins as no UTF-8 text does: with a byte 0, or with more
    letters that are none than single damaged ones come to.

    Args:
      head: at most HEAD bytes of it, from its beginning; what they cut off of the last letter
        counts for nothing.
      path: the file's, for the line.
    """
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(head)
    wrong = sum("\udc80" <= letter <= "\udcff" for letter in text)
    if "\0" in text or wrong > MAX_DAMAGED_SHARE * len(text):
        what = "a byte 0" if "\0" in text else f"{wrong} bytes that are no UTF-8"
        raise UserError(
            f"it is no text: its first {len(head):,} bytes have {what}",
            path,
            "name UTF-8 text (iconv -f LATIN1 -t UTF-8 makes some of another encoding)",
            kind=INVALID,
        )


def check_text_heads(paths: Sequence[str]) -> None:
    """Raise UserError where one of the files is no UTF-8 text by its head, see text_begins.

    Of very many files some are looked at, spread over them.
    """
    for path in paths[:: -(-len(paths) // MAX_CHECKED_FILES)]:
        with open(path, "rb") as file:
            check_text_head(file.read(HEAD_BYTES), path)


class _MappedFiles:
    """Several files as one run of bytes, each mapped when first read."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        check_uncompressed(paths)
        sizes = [os.path.getsize(path) for path in paths]
        self.ends = np.cumsum(sizes)
        self.size = int(self.ends[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "maps"}

    @functools.cached_property
    def maps(self) -> dict[int, mmap.mmap]:
        return {}

    def map_file(self, number: int) -> mmap.mmap:
        if number not in self.maps:
            with open(self.paths[number], "rb") as file:
                self.maps[number] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self.maps[number]

    def split_range(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return (file, start, stop) of what [start, stop) of the whole touches."""
        found = []
        number = int(np.searchsorted(self.ends, start, side="right"))
        while start < min(stop, self.size):
            first = int(self.ends[number - 1]) if number else 0
            last = min(stop, int(self.ends[number]))
            if last > start:
                found.append((number, start - first, last - first))
                start = last
            number += 1
        return found

    def describe(self) -> str:
        return ";".join(
            f"{os.path.basename(path)}={end}"
            for path, end in zip(self.paths, self.ends, strict=True)
        )


class TextCorpus(_MappedFiles):
    """UTF-8 text, one document a line."""

    def read_texts(self, start: int, stop: int) -> list[str]:
        found: list[str] = []
        for number, first, last in self.split_range(start, stop):
            body = self.map_file(number)
            size = len(body)
            piece = body[find_byte_cut(body, first, size) : find_byte_cut(body, last, size)]
            text = bad_records.decode_text(piece, self.paths[number])
            found += [line.rstrip("\r") for line in text.split("\n") if line.strip()]
        return found


class JsonlCorpus(_MappedFiles):
    """JSON objects with a text field, one a line."""

    def __init__(self, paths: Sequence[str], field: str) -> None:
        super().__init__(paths)
        self.field = field
        self.long = LongDocumentCache()

    def read_texts(self, start: int, stop: int) -> list[str]:
        found: list[str] = []
        for number, first, last in self.split_range(start, stop):
            line = self._line_start(number, first)
            while line < last:
                end, text = self._line(number, line)
                if end > first and end > line:
                    whole = end - line
                    piece = extract_part(
                        text, max(first - line, 0) / whole, min((last - line) / whole, 1.0)
                    )
                    found += [piece] if piece.strip() else []
                line = end + 1
        return found

    def _line_start(self, number: int, place: int) -> int:
        """Return where the line begins that a place of a file lies in."""
        known = self.long.find(number, place)
        return known[0] if known else self.map_file(number).rfind(b"\n", 0, place) + 1

    def _line(self, number: int, start: int) -> tuple[int, str]:
        """Return where a line of a file ends, and its text; "" for one that is empty or skipped."""
        known = self.long.find(number, start)
        if known:
            return known[1], known[2]
        body = self.map_file(number)
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        line = body[start:end]
        text = ""
        if line.strip():
            try:
                text = json_lines.parse_text(line, self.field, self.paths[number])
            except RecordFault as fault:
                bad_records.stop_or_skip(
                    fault.locate(self.paths[number], f"line {count_lines(body, start) + 1:,}")
                )
        self.long.add(number, start, end, text)
        return end, text


def count_lines(body: mmap.mmap, stop: int) -> int:
    """Return how many line ends come before a place."""
    return sum(
        body[start : min(start + CHUNK_BYTES, stop)].count(b"\n")
        for start in range(0, stop, CHUNK_BYTES)
    )


class LongDocumentCache:
    """The texts of the long documents that were read last: many windows lie in each, and it is
    parsed once.
    """

    def __init__(self) -> None:
        self.held: dict[
            tuple[int, int], tuple[int, int, str]
        ] = {}  # (file, start) -> (start, end, text)

    def __getstate__(self) -> dict[str, Any]:
        return {"held": {}}

    def find(self, number: int, place: int) -> tuple[int, int, str] | None:
        """Return (start, end, text) of the held document that a place of a file lies in."""
        for (file, start), document in self.held.items():
            if file == number and start <= place < document[1]:
                return document
        return None

    def add(self, number: int, start: int, end: int, text: str) -> None:
        """Hold a document if it is long; those that were read first make room."""
        if end - start < LONG_DOCUMENT_BYTES:
            return
        self.held[number, start] = (start, end, text)
        while (
            len(self.held) > 1
            and sum(last - first for first, last, _ in self.held.values()) > MAX_HELD_BYTES
        ):
            del self.held[next(iter(self.held))]


class TfrecordCorpus:
    """Records of TFRecord files with a text feature."""

    def __init__(self, paths: Sequence[str], field: str) -> None:
        self.records = tfrecord.Records(paths)
        self.field = field
        self.long = LongDocumentCache()
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
        found = []
        record = int(np.searchsorted(self.ends, start, side="right"))
        while (
            record < len(self.ends)
            and (first := int(self.ends[record - 1]) if record else 0) < stop
        ):
            whole = int(self.ends[record]) - first
            if whole:
                text = self._text(record, first)
                piece = extract_part(
                    text, max(start - first, 0) / whole, min((stop - first) / whole, 1.0)
                )
                found += [piece] if piece.strip() else []
            record += 1
        return found

    def _text(self, number: int, first: int) -> str:
        """Return the text of a record whose bytes begin at `first`; "" for one that is skipped."""
        known = self.long.find(0, first)
        if known:
            return known[2]
        body, text = self.records[number], ""
        path, place = self.records.find_place(number)
        try:
            text = tfrecord.parse_text(body, self.field, path)
        except RecordFault as fault:
            bad_records.stop_or_skip(fault.locate(path, place))
        self.long.add(0, first, first + len(body), text)
        return text

    def describe(self) -> str:
        return self.records.describe()


def open_corpus(spec: Spec, field: str, split: str = "train") -> Corpus:
    """Return the corpus a text, jsonl, tfrecord or tfds spec names."""
    if spec.kind == "tfds":
        from rosetta.data import tfds

        return TfrecordCorpus(tfds.find_shards(spec, split), field)
    paths = data_spec.find_files(spec)
    if spec.kind == "text":
        return TextCorpus(paths)
    return JsonlCorpus(paths, field) if spec.kind == "jsonl" else TfrecordCorpus(paths, field)
