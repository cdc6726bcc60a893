"""The notes of a release: what is taken from the changelog, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from builder import __version__, cli
from builder.core import manifest
from builder.release import release_notes
from rosetta.core import errors
from rosetta.core.errors import UserError

ROOT = Path(__file__).parents[4]
CHANGELOG = """# Changelog

What a user notices.

## Unreleased

- Not out yet.

## 1.2.0 - 2026-11-29

A release that
changes much.

### Added

- One thing, see [its page](docs/thing.md),
  with a second line.
- Another, see [the site](https://example.com/a).

### Fixed

- A bug.

## 1.1.0 - 2026-01-02

- Older.
"""


def test_the_notes_are_the_section_of_the_version_with_a_line_for_each_entry() -> None:
    assert release_notes.read_notes(CHANGELOG, "1.2.0") == (
        "A release that changes much.\n\n### Added\n\n"
        "- One thing, see its page, with a second line.\n"
        "- Another, see [the site](https://example.com/a).\n\n"
        "### Fixed\n\n- A bug."
    )
    assert release_notes.read_notes(CHANGELOG, "1.1.0") == "- Older."
    assert release_notes.read_versions(CHANGELOG) == ["1.2.0", "1.1.0"]


@pytest.mark.parametrize(
    ("changelog", "kind", "value"),
    [
        (CHANGELOG, errors.MISSING, "2.0.0"),
        ("# Changelog\n", errors.MISSING, "2.0.0"),
        ("## 2.0.0 - 2026-01-01\n\n## 1.0.0 - 2025-01-01\n\n- a\n", errors.MISSING, "2.0.0"),
        ("## 2.0.0\n\n- a\n", errors.INVALID, "2.0.0"),
        ("## 2.0 - 2026-01-01\n", errors.INVALID, "2.0 - 2026-01-01"),
    ],
)
def test_a_changelog_without_the_notes_is_refused(changelog: str, kind: str, value: str) -> None:
    with pytest.raises(UserError) as refused:
        release_notes.read_notes(changelog, "2.0.0")
    assert (refused.value.kind, refused.value.value) == (kind, value)


def test_the_changelog_has_notes_of_the_version_of_this_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changelog = (ROOT / release_notes.FILE).read_text(encoding="utf-8")
    assert release_notes.read_versions(changelog)[0] == __version__
    file = tmp_path / "new" / "notes.md"
    assert cli.main(["release-notes", f"v{__version__}", "--write", str(file)]) == 0
    assert capsys.readouterr().out == file.read_text(encoding="utf-8")


def test_the_notes_list_the_image_of_each_distribution_and_accelerator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["release-notes", "--images", "ghcr.io/me"]) == 0
    listed = re.findall(r"^- `(ghcr\.io/me/.+)`$", capsys.readouterr().out, re.MULTILINE)
    shipped = manifest.load(ROOT / "manifest.yaml")
    assert len(listed) == sum(len(each.accelerators) for each in shipped.distributions.values())
    start = f"ghcr.io/me/t5x:{__version__}"
    assert [name for name in listed if "/t5x:" in name] == [
        f"{start}-cpu",
        f"{start}-cuda12",
        start,
    ]


def test_a_registry_that_is_not_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["release-notes", "--images", "ghcr.io/Me", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["value"]


def test_another_tag_than_that_of_the_version_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["release-notes", __version__, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], error["value"]) == (errors.DIFFERS, __version__)
