"""Describe in one line why a step failed on its devices."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from rosetta.core.errors import TOO_BIG, UserError
from rosetta.health import checkpoint_saves

if TYPE_CHECKING:
    from collections.abc import Iterator

# What XLA's allocators for CPUs and GPUs, CUDA and TensorFlow write if memory runs out.
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "resource_exhausted",
    "out_of_memory",
    "cannot allocate memory",
    "failed to allocate",
)


class StepFailedError(Exception):
    """A dispatched step failed on its devices, after the call that dispatched it had returned."""

    def __init__(self, step: int, error: BaseException) -> None:
        super().__init__(f"step {step} failed: {describe_error(error)}")
        self.step, self.error = step, error


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or a cause of it, says that memory ran out.

    A full disk does not count.
    """
    for cause in _iterate_causes(error):
        if checkpoint_saves.is_disk_full(cause):
            return False
        if isinstance(cause, MemoryError) or (
            isinstance(cause, OSError) and cause.errno == errno.ENOMEM
        ):
            return True
        # XLA has one class for all errors, so only the text tells them apart. Other classes do not
        # count: a user's own ValueError may have any text.
        if type(cause).__name__ in ("XlaRuntimeError", "JaxRuntimeError", "ResourceExhaustedError"):
            text = str(cause).lower()
            if any(sign in text for sign in _OUT_OF_MEMORY_TEXTS):
                return True
    return False


def describe_out_of_memory(error: BaseException, where: str, advice: str) -> UserError:
    """Return an error for the user about memory that ran out.

    Args:
      error: what was raised.
      where: the step, or what else needed the memory.
      advice: how to take less memory.
    """
    amount = next(filter(None, map(_find_memory_amount, _iterate_causes(error))), "")
    detail = f" ({amount})" if amount else ""
    return UserError(
        f"the program needs more memory than there is{detail}",
        where,
        advice,
        kind=TOO_BIG,
    )


def describe_error(error: BaseException) -> str:
    """Return the first line of an error, without the callers that XLA repeats before it."""
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    return text.rpartition("Error dispatching computation: ")[2][:300]


def _find_memory_amount(error: BaseException) -> str:
    """Return the part of an error's text that names the requested memory; "" without one."""
    text = describe_error(error)
    start = text.lower().find("out of memory")
    return text[start:].rstrip(".")[:120] if start >= 0 else ""


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "error", None) or error.__cause__ or error.__context__
