"""Find the slow pairs and nodes in the bandwidths that `rosetta doctor --nccl` measures.

No figure has to be reached. The links of one kind are alike, so that each is compared with their
median. A link is a pair of GPUs of one node, or a pair of nodes.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any

from rosetta.doctor.finding import WARNING, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rosetta.bench.bandwidth import Measurement, PairRate

# Share of the median. A link below it is broken, or is set up differently from the others.
SLOW_SHARE = 0.5
_SHOWN = 5  # slow links in a message


def find_slow_links(measured: Measurement) -> Iterator[Finding]:
    """Yield the pairs of GPUs, nodes and pairs of nodes that are much slower than the median.

    If a node is slow, the findings do not list its links.
    """
    slow_pairs = _select_slow(measured.pairs)
    if slow_pairs:
        yield Finding(
            "slow-pair",
            WARNING,
            _describe_links(slow_pairs, measured.pairs),
            "GPUs of a node",
            "look at nvidia-smi topo -m and nvidia-smi nvlink -s on that node; in a virtual "
            "machine or container, check ACS and NCCL_P2P_LEVEL",
        )
    node_rates = compute_node_medians(measured)
    median = statistics.median(node_rates.values()) if node_rates else 0.0
    slow_nodes = [name for name, rate in node_rates.items() if rate < SLOW_SHARE * median]
    slow_nodes.sort(key=node_rates.__getitem__)
    if slow_nodes:
        shown = [f"{name} {node_rates[name]:.3g} GB/s" for name in slow_nodes[:_SHOWN]]
        yield Finding(
            "slow-node",
            WARNING,
            f"{', '.join(shown)} with the other nodes, where the median is {median:.3g}",
            "between nodes",
            "leave the node out (sbatch --exclude), and check its network cards: ibstat, "
            "NCCL_DEBUG=INFO",
        )
        return
    slow_links = _select_slow(measured.links)
    if slow_links:
        yield Finding(
            "slow-link",
            WARNING,
            _describe_links(slow_links, measured.links),
            "between nodes",
            "check the switches between these nodes: ibdiagnet, NCCL_DEBUG=INFO",
        )


def compute_node_medians(measured: Measurement) -> dict[str, float]:
    """Return for each node the median rate of its links with the others, in GB/s.

    The result is empty for fewer than three nodes: both nodes of a slow link look alike.
    """
    if len(measured.nodes) < 3:
        return {}
    return {
        name: _compute_median([link for link in measured.links if name in link.between])
        for name in measured.nodes
    }


def _compute_median(links: Sequence[PairRate]) -> float:
    """Return the median rate of links in GB/s."""
    return statistics.median(link.rate for link in links)


def _select_slow(links: Sequence[PairRate]) -> list[PairRate]:
    """Return the links that are much slower than their median, the slowest first."""
    median = _compute_median(links) if links else 0.0
    slow_links = [link for link in links if link.rate < SLOW_SHARE * median]
    return sorted(slow_links, key=lambda link: link.rate)


def _describe_links(slow_links: Sequence[PairRate], links: Sequence[PairRate]) -> str:
    """Return the slow links with their rates, and the median of all links."""
    shown = [f"{' and '.join(link.between)} {link.rate:.3g} GB/s" for link in slow_links[:_SHOWN]]
    hidden = len(slow_links) - _SHOWN
    more = f" and {hidden} more" if hidden > 0 else ""
    return f"{', '.join(shown)}{more}, where the median is {_compute_median(links):.3g}"


def encode_result(measured: Measurement) -> dict[str, Any]:
    """Return the measurement as an object of --json."""
    return dataclasses.asdict(measured)


def format_table(measured: Measurement) -> str:
    """Return the measurement as text.

    The text has a matrix for the GPUs of each node and one for the nodes, the slowest link of each
    kind, and the collectives over all GPUs.
    """
    title = (
        f"{measured.devices} x {measured.kind} on {len(measured.nodes)} node(s), "
        f"{measured.size >> 20} MiB; GB/s of a device in each direction, both at once"
    )
    lines = [title]
    device_names = [str(number) for number in range(measured.devices // len(measured.nodes))]
    for node in measured.nodes:
        pairs = [pair for pair in measured.pairs if _split_device(pair.between[0])[0] == node]
        rates = {
            tuple(_split_device(device)[1] for device in pair.between): pair.rate for pair in pairs
        }
        if rates:
            lines += ["", *_format_matrix(node, device_names, rates)]
    if measured.links:
        positions = {name: position for position, name in enumerate(measured.nodes)}
        rates = {
            tuple(positions[name] for name in link.between): link.rate for link in measured.links
        }
        lines += ["", *_format_matrix("nodes", list(measured.nodes), rates)]
    lines.append("")
    for kind, links in (("pair of GPUs", measured.pairs), ("pair of nodes", measured.links)):
        if links:
            slowest = min(links, key=lambda link: link.rate)
            lines.append(
                f"slowest {kind}: {' and '.join(slowest.between)}, {slowest.rate:.3g}; median "
                f"{_compute_median(links):.3g}"
            )
    lines.append(
        f"all-reduce over all: {measured.all_reduce:.3g}, all-gather: {measured.all_gather:.3g}"
    )
    return "\n".join(lines)


def _split_device(name: str) -> tuple[str, int]:
    """Return the node and the number of a device, whose name is NODE:NUMBER."""
    node, _, number = name.rpartition(":")
    return node, int(number)


def _format_matrix(
    corner: str, names: Sequence[str], rates: dict[tuple[int, ...], float]
) -> list[str]:
    """Return the lines of a symmetric matrix.

    Args:
      corner: The text of the upper left cell.
      names: The names of the rows and columns.
      rates: (row, column) -> rate; one of the two orders is enough.
    """
    width = max(8, *(len(name) for name in (corner, *names))) + 1
    lines = [f"{corner:<{width}}" + "".join(f"{name:>{width}}" for name in names)]
    for row, name in enumerate(names):
        cells = []
        for column in range(len(names)):
            rate = rates.get((row, column), rates.get((column, row), 0.0))
            cells.append("-" if row == column else f"{rate:.3g}")
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>{width}}" for cell in cells))
    return lines
