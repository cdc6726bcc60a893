"""Functions that gin files call to compute the value of a parameter.

Gin has no expressions. The public names are in docs/reference/public-api.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rosetta.data import data_spec, labelled_records, vocabularies

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


def encoder_head(objective: str | None) -> str:
    """Return the head of an encoder, see T5Config.head.

    Args:
      objective: the objective of the run; None for one that rosetta does not read the data of.
    """
    return objective if objective in data_spec.LABEL_OBJECTIVES else "mlm"


def predicts_pairs(objective: str | None) -> bool:
    """Return whether an objective also predicts how the two texts of a row belong together."""
    return (objective or "").endswith(("_nsp", "_sop"))


def count_classes(labels: str | None) -> int:
    """Return the number of classes in LABELS; 0 if it is not set."""
    return len(labelled_records.split_labels(labels))


def padded_size(vocabulary: Any) -> int:
    """Return the number of rows of the embedding for a SeqIO vocabulary.

    It is the vocabulary's size, rounded up; see vocabularies.round_up_vocab_size.
    """
    return vocabularies.round_up_vocab_size(int(vocabulary.vocab_size))
