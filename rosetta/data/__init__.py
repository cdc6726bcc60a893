"""Training data by position: the rows of step s depend only on the data, the seed and s.

The package needs NumPy and SentencePiece, and neither TensorFlow nor JAX. `rosetta.t5x.dataset`
gives its batches to T5X, and `rosetta.pax.inputs` to Pax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias  # Python 3.9, which login nodes have, lacks it.

# A NumPy array. Docstrings give its type and shape, which the stubs of NumPy cannot express.
Array: TypeAlias = Any
