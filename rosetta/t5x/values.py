"""Functions that gin files call to compute the value of a parameter.

Gin has no expressions. The public names are in docs/reference/public-api.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.data import vocabularies

if TYPE_CHECKING:
    from collections.abc import Callable


def when(condition: object, make: Callable[[], Any]) -> Any:
    """Return `make()` if the condition is true, else None.

    Args:
      condition: any value; None, "" and 0 are false.
      make: a function, so that the value is not made in vain: in gin `@NAME`, not `@NAME()`.
    """
    return make() if condition else None


def task_name(task: Any) -> str:
    """Return the registered name of a SeqIO task, because SeqIO's evaluator accepts only names.

    Args:
      task: a SeqIO task, or the name of one.
    """
    return task if isinstance(task, str) else str(task.name)


def needs_answers(mode: str) -> bool:
    """Return whether the records for inference must have answers (targets).

    Args:
      mode: T5X's mode of inference. Only "score" reads the answers: it computes their likelihood.
    """
    return mode == "score"


def padded_size(vocabulary: Any) -> int:
    """Return the number of rows of the embedding for a SeqIO vocabulary.

    It is the vocabulary's size, rounded up; see vocabularies.round_up_vocab_size.
    """
    return vocabularies.round_up_vocab_size(int(vocabulary.vocab_size))
