r"""Documents that Megatron-LM's tools/preprocess_data.py tokenised: PREFIX.bin and PREFIX.idx.

PREFIX.bin has the ids of all documents, one after another. PREFIX.idx, little-endian, has:

- `MMIDIDX\0\0`, the version 1 (uint64), and a code of the type of the ids (uint8)
- the number of sequences (uint64), and that of the entries of the document index (uint64)
- the ids of each sequence (int32), and the byte in PREFIX.bin at which each begins (int64)
- the document index (int64): the first sequence of each document, and the number of sequences

The tokens of all prefixes are read as one sequence, like those of a token cache.
"""

from __future__ import annotations

import functools
import os
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rosetta.core.errors import DAMAGED, DIFFERS, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.data import data_spec, reading_progress, token_shards

if TYPE_CHECKING:
    from collections.abc import Callable

    from rosetta.data import Array
    from rosetta.data.data_spec import Spec

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
# The codes of types; 6 and 7 are floating-point types.
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_TOKENS_PER_CHECK = 1 << 22
_COPY_AGAIN = "copy it again, or tokenise the data again"


class Index(NamedTuple):
    """The content of an .idx file.

    Attributes:
        dtype: The type of the ids.
        sizes: The number of ids of each sequence, int32 [sequences].
        documents: The first sequence of each document, and the number of sequences, int64.
    """

    dtype: np.dtype[Any]
    sizes: Array
    documents: Array


def read_index(prefix: str) -> Index:
    """Return the content of PREFIX.idx, after all of it was checked against PREFIX.bin.

    Raises:
        UserError: A file is damaged, of another version, or of a type that has no ids.
    """
    path = f"{prefix}.idx"
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(HEADER.size)
    if head[: len(MAGIC)] != MAGIC:
        raise UserError(
            "not an index of Megatron-LM",
            path,
            "name the prefix of files that tools/preprocess_data.py wrote",
            kind=INVALID,
        )
    if len(head) < HEADER.size:
        raise _describe_damage("the index is cut short", path)
    _, version, code, sequences, entries = HEADER.unpack(head)
    if version != VERSION:
        raise UserError(
            f"the index has version {version}, and version {VERSION} is read",
            path,
            "tokenise the data again with a current Megatron-LM",
            kind=UNSUPPORTED,
            value=version,
        )
    if code not in DTYPES:
        raise UserError(
            f"the type of the ids has the code {code}, which is not that of whole numbers",
            path,
            "tokenise the data again with a current Megatron-LM",
            kind=UNSUPPORTED,
            value=code,
        )
    expected = HEADER.size + 12 * sequences + 8 * entries
    if sequences and size == expected + sequences:
        raise UserError(
            "the index is of a multimodal set, which has a mode for each sequence",
            path,
            "name a set of text",
            kind=UNSUPPORTED,
        )
    if size != expected:
        raise _describe_damage(f"the index has {size:,} bytes, not {expected:,}", path)
    if not sequences:
        raise UserError(
            "there is no sequence in the index", path, "name files with text in them", kind=MISSING
        )
    arrays: Array = np.memmap(path, np.uint8, mode="r", offset=HEADER.size)
    sizes = arrays[: 4 * sequences].view("<i4")
    pointers = arrays[4 * sequences : 12 * sequences].view("<i8")
    documents = arrays[12 * sequences :].view("<i8")
    dtype = np.dtype(DTYPES[code])
    _check_index(prefix, Index(dtype, sizes, documents), pointers)
    return Index(dtype, sizes, documents)


def _check_index(prefix: str, index: Index, pointers: Array) -> None:
    """Raise UserError if the parts of an index contradict each other or the .bin file."""
    path = f"{prefix}.idx"
    sizes, documents = index.sizes, index.documents
    if sizes.min() < 0:
        raise _describe_damage("a sequence has a negative length", path)
    ends: Array = np.cumsum(sizes, dtype=np.int64) * index.dtype.itemsize
    if pointers[0] != 0 or (pointers[1:] != ends[:-1]).any():
        number = 0 if pointers[0] != 0 else 1 + int(np.argmax(pointers[1:] != ends[:-1]))
        raise _describe_damage(
            f"sequence {number:,} does not begin where the one before it ends", path
        )
    is_index = (
        len(documents) > 1
        and documents[0] == 0
        and documents[-1] == len(sizes)
        and (np.diff(documents) >= 0).all()
    )
    if not is_index:
        raise _describe_damage("the document index does not cover the sequences", path)
    size = os.path.getsize(f"{prefix}.bin")
    if size != ends[-1]:
        raise UserError(
            f"the file has {size:,} bytes, and the index says {int(ends[-1]):,}",
            f"{prefix}.bin",
            _COPY_AGAIN,
            kind=DAMAGED,
            value=size,
        )
    if not size:
        raise UserError(
            "there is no token in the file",
            f"{prefix}.bin",
            "name files with text in them",
            kind=MISSING,
        )


def _describe_damage(problem: str, path: str) -> UserError:
    """Return the error for a damaged index."""
    return UserError(problem, path, _COPY_AGAIN, kind=DAMAGED)


class MegatronTokens:
    """The tokens of several prefixes as one sequence.

    Attributes:
        prefixes: The prefixes.
        dtypes: The type of the ids of each.
        ends: Where the tokens of each prefix end in the sequence.
        size: The number of tokens.
        document_count: The number of documents.
        vocabulary_size: The number of ids of the vocabulary; a token may not be larger.
    """

    def __init__(self, spec: Spec, vocabulary_size: int) -> None:
        self.prefixes = data_spec.find_prefixes(spec)
        indexes = [read_index(prefix) for prefix in self.prefixes]
        self.dtypes = [index.dtype for index in indexes]
        counts = [int(index.sizes.sum(dtype=np.int64)) for index in indexes]
        self.ends = np.cumsum(counts)
        self.size = int(self.ends[-1])
        self.document_count = sum(len(index.documents) - 1 for index in indexes)
        self.vocabulary_size = vocabulary_size

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the maps: another process makes its own."""
        return {name: value for name, value in self.__dict__.items() if name != "maps"}

    @functools.cached_property
    def maps(self) -> dict[int, Array]:
        """The .bin files that this process has mapped into memory, by number."""
        return {}

    def map_shard(self, number: int) -> Array:
        """Return the tokens of a prefix, which are mapped at the first use."""
        if number not in self.maps:
            path = f"{self.prefixes[number]}.bin"
            self.maps[number] = np.memmap(path, self.dtypes[number], mode="r")
        return self.maps[number]

    def read_windows(self, starts: Array, length: int) -> Array:
        """Return the windows of `length` tokens that begin at `starts`, int32 [n, length].

        Raises:
            UserError: See check_tokens.
        """
        windows = token_shards.read_windows(self, starts, length)
        self.check_tokens(windows)
        return windows

    def check_tokens(self, tokens: Array) -> None:
        """Check that tokens are ids of the vocabulary.

        Raises:
            UserError: A token is negative, or not smaller than the size of the vocabulary.
        """
        for token in (int(tokens.max(initial=0)), int(tokens.min(initial=0))):
            if not 0 <= token < self.vocabulary_size:
                raise UserError(
                    f"the files have the id {token}, and the vocabulary has "
                    f"{self.vocabulary_size} ids",
                    self.prefixes[0],
                    "set VOCAB to the vocabulary that the files were tokenised with",
                    kind=DIFFERS,
                    value=token,
                )

    def describe(self) -> str:
        """Return the names of the files, and where their tokens end in the sequence."""
        return "megatron " + ";".join(
            f"{os.path.basename(prefix)}={end}"
            for prefix, end in zip(self.prefixes, self.ends.tolist(), strict=True)
        )


def count_tokens(
    spec: Spec, vocabulary_size: int, report: Callable[[int, int], None]
) -> dict[str, int]:
    """Read and check every token of a source, and count documents and tokens.

    Args:
        spec: The source.
        vocabulary_size: The number of ids of the vocabulary.
        report: Called with the documents and tokens counted so far.

    Returns:
        {"records", "tokens"}.

    Raises:
        UserError: The files are damaged, or have ids that are not the vocabulary's.
    """
    tokens = MegatronTokens(spec, vocabulary_size)
    checked = 0
    for number in range(len(tokens.prefixes)):
        shard = tokens.map_shard(number)
        for start in range(0, len(shard), _TOKENS_PER_CHECK):
            part = shard[start : start + _TOKENS_PER_CHECK]
            tokens.check_tokens(part)
            checked += len(part)
            report(0, checked)
            path = f"{tokens.prefixes[number]}.bin"
            reading_progress.report_part(path, start + len(part), len(shard))
    return {"records": tokens.document_count, "tokens": checked}
