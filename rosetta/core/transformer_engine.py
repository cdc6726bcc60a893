"""Is Transformer Engine here?

Answered from lock.json and the packages' metadata: nothing of it is imported, so no driver is
needed.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from rosetta.core import lock_record
from rosetta.core.errors import MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGE = "transformer-engine-jax"


def find_installed_version() -> str | None:
    """Return the version that is installed, None where there is none."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def explain_absence() -> str | None:
    """Return why there is none; None where there is one."""
    if find_installed_version() is not None:
        return None
    known = lock_record.read_lock() if lock_record.get_lock_path().exists() else {}
    if known.get("transformer_engine"):
        return "lock.json lists it, but it is not installed any more"
    return str(
        known.get("transformer_engine_reason") or "not asked for when this environment was built"
    )


def require_transformer_engine() -> str:
    """Return its version; UserError with the reason where there is none."""
    found = find_installed_version()
    if found is None:
        raise UserError(
            f"not in this environment: {explain_absence()}",
            "Transformer Engine",
            "set ENABLE_TE=0, or use an image that has it",
            kind=MISSING,
        )
    return found


def disables_fused_attention(environment: Mapping[str, str]) -> bool:
    """Return whether NVTE_FUSED_ATTN forbids the fused attention of Transformer Engine.

    Transformer Engine reads a whole number there, so "off" is not valid.
    """
    return environment.get("NVTE_FUSED_ATTN", "").strip() == "0"
