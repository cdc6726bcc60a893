"""Records of GLUE and SuperGLUE on JSON lines, as rows with the fields that T5's tasks read.

A line is a record as the files of SuperGLUE have it, or a row of the data set as Hugging Face and
TensorFlow Datasets have it, with its label as a number or as a word. GLUE (Wang et al., ICLR 2019)
publishes tables, whose rows may be written as JSON. SuperGLUE is that of Wang et al., NeurIPS 2019.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from typing import TYPE_CHECKING, Any

from rosetta.core import log
from rosetta.core.errors import INVALID, MISSING, UNKNOWN, UserError
from rosetta.data import bad_records, compressed_files, data_spec, json_lines
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

NO_LABEL = -1
# The names of the file of a split in the folder of a task.
_FILE_NAMES = {"train": ("train",), "validation": ("val", "validation", "dev")}
_MIXTURE = "_proportional"  # the end of the name of a mixture of all tasks
_NAME = re.compile(rf"task:((?:super_)?glue)_(?:(\w+?)_)?v\d+({_MIXTURE}|_simple_eval)?")
_BOOLEANS = ("False", "True")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task of GLUE or SuperGLUE.

    Attributes:
        seqio_name: The task of the package t5 that has its texts and metrics.
        fields: The fields that have texts.
        labels: The names of the labels, by their numbers; () if the label is a number, as in STS-B,
            or a text, as in ReCoRD.
    """

    seqio_name: str
    fields: tuple[str, ...]
    labels: tuple[str, ...] = ()


def _make_tasks(
    benchmark: str, version: str, tasks: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
) -> dict[str, GlueTask]:
    """Return the tasks of a benchmark by name, from their fields and labels."""
    return {
        name: GlueTask(f"{benchmark}_{name}_{version}", *fields_and_labels)
        for name, fields_and_labels in tasks.items()
    }


_PAIR = ("sentence1", "sentence2")
_PREMISE = ("premise", "hypothesis")
BENCHMARKS: dict[str, dict[str, GlueTask]] = {
    "glue": _make_tasks(
        "glue",
        "v002",
        {
            "cola": (("sentence",), ("unacceptable", "acceptable")),
            "sst2": (("sentence",), ("negative", "positive")),
            "mrpc": (_PAIR, ("not_equivalent", "equivalent")),
            "qqp": (("question1", "question2"), ("not_duplicate", "duplicate")),
            "stsb": (_PAIR, ()),
            "mnli": (_PREMISE, _NLI),
            "mnli_matched": (_PREMISE, _NLI),
            "mnli_mismatched": (_PREMISE, _NLI),
            "qnli": (("question", "sentence"), _ENTAILMENT),
            "rte": (_PAIR, _ENTAILMENT),
            "wnli": (_PAIR, ("not_entailment", "entailment")),
        },
    ),
    "super_glue": {
        **_make_tasks(
            "super_glue",
            "v102",
            {
                "boolq": (("question", "passage"), _BOOLEANS),
                "cb": (_PREMISE, ("entailment", "contradiction", "neutral")),
                "copa": (
                    ("premise", "choice1", "choice2", "question"),
                    ("choice1", "choice2"),
                ),
                "multirc": (("paragraph", "question", "answer"), _BOOLEANS),
                "record": (("passage", "query"), ()),
                "rte": (_PREMISE, _ENTAILMENT),
                "wic": (("word", *_PAIR), _BOOLEANS),
            },
        ),
        "wsc": GlueTask(
            "super_glue_wsc_v102_simple_eval", ("text", "span1_text", "span2_text"), _BOOLEANS
        ),
    },
}


@dataclasses.dataclass(frozen=True)
class LocalTask:
    """A task whose records are in a file of JSON lines.

    Attributes:
        benchmark: "glue" or "super_glue".
        name: The name of the task in BENCHMARKS.
        path: The file.
        split: "train" or "validation".
    """

    benchmark: str
    name: str
    path: str
    split: str = "validation"

    @property
    def task(self) -> GlueTask:
        """The fields and labels of the task."""
        return BENCHMARKS[self.benchmark][self.name]

    @property
    def local_name(self) -> str:
        """The name under which the task is registered with SeqIO, such as "glue_cola"."""
        return f"{self.benchmark}_{self.name}"


def is_glue_task(name: str) -> bool:
    """Return whether a name such as task:glue_cola_v002 is that of a task or mixture of GLUE."""
    return _NAME.fullmatch(name) is not None


def suggest_name(text: str) -> str:
    """Return the value of FT_TASK that a text such as "sst2" or "glue_sst2" means; "" for none."""
    for benchmark, tasks in BENCHMARKS.items():
        for name, task in tasks.items():
            if text.lower() in (name, f"{benchmark}_{name}"):
                return f"task:{task.seqio_name}"
    return ""


def find_local_tasks(name: str, data: str, split: str = "validation") -> list[LocalTask]:
    """Return the tasks of GLUE or SuperGLUE whose records are in files of JSON lines.

    Args:
        name: task:NAME of the package t5, a task or a mixture of all tasks.
        data: jsonl:FILE. For a mixture jsonl:FOLDER, with a file TASK.jsonl for each task, or a
            folder TASK with the file of the split: train.jsonl, or one of val.jsonl,
            validation.jsonl and dev.jsonl.
        split: "train" or "validation".

    Raises:
        UserError: The data is not JSON lines or has several parts, there is no such task, or there
            is no file.
    """
    match = _NAME.fullmatch(name)
    tasks = BENCHMARKS[match[1]] if match else {}
    parts = data_spec.parse_parts(data)
    if len(parts) > 1:
        raise _too_many_files(len(parts), data)
    spec = parts[0].spec
    where = f"DATA={data}"
    if not match or spec.kind != "jsonl":
        raise UserError(
            f"{name} reads its own data, or JSON lines",
            where,
            "leave it out, or name jsonl:FILE",
            kind=INVALID,
            value=spec.kind,
        )
    path = os.path.expanduser(spec.value)
    if match[3] == _MIXTURE:
        files = _find_task_files(path, tasks, split)
        if not files:
            listed = " ".join(f"{task}.jsonl" for task in tasks)
            raise UserError(
                f"the folder has no file of {match[1]}",
                where,
                f"name a folder with {listed}, or with TASK/{_FILE_NAMES[split][0]}.jsonl",
                kind=MISSING,
            )
        return [LocalTask(match[1], task, files[task], split) for task in tasks if task in files]
    if match[2] not in tasks:
        raise UserError(
            f"{name} is not a task that local files can have",
            f"FT_TASK={name}",
            f"choose one of: {', '.join(tasks)}",
            kind=UNKNOWN,
            value=match[2],
        )
    paths = data_spec.find_files(spec)
    if len(paths) > 1:
        raise _too_many_files(len(paths), data)
    return [LocalTask(match[1], match[2], paths[0], split)]


def _too_many_files(count: int, data: str) -> UserError:
    """Return the error for data that is more than one file or folder."""
    return UserError(
        f"{count} files are named, and a task has one",
        f"DATA={data}",
        "name one file, or a folder for the mixture of all tasks",
        kind=INVALID,
        value=count,
    )


def _find_task_files(folder: str, tasks: Mapping[str, GlueTask], split: str) -> dict[str, str]:
    """Return the file of each task that has one of a split in the folder of a benchmark."""
    files: dict[str, str] = {}
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        task = _find_entry_task(entry, tasks)
        file = _find_file(os.path.join(folder, entry), split)
        if task and file:
            files.setdefault(task, file)
    return files


def _find_entry_task(entry: str, tasks: Iterable[str]) -> str | None:
    """Return the task that a file or folder in the folder of a benchmark is named after."""
    name = _simplify(entry.lower().removesuffix(".jsonl"))
    return next((task for task in tasks if _simplify(task) == name), None)


def _simplify(name: str) -> str:
    """Return a name without case, "-" and "_": GLUE's folder of sst2 is SST-2."""
    return re.sub("[-_]", "", name.lower())


def _find_file(path: str, split: str) -> str | None:
    """Return the file of JSON lines that a path is, or that a folder has for a split."""
    if not os.path.isdir(path):
        return path if path.lower().endswith(".jsonl") else None
    for name in _FILE_NAMES[split]:
        file = os.path.join(path, f"{name}.jsonl")
        if os.path.isfile(file):
            return file
    return None


def read_rows(local: LocalTask) -> Iterator[dict[str, Any]]:
    """Yield the rows of a task that have a label, with the fields that T5's task reads.

    Args:
        local: The task and its file.

    Raises:
        UserError: A line is not a record of the task and BAD_RECORDS is "stop", or no record has a
            label.
    """
    count = left_out = 0
    with compressed_files.open_decompressed(local.path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json_lines.parse_object(line)
                rows = make_rows(local.name, local.task, record, local.split)
            except RecordFault as fault:
                bad_records.stop_or_skip(fault.locate(local.path, f"line {number:,}"))
                continue
            for row in rows:
                count += 1
                is_labelled = row["answers"] if local.name == "record" else row["label"] != NO_LABEL
                if is_labelled:
                    yield row
                else:
                    left_out += 1
    if left_out == count:
        raise UserError(
            f"none of the {count:,} records has a label",
            local.path,
            "name a file with labels, such as that of the validation set",
            kind=MISSING,
            value=count,
        )
    if left_out:
        log.warn(
            f"{local.path}: {left_out:,} of {count:,} records have no label and are left out",
            once=True,
        )


def check_files(name: str, data: str, split: str = "validation") -> None:
    """Read every record of the files that find_local_tasks finds, and log what is left out.

    Args:
        name: The data of a run. Nothing is read if it is not a task of GLUE or SuperGLUE.
        data: The files.
        split: "train" or "validation".

    Raises:
        UserError: See find_local_tasks and read_rows.
    """
    if not is_glue_task(name):
        return
    local_tasks = find_local_tasks(name, data, split)
    if name.endswith(_MIXTURE):
        folder = os.path.expanduser(data_spec.parse_parts(data)[0].spec.value)
        _log_left_out(folder, local_tasks, split)
    for local in local_tasks:
        for _ in read_rows(local):
            pass


def _log_left_out(folder: str, local_tasks: Sequence[LocalTask], split: str) -> None:
    """Log the tasks that have no file in a folder, and the files there that fit no task."""
    tasks = BENCHMARKS[local_tasks[0].benchmark]
    paths = {local.name: local.path for local in local_tasks}
    missing = [task for task in tasks if task not in paths]
    if missing:
        log.info(f"{folder}: no file of the tasks {', '.join(missing)} ({split})")
    for entry in sorted(os.listdir(folder)):
        file = _find_file(os.path.join(folder, entry), split)
        if not file or file in paths.values():
            continue
        task = _find_entry_task(entry, tasks)
        reason = f"{task} already has {paths[task]}" if task else "it is not the file of a task"
        log.warn(f"{file}: left out, because {reason}")


def make_rows(
    name: str, task: GlueTask, record: Mapping[str, Any], split: str = "validation"
) -> list[dict[str, Any]]:
    """Return the rows of a record.

    Args:
        name: The name of the task.
        task: The task.
        record: The record. A record of MultiRC or ReCoRD may have several questions.
        split: "train" or "validation". A record to train on needs the field "label". Its value may
            be one that hides the label.

    Raises:
        RecordFault: A field is missing or not valid.
    """
    try:
        if name == "record":
            return _make_record_rows(record)
        parts = _split_multirc(record) if name == "multirc" else [dict(record)]
        return [_make_row(name, task, part, split) for part in parts]
    except RecordFault:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise RecordFault(
            f"not a record of {name}: {type(error).__name__} {error}",
            f"name a file of {name}'s records",
            f"not a record of {name}",
        ) from None


def _make_row(name: str, task: GlueTask, record: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return the row of a record with one label.

    Raises:
        RecordFault: A field is missing or not valid.
    """
    if name == "wsc":
        record = {**record, **record.get("target", {})}
    if split == "train" and "label" not in record:
        raise RecordFault(
            "the record has no field 'label'",
            "name a file with labels, or set BAD_RECORDS=skip to leave such records out",
            "no label",
        )
    if name == "multirc":
        return _make_multirc_row(record, task)
    if name == "wsc":
        return _make_wsc_row(record, task)
    return {**_get_texts(record, task), **_get_label(record, task)}


def _get_texts(record: Mapping[str, Any], task: GlueTask) -> dict[str, str]:
    """Return the texts of a record by field."""
    return {field: json_lines.get_text(record, field) for field in task.fields}


def _get_label(record: Mapping[str, Any], task: GlueTask) -> dict[str, Any]:
    """Return the label of a record as a number, and the number of the record.

    Raises:
        RecordFault: The label is not one of the task's.
    """
    label = _parse_label(record.get("label"), task)
    if label is None:
        expected = " or ".join(task.labels) or "a finite number"
        raise RecordFault(
            f"the label is {record['label']!r}, not {expected}",
            "correct the record, or name a file of this task",
            "not a label of the task",
        )
    index = record.get("idx")
    index = index if isinstance(index, int) and 0 <= index < 1 << 31 else 0
    return {"label": label, "idx": index}


def _parse_label(label: Any, task: GlueTask) -> float | None:
    """Return the number of a label, NO_LABEL for a hidden label, or None if it is not valid.

    Tables have all labels as text, and True and 1.0 are equal to 1.
    """
    if label is None or label in ("", "-"):
        return NO_LABEL
    if isinstance(label, str):
        names = [name.lower() for name in task.labels]
        if label.strip().lower() in names:
            return names.index(label.strip().lower())
        try:
            label = float(label)
        except ValueError:
            return None
    if not isinstance(label, (int, float)) or (isinstance(label, bool) and not task.labels):
        return None
    if label == NO_LABEL:
        return NO_LABEL
    if task.labels:
        return int(label) if label in range(len(task.labels)) else None
    return float(label) if math.isfinite(label) else None


def _make_wsc_row(record: Mapping[str, Any], task: GlueTask) -> dict[str, Any]:
    """Return the row of a record of WSC, whose pronoun is a word of the text."""
    indexes = {name: int(record[name]) for name in ("span1_index", "span2_index")}
    row = {**_get_texts(record, task), **_get_label(record, task), **indexes}
    word_count = len(row["text"].split(" "))
    if not 0 < indexes["span2_index"] < word_count:
        raise RecordFault(
            f"the text has {word_count} words, and span2_index is {indexes['span2_index']}",
            "give the number of the pronoun's word; the first word of the text is 0, and T5's task "
            "cannot have that word as the pronoun",
            "span2_index is not the number of a word",
        )
    return row


def _split_multirc(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the answers of a record of MultiRC, each with its question and paragraph."""
    if not isinstance(record.get("passage"), dict):
        yield dict(record)
        return
    for question in record["passage"]["questions"]:
        for answer in question["answers"]:
            yield {
                "paragraph": record["passage"]["text"],
                "question": question["question"],
                "answer": answer["text"],
                **{field: answer[field] for field in ("label",) if field in answer},
                "idx": {
                    "paragraph": record["idx"],
                    "question": question["idx"],
                    "answer": answer["idx"],
                },
            }


def _make_multirc_row(record: Mapping[str, Any], task: GlueTask) -> dict[str, Any]:
    """Return the row of one answer of MultiRC."""
    numbers = {part: int(record["idx"][part]) for part in ("paragraph", "question", "answer")}
    return {**_get_texts(record, task), **_get_label(record, task), "idx": numbers}


def _make_record_rows(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row of each question of a record of ReCoRD."""
    if "qas" not in record:
        return [_make_record_row(record["passage"], record, record["entities"], record["idx"])]
    passage = record["passage"]
    text = passage["text"]
    entities = {text[entity["start"] : entity["end"] + 1] for entity in passage["entities"]}
    rows = []
    for question in record["qas"]:
        numbers = {"passage": record["idx"], "query": question["idx"]}
        answers = {answer["text"] for answer in question.get("answers", ())}
        parts = {"query": question["query"], "answers": sorted(answers)}
        rows.append(_make_record_row(text, parts, sorted(entities), numbers))
    return rows


def _make_record_row(
    passage: str, question: Mapping[str, Any], entities: Sequence[str], numbers: Mapping[str, int]
) -> dict[str, Any]:
    """Return the row of one question of ReCoRD."""
    return {
        "passage": json_lines.get_text({"passage": passage}, "passage"),
        "query": json_lines.get_text(question, "query"),
        "entities": [str(entity) for entity in entities],
        "answers": [str(answer) for answer in question.get("answers", ())],
        "idx": {part: int(numbers[part]) for part in ("passage", "query")},
    }
