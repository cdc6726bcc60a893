"""What runs in T5X's programs: models and their gin files, data, checkpoints and training.

`run/` has what runs before JAX starts.
"""

from __future__ import annotations
