"""The rotary embedding of positions: how fast each pair of features of a head turns.

LLaMA 3.1 slows down the pairs that turn slowly, so that longer texts fit.

Source: transformers, modeling_rope_utils.py (_compute_llama3_parameters).
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from rosetta.core.errors import INVALID, UserError

DEFAULT_BASE = 10_000.0


@dataclass(frozen=True)
class Scaling:
    """How LLaMA 3.1 slows down the pairs of features.

    A pair that turns more than `high_freq_factor` times in the original length keeps its frequency.
    One that turns less than `low_freq_factor` times gets it divided by `factor`. Between these, the
    frequency is interpolated.

    Attributes:
        factor: The divisor of the low frequencies.
        low_freq_factor: The largest number of turns of a low frequency.
        high_freq_factor: The smallest number of turns of a high frequency.
        original_length: The number of tokens with which the model was trained first.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def check(self, where: str) -> Scaling:
        """Check the numbers, and return the scaling.

        Args:
            where: What states them, for the error.

        Raises:
            UserError: A number is not valid.
        """
        numbers = astuple(self)
        is_valid = all(is_number(number) and number > 0 for number in numbers)
        if (
            not is_valid
            or self.original_length != int(self.original_length)
            or self.factor < 1
            or self.low_freq_factor >= self.high_freq_factor
        ):
            raise UserError(
                f"{list(numbers)} is not a valid scaling of the rotary embedding",
                where,
                "the numbers are a factor of at least 1, the low and the high factor of the "
                "frequencies, and the original length in tokens; LLaMA 3.1 has 8, 1, 4 and 8192",
                kind=INVALID,
            )
        return self


@dataclass(frozen=True)
class RotaryEmbedding:
    """The rotary embedding of a model.

    Attributes:
        base: The base of the wavelengths (`rope_theta`).
        scaling: The scaling of LLaMA 3.1, or None.
    """

    base: float = DEFAULT_BASE
    scaling: Scaling | None = None

    def compute_frequencies(self, head_dim: int) -> np.ndarray[Any, Any]:
        """Return the frequencies of the pairs of a head in radians per token.

        Args:
            head_dim: The features of a head.

        Returns:
            float64 [head_dim / 2].
        """
        exponents = np.arange(0, head_dim, 2) / head_dim
        frequencies: np.ndarray[Any, Any] = 1.0 / self.base**exponents
        if self.scaling is None:
            return frequencies
        low, high = self.scaling.low_freq_factor, self.scaling.high_freq_factor
        turns = self.scaling.original_length * frequencies / (2 * np.pi)
        kept_share = np.clip((turns - low) / (high - low), 0, 1)
        scaled: np.ndarray[Any, Any] = frequencies * (
            kept_share + (1 - kept_share) / self.scaling.factor
        )
        return scaled


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number below 1e30."""
    is_any_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_any_number and abs(value) < 1e30 and math.isfinite(value)
