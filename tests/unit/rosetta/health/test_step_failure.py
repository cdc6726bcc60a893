"""Which errors say that memory was not enough, and what is said of them."""

from __future__ import annotations

import errno

import pytest

from rosetta.health.step_failure import StepFailedError, describe_out_of_memory, is_out_of_memory


class XlaRuntimeError(RuntimeError):
    """Named as jaxlib names it."""


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (
            XlaRuntimeError(
                "INTERNAL: Error dispatching computation: Out of memory allocating 23 bytes."
            ),
            True,
        ),
        (
            XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 23 bytes."),
            True,
        ),
        (XlaRuntimeError("RESOURCE_EXHAUSTED: CUDA_ERROR_OUT_OF_MEMORY: out of memory"), True),
        (XlaRuntimeError("INTERNAL: Failed to allocate 23 bytes for new constant"), True),
        (
            _caused(RuntimeError("in gin"), XlaRuntimeError("Out of memory allocating 23 bytes.")),
            True,
        ),
        (StepFailedError(3, XlaRuntimeError("Out of memory allocating 23 bytes.")), True),
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (
            XlaRuntimeError(
                "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
            ),
            False,
        ),
        (
            ValueError("RESOURCE_EXHAUSTED: Error writing local file: No space left on device"),
            False,
        ),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (ValueError("the text 'out of memory' is in record 3"), False),
    ],
)
def test_which_errors_are_of_memory(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory


def test_the_line_says_how_much_was_asked_for() -> None:
    error = StepFailedError(
        3,
        XlaRuntimeError(
            "INTERNAL: Error dispatching computation: Out of memory allocating 23 bytes.\nmore"
        ),
    )
    line = "step 3: the program needs more memory than there is (Out of memory allocating 23 bytes); take a smaller batch"
    assert str(describe_out_of_memory(error, "step 3", "take a smaller batch")) == line
    assert "()" not in str(describe_out_of_memory(MemoryError(), "step 3", "take a smaller batch"))
