"""The lock of Debian's headers of Python, and the package unpacked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from builder.packages.transformer_engine import header_packages
from tests.support import errors, te_project

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache
    from tests.support.package_index import Index
    from tests.support.te_project import Te


@pytest.fixture
def te(tmp_path: Path, index: Index) -> Te:
    te_project.need_compiler()
    return te_project.make_project(tmp_path / "repo", index)


def test_what_was_locked_is_read_again(te: Te) -> None:
    known = header_packages.load_packages(te.manifest())
    assert list(known) == [("3.13", "amd64")]
    assert header_packages.render_lock(known) == (te.root / header_packages.FILE).read_text()
    assert (
        header_packages.require_package(te.manifest(), "3.13", "amd64").name == "libpython3.13-dev"
    )


def test_it_is_unpacked(te: Te, cache: Cache) -> None:
    te.with_headers(cache)
    made = header_packages.ensure_headers(
        cache, header_packages.require_package(te.manifest(), "3.13", "amd64"), offline=True
    )
    assert (made / "usr/include/python3.13/Python.h").is_file()
    assert (made / "usr/include/x86_64-linux-gnu/python3.13/pyconfig.h").is_file()


def test_another_file_under_its_name(te: Te, cache: Cache) -> None:
    te.with_headers(cache)
    for file in cache.path("debs").glob("*.deb"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with errors.expect_user_error(errors.MISSING, remedy="--offline"):
        header_packages.ensure_headers(
            cache, header_packages.require_package(te.manifest(), "3.13", "amd64"), offline=True
        )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{", errors.MISSING),
        ("[]", errors.INVALID),
        ('{"schema": 2, "pythons": {}}', errors.INVALID),
        (
            '{"schema": 1, "pythons": {"3.13": [{"name": "x"}]}}',
            errors.INVALID,
        ),
    ],
)
def test_a_broken_lock(te: Te, text: str, kind: str) -> None:
    (te.root / header_packages.FILE).write_text(text)
    with errors.expect_user_error(kind, where=header_packages.FILE) as caught:
        header_packages.load_packages(te.manifest())
    assert str(caught.value) in header_packages.find_problems(te.manifest())


def test_a_name_that_leaves_the_archive(te: Te) -> None:
    file = te.root / header_packages.FILE
    data = json.loads(file.read_text())
    data["pythons"]["3.13"][0]["filename"] = "pool/../../etc/passwd.deb"
    file.write_text(json.dumps(data))
    with errors.expect_user_error(errors.INVALID, where="te-python.json"):
        header_packages.load_packages(te.manifest())


def test_what_is_lacking(te: Te) -> None:
    assert header_packages.find_problems(te.manifest()) == []
    (te.root / header_packages.FILE).unlink()
    assert header_packages.find_problems(te.manifest()) == [
        "locks/te-python.json: lacks the headers of Python 3.13 on amd64; python build.py lock --base"
    ]
    with errors.expect_user_error(
        errors.MISSING, where="te-python.json", value="3.13", names=("amd64", "none")
    ):
        header_packages.require_package(te.manifest(), "3.13", "amd64")


def test_nothing_is_looked_up_offline(te: Te) -> None:
    before = (te.root / header_packages.FILE).read_text()
    with errors.expect_user_error(errors.MISSING, where="te-python.json", remedy="--offline"):
        header_packages.update_lock(te.manifest(), offline=True)
    assert (te.root / header_packages.FILE).read_text() == before
