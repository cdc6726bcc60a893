from __future__ import annotations

import itertools
import re

import pytest

from rosetta.bench import bandwidth
from rosetta.bench.bandwidth import Measurement, PairRate
from rosetta.doctor import bandwidth_findings


@pytest.mark.parametrize("number", range(10))
def test_each_pair_is_in_one_round_and_each_device_once_in_a_round(number: int) -> None:
    found = bandwidth.schedule_pairs(number)
    assert sorted(itertools.chain(*found)) == list(itertools.combinations(range(number), 2))
    assert all(len({one for pair in turn for one in pair}) == 2 * len(turn) for turn in found)
    assert len(found) == (0 if number < 2 else number - 1 + number % 2)


NAMES_AND_NUMBERS = r"\bn?\d[\d:]*"


def cluster(nodes: int, gpus: int, slow: dict[tuple[str, str], float] | None = None) -> Measurement:
    """A cluster whose GPUs talk at 200 GB/s and whose nodes at 40, but for some."""
    slow = slow or {}
    names = tuple(f"n{number}" for number in range(nodes))
    pairs = [
        (f"{name}:{a}", f"{name}:{b}")
        for name in names
        for a, b in itertools.combinations(range(gpus), 2)
    ]
    links = list(itertools.combinations(names, 2))
    return Measurement(
        nodes * gpus,
        "H100",
        names,
        64 << 20,
        tuple(PairRate(each, slow.get(each, 200.0)) for each in pairs),
        tuple(PairRate(each, slow.get(each, 40.0)) for each in links),
        180.0,
        150.0,
    )


def test_links_of_equal_speed_are_not_reported() -> None:
    assert list(bandwidth_findings.find_slow_links(cluster(4, 8))) == []
    assert list(bandwidth_findings.find_slow_links(cluster(2, 1))) == []
    assert list(bandwidth_findings.find_slow_links(cluster(1, 2, {("n0:0", "n0:1"): 0.1}))) == [], (
        "there is nothing to compare one pair with"
    )


def test_a_slow_pair_is_named() -> None:
    (found,) = bandwidth_findings.find_slow_links(
        cluster(2, 8, {("n1:2", "n1:5"): 11.0, ("n0:0", "n0:1"): 101.0})
    )
    assert (found.id, found.level) == ("slow-pair", "warning")
    assert re.findall(NAMES_AND_NUMBERS, found.what) == ["n1:2", "n1:5", "11", "200"]


def test_a_slow_node_is_told_from_a_slow_link() -> None:
    (found,) = bandwidth_findings.find_slow_links(
        cluster(4, 8, {("n0", "n2"): 3.0, ("n1", "n2"): 3.1, ("n2", "n3"): 2.9})
    )
    assert found.id == "slow-node"
    assert re.findall(NAMES_AND_NUMBERS, found.what) == ["n2", "3", "40"]
    (found,) = bandwidth_findings.find_slow_links(cluster(4, 8, {("n0", "n2"): 3.0}))
    assert found.id == "slow-link"
    assert re.findall(NAMES_AND_NUMBERS, found.what) == ["n0", "n2", "3", "40"]


def test_the_table_has_each_node_the_nodes_and_the_slowest() -> None:
    lines = bandwidth_findings.format_table(cluster(2, 3, {("n1:0", "n1:2"): 7.0})).splitlines()
    assert (
        lines[0]
        == "6 x H100 on 2 node(s), 64 MiB; GB/s of a device in each direction, both at once"
    )
    rows = [line.split() for line in lines]
    assert ["n1", "0", "1", "2"] in rows
    assert ["0", "-", "200", "7"] in rows
    assert ["2", "7", "200", "-"] in rows
    assert ["n0", "-", "40"] in rows
    assert "slowest pair of GPUs: n1:0 and n1:2, 7; median 200" in lines
    assert lines[-1] == "all-reduce over all: 180, all-gather: 150"
