from __future__ import annotations

from pathlib import Path

import pytest

from builder.release.documentation_site import source_pages
from builder.release.documentation_site.source_pages import Staging

ROOT = Path(__file__).parents[5]
WEB = "https://git.example/me/rosetta"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("docs/sub", "docs/images", "locks"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("docs/a.md", "docs/sub/b.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("# Title\n")
    (tmp_path / "docs/images/x.svg").write_text("<svg/>")
    (tmp_path / "docs/.hidden").write_text("")
    (tmp_path / "manifest.yaml").write_text("")
    return tmp_path


def _stage(checkout: Path) -> Staging:
    staging = Staging(checkout, WEB, source_pages.find_pages(checkout))
    staging.write(checkout / "staged")
    return staging


def test_the_pages_of_this_repository_link_to_what_exists(tmp_path: Path) -> None:
    staging = Staging(ROOT, WEB, source_pages.find_pages(ROOT))
    staging.write(tmp_path / "staged")
    assert staging.problems == []
    assert (
        f"]({WEB}/blob/main/manifest.yaml)" in (tmp_path / "staged/project/support.md").read_text()
    )


@pytest.mark.parametrize(
    ("written", "staged"),
    [
        ("[b](b.md#two) ![x](../images/x.svg)", "[b](b.md#two) ![x](../images/x.svg)"),
        ("[a](../a.md) [self](#title)", "[a](../a.md) [self](#title)"),
        ("[m](../../manifest.yaml)", f"[m]({WEB}/blob/main/manifest.yaml)"),
        ("[l](../../locks) `[l](../../no)`", f"[l]({WEB}/tree/main/locks) `[l](../../no)`"),
        ("[r](../../README.md#start)", f"[r]({WEB}/blob/main/README.md#start)"),
        ("[c](<../../CONTRIBUTING.md> 't')", "[c](<../contributing.md> 't')"),
        ("[m]: ../../manifest.yaml", f"[m]: {WEB}/blob/main/manifest.yaml"),
        ("<a@b.c> [w](https://x.example/)", "<a@b.c> [w](https://x.example/)"),
        ("```\n[m](../../no)\n```", "```\n[m](../../no)\n```"),
    ],
)
def test_a_link_leads_to_the_same_file(written: str, staged: str, checkout: Path) -> None:
    (checkout / "docs/sub/b.md").write_text(written)
    assert _stage(checkout).problems == []
    assert (checkout / "staged/sub/b.md").read_text() == f"{staged}\n"


def test_a_page_from_outside_the_folder_links_into_it(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text("[b](docs/sub/b.md) [x](docs/images/x.svg)\n")
    assert _stage(checkout).problems == []
    staged = (checkout / "staged/changelog.md").read_text()
    assert staged == "[b](sub/b.md) [x](images/x.svg)\n"
    assert (checkout / "staged/images/x.svg").is_file()
    assert not (checkout / "staged/.hidden").exists()


@pytest.mark.parametrize(
    "line",
    ["[a](gone.md)", "![a](x.png)", "[a](/a.md)", "[a](../../outside)", "[a]: gone.md"],
)
def test_a_link_to_nothing_is_named_with_its_line(line: str, checkout: Path) -> None:
    (checkout / "docs/a.md").write_text(f"# A\n\n{line}\n")
    (problem,) = _stage(checkout).problems
    assert problem.startswith("docs/a.md:3: ")


@pytest.mark.parametrize(
    "text", ["1. one\n\n   ```\n   x\n   ```", "- one\n  - two", "- one\n\n  more of one"]
)
def test_what_nests_on_github_only_is_named(text: str, checkout: Path) -> None:
    (checkout / "docs/a.md").write_text(f"{text}\n")
    assert [problem.partition(": ")[0] for problem in _stage(checkout).problems]
    deeper = text.replace("\n   ", "\n    ").replace("\n  ", "\n    ")
    (checkout / "docs/a.md").write_text(f"{deeper}\n")
    assert _stage(checkout).problems == []
