"""Records of finetuning tasks, worded as T5 words them (Raffel et al., 2020, appendix D): MNLI and
SQuAD; and any task's that are worded already.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from rosetta.core import log
from rosetta.core.errors import INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.data import (
    Array,
    bad_records,
    data_spec,
    documents,
    json_lines,
    prompts,
    tfds,
    tfrecord,
)
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rosetta.data.data_spec import Spec
    from rosetta.data.documents import Handler
    from rosetta.data.vocabularies import Vocabulary

ID_FIELDS = ("id", "idx", "guid", "pairID")  # of the field that tells a record from the others
MNLI_LABELS = ("entailment", "neutral", "contradiction")
_LABEL_DIGITS = ("0", "1", "2", "-1")
# RE2's [[:punct:]] and \s, which T5's tasks use, know ASCII alone.
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_SPACE = re.compile(r"[\t\n\f\r ]+")


def space_punctuation(text: str) -> str:
    """Return the text with a space on both sides of each ASCII punctuation mark, runs of white
    space made one space.
    """
    return _SPACE.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


def _get_first(record: Mapping[str, Any], *names: str) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def format_mnli(record: Mapping[str, Any], *, answered: bool = True) -> dict[str, Any] | None:
    """Return {"inputs", "targets", "idx"} of an MNLI record, None where it has no label.

    Takes the field names of GLUE (premise, hypothesis, label as a number or name) and of the
    corpus's own files (sentence1, sentence2, gold_label). Without `answered`, the target of a
    record without a label is "".
    """
    premise, hypothesis = (
        _get_first(record, "premise", "sentence1"),
        _get_first(record, "hypothesis", "sentence2"),
    )
    label = _get_first(record, "label", "gold_label")
    if label in _LABEL_DIGITS:  # a table's fields are text
        label = int(label)
    if (
        not isinstance(premise, str)
        or not isinstance(hypothesis, str)
        or (label is None and answered)
    ):
        raise ValueError("it lacks premise, hypothesis or label")
    # JSON's true and false are integers in Python, and would be read as 1 and 0.
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(MNLI_LABELS):
        label = MNLI_LABELS[label]
    if label is None or label in (-1, "-", ""):
        if answered:
            return None
        label = ""
    elif label not in MNLI_LABELS:
        raise ValueError(
            f"its label is {json.dumps(label, default=str)}, not 0, 1, 2 or one of "
            f"{', '.join(MNLI_LABELS)}"
        )
    return {
        "inputs": f"mnli hypothesis: {hypothesis} premise: {premise}",
        "targets": label,
        "idx": record.get("idx", 0),
    }


def format_squad(record: Mapping[str, Any], *, answered: bool = True) -> dict[str, Any] | None:
    """Return {"inputs", "targets", "id", "answers"} of a SQuAD 1.1 record, None where it has no
    answer.

    Takes answers as {"text": […]}, as TFDS stores them ("answers/text") and as a list of {"text"}.
    Without `answered`, a record may lack them: its target is "".
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
        raise ValueError("it lacks question, context or answers")  # noqa: TRY004 (of the data, not of a caller)
    worded = [answer.get("text") if isinstance(answer, dict) else answer for answer in answers]
    if not answered:
        worded = [answer for answer in worded if answer is not None]
    texts = [space_punctuation(answer) for answer in worded if isinstance(answer, str)]
    if len(texts) < len(worded):
        raise ValueError("an answer has no text")
    if not texts and answered:
        return None
    inputs = _SPACE.sub(
        " ", f"question: {space_punctuation(question)} context: {space_punctuation(context)}"
    )
    return {
        "inputs": inputs,
        "targets": texts[0] if texts else "",
        "id": str(record.get("id", "")),
        "answers": texts,
    }


def format_text_to_text(
    record: Mapping[str, Any], *, answered: bool = True
) -> dict[str, Any] | None:
    """Return {"inputs", "targets", "idx"} of a record that is worded already, None where it has no
    targets.

    Without `answered`, the target of a record without one is "".
    """
    inputs, targets = record.get("inputs"), record.get("targets")
    if targets is None and not answered:
        targets = ""
    if isinstance(inputs, str) and "targets" not in record and answered:
        return None
    if not isinstance(inputs, str) or not isinstance(targets, str):
        raise ValueError("it lacks inputs or targets")  # noqa: TRY004 (of the data, not of a caller)
    return {"inputs": inputs, "targets": targets, "idx": record.get("idx", 0)}


FORMATTERS = {
    "mnli": format_mnli,
    "squad": format_squad,
    "text_to_text": format_text_to_text,
    "lambada": prompts.format_lambada,
    "boolq": prompts.format_boolq,
}


def identify_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field by which a record is known, with its value: {} where it has none.

    Text and whole numbers come first. Without those it is the first field with any other value,
    such as an object.
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
) -> Iterator[dict[str, Any]]:
    """Yield the worded examples of a source, in its own order.

    Records that have no label or answer are left out, which is said with their number. Without
    `answered` they are yielded, too, and each example has "name", see name_record.

    Args:
      spec: text (but LAMBADA's lines) and synthetic hold no records.
      objective: one of data_spec.PAIR_OBJECTIVES.
      split: which split of a hf or tfds set, unless the spec names one.
      handle: is given each record that is not one of the objective's.
      answered: whether the answers are needed, as they are to train and to evaluate; of MNLI, SQuAD
        and text_to_text.

    Raises:
      UserError: what `handle` raises; no record has an answer.
    """
    wording: Callable[..., dict[str, Any] | None] = FORMATTERS[objective]
    if not answered:
        wording = functools.partial(wording, answered=False)
    count = left_out = 0
    for path, place, record in _read_records(spec, objective, split, handle):
        try:
            found = wording(record)
            lacks_target = objective == "text_to_text" if found is None else not found["targets"]
            if split == "train" and lacks_target:
                raise ValueError("it has no target to train on")
        except ValueError as error:
            fault = RecordFault(
                f"not a record of {objective}: {error}",
                "name files of that task's records",
                f"not a record of {objective}",
            )
            handle(fault.locate(path, place))
            continue
        count += 1
        if found is None:
            left_out += 1
            continue
        example = {name: _replace_surrogates(value, path) for name, value in found.items()}
        yield example if answered else {**example, "name": identify_record(record)}
    if left_out and left_out == count:
        raise UserError(
            f"none of its {count:,} records has an answer",
            str(spec),
            "name records with labels or answers; `rosetta t5x infer` takes questions alone",
            kind=MISSING,
            value=count,
        )
    if left_out:
        line = f"{spec}: {left_out:,} of {count:,} records have no answer and are left out"
        log.warn(line, once=True)


def check_all_records(data: str, objective: str, split: str, *, answered: bool = True) -> None:
    """Read and word every record of the data.

    Data that SeqIO reads, token caches and sets that would have to be downloaded are not read.

    Raises:
      UserError: one of the records cannot be used; there is none.
    """
    for part in data_spec.parse_parts(data):
        spec = part.spec
        if spec.kind in ("task", "cache", "synthetic") or (
            spec.kind == "hf" and not os.path.isdir(os.path.expanduser(spec.value))
        ):
            continue
        if not sum(1 for _ in read_examples(spec, objective, split, answered=answered)):
            raise UserError(
                "there is no record in the data",
                str(spec),
                "name files with records in them",
                kind=MISSING,
            )


def _replace_surrogates(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_replace_surrogates(inner, path) for inner in value]
    return bad_records.replace_surrogates(value, path) if isinstance(value, str) else value


def read_texts(
    spec: Spec, objective: str, field: str, split: str, handle: Handler = bad_records.stop_or_skip
) -> Iterator[str]:
    """Yield a source's documents, of an objective that needs pairs its inputs and targets in turn;
    see worded and documents.read_documents.
    """
    if objective not in data_spec.PAIR_OBJECTIVES:
        yield from documents.read_documents(spec, field, split, handle)
        return
    for record in read_examples(spec, objective, split, handle):
        yield record["inputs"]
        yield record["targets"]


def check_first_record(spec: Spec, objective: str, field: str, split: str) -> None:
    """Read a source's first record: UserError where it is none, has no such field, or there is no
    text at all. Arguments are those of texts.
    """
    if next(read_texts(spec, objective, field, split), None) is None:
        raise UserError(
            "there is no text in the data", str(spec), "name files with text in them", kind=MISSING
        )


class EncodedPairs(Sequence[tuple[Array, Array]]):
    """Pairs of texts as pairs of ids, each made when it is asked for: a run starts without reading
    all of them.
    """

    def __init__(self, texts: list[tuple[str, str]], vocab: Vocabulary) -> None:
        self.texts, self.vocab = texts, vocab

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, number: int) -> tuple[Array, Array]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[Array, Array]]: ...
    def __getitem__(self, number: int | slice) -> tuple[Array, Array] | list[tuple[Array, Array]]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        first, second = self.vocab.encode(self.texts[number])
        return first, second


def _simplify_values(values: list[Any], name: str) -> Any:
    texts = [
        value.decode(errors="replace") if isinstance(value, bytes) else value for value in values
    ]
    return texts if name.startswith("answers") else (texts[0] if texts else None)


def _read_records(
    spec: Spec, objective: str, split: str, handle: Handler
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (file, place in it, record)."""
    if spec.kind == "jsonl":
        for path in data_spec.find_files(spec):
            yield from (
                (path, place, record)
                for place, record in _read_json_records(path, handle, own=objective == "squad")
            )
    elif spec.kind in ("tfrecord", "tfds"):
        paths = tfds.find_shards(spec, split) if spec.kind == "tfds" else data_spec.find_files(spec)
        records = tfrecord.Records(paths)
        for number in range(len(records)):
            path, place = records.find_place(number)
            try:
                features = tfrecord.parse_example(records[number])
            except RecordFault as fault:
                handle(fault.locate(path, place))
                continue
            yield (
                path,
                place,
                {name: _simplify_values(values, name) for name, values in features.items()},
            )
    elif spec.kind == "text" and objective == "lambada":
        for number, line in enumerate(documents.read_documents(spec, ""), 1):
            yield str(spec), f"passage {number:,}", {"text": line}
    elif spec.kind == "hf":
        for number, record in enumerate(documents.read_hugging_face(spec, split), 1):
            yield str(spec), f"record {number:,}", record
    else:
        raise UserError(
            f"{spec.kind} holds no records",
            str(spec),
            "use jsonl, tfrecord, tfds, hf or a cache",
            kind=UNSUPPORTED,
            value=spec.kind,
        )


def _parse_squad_file(line: bytes, path: str) -> list[Mapping[str, Any]] | None:
    """Return the records of SQuAD's own file, one document of paragraphs; None where it is none."""
    try:
        whole = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(whole, dict) or not isinstance(whole.get("data"), list):
        return None
    try:
        return [
            {"context": paragraph["context"], **question}
            for article in whole["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (KeyError, TypeError):
        raise UserError(
            "it is not laid out as SQuAD's own file: data, paragraphs, qas",
            path,
            "copy it again, or put one record on each line",
            kind=INVALID,
        ) from None


def _read_json_records(
    path: str, handle: Handler, *, own: bool
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (place, record) of a file: one record a line, or, where it is one, SQuAD's own file."""
    with documents.open_decompressed(path) as file:
        line = file.readline()
        if own and (found := _parse_squad_file(line, path)) is not None:
            yield from ((f"question {number:,}", record) for number, record in enumerate(found, 1))
            return
        number = 1
        while line:
            if line.strip():
                try:
                    yield f"line {number:,}", json_lines.parse_object(line)
                except RecordFault as fault:
                    handle(fault.locate(path, f"line {number:,}"))
            line = file.readline()
            number += 1
