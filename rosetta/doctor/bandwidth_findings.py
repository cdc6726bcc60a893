"""What measured bandwidths say: which pair or node is far below the others of its kind.

There is no figure to reach: links of one machine are alike.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any

from rosetta.doctor.finding import WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.bench.bandwidth import Measurement, PairRate

# Of the median of its kind: less, and something is broken, or set up otherwise than the others.
SLOW_SHARE = 0.5
_SHOWN = 5  # slow links in a line


def find_slow_links(measured: Measurement) -> Iterator[Finding]:
    """Yield what is far slower than its like."""
    slow = _select_slow(measured.pairs)
    if slow:
        do = (
            "look at nvidia-smi topo -m and nvidia-smi nvlink -s there; in a virtual machine or "
            "container, at ACS and NCCL_P2P_LEVEL"
        )
        yield Finding(
            "slow-pair", WARNING, _describe_links(slow, measured.pairs), "GPUs of a node", do
        )
    nodes = compute_node_medians(measured)
    usual = statistics.median(nodes.values()) if nodes else 0.0
    behind = sorted(
        (name for name, rate in nodes.items() if rate < SLOW_SHARE * usual),
        key=lambda name: nodes[name],
    )
    if behind:
        what = (
            f"{', '.join(f'{name} {nodes[name]:.3g} GB/s' for name in behind[:_SHOWN])} with the "
            f"others, where the median is {usual:.3g}"
        )
        yield Finding(
            "slow-node",
            WARNING,
            what,
            "between nodes",
            (
                "leave it out (sbatch --exclude), and look at its network cards: ibstat, "
                "NCCL_DEBUG=INFO"
            ),
        )
        return
    slow = _select_slow(measured.links)
    if slow:
        yield Finding(
            "slow-link",
            WARNING,
            _describe_links(slow, measured.links),
            "between nodes",
            "look at the switches between them: ibdiagnet, NCCL_DEBUG=INFO",
        )


def compute_node_medians(measured: Measurement) -> dict[str, float]:
    """Return the median of each node's links with the others, GB/s; with two nodes, there is
    nothing to tell them apart by.
    """
    if len(measured.nodes) < 3:
        return {}
    return {
        name: statistics.median(each.rate for each in measured.links if name in each.between)
        for name in measured.nodes
    }


def _select_slow(links: Sequence[PairRate]) -> list[PairRate]:
    usual = statistics.median(each.rate for each in links) if links else 0.0
    return sorted(
        (each for each in links if each.rate < SLOW_SHARE * usual), key=lambda each: each.rate
    )


def _describe_links(slow: Sequence[PairRate], links: Sequence[PairRate]) -> str:
    shown = ", ".join(
        f"{' and '.join(each.between)} {each.rate:.3g} GB/s" for each in slow[:_SHOWN]
    )
    return (
        f"{shown}{f' and {len(slow) - _SHOWN} more' if len(slow) > _SHOWN else ''}, where the "
        f"median is {statistics.median(each.rate for each in links):.3g}"
    )


def encode_result(measured: Measurement) -> dict[str, Any]:
    """Return it as an object of --json."""
    return dataclasses.asdict(measured)


def format_table(measured: Measurement) -> str:
    """Return it as lines: of each node its GPUs against each other, of the nodes one against
    another, and all together; the slowest of each by name.
    """
    lines = [
        (
            f"{measured.devices} x {measured.kind} on {len(measured.nodes)} node(s), "
            f"{measured.size >> 20} MiB; GB/s of a device in each direction, both at once"
        )
    ]
    for node in measured.nodes:
        rates = {
            tuple(int(name.rpartition(":")[2]) for name in each.between): each.rate
            for each in measured.pairs
            if each.between[0].rpartition(":")[0] == node
        }
        if rates:
            lines += [
                "",
                *_format_matrix(
                    node,
                    [str(number) for number in range(measured.devices // len(measured.nodes))],
                    rates,
                ),
            ]
    if measured.links:
        place = {name: number for number, name in enumerate(measured.nodes)}
        rates = {
            (place[each.between[0]], place[each.between[1]]): each.rate for each in measured.links
        }
        lines += ["", *_format_matrix("nodes", list(measured.nodes), rates)]
    lines.append("")
    for what, links in (("pair of GPUs", measured.pairs), ("pair of nodes", measured.links)):
        if links:
            worst = min(links, key=lambda each: each.rate)
            lines.append(
                f"slowest {what}: {' and '.join(worst.between)}, {worst.rate:.3g}; median "
                f"{statistics.median(each.rate for each in links):.3g}"
            )
    return "\n".join(
        [
            *lines,
            (
                f"all-reduce over all: {measured.all_reduce:.3g}, all-gather: "
                f"{measured.all_gather:.3g}"
            ),
        ]
    )


def _format_matrix(
    corner: str, names: Sequence[str], rates: dict[tuple[int, ...], float]
) -> list[str]:
    wide = max(8, *map(len, (corner, *names))) + 1
    lines = [f"{corner:<{wide}}" + "".join(f"{name:>{wide}}" for name in names)]
    for row, name in enumerate(names):
        cells = [
            "-"
            if row == column
            else f"{rates.get((row, column), rates.get((column, row), 0.0)):.3g}"
            for column in range(len(names))
        ]
        lines.append(f"{name:<{wide}}" + "".join(f"{each:>{wide}}" for each in cells))
    return lines
