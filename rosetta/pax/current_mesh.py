"""The mesh of devices for which Praxis' layers are traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from praxis import py_utils

if TYPE_CHECKING:
    from jax.sharding import Mesh


def find_mesh() -> Mesh | None:
    """Return the mesh, None without one."""
    if not py_utils.global_mesh_defined():
        return None
    mesh: Mesh = py_utils.pxla.thread_resources.env.physical_mesh
    return mesh
