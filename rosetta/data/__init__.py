"""Training data by position: what a run reads at step s depends on its seed, s and the row alone.

NumPy and SentencePiece only: no TensorFlow, no JAX. `rosetta.t5x.dataset` hands this to T5X.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias  # Python 3.9, which login nodes have, has none

Array: TypeAlias = Any  # a NumPy array: docstrings give types and shapes, which its stubs cannot
