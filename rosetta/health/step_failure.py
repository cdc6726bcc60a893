"""Say in one line what it means that a step failed on its devices."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from rosetta.core.errors import TOO_BIG, UserError
from rosetta.health import checkpoint_saves

if TYPE_CHECKING:
    from collections.abc import Iterator

# How XLA's allocators for CPUs and GPUs, CUDA and TensorFlow say it.
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "resource_exhausted",
    "out_of_memory",
    "cannot allocate memory",
    "failed to allocate",
)


class StepFailedError(Exception):
    """A step that was given to the devices failed there, after the call that gave it had
    returned.
    """

    def __init__(self, step: int, error: BaseException) -> None:
        super().__init__(f"step {step} failed: {describe_error(error)}")
        self.step, self.error = step, error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or what led to it, says that memory was not enough.

    A full disk is something else.
    """
    for cause in _iterate_causes(error):
        if checkpoint_saves.is_disk_full(cause):
            return False
        if isinstance(cause, MemoryError) or (
            isinstance(cause, OSError) and cause.errno == errno.ENOMEM
        ):
            return True
        # XLA reports everything in one class, so its text has to tell. A user's own ValueError may
        # say anything.
        if type(cause).__name__ in ("XlaRuntimeError", "JaxRuntimeError", "ResourceExhaustedError"):
            text = str(cause).lower()
            if any(words in text for words in _OUT_OF_MEMORY_TEXTS):
                return True
    return False


def describe_out_of_memory(error: BaseException, where: str, advice: str) -> UserError:
    """Return the one line on memory that was not enough.

    Args:
      error: what was raised.
      where: the step, or what else needed the memory.
      advice: what takes less of it.
    """
    known = next(filter(None, map(_find_memory_amount, _iterate_causes(error))), "")
    return UserError(
        f"it needs more memory than there is{f' ({known})' if known else ''}",
        where,
        advice,
        kind=TOO_BIG,
    )


def describe_error(error: BaseException) -> str:
    """Return what an error says in a line, without the callers that XLA repeats in front of it."""
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    return text.rpartition("Error dispatching computation: ")[2][:300]


def _find_memory_amount(error: BaseException) -> str:
    """Return the part of an error's text that says how much memory was asked for."""
    text = describe_error(error)
    start = text.lower().find("out of memory")
    return text[start:].rstrip(".")[:120] if start >= 0 else ""


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "error", None) or error.__cause__ or error.__context__
