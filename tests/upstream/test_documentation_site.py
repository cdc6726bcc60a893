"""The site by the real tool, from the builder's cache or the package index."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from builder.core import cache_folder
from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.packages import python_interpreter, tool_environment
from builder.release.documentation_site import site_build
from rosetta.core.errors import UserError
from tests.support import errors

pytestmark = [pytest.mark.upstream, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Context:
    """A copy of what the site is made of; the tool is installed."""
    cache = Cache(cache_folder.default_root())
    lock = ROOT / site_build.LOCK
    try:
        tool_environment.ensure_environment(
            cache, python_interpreter.builder_interpreter(), lock, where="a test", offline=False
        )
    except UserError as error:
        if error.kind != errors.UNREACHABLE:
            raise
        pytest.skip(f"NOT CHECKED: no package index for the tool of the site ({error.what})")
    root = tmp_path / "checkout"
    for name in ("docs", "locks"):
        shutil.copytree(ROOT / name, root / name)
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, root)
        elif not (root / file.name).exists():
            (root / file.name).symlink_to(file)
    return Context(root, root / "manifest.yaml", cache, offline=True)


def _build(context: Context) -> site_build.Site:
    return site_build.build(context, context.root.parent / "site", "https://git.example/me/fork")


def test_the_site_has_every_page_and_finds_its_words(checkout: Context) -> None:
    site = _build(checkout)
    assert site.pages == len(list((ROOT / "docs").rglob("*.md"))) + 2
    items = json.loads((site.folder / "search.json").read_text())["items"]
    found = {item["location"].partition("#")[0] for item in items if "nvidia-smi" in item["text"]}
    assert "reference/gpus/" in found
    assert (
        "me/fork/blob/main/manifest.yaml"
        in (site.folder / "project/support/index.html").read_text()
    )
    assert not list(site.folder.parent.glob(".site*"))


def test_a_broken_page_leaves_the_site_as_it_was(checkout: Context) -> None:
    folder = _build(checkout).folder
    before = (folder / "index.html").read_bytes()
    page = checkout.root / "docs/index.md"
    good = page.read_text()
    lines = len(good.splitlines())
    for text, where in (
        ("[a](gone.md)", f"docs/index.md:{lines + 2}"),
        ("[a](explanation/fp8.md#gone)", f"docs/index.md:{lines + 2}"),
        ('<a href="gone/">a</a>', "docs/index.md"),
        ("A list:\n- one", "docs/index.md"),
    ):
        page.write_text(f"{good}\n{text}\n")
        with errors.expect_user_error(errors.INVALID, value=1, where=where):
            _build(checkout)
    page.write_text(good)
    (checkout.root / "docs/new.md").write_text("# New\n")
    with errors.expect_user_error(errors.INVALID, value=1, where="docs/new.md"):
        _build(checkout)
    assert (folder / "index.html").read_bytes() == before


def test_a_folder_of_others_and_the_pages_themselves_are_left_alone(checkout: Context) -> None:
    thesis = checkout.root.parent / "site/thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    with errors.expect_user_error(errors.EXISTS, where=thesis.parent):
        _build(checkout)
    assert thesis.read_text() == "years of work"
    with errors.expect_user_error(errors.INVALID, where="--site"):
        site_build.build(checkout, checkout.root / "docs/site", "")


def test_without_the_tool_offline_says_what_to_do(
    checkout: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    bare = Context(checkout.root, checkout.manifest_path, Cache(tmp_path / "cache"), offline=True)
    with errors.expect_user_error(errors.MISSING, remedy="--offline"):
        _build(bare)
    assert not (tmp_path / "site").exists()
