"""Compare arrays with references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.accept.records import Check, Number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rosetta.bench.timing import Timings


def compute_error(result: Any, reference: Any) -> float:
    """Return the norm of the difference, divided by the norm of the reference.

    It is computed in float64 on the host. An array that is not finite gives NaN.
    """
    reference = np.asarray(reference, np.float64)
    difference = np.asarray(result, np.float64) - reference
    norm = float(np.linalg.norm(reference.ravel()))
    return float(np.linalg.norm(difference.ravel())) / norm if norm else float("nan")


def check_errors(
    names: tuple[str, ...], results: Any, references: Any, limit: float
) -> tuple[Check, ...]:
    """Compare several arrays with references.

    Args:
        names: The name of each array.
        results: The arrays.
        references: The references.
        limit: The largest error.
    """
    return tuple(
        Check(f"error of the {name}", compute_error(result, reference), limit)
        for name, result, reference in zip(names, results, references, strict=True)
    )


def describe_timings(timings: Mapping[str, Timings]) -> tuple[Number, ...]:
    """Return the median time and the spread of each function, in microseconds."""
    return tuple(
        Number(name, timed.median * 1e6, "us", timed.spread) for name, timed in timings.items()
    )


def describe_rate(
    name: str, flops: float, seconds: float, peak: float | None
) -> tuple[Number, ...]:
    """Return the rate of a computation, and its share of a peak.

    Args:
        name: The name of the computation.
        flops: Its floating-point operations.
        seconds: Its time.
        peak: The peak of the GPU in FLOP/s; None if it is not known.
    """
    rate = Number(f"{name}, rate", flops / seconds / 1e12, "TFLOP/s")
    if peak is None:
        return (rate,)
    return rate, Number(f"{name}, share of the peak", flops / seconds / peak, "")
