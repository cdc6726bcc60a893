"""Which devices a collective of optimised HLO connects, and how many of the links between them
leave a node.

XLA writes groups of devices in three ways: as lists, {{0,1},{2,3}}; as numbers in a row that are
reshaped and transposed, [2,4]<=[4,2]T(1,0); and as axes of a mesh, mesh['a'=4,'b'=2],
device_ids=([2,4]T(1,0)) {'a'}, where 'a':(2)2 is a part of an axis: of size 2, after parts of size
2.
"""

from __future__ import annotations

import itertools
import math
import re

_LIST = re.compile(r"replica_groups=\{(\{[\d,{}\s]*\})\}")
_IOTA = re.compile(r"replica_groups=\[(\d+,\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? "
    r"\{([^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}\s]*\})\}")
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def parse_device_groups(attributes: str) -> list[list[int]] | None:
    """Return the groups of devices that an instruction's attributes name; of a permutation, its
    pairs. None where they are not understood.
    """
    if found := _LIST.search(attributes) or _PAIRS.search(attributes):
        return [_parse_numbers(group) for group in re.findall(r"\{([\d,\s]*)\}", found[1])]
    if found := _IOTA.search(attributes):
        count, size = _parse_numbers(found[1])
        order = _arrange_devices(_parse_numbers(found[2]), _parse_numbers(found[3] or ""))
        return [order[start : start + size] for start in range(0, count * size, size)]
    if found := _MESH.search(attributes):
        axes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", found[1])}
        order = (
            _arrange_devices(_parse_numbers(found[2]), _parse_numbers(found[3] or ""))
            if found[2]
            else list(range(math.prod(axes.values())))
        )
        return _group_along_axes(axes, order, found[4])
    return None


def compute_cross_node_share(found: list[list[int]], per_node: int, kind: str) -> float:
    """Return the part of what devices receive that comes from another node.

    Within a group, devices form a ring that goes through one node after the other, so of its links
    as many leave a node as there are nodes; in an all-to-all each device hears from each; a
    permutation's pairs are its links.

    Args:
      found: the groups.
      per_node: devices of a node, numbered through.
      kind: of the collective, as HLO calls it.
    """
    links = crossing = 0
    for group in found:
        nodes = [device // per_node for device in group]
        if kind in ("all-to-all", "ragged-all-to-all"):
            links += len(group) * (len(group) - 1)
            crossing += sum(one != other for one, other in itertools.permutations(nodes, 2))
        elif kind == "collective-permute":
            links += 1
            crossing += nodes[0] != nodes[1]
        else:
            links += len(group)
            crossing += len(set(nodes)) if len(set(nodes)) > 1 else 0
    return crossing / links if links else 0.0


def _parse_numbers(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", text)]


def _arrange_devices(shape: list[int], permutation: list[int]) -> list[int]:
    """0, 1, 2, ... in this shape, transposed, and in a row again."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    axes = permutation or list(range(len(shape)))
    return [
        sum(index * strides[axis] for index, axis in zip(indices, axes, strict=True))
        for indices in itertools.product(*(range(shape[axis]) for axis in axes))
    ]


def _group_along_axes(axes: dict[str, int], order: list[int], named: str) -> list[list[int]]:
    """Devices, in the order of a mesh, that differ along the named axes or parts of axes alone."""
    inside = [
        (name, int(before or 1), int(size or axes[name]))
        for name, before, size in _AXIS.findall(named)
    ]
    found: dict[tuple[int, ...], list[int]] = {}
    for place, indices in enumerate(itertools.product(*(range(size) for size in axes.values()))):
        where = dict(zip(axes, indices, strict=True))
        for name, before, size in inside:
            step = axes[name] // (before * size)
            where[name] -= where[name] // step % size * step
        found.setdefault(tuple(where.values()), []).append(order[place])
    return list(found.values())
