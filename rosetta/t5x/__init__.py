"""The T5X distribution: models and their gin files, data for T5X, training, and the scripts that
start it.
"""

from __future__ import annotations
