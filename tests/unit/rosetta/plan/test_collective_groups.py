"""Groups of devices in the three ways that XLA writes them, and the links between them that leave a node."""

from __future__ import annotations

import pytest

from rosetta.plan.collective_groups import compute_cross_node_share, parse_device_groups

NODES = [[0, 1, 2, 3], [4, 5, 6, 7]]
ACROSS = [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}", NODES),
        ("replica_groups=[2,4]<=[8], dimensions={0}", NODES),
        ("replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", ACROSS),
        (
            "replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_1'}, use_global_device_ids=true",
            NODES,
        ),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0'}", ACROSS),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(1)2}", ACROSS),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)4}", NODES),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (
            "replica_groups=mesh['axis_0'=4,'axis_1'=1,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_0'}",
            NODES,
        ),
        (
            "replica_groups=mesh['axis_0'=4,'axis_1'=1,'axis_2'=2], device_ids=([2,4]T(1,0)) {'axis_2'}",
            ACROSS,
        ),
        ("replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}", [list(range(8))]),
        ("source_target_pairs={{0,1},{1,0}}", [[0, 1], [1, 0]]),
        ("replica_groups=something new", None),
    ],
)
def test_groups(text: str, expected: list[list[int]] | None) -> None:
    assert parse_device_groups(text) == expected


@pytest.mark.parametrize(
    ("found", "kind", "expected"),
    [
        (NODES, "all-gather", 0.0),
        (ACROSS, "all-reduce", 1.0),
        (
            [list(range(8))],
            "reduce-scatter",
            2 / 8,
        ),  # a ring through both nodes leaves each of them once
        ([list(range(8))], "all-to-all", 4 / 7),  # of the seven others, four are elsewhere
        ([[0, 1], [3, 4]], "collective-permute", 0.5),
    ],
)
def test_outside(found: list[list[int]], kind: str, expected: float) -> None:
    assert compute_cross_node_share(found, 4, kind) == expected
