"""Read the documents of a source one after another, in a fixed order.

Token caches, vocabulary training and streamed Hugging Face sets read their text here. Training on
files reads windows by position instead: see text_corpora.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from rosetta.core import path_checks
from rosetta.core.errors import FAILED, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.data import (
    array_records,
    bad_records,
    compressed_files,
    data_spec,
    json_lines,
    table_files,
    tables,
    text_heads,
    tfds,
    tfrecord,
)
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rosetta.data.bad_records import BadRecordError
    from rosetta.data.data_spec import Spec
    from rosetta.data.table_rows import Row

    # What becomes of a bad record: the handler raises the error, or counts it.
    Handler = Callable[[BadRecordError], None]

_MAX_REASON = 200  # characters of a library's message that an error shows


class UndecodedRecord(NamedTuple):
    """A record whose text is not decoded yet.

    Attributes:
        path: The file, or the spec of a source without files.
        place: The place in it, such as "line 3".
        decode: Returns the text, or raises RecordFault.
    """

    path: str
    place: str
    decode: Callable[[], str]


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
    yield from _decode_records(_list_records(spec, field, split), handle)


def read_file_documents(path: str, kind: str, field: str, handle: Handler) -> Iterator[str]:
    """Yield the documents of a file, without empty ones.

    Args:
        path: The file.
        kind: One of data_spec.FILE_KINDS.
        field: The field of records that has the text.
        handle: Called with each record that cannot be used.

    Raises:
        UserError: The file cannot be read, or `handle` raises it.
    """
    yield from _decode_records(list_file_records(path, kind, field), handle)


def _decode_records(records: Iterable[UndecodedRecord], handle: Handler) -> Iterator[str]:
    """Yield the texts of records, without empty ones."""
    for record in records:
        try:
            text = record.decode()
        except RecordFault as fault:
            handle(fault.locate(record.path, record.place))
            continue
        if text.strip():
            yield text


def _list_records(spec: Spec, field: str, split: str) -> Iterator[UndecodedRecord]:
    """Yield the records of a source."""
    if found_tables := table_files.list_tables(spec, split):
        for path, kind in found_tables:
            yield from list_file_records(path, kind, field)
    elif spec.kind == "hf":
        for number, record in enumerate(read_hugging_face(spec, split), 1):
            decode = functools.partial(get_record_text, record, field, spec)
            yield UndecodedRecord(str(spec), f"record {number:,}", decode)
    elif spec.kind == "tfds":
        for path in tfds.find_shards(spec, split):
            yield from list_file_records(path, "tfrecord", field)
    elif spec.kind in data_spec.FILE_KINDS:
        for path in data_spec.find_files(spec):
            yield from list_file_records(path, spec.kind, field)
    else:
        raise UserError(
            f"data of the kind {spec.kind!r} is not text that can be read through",
            str(spec),
            "use " + ", ".join(data_spec.TEXT_KINDS),
            kind=UNSUPPORTED,
            value=spec.kind,
        )


def list_file_records(path: str, kind: str, field: str) -> Iterator[UndecodedRecord]:
    """Yield the records of a file.

    Args:
        path: The file.
        kind: One of data_spec.FILE_KINDS, or "arrow".
        field: The field of records that has the text.

    Raises:
        UserError: The file cannot be read.
    """
    if kind in ("text", "jsonl"):
        yield from _list_lines(path, kind, field)
    elif kind in table_files.KINDS:
        for row in table_files.read_rows(path, kind, [field]):
            decode = functools.partial(_get_row_text, row, field, path)
            yield UndecodedRecord(path, row.place, decode)
    elif kind == "arrayrecord":
        for number, body in enumerate(array_records.read_records(path), 1):
            decode = functools.partial(tfrecord.parse_text, body, field, path)
            yield UndecodedRecord(path, f"record {number:,}", decode)
    else:
        records = tfrecord.Records([path])
        for number in range(len(records)):
            decode = functools.partial(tfrecord.parse_text, records[number], field, path)
            yield UndecodedRecord(*records.find_place(number), decode)
            records.report_read(number)


def _get_row_text(row: Row, field: str, path: str) -> str:
    """Return the text of a row. Raises RecordFault if the row is bad."""
    if row.fault is not None:
        raise row.fault
    return bad_records.replace_surrogates(json_lines.get_text(row.fields, field), path)


def _list_lines(path: str, kind: str, field: str) -> Iterator[UndecodedRecord]:
    """Yield the lines of a text or jsonl file that are not blank."""
    with compressed_files.open_decompressed(path) as file:
        if kind == "text":
            head = file.peek(text_heads.HEAD_BYTES)[: text_heads.HEAD_BYTES]
            text_heads.check_text_head(head, path)
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if kind == "text":
                decode = functools.partial(_decode_line, line, path)
            else:
                decode = functools.partial(json_lines.parse_text, line, field, path)
            yield UndecodedRecord(path, f"line {number:,}", decode)


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
