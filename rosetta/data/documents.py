"""Read the documents of a source one after another, in a fixed order.

Token caches, vocabulary training and streamed Hugging Face sets read their text here. Training on
files reads windows by position instead: see text_corpora.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import io
import lzma
import os
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from rosetta.core import path_checks
from rosetta.core.errors import DAMAGED, FAILED, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.data import bad_records, data_spec, json_lines, tables, text_corpora, tfds, tfrecord
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rosetta.data.bad_records import BadRecordError
    from rosetta.data.data_spec import Spec

    # What becomes of a bad record: the handler raises the error, or counts it.
    Handler = Callable[[BadRecordError], None]

_MAX_REASON = 200  # characters of a library's message that an error shows


class _UndecodedRecord(NamedTuple):
    """A record whose text is not decoded yet.

    Attributes:
        path: The file, or the spec of a source without files.
        place: The place in it, such as "line 3".
        decode: Returns the text, or raises RecordFault.
    """

    path: str
    place: str
    decode: Callable[[], str]


def _make_zstd_decompressor() -> Any:
    """Return a decompressor of one zstd frame."""
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": _make_zstd_decompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}


class _DecompressedFile(io.RawIOBase):
    """The content of a compressed file, which may have several compressed frames.

    It raises EOFError if the file ends within a frame. Some of the libraries' own readers take that
    for the end of the file, and also ignore a damaged frame after a whole one.
    """

    def __init__(self, path: str, make_decompressor: Callable[[], Any]) -> None:
        self.make_decompressor = make_decompressor
        self.frame: Any = None  # the decompressor of the current frame
        self.compressed = b""  # bytes of the file that were read and not decompressed yet
        self.content = b""  # decompressed bytes that were not handed out yet
        self.file = open(path, "rb")  # noqa: SIM115 (closed by close)

    def readable(self) -> bool:
        """Return True, as the class of a readable file must."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with content, and return the number of bytes; 0 at the end."""
        while not self.content:
            self.compressed = self.compressed or self.file.read(1 << 16)
            if not self.compressed:
                if self.frame:
                    raise EOFError("the file ends within a compressed frame")
                return 0
            if not self.frame:
                # Some programs pad a file with zeros after a frame.
                self.compressed = self.compressed.lstrip(b"\0")
                if not self.compressed:
                    continue
                self.frame = self.make_decompressor()
            self.content = self.frame.decompress(self.compressed)
            self.compressed = b""
            if self.frame.eof:
                self.compressed = self.frame.unused_data
                self.frame = None
        count = min(len(self.content), len(buffer))
        buffer[:count] = self.content[:count]
        self.content = self.content[count:]
        return count

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        super().close()


@contextlib.contextmanager
def open_decompressed(path: str) -> Iterator[io.BufferedReader[Any]]:
    """Open a file for reading, and decompress it if its name ends as a compressed file's does.

    Args:
        path: The file; text_corpora.COMPRESSED_SUFFIXES lists the endings of compressed files.

    Raises:
        UserError: The file is damaged. It can be raised while the caller reads.
    """
    make_decompressor = next(
        (make for suffix, make in _DECOMPRESSORS.items() if path.endswith(suffix)), None
    )
    damage_errors: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
    if path.endswith(".zst"):
        import zstandard

        damage_errors = (*damage_errors, zstandard.ZstdError)
    opened: io.BufferedReader[Any]
    if make_decompressor:
        opened = io.BufferedReader(_DecompressedFile(path, make_decompressor), 1 << 20)
    else:
        opened = open(path, "rb")  # noqa: SIM115 (closed below)
    with opened as file:
        try:
            yield file
        except damage_errors as error:
            # An error of the file system has a number; an OSError of bz2 has none.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise UserError(
                f"the file is damaged: {error}", path, "copy it again", kind=DAMAGED
            ) from None


def read_documents(
    spec: Spec, field: str, split: str = "train", handle: Handler = bad_records.stop_or_skip
) -> Iterator[str]:
    """Yield the documents of a source, without empty ones.

    Args:
        spec: The source.
        field: The field of records that has the text.
        split: The split of an hf or tfds set whose spec names none.
        handle: Called with each record that cannot be used.

    Raises:
        UserError: The source cannot be read or holds no text, or `handle` raises it.
    """
    for record in _list_records(spec, field, split):
        try:
            text = record.decode()
        except RecordFault as fault:
            handle(fault.locate(record.path, record.place))
            continue
        if text.strip():
            yield text


def _list_records(spec: Spec, field: str, split: str) -> Iterator[_UndecodedRecord]:
    """Yield the records of a source."""
    if spec.kind == "hf":
        for number, record in enumerate(read_hugging_face(spec, split), 1):
            decode = functools.partial(get_record_text, record, field, spec)
            yield _UndecodedRecord(str(spec), f"record {number:,}", decode)
    elif spec.kind in ("tfrecord", "tfds"):
        yield from _list_examples(spec, field, split)
    elif spec.kind in ("text", "jsonl"):
        for path in data_spec.find_files(spec):
            yield from _list_lines(path, spec.kind, field)
    else:
        raise UserError(
            f"data of the kind {spec.kind!r} is not text that can be read through",
            str(spec),
            "use text, jsonl, tfrecord, tfds or hf",
            kind=UNSUPPORTED,
            value=spec.kind,
        )


def _list_examples(spec: Spec, field: str, split: str) -> Iterator[_UndecodedRecord]:
    """Yield the records of the TFRecord files of a source."""
    paths = tfds.find_shards(spec, split) if spec.kind == "tfds" else data_spec.find_files(spec)
    for path in paths:
        records = tfrecord.Records([path])
        for number in range(len(records)):
            decode = functools.partial(tfrecord.parse_text, records[number], field, path)
            yield _UndecodedRecord(*records.find_place(number), decode)


def _list_lines(path: str, kind: str, field: str) -> Iterator[_UndecodedRecord]:
    """Yield the lines of a text or jsonl file that are not blank."""
    with open_decompressed(path) as file:
        if kind == "text":
            head = file.peek(text_corpora.HEAD_BYTES)[: text_corpora.HEAD_BYTES]
            text_corpora.check_text_head(head, path)
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if kind == "text":
                decode = functools.partial(_decode_line, line, path)
            else:
                decode = functools.partial(json_lines.parse_text, line, field, path)
            yield _UndecodedRecord(path, f"line {number:,}", decode)


def _decode_line(line: bytes, path: str) -> str:
    """Return the text of a line, without its end."""
    return bad_records.decode_text(line, path).rstrip("\r\n")


def get_record_text(record: Any, field: str, spec: Spec) -> str:
    """Return the text of a record of a Hugging Face set.

    Args:
        record: The record, a mapping from field to value.
        field: The field that has the text.
        spec: The set.

    Raises:
        RecordFault: The field is missing or has no text.
    """
    return bad_records.replace_surrogates(json_lines.get_text(record, field), str(spec))


def open_hugging_face(spec: Spec, split: str) -> Any:
    """Return a Hugging Face data set as a stream.

    The token is HF_TOKEN's or that of the login, and is never printed.

    Args:
        spec: The set.
        split: The split, if the spec names none.

    Returns:
        A datasets.IterableDataset.

    Raises:
        UserError: The datasets package, the set, the split or the permission is missing.
    """
    path_checks.check_certificates()
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(
            "the datasets package is not in this environment",
            str(spec),
            "pip install datasets, or use local files (text:, jsonl:)",
            kind=MISSING,
            value="datasets",
        ) from None
    path, config = _parse_hugging_face_name(spec)
    token = os.environ.get("HF_TOKEN") or None
    try:
        options = {}
        if os.path.isdir(path):
            builder = datasets.load_dataset_builder(path, config, token=token)
            options = tables.choose_read_options(builder)
        return datasets.load_dataset(
            path, config, split=spec.split or split, streaming=True, token=token, **options
        )
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 (dozens of kinds, from four libraries)
        remedy = "check its name, config and split; a private set needs HF_TOKEN"
        raise _describe_read_failure(error, spec, "opened", remedy) from None


def _parse_hugging_face_name(spec: Spec) -> tuple[str, str | None]:
    """Return the name or folder of a Hugging Face set, and its config.

    Raises:
        UserError: The name has too many parts, or the folder is missing.
    """
    if spec.value.startswith(("/", ".")):
        if not os.path.exists(spec.value):
            raise UserError(
                "there is no such folder",
                spec.value,
                "check the path; inside a container, give the path of the mounted folder",
                kind=MISSING,
                value=spec.value,
            )
        return spec.value, None
    parts = spec.value.split("/")
    if len(parts) > 3:
        raise UserError(
            "the name of a data set has at most three parts",
            str(spec),
            data_spec.KINDS["hf"],
            kind=INVALID,
        )
    config = parts[2] if len(parts) == 3 else None
    return "/".join(parts[:2]), config


def _describe_read_failure(error: Exception, spec: Spec, verb: str, remedy: str) -> UserError:
    """Return the error for a set that the datasets package cannot read.

    The token is removed from the package's message.
    """
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    token = os.environ.get("HF_TOKEN")
    if token:
        reason = reason.replace(token, "***")
    return UserError(
        f"the data set cannot be {verb}: {reason[:_MAX_REASON]}", str(spec), remedy, kind=FAILED
    )


def read_hugging_face(spec: Spec, split: str) -> Iterator[Any]:
    """Yield the records of a Hugging Face set, in the order of the set.

    Raises:
        UserError: See open_hugging_face and read_opened_set.
    """
    yield from read_opened_set(open_hugging_face(spec, split), spec)


def read_opened_set(dataset: Any, spec: Spec) -> Iterator[Any]:
    """Yield the records of an opened Hugging Face set.

    Args:
        dataset: What open_hugging_face returned.
        spec: The set, for messages.

    Raises:
        UserError: The datasets package cannot read a file of the set.
    """
    records = iter(dataset)
    number = 0
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 (dozens of kinds, from four libraries)
            remedy = f"repair the file after record {number:,}, the last one that could be read"
            raise _describe_read_failure(error, spec, "read further", remedy) from None
        number += 1
        yield record
