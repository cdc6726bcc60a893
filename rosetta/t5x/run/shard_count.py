"""Over how many groups of devices FSDP shards a train state."""

from __future__ import annotations


def choose_shard_count(groups: int, local: int) -> int:
    """Return over how many neighbouring groups of devices the train state is sharded.

    It is the largest power of two that divides the number of groups. It also divides the groups of
    a process, or is a multiple of them, so that the devices of a process are a block of the mesh.

    Args:
      groups: the number of groups of devices that share a model.
      local: the groups of a process.
    """
    power = groups & -groups
    while power % local and local % power:
        power //= 2
    return power
