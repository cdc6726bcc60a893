"""Find out whether this environment has Transformer Engine.

The module reads lock.json and the metadata of packages. It does not import Transformer Engine, so
that no GPU driver is needed.
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
    """Return the version of Transformer Engine that is installed, or None."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def explain_absence() -> str | None:
    """Return why Transformer Engine is not installed, or None if it is installed.

    Raises:
      UserError: lock.json cannot be read.
    """
    if find_installed_version() is not None:
        return None
    lock = lock_record.read_lock() if lock_record.get_lock_path().exists() else {}
    if lock.get("transformer_engine"):
        return "lock.json lists it, but it is not installed any more"
    reason = lock.get("transformer_engine_reason")
    return str(reason or "not asked for when this environment was built")


def require_transformer_engine() -> str:
    """Return the version of Transformer Engine that is installed.

    Raises:
      UserError: It is not installed. The error gives the reason.
    """
    version = find_installed_version()
    if version is None:
        raise UserError(
            f"not in this environment: {explain_absence()}",
            "Transformer Engine",
            "set ENABLE_TE=0, or use an image that has Transformer Engine",
            kind=MISSING,
        )
    return version


def disables_fused_attention(environment: Mapping[str, str]) -> bool:
    """Return whether NVTE_FUSED_ATTN switches the fused attention of Transformer Engine off.

    Transformer Engine reads the variable as a whole number, so that "off" does not count.
    """
    return environment.get("NVTE_FUSED_ATTN", "").strip() == "0"
