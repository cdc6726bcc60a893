"""The real upstreams as the builder's own cache holds them; a test that cannot have one says so loudly."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.core import cache_folder, manifest
from builder.core.cache import Cache
from builder.upstream.source import Access, Pinned, acquire_source
from rosetta.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = manifest.load(ROOT / "manifest.yaml")


def need_pinned_source(name: str) -> Pinned:
    """The pin of a source, from the cache only."""
    distribution = next(
        (each for each, entry in SHIPPED.distributions.items() if name in entry.sources), ""
    )
    try:
        return acquire_source(
            SHIPPED.source(name), Access(Cache(cache_folder.default_root()), offline=True)
        )
    except UserError as error:
        if name in SHIPPED.projects:
            distribution = f"{SHIPPED.projects[name].distribution} --with {name}"
        way = f"python build.py --distribution {distribution} --mirror DIR"
        pytest.skip(
            f"NOT TESTED: source {name} is not in the builder's cache; fill it with `{way}` ({error.what})"
        )
