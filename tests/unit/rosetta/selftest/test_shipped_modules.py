from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rosetta.selftest import shipped_modules
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path


def test_the_modules_of_a_package_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "shippedpkg/__init__.py",
        "shippedpkg/layers.py",
        "shippedpkg/layers_test.py",
        "shippedpkg/setup.py",
        "shippedpkg/with-dash.py",
        "shippedpkg/notes.txt",
        "shippedpkg/sub/__init__.py",
        "shippedpkg/nopackage/thing.py",
        "shippedpkg/test-data/x.py",
        "shippedpkg/__pycache__/y.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('nothing may be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    expected = ["shippedpkg", "shippedpkg.layers", "shippedpkg.nopackage.thing", "shippedpkg.sub"]
    assert shipped_modules.list_modules("shippedpkg") == expected


def test_a_missing_package_is_refused() -> None:
    with errors.expect_user_error(errors.MISSING, where="selftest", value="nowhere_to_be_found"):
        shipped_modules.list_modules("nowhere_to_be_found")


def test_the_list_of_a_distribution_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped_modules, "KNOWN_FAILURES", tmp_path)
    (tmp_path / "pax.yaml").write_text("paxml.a: because\n")
    assert shipped_modules.read_known_failures("pax", "pax-1.4") == {"paxml.a": "because"}
    (tmp_path / "pax-1.4.yaml").write_text("paxml.b: of age\n")
    assert shipped_modules.read_known_failures("pax", "pax-1.4") == {"paxml.b": "of age"}
    assert shipped_modules.read_known_failures("pax") == {"paxml.a": "because"}
    assert shipped_modules.read_known_failures("t5x") == {}


@pytest.mark.parametrize("text", ["- a\n", "a:\n", "a: ''\n", "a: 3\n"])
def test_an_entry_without_a_reason_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(shipped_modules, "KNOWN_FAILURES", tmp_path)
    (tmp_path / "t5x.yaml").write_text(text)
    with errors.expect_user_error(errors.INVALID, where="t5x.yaml"):
        shipped_modules.read_known_failures("t5x")


@pytest.mark.parametrize(
    "path", sorted(shipped_modules.KNOWN_FAILURES.glob("*.yaml")), ids=lambda path: path.name
)
def test_the_shipped_lists_are_valid(path: Path) -> None:
    assert all(
        "." in name and len(reason) > 10
        for name, reason in shipped_modules.read_known_failures(path.stem).items()
    )
