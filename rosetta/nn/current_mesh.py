"""The mesh of the devices for which a function is traced.

The partitioner sets it. A kernel that XLA cannot divide over devices runs under `shard_map` on it,
and the compute capability of its devices says which kernels there are. The devices need not exist:
a step can be compiled for a GPU that this machine does not have.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jax.sharding import Mesh

_mesh: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


@contextlib.contextmanager
def use_mesh(mesh: Mesh) -> Iterator[None]:
    """Have `find_mesh` return a mesh for what is traced inside."""
    token = _mesh.set(mesh)
    try:
        yield
    finally:
        _mesh.reset(token)


def find_mesh() -> Mesh | None:
    """Return the mesh, None if nothing has set one."""
    return _mesh.get()
