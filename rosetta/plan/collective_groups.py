"""Find which devices a collective connects, and which share of its traffic crosses nodes.

XLA writes the groups of devices of a collective in three ways:

- as lists, {{0,1},{2,3}};
- as consecutive numbers that are reshaped and transposed, [2,4]<=[4,2]T(1,0);
- as axes of a mesh, mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}. There, 'a':(2)2 is a part
  of an axis: a part of size 2 that follows parts of size 2.
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
    """Return the groups of devices of a collective; for a permutation, its (source, target) pairs.

    Args:
        attributes: The attributes of the instruction.

    Returns:
        The groups, or None if the attributes have no groups that are understood.
    """
    if match := _LIST.search(attributes) or _PAIRS.search(attributes):
        return [_parse_numbers(group) for group in re.findall(r"\{([\d,\s]*)\}", match[1])]
    if match := _IOTA.search(attributes):
        count, size = _parse_numbers(match[1])
        devices = _arrange_devices(_parse_numbers(match[2]), _parse_numbers(match[3] or ""))
        return [devices[start : start + size] for start in range(0, count * size, size)]
    if match := _MESH.search(attributes):
        axes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
        devices = list(range(math.prod(axes.values())))
        if match[2]:
            devices = _arrange_devices(_parse_numbers(match[2]), _parse_numbers(match[3] or ""))
        return _group_along_axes(axes, devices, match[4])
    return None


def compute_cross_node_share(groups: list[list[int]], per_node: int, kind: str) -> float:
    """Return the share of the received bytes that comes from another node.

    The devices of a group form a ring that visits one node after the other, so as many of its links
    cross nodes as there are nodes. In an all-to-all, each device receives from each other one. The
    pairs of a permutation are its links.

    Args:
        groups: The groups of devices.
        per_node: Devices of a node. Devices are numbered node by node.
        kind: The collective, as HLO names it.
    """
    links = crossing = 0
    for group in groups:
        nodes = [device // per_node for device in group]
        if kind in ("all-to-all", "ragged-all-to-all"):
            links += len(group) * (len(group) - 1)
            crossing += sum(source != target for source, target in itertools.permutations(nodes, 2))
        elif kind == "collective-permute":
            links += 1
            crossing += nodes[0] != nodes[1]
        else:
            links += len(group)
            crossing += len(set(nodes)) if len(set(nodes)) > 1 else 0
    return crossing / links if links else 0.0


def _parse_numbers(text: str) -> list[int]:
    """Return the numbers in a text."""
    return [int(number) for number in re.findall(r"\d+", text)]


def _arrange_devices(shape: list[int], permutation: list[int]) -> list[int]:
    """Return 0, 1, 2, ... reshaped to `shape`, transposed, and flattened again."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    axes = permutation or list(range(len(shape)))
    return [
        sum(index * strides[axis] for index, axis in zip(indices, axes, strict=True))
        for indices in itertools.product(*(range(shape[axis]) for axis in axes))
    ]


def _group_along_axes(axes: dict[str, int], devices: list[int], selected: str) -> list[list[int]]:
    """Return groups of the devices that differ only along the selected axes or parts of axes.

    Args:
        axes: Axis of the mesh -> size.
        devices: The devices, in the order of the mesh.
        selected: The axes as XLA writes them.
    """
    parts = [
        (name, int(before or 1), int(size or axes[name]))
        for name, before, size in _AXIS.findall(selected)
    ]
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, indices in enumerate(itertools.product(*(range(size) for size in axes.values()))):
        coordinates = dict(zip(axes, indices, strict=True))
        for name, before, size in parts:
            # Set the coordinate along this part to 0, so that its devices share a key.
            stride = axes[name] // (before * size)
            coordinates[name] -= coordinates[name] // stride % size * stride
        groups.setdefault(tuple(coordinates.values()), []).append(devices[position])
    return list(groups.values())
