"""The real patches on the real upstreams, from the builder's own cache."""

from __future__ import annotations

import pytest

from builder.upstream import overlay, patch_refresh, patch_series, patched_source
from tests.support.shipped_sources import SHIPPED, need_pinned_source

pytestmark = pytest.mark.upstream


@pytest.mark.parametrize("name", SHIPPED.sources)
def test_every_patch_and_every_overlaid_file_applies(name: str) -> None:
    source, pin = SHIPPED.source(name), need_pinned_source(name)
    found = patched_source.survey_patches(
        pin, patch_series.load_patches(source.patches), overlay.load_overlay(source.overlay)
    )
    assert {
        result.name: (result.outcome, result.detail)
        for result in found.results
        if result.outcome != "applied"
    } == {}
    assert {laid.path: laid.detail for laid in found.overlaid if laid.outcome != "applied"} == {}
    assert patched_source.build_patched_source(pin, source).commit == found.commit != pin.commit


@pytest.mark.parametrize("name", SHIPPED.sources)
def test_the_patches_are_as_git_writes_them(name: str) -> None:
    stale, _ = patch_refresh.find_stale_patches(
        need_pinned_source(name), patch_series.load_patches(SHIPPED.source(name).patches)
    )
    assert [patch.name for patch in stale] == []


@pytest.mark.parametrize("name", SHIPPED.sources)
def test_no_patch_changes_much(name: str) -> None:
    for patch in patch_series.load_patches(SHIPPED.source(name).patches):
        assert sum(file.removed for file in patch.files) <= 40, patch.name
        assert sum(file.added for file in patch.files) <= 60, patch.name
