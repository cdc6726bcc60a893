"""Values that a gin file cannot write by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.data import vocabularies

if TYPE_CHECKING:
    from collections.abc import Callable


def when(condition: object, make: Callable[[], Any]) -> Any:
    """Return `make()` where the condition holds, else None."""
    return make() if condition else None


def task_name(task: Any) -> str:
    """Return a SeqIO task's name, under which it is registered: SeqIO's evaluator takes no task
    itself.
    """
    return task if isinstance(task, str) else str(task.name)


def needs_answers(mode: str) -> bool:
    """Return whether inference in a mode of T5X's needs each record's answer: it does to score
    answers.
    """
    return mode == "score"


def padded_size(vocabulary: Any) -> int:
    """Return an embedding's rows for SeqIO's vocabulary (rosetta.data.vocabularies.pad_size)."""
    return vocabularies.pad_size(int(vocabulary.vocab_size))
