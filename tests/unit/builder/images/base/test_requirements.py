"""Which bases are taken, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from builder.images.base import requirements
from builder.images.oci.tar_entry import Entry, make_file
from rosetta.core.errors import UserError
from tests.support import errors
from tests.support.debian_packages import FACTS, list_system_files


def _shown(**parts: Any) -> dict[str, Entry]:
    return {entry.path: entry for entry in list_system_files(**parts)}


def test_a_whole_system() -> None:
    assert requirements.find_facts(_shown(), "x", "amd64", ["3.13"]) == requirements.BaseFacts(
        "2.41", "3.13", "3.13.5", "A test"
    )


def test_the_first_of_the_pythons_that_is_there() -> None:
    shown = _shown() | {
        entry.path: entry
        for entry in list_system_files(version="3.12", python=b"..\x003.12.3\x00..")
    }
    assert requirements.find_facts(shown, "x", "amd64", ["3.12", "3.13"]).python_full == "3.12.3"
    assert (
        requirements.find_facts(shown, "x", "amd64", ["3.11", "3.13", "3.12"]).python_full
        == "3.13.5"
    )


def test_a_python_that_is_a_library() -> None:
    shown = _shown(python=b"only starts the library") | {
        "usr/lib/x86_64-linux-gnu/libpython3.13.so.1.0": make_file(
            "usr/lib/x86_64-linux-gnu/libpython3.13.so.1.0", FACTS["python"]
        )
    }
    assert requirements.find_facts(shown, "x", "amd64", ["3.13"]).python_full == "3.13.5"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({"libc": b""}, ["glibc (wheels need it"]),
        (
            {"libc": b"GNU C Library (GNU libc) stable release version 2.17, by Roland"},
            ["glibc 2.28 or newer (it has 2.17)"],
        ),
        ({"libc": FACTS["libc"].replace(b"2.41.", b"2.5.")}, ["(it has 2.5)"]),
        ({"python": b""}, ["Python 3.12 or 3.13 in /usr/bin (it has none)"]),
        ({"version": "3.9"}, ["Python 3.12 or 3.13 in /usr/bin (it has 3.9)"]),
        (
            {"stdlib": ("os.py", "json/__init__.py")},
            ["standard library: ctypes, sqlite3, ssl, multiprocessing"],
        ),
        (
            {"libc": b"GNU C Library stable release version 2.27", "version": "3.6"},
            ["glibc 2.28 or newer (it has 2.27)", "(it has 3.6)"],
        ),
    ],
)
def test_all_that_is_missing_is_listed(parts: dict[str, Any], told: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        requirements.find_facts(_shown(**parts), "some/image:1", "amd64", ["3.13", "3.12"])
    assert caught.value.where == "some/image:1"
    assert "A test" in caught.value.what
    for each in told:
        assert each in caught.value.what


@pytest.mark.parametrize(("machine", "architecture"), [(62, "arm64"), (183, "amd64"), (3, "amd64")])
def test_programs_of_another_architecture(machine: int, architecture: str) -> None:
    libc = FACTS["libc"][:18] + machine.to_bytes(2, "little") + FACTS["libc"][20:]
    with errors.expect_user_error(errors.UNSUPPORTED, where="x", names=architecture):
        requirements.find_facts(_shown(libc=libc), "x", architecture, ["3.13"])


def test_the_right_architecture() -> None:
    libc = FACTS["libc"][:18] + (183).to_bytes(2, "little") + FACTS["libc"][20:]
    assert requirements.find_facts(_shown(libc=libc), "x", "arm64", ["3.13"]).glibc == "2.41"
