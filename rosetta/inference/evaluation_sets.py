"""The evaluation sets of language models: what their records ask, and what is measured.

A set of one's own is a file of JSON lines. What a model of T5 is evaluated on is listed here, too:
SeqIO's tasks have their own data and metrics.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rosetta.core.errors import FAILED, INVALID, MISSING, UserError
from rosetta.data import data_spec, json_lines, prompts, task_records
from rosetta.data.bad_records import RecordFault

LAST_WORD, CHOICE, TEXT = "last word", "choice", "text"  # what is asked
MetricFunction = Callable[[Sequence[str], Sequence[str]], Mapping[str, float]]


@dataclass(frozen=True)
class EvaluationSet:
    """A set that has a name.

    Attributes:
      name: The name.
      command: The command that evaluates on it.
      asked: What a record asks, in words.
      metrics: What is measured, in words.
      source: The data that is read if none is named; "" if it has to be named.
      fetch: How to get the data.
    """

    name: str
    command: str
    asked: str
    metrics: str
    source: str
    fetch: str


_PAX, _T5X = "rosetta pax eval CHECKPOINT", "rosetta t5x eval FT_TASK="
_TFDS = "prepare {} with TensorFlow Datasets in TFDS_DATA_DIR, on a machine with internet"
_GLUE = "DATA=jsonl:FOLDER with TASK.jsonl, or DATA=jsonl:FILE for one task; or " + _TFDS.replace(
    "{}", "{} and so on"
)
SETS = (
    EvaluationSet(
        "lambada",
        f"{_PAX} lambada",
        "the last word of a passage",
        "accuracy of the whole word, perplexity of a word",
        "tfds:my_lambada",
        "TFDS_DATA_DIR=FOLDER download_lambada.py, on a machine with internet",
    ),
    EvaluationSet(
        "boolq",
        f"{_PAX} boolq",
        "yes or no to a question on a passage",
        "accuracy: which word is likelier",
        "tfds:super_glue/boolq",
        "TFDS_DATA_DIR=FOLDER download_boolq.py, on a machine with internet",
    ),
    EvaluationSet(
        "NAME=FILE.jsonl",
        f"{_PAX} NAME=FILE.jsonl",
        "records of your own: prompt, answer, and choices if there are some",
        "accuracy, or what --metric MODULE:FUNCTION computes",
        "",
        "write the file",
    ),
    EvaluationSet(
        "squad",
        f"{_T5X}squad1",
        "the answer to a question on a passage",
        "exact match, F1",
        "tfds:squad",
        _TFDS.format("squad/v1.1"),
    ),
    EvaluationSet(
        "glue",
        f"{_T5X}task:glue_v002_proportional",
        "the tasks of GLUE; one alone is task:glue_cola_v002, and so on",
        "those of GLUE, by the package t5",
        "",
        _GLUE.format("glue/cola:1.0.0"),
    ),
    EvaluationSet(
        "super_glue",
        f"{_T5X}task:super_glue_v102_proportional",
        "the tasks of SuperGLUE; one alone is task:super_glue_boolq_v102, and so on",
        "those of SuperGLUE, by the package t5",
        "",
        _GLUE.format("super_glue/boolq:1.0.2"),
    ),
    EvaluationSet(
        "pairs",
        f"{_T5X}pairs",
        "records of your own: inputs, targets",
        "accuracy, loss of a token",
        "",
        "name it: DATA=jsonl:FILE",
    ),
)


@dataclass(frozen=True)
class Question:
    """What a record asks.

    Attributes:
      prompt: The text before the answer.
      choices: The possible answers; the expected one alone if the answer is free.
      answer: The number of the expected answer among the choices.
    """

    prompt: str
    choices: tuple[str, ...]
    answer: int = 0

    @property
    def target(self) -> str:
        """The expected answer."""
        return self.choices[self.answer]


@dataclass(frozen=True)
class QuestionSet:
    """The questions of a set.

    Attributes:
      name: The name of the set.
      data: The data that was read.
      kind: LAST_WORD, CHOICE or TEXT.
      questions: The questions.
    """

    name: str
    data: str
    kind: str
    questions: list[Question]


def read_set(word: str) -> QuestionSet:
    """Return the questions of a set.

    Args:
      word: NAME of a set that has one, or NAME=DATA. DATA is a file, or a source of rosetta.data.

    Raises:
      UserError: The set is not known, its data is missing, or a record is not one of the set.
    """
    name, equals, data = word.partition("=")
    known = {item.name: item for item in SETS if item.command.startswith(_PAX) and item.source}
    if not equals and name not in known:
        raise UserError(
            f"there is no evaluation set {name!r}",
            word,
            f"choose one of: {', '.join(known)}; or name a file of your own: {name}=FILE.jsonl",
            kind=MISSING,
            value=name,
        )
    if name not in known:
        return _read_own_set(name, data)
    if equals:
        return _read_known_set(known[name], _make_spec(data))
    try:
        return _read_known_set(known[name], known[name].source)
    except UserError as error:
        remedy = f"fetch the set: {known[name].fetch}; or name a file: {name}=FILE"
        raise UserError(error.what, error.where, remedy, kind=MISSING, value=name) from None


def _make_spec(data: str) -> str:
    """Return the source of data that a user names: a file by its suffix, or a source."""
    kind, colon, _ = data.partition(":")
    if colon and kind in data_spec.KINDS:
        return data
    return f"text:{data}" if data.endswith(".txt") else f"jsonl:{data}"


def _read_known_set(item: EvaluationSet, data: str) -> QuestionSet:
    """Return the questions of a set that has a name."""
    is_lambada = item.name == "lambada"
    questions = []
    for part in data_spec.parse_parts(data):
        split = "test" if is_lambada else "validation"
        for example in task_records.read_examples(part.spec, item.name, split):
            if is_lambada:
                questions.append(Question(example["inputs"], (example["targets"],)))
            else:
                choices = (prompts.NO, prompts.YES)
                questions.append(
                    Question(example["inputs"], choices, choices.index(example["targets"]))
                )
    return _check_set(QuestionSet(item.name, data, LAST_WORD if is_lambada else CHOICE, questions))


def _read_own_set(name: str, data: str) -> QuestionSet:
    """Return the questions of a file of JSON lines.

    Raises:
      UserError: The file cannot be read, or a record is not valid, or the records are not alike.
    """
    questions, kinds = [], set[str]()
    try:
        with open(data, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    question, kind = parse_question(json_lines.parse_object(line))
                except RecordFault as fault:
                    raise fault.locate(data, f"line {number:,}") from None
                questions.append(question)
                kinds.add(kind)
    except OSError as error:
        raise UserError(
            f"the file cannot be read ({error.strerror})",
            f"{name}={data}",
            "name a file of JSON lines",
            kind=MISSING,
        ) from None
    if len(kinds) > 1:
        raise UserError(
            "some records have choices, and some have none",
            data,
            "write two files, and name both",
            kind=INVALID,
        )
    kind = kinds.pop() if kinds else TEXT
    return _check_set(QuestionSet(name, data, kind, questions))


def parse_question(record: Mapping[str, Any]) -> tuple[Question, str]:
    """Return the question of a record, and its kind.

    Args:
      record: The text `prompt`, and either the text `answer`, or a list of `choices` and the
        expected one, as a number from 0 or as its text, in `answer`.

    Raises:
      RecordFault: A field is missing or not valid.
    """
    prompt, answer = json_lines.get_text(record, "prompt"), record.get("answer")
    choices = record.get("choices")
    if choices is None:
        return Question(prompt, (json_lines.get_text(record, "answer"),)), TEXT
    is_list = isinstance(choices, list) and len(choices) > 1
    if not is_list or not all(isinstance(choice, str) and choice for choice in choices):
        raise RecordFault("'choices' is not a list of texts", "give two or more texts")
    if isinstance(answer, str) and answer in choices:
        answer = choices.index(answer)
    if type(answer) is not int or not 0 <= answer < len(choices):
        raise RecordFault(
            "'answer' is not one of the choices", f"give a number from 0 to {len(choices) - 1}"
        )
    return Question(prompt, tuple(choices), answer), CHOICE


def _check_set(questions: QuestionSet) -> QuestionSet:
    """Return a set; UserError if it has no question."""
    if not questions.questions:
        raise UserError(
            "there is no record in the data",
            f"{questions.name}={questions.data}",
            "name data with records in it",
            kind=INVALID,
        )
    return questions


def load_metric(name: str) -> MetricFunction:
    """Return the function of --metric.

    Args:
      name: MODULE:FUNCTION, or FILE.py:FUNCTION. The function takes the expected texts and the
        answers, and returns numbers by name, as the metrics of the package t5 do.

    Raises:
      UserError: There is no such function.
    """
    module_name, _, function_name = name.rpartition(":")
    try:
        function = getattr(_import_module(module_name), function_name)
    except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
        raise UserError(
            f"the function cannot be imported ({type(error).__name__}: {error})",
            f"--metric {name}",
            "write MODULE:FUNCTION or FILE.py:FUNCTION",
            kind=MISSING,
        ) from None
    if not callable(function):
        raise UserError("not a function", f"--metric {name}", "name a function", kind=INVALID)
    return function  # type: ignore[no-any-return]


def _import_module(name: str) -> Any:
    """Return a module by its name, or by the path of its file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(os.path.basename(name)[:-3], name)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compute_metric(
    name: str, function: MetricFunction, targets: Sequence[str], answers: Sequence[str]
) -> dict[str, float]:
    """Return what a function of the user measures.

    Args:
      name: The function as the user named it.
      function: The function.
      targets: The expected texts.
      answers: The answers of the model.

    Raises:
      UserError: The function fails, or does not return numbers by name.
    """
    try:
        return {str(key): float(value) for key, value in function(targets, answers).items()}
    except Exception as error:  # noqa: BLE001 (the user's code may raise anything)
        raise UserError(
            f"the function failed ({type(error).__name__}: {error})",
            f"--metric {name}",
            "let it take two lists of texts, and return numbers by name",
            kind=FAILED,
        ) from None
