"""The bucket of a name: fixed for ever, and the names spread over all buckets."""

from __future__ import annotations

from collections import Counter

from builder.core import hash_buckets


def test_the_buckets_of_known_names() -> None:
    """COUNT and the hash stay: another bucket moves a name into another layer of every image."""
    names = ("jax", "numpy", "scipy", "pyarrow", "helper", "commands/info.py")
    assert [hash_buckets.choose_bucket(name) for name in names] == [8, 5, 3, 8, 3, 8]


def test_names_spread_over_all_buckets() -> None:
    counts = Counter(hash_buckets.choose_bucket(f"name-{number}") for number in range(8000))
    assert sorted(counts) == list(range(1, hash_buckets.COUNT + 1))
    assert 900 < min(counts.values()) <= max(counts.values()) < 1100
