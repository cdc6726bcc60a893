"""Records of tasks, formatted as inputs and targets: MNLI, SQuAD, LAMBADA, BoolQ and text to text.

The texts of MNLI and SQuAD are those of T5 (Raffel et al., 2020, appendix D). Finetuning,
evaluation, inference and the commands of `rosetta data` read records here.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from rosetta.core import log
from rosetta.core.errors import INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.data import (
    array_records,
    bad_records,
    compressed_files,
    data_spec,
    documents,
    json_lines,
    labelled_records,
    prompts,
    table_files,
    tfds,
    tfrecord,
)
from rosetta.data.bad_records import RecordFault
from rosetta.data.pair_rows import EncodedRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rosetta.data.data_spec import Spec
    from rosetta.data.documents import Handler
    from rosetta.data.pair_rows import Pair
    from rosetta.data.vocabularies import Vocabulary

    Formatter = Callable[..., dict[str, Any] | None]

ID_FIELDS = ("id", "idx", "guid", "pairID")  # the fields by which a record can be identified
MNLI_LABELS = ("entailment", "neutral", "contradiction")
_LABEL_DIGITS = ("0", "1", "2", "-1")
# RE2's [[:punct:]] and \s, which T5's tasks use, only match ASCII.
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_SPACE = re.compile(r"[\t\n\f\r ]+")


class LocatedRecord(NamedTuple):
    """A record and its place.

    Attributes:
        path: The file, or the spec of a source without files.
        place: The place in it, such as "line 3".
        fields: The record: field -> value.
    """

    path: str
    place: str
    fields: Mapping[str, Any]


def space_punctuation(text: str) -> str:
    """Put a space on both sides of each ASCII punctuation mark, and join runs of white space."""
    return _SPACE.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


def _get_first(record: Mapping[str, Any], *names: str) -> Any:
    """Return the value of the first of the fields that the record has; None if it has none."""
    for name in names:
        if record.get(name) is not None:
            return record[name]
    return None


def format_mnli(record: Mapping[str, Any], *, answered: bool = True) -> dict[str, Any] | None:
    """Format an MNLI record.

    Args:
        record: The fields of GLUE (premise, hypothesis, and label as a number or a name), or those
            of the original files (sentence1, sentence2, gold_label).
        answered: Whether a label is needed. Otherwise the target of a record without one is "".

    Returns:
        {"inputs", "targets", "idx"}; None if a label is needed and the record says it has none.

    Raises:
        ValueError: The record has no such fields.
    """
    premise = _get_first(record, "premise", "sentence1")
    hypothesis = _get_first(record, "hypothesis", "sentence2")
    label = _get_first(record, "label", "gold_label")
    if label in _LABEL_DIGITS:  # The fields of a table are text.
        label = int(label)
    is_text = isinstance(premise, str) and isinstance(hypothesis, str)
    if not is_text or (label is None and answered):
        raise ValueError("premise, hypothesis or label is missing")
    # JSON's true and false are integers in Python, and would be read as 1 and 0.
    is_number = isinstance(label, int) and not isinstance(label, bool)
    if is_number and 0 <= label < len(MNLI_LABELS):
        label = MNLI_LABELS[label]
    if label is None or label in (-1, "-", ""):
        if answered:
            return None
        label = ""
    elif label not in MNLI_LABELS:
        raise ValueError(
            f"the label is {json.dumps(label, default=str)}, not 0, 1, 2 or one of "
            f"{', '.join(MNLI_LABELS)}"
        )
    return {
        "inputs": f"mnli hypothesis: {hypothesis} premise: {premise}",
        "targets": label,
        "idx": record.get("idx", 0),
    }


def format_squad(record: Mapping[str, Any], *, answered: bool = True) -> dict[str, Any] | None:
    """Format a SQuAD 1.1 record.

    Args:
        record: The fields question, context and answers. Answers are {"text": […]}, as TFDS stores
            them ("answers/text"), or a list of {"text"}.
        answered: Whether an answer is needed. Otherwise the target of a record without one is "".

    Returns:
        {"inputs", "targets", "id", "answers"}; None if an answer is needed and the record has none.

    Raises:
        ValueError: The record has no such fields.
    """
    question, context = record.get("question"), record.get("context")
    answers = _get_first(record, "answers", "answers/text")
    if isinstance(answers, dict):
        answers = answers.get("text")
    if answers is None and not answered:
        answers = []
    if (
        not isinstance(question, str)
        or not isinstance(context, str)
        or not isinstance(answers, list)
    ):
        raise ValueError("question, context or answers are missing")  # noqa: TRY004 (a fault of the data)
    values = [answer.get("text") if isinstance(answer, dict) else answer for answer in answers]
    if not answered:
        values = [value for value in values if value is not None]
    texts = [space_punctuation(value) for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        raise ValueError("an answer has no text")
    if not texts and answered:
        return None
    inputs = f"question: {space_punctuation(question)} context: {space_punctuation(context)}"
    return {
        "inputs": _SPACE.sub(" ", inputs),
        "targets": texts[0] if texts else "",
        "id": str(record.get("id", "")),
        "answers": texts,
    }


def format_text_to_text(
    record: Mapping[str, Any],
    *,
    answered: bool = True,
    names: tuple[str, str] = data_spec.PAIR_FIELDS,
) -> dict[str, Any] | None:
    """Return a record that has inputs and targets already.

    Args:
        record: The fields.
        answered: Whether targets are needed. Otherwise those of a record without them are "".
        names: The names of the fields that have the inputs and the targets.

    Returns:
        {"inputs", "targets", "idx"}; None if targets are needed and the record has no such field.

    Raises:
        ValueError: The record has no such fields.
    """
    inputs, targets = (record.get(name) for name in names)
    if targets is None and not answered:
        targets = ""
    if isinstance(inputs, str) and names[1] not in record and answered:
        return None
    if not isinstance(inputs, str) or not isinstance(targets, str):
        raise ValueError(f"{names[0]} or {names[1]} are missing")  # noqa: TRY004 (a fault of the data)
    return {"inputs": inputs, "targets": targets, "idx": record.get("idx", 0)}


def format_labelled_text(
    record: Mapping[str, Any],
    *,
    answered: bool = True,
    names: tuple[str, ...] = data_spec.PAIR_FIELDS,
    encode: Callable[[str], int | None] | None = None,
) -> dict[str, Any] | None:
    """Return a record that has one or two texts and a label, which may be a number.

    Args:
        record: The fields.
        answered: Whether a label is needed. Otherwise that of a record without a valid one is "".
        names: The names of the fields that have the texts and, last, the label.
        encode: Returns the token of a label, see labelled_records.encode_label. None leaves labels
            unchecked.

    Returns:
        {"inputs", "targets", "idx"}, "inputs_pair" if there is a second text, and with `encode` the
        token of the label as "label", which is 0 if there is none. None if a label is needed and
        the record has none.

    Raises:
        ValueError: The record has no such fields, or its label is not valid.
    """
    *text_names, label_name = names
    for name in text_names:
        if not isinstance(record.get(name), str):
            raise ValueError(f"{name} is missing")  # noqa: TRY004 (a fault of the data)
    try:
        label = _write_label(record.get(label_name))
        token = encode(label) if encode else None
    except ValueError:
        if answered:
            raise
        label, token = "", None
    if answered and (not label or (encode and token is None)):
        return None
    example = {"inputs": record[text_names[0]], "targets": label, "idx": record.get("idx", 0)}
    if len(text_names) > 1:
        example["inputs_pair"] = record[text_names[1]]
    if encode:
        example["label"] = token or 0
    return example


def _write_label(label: Any) -> str:
    """Return a label as text; "" if there is none.

    Raises:
        ValueError: It is neither text nor a number.
    """
    if label is None:
        return ""
    if isinstance(label, bool) or not isinstance(label, (str, int, float)):
        raise ValueError("the label is neither text nor a number")  # noqa: TRY004 (of the data)
    return str(label)


def list_texts(example: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the one text or the two texts of an example of read_examples."""
    return tuple(example[name] for name in ("inputs", "inputs_pair") if name in example)


FORMATTERS: dict[str, Formatter] = {
    "mnli": format_mnli,
    "squad": format_squad,
    "text_to_text": format_text_to_text,
    **dict.fromkeys(data_spec.LABEL_OBJECTIVES, format_labelled_text),
    "lambada": prompts.format_lambada,
    "boolq": prompts.format_boolq,
}


def identify_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field that identifies a record, with its value; {} if it has no such field.

    A field with text or a whole number is preferred to one with another value, such as an object.
    """
    names = [name for name in ID_FIELDS if record.get(name) is not None]
    names.sort(key=lambda name: not isinstance(record[name], (str, int)))
    return {names[0]: record[names[0]]} if names else {}


def read_examples(
    spec: Spec,
    objective: str,
    split: str,
    handle: Handler = bad_records.stop_or_skip,
    *,
    answered: bool = True,
    field: str = data_spec.DEFAULT_FIELD,
    labels: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the formatted examples of a source, in the order of the source.

    Records without a label or answer are left out, and a warning gives their number.

    Args:
        spec: The source. Text (except LAMBADA's passages) and synthetic data have no records.
        objective: One of data_spec.PAIR_OBJECTIVES.
        split: The split of an hf or tfds set whose spec names none.
        handle: Called with each record that is not one of the objective's.
        answered: Whether answers are needed, as in training and evaluation. Otherwise records
            without one are yielded, too, and each example has "name", see identify_record. MNLI,
            SQuAD, text_to_text and texts with a label can do without answers.
        field: The fields of text_to_text or of texts and a label, see data_spec.parse_pair_fields
            and parse_label_fields.
        labels: The names of the classes, () for regression. The labels of records are then checked,
            and examples have their tokens, see format_labelled_text.

    Raises:
        UserError: `handle` raises it, or no record has an answer.
    """
    format_record, columns = _choose_formatter(objective, field, labels, answered=answered)
    count = left_out = hidden = 0
    for record in _read_records(spec, objective, split, handle, columns):
        try:
            example = format_record(record.fields)
            if split == "train" and _lacks_target(example, objective):
                raise ValueError("the target to train on is missing")
        except ValueError as error:
            fault = _describe_fault(error, objective)
            handle(fault.locate(record.path, record.place))
            continue
        count += 1
        if example is None:
            left_out += 1
            continue
        example = {name: _replace_surrogates(value, record.path) for name, value in example.items()}
        if not answered:
            example["name"] = identify_record(record.fields)
        hidden += objective == "regression" and labelled_records.may_be_hidden(example["targets"])
        yield example
    answer = "label" if objective in data_spec.LABEL_OBJECTIVES else "answer"
    # A number may be -1, but not all of them: data sets write -1 for labels that they hide.
    if count and answered and left_out + hidden == count:
        raise UserError(
            f"none of the {count:,} records has a label or an answer",
            str(spec),
            "name records with labels or answers; `rosetta t5x infer` takes questions alone",
            kind=MISSING,
            value=count,
        )
    if left_out:
        line = f"{spec}: {left_out:,} of {count:,} records have no {answer} and are left out"
        log.warn(line, once=True)


def _choose_formatter(
    objective: str, field: str, labels: Sequence[str] | None, *, answered: bool
) -> tuple[Formatter, tuple[str, ...]]:
    """Return the formatter of an objective, and the columns that a table has to have.

    The arguments are those of read_examples.
    """
    arguments: dict[str, Any] = {} if answered else {"answered": False}
    columns: tuple[str, ...] = ()
    if objective in ("text_to_text", *data_spec.LABEL_OBJECTIVES):
        is_pair = objective == "text_to_text"
        parse_fields = data_spec.parse_pair_fields if is_pair else data_spec.parse_label_fields
        names = parse_fields(field)
        columns = names if answered else names[:-1]
        arguments["names"] = names
        if labels is not None and not is_pair:
            arguments["encode"] = functools.partial(
                labelled_records.encode_label, labels=labels, objective=objective
            )
    return functools.partial(FORMATTERS[objective], **arguments), columns


def _describe_fault(error: ValueError, objective: str) -> RecordFault:
    """Return what is wrong with a record that a formatter refused."""
    if isinstance(error, RecordFault):
        return error
    return RecordFault(
        f"not a record of {objective}: {error}",
        "name files of that task's records",
        f"not a record of {objective}",
    )


def add_prefix(prefix: str, inputs: str) -> str:
    """Return the inputs of a record with a prefix before them, such as a mode token of UL2.

    Args:
        prefix: The prefix; "" for none.
        inputs: The text. A blank parts it from a prefix that does not end with one.
    """
    if not prefix:
        return inputs
    return prefix + inputs if prefix[-1].isspace() else f"{prefix} {inputs}"


def _lacks_target(example: dict[str, Any] | None, objective: str) -> bool:
    """Return whether training has to refuse an example because it has no target.

    Records without a label are left out, except those of text_to_text.
    """
    if example is None:
        return objective == "text_to_text"
    return not example["targets"]


def check_all_records(
    data: str,
    objective: str,
    split: str,
    *,
    answered: bool = True,
    field: str = data_spec.DEFAULT_FIELD,
    labels: Sequence[str] | None = None,
) -> None:
    """Read and format every record of the data.

    SeqIO tasks, token caches, synthetic data and sets that would be downloaded are left out.

    Args:
        data: A spec string, or {spec: rate} as JSON.
        objective: One of data_spec.PAIR_OBJECTIVES.
        split: The split of hf and tfds sets that name none.
        answered: See read_examples.
        field: See read_examples.
        labels: See read_examples.

    Raises:
        UserError: A record cannot be used, or there is none.
    """
    for part in data_spec.parse_parts(data):
        spec = part.spec
        if spec.kind in ("task", "cache", "synthetic"):
            continue
        if spec.kind == "hf" and not os.path.isdir(os.path.expanduser(spec.value)):
            continue
        examples = read_examples(
            spec, objective, split, answered=answered, field=field, labels=labels
        )
        if not sum(1 for _ in examples):
            raise UserError(
                "there is no record in the data",
                str(spec),
                "name files with records in them",
                kind=MISSING,
            )


def _replace_surrogates(value: Any, path: str) -> Any:
    """Return a value of an example with the lone surrogates of its texts replaced."""
    if isinstance(value, list):
        return [_replace_surrogates(inner, path) for inner in value]
    return bad_records.replace_surrogates(value, path) if isinstance(value, str) else value


def read_texts(
    spec: Spec, objective: str, field: str, split: str, handle: Handler = bad_records.stop_or_skip
) -> Iterator[str]:
    """Yield the texts of a source: documents, or for a pair objective inputs and targets in turn.

    Two inputs of a record become one text.

    Args:
        spec: The source.
        objective: One of data_spec.OBJECTIVES.
        field: The field of records that has the text of documents, or the fields of pairs.
        split: The split of an hf or tfds set whose spec names none.
        handle: Called with each record that cannot be used.

    Raises:
        UserError: See read_examples and documents.read_documents.
    """
    if objective not in data_spec.PAIR_OBJECTIVES:
        yield from documents.read_documents(spec, field, split, handle)
        return
    for example in read_examples(spec, objective, split, handle, field=field):
        yield " ".join(list_texts(example))
        yield example["targets"]


def check_first_record(spec: Spec, objective: str, field: str, split: str) -> None:
    """Read the first record of a source. The arguments are those of read_texts.

    Raises:
        UserError: The record cannot be used, or there is no text at all.
    """
    if next(read_texts(spec, objective, field, split), None) is None:
        raise UserError(
            "there is no text in the data", str(spec), "name files with text in them", kind=MISSING
        )


class EncodedPairs(EncodedRecords):
    """Pairs of texts as pairs of ids.

    Attributes:
        texts: The inputs and the targets of each record.
        vocabulary: The vocabulary.
    """

    def __init__(self, texts: list[tuple[str, str]], vocabulary: Vocabulary) -> None:
        self.texts = texts
        self.vocabulary = vocabulary

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.texts)

    def encode_records(self, numbers: Sequence[int]) -> list[Pair]:
        """Return the ids of the inputs and of the targets of pairs, int32, without end tokens."""
        texts = itertools.chain.from_iterable(self.texts[number] for number in numbers)
        ids = self.vocabulary.encode(list(texts))
        return list(zip(ids[::2], ids[1::2], strict=True))


def _simplify_values(values: list[Any], name: str) -> Any:
    """Return the values of a feature of an Example as JSON would have them.

    The answers of SQuAD are a list, and every other feature has one value or none.
    """
    texts = [
        value.decode(errors="replace") if isinstance(value, bytes) else value for value in values
    ]
    if name.startswith("answers"):
        return texts
    return texts[0] if texts else None


def _read_records(
    spec: Spec, objective: str, split: str, handle: Handler, columns: Sequence[str]
) -> Iterator[LocatedRecord]:
    """Yield the records of a source with their places.

    Raises:
        UserError: The source has no records, or cannot be read.
    """
    if spec.kind == "jsonl":
        for path in data_spec.find_files(spec):
            yield from _read_json_records(path, handle, may_be_squad_file=objective == "squad")
    elif tables := table_files.list_tables(spec, split):
        for path, kind in tables:
            yield from _read_rows(path, kind, columns, handle)
    elif spec.kind in ("tfrecord", "tfds", "arrayrecord"):
        yield from _read_examples(spec, split, handle)
    elif spec.kind == "text" and objective == "lambada":
        for number, line in enumerate(documents.read_documents(spec, ""), 1):
            yield LocatedRecord(str(spec), f"passage {number:,}", {"text": line})
    elif spec.kind == "hf":
        for number, fields in enumerate(documents.read_hugging_face(spec, split), 1):
            yield LocatedRecord(str(spec), f"record {number:,}", fields)
    else:
        raise UserError(
            f"data of the kind {spec.kind!r} has no records",
            str(spec),
            "use " + ", ".join(data_spec.RECORD_KINDS),
            kind=UNSUPPORTED,
            value=spec.kind,
        )


def _read_rows(
    path: str, kind: str, columns: Sequence[str], handle: Handler
) -> Iterator[LocatedRecord]:
    """Yield the rows of a table, which has to have certain columns, with their places."""
    for row in table_files.read_rows(path, kind, columns):
        if row.fault is not None:
            handle(row.fault.locate(path, row.place))
        else:
            yield LocatedRecord(path, row.place, row.fields)


def _list_examples(spec: Spec, split: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield the file, the place and the bytes of each record of tf.train.Example."""
    if spec.kind == "arrayrecord":
        for path in data_spec.find_files(spec):
            for number, body in enumerate(array_records.read_records(path), 1):
                yield path, f"record {number:,}", body
        return
    paths = tfds.find_shards(spec, split) if spec.kind == "tfds" else data_spec.find_files(spec)
    records = tfrecord.Records(paths)
    for number in range(len(records)):
        path, place = records.find_place(number)
        yield path, place, records[number]
        records.report_read(number)


def _read_examples(spec: Spec, split: str, handle: Handler) -> Iterator[LocatedRecord]:
    """Yield the records of tf.train.Example with their places."""
    for path, place, body in _list_examples(spec, split):
        try:
            features = tfrecord.parse_example(body)
        except RecordFault as fault:
            handle(fault.locate(path, place))
            continue
        fields = {name: _simplify_values(values, name) for name, values in features.items()}
        yield LocatedRecord(path, place, fields)


def _parse_squad_file(line: bytes, path: str) -> list[Mapping[str, Any]] | None:
    """Return the records of a file as SQuAD publishes it: one JSON document of paragraphs.

    Args:
        line: The first line of the file.
        path: The file.

    Returns:
        The records; None if the file is not such a document.

    Raises:
        UserError: The document has other fields.
    """
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        return None
    records: list[Mapping[str, Any]] = []
    try:
        for article in document["data"]:
            for paragraph in article["paragraphs"]:
                records += [
                    {"context": paragraph["context"], **question} for question in paragraph["qas"]
                ]
    except (KeyError, TypeError):
        raise UserError(
            "the file does not have the layout of SQuAD's own files: data, paragraphs, qas",
            path,
            "copy it again, or put one record on each line",
            kind=INVALID,
        ) from None
    return records


def _read_json_records(
    path: str, handle: Handler, *, may_be_squad_file: bool
) -> Iterator[LocatedRecord]:
    """Yield the records of a file with their places: one on each line, or those of a SQuAD file."""
    with compressed_files.open_decompressed(path) as file:
        line = file.readline()
        squad_records = _parse_squad_file(line, path) if may_be_squad_file else None
        if squad_records is not None:
            for number, fields in enumerate(squad_records, 1):
                yield LocatedRecord(path, f"question {number:,}", fields)
            return
        number = 1
        while line:
            if line.strip():
                try:
                    yield LocatedRecord(path, f"line {number:,}", json_lines.parse_object(line))
                except RecordFault as fault:
                    handle(fault.locate(path, f"line {number:,}"))
            line = file.readline()
            number += 1
