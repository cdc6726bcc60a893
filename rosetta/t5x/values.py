"""Functions for gin files, which cannot compute values themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.data import vocabularies

if TYPE_CHECKING:
    from collections.abc import Callable


def when(condition: object, make: Callable[[], Any]) -> Any:
    """Return `make()` if the condition is true, else None."""
    return make() if condition else None


def task_name(task: Any) -> str:
    """Return the name under which a SeqIO task is registered.

    SeqIO's evaluator takes only names.

    Args:
      task: a task, or already a name.
    """
    return task if isinstance(task, str) else str(task.name)


def needs_answers(mode: str) -> bool:
    """Return whether inference needs the answers of its records.

    Args:
      mode: T5X's mode of inference; "score" computes the likelihood of the answers.
    """
    return mode == "score"


def padded_size(vocabulary: Any) -> int:
    """Return the number of rows of the embedding for a SeqIO vocabulary, including the padding."""
    return vocabularies.round_up_vocab_size(int(vocabulary.vocab_size))
