"""rosetta's builder: from the pins in manifest.yaml to a distribution in which a model trains."""

from __future__ import annotations

__version__ = "0.2.0"
