from __future__ import annotations

import io
import stat
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest

from builder.upstream import wheel_source
from rosetta.core.errors import UserError
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path


def wheel(path: Path, members: list[tuple[str, bytes, int]]) -> Path:
    """A zip with (name, content, unix mode) members as they come, twice too."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, (name, content, mode) in enumerate(members):
            info = zipfile.ZipInfo(f"member{number}")
            info.external_attr = mode << 16
            info.filename = name
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    path.write_bytes(buffer.getvalue())
    return path


def test_every_file_comes_with_its_bytes_and_one_mode(tmp_path: Path) -> None:
    members = [
        ("p/b.py", b"b\r\n", stat.S_IFREG | 0o755),
        ("p/a.py", b"", 0),
        ("p-1.dist-info/", b"", stat.S_IFDIR),
        ("p-1.dist-info/RECORD", b"r", 0),
    ]
    found = wheel_source.read_wheel_files(wheel(tmp_path / "p-1-py3-none-any.whl", members))
    assert list(found.items()) == [
        ("p-1.dist-info/RECORD", ("100644", b"r")),
        ("p/a.py", ("100644", b"")),
        ("p/b.py", ("100644", b"b\r\n")),
    ]


HOSTILE = {
    "climbs": [("../x", b"x", 0)],
    "climbs in the middle": [("p/../../x", b"x", 0)],
    "absolute": [("/etc/x", b"x", 0)],
    "drive": [("C:/x", b"x", 0)],
    "backslash": [("p\\..\\..\\x", b"x", 0)],
    "git": [(".git/hooks/post-checkout", b"x", 0)],
    "git below": [("p/.GIT/config", b"x", 0)],
    "git folder": [("p/.git/", b"", 0)],
    "gitmodules": [(".gitmodules", b"x", 0)],
    "no name": [("", b"x", 0)],
    "empty component": [("p//x", b"x", 0)],
    "newline": [("p/x\ny", b"x", 0)],
    "link": [("p/l", b"/etc/passwd", stat.S_IFLNK | 0o777)],
    "device": [("p/d", b"", stat.S_IFCHR)],
    "pipe": [("p/d", b"", stat.S_IFIFO)],
    "folder that is a file": [("p/d/", b"x", 0)],
    "file that is a folder": [("p/d", b"", stat.S_IFDIR)],
    "twice": [("p/x", b"1", 0), ("p/x", b"2", 0)],
    "file and folder": [("p/x", b"1", 0), ("p/x/y", b"2", 0)],
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_member_is_refused(tmp_path: Path, case: str) -> None:
    with pytest.raises(UserError) as caught:
        wheel_source.read_wheel_files(wheel(tmp_path / "h.whl", [("a.py", b"", 0), *HOSTILE[case]]))
    assert caught.value.where == "h.whl"
    assert [path.name for path in tmp_path.iterdir()] == ["h.whl"]


def test_a_nul_in_a_name_is_refused(tmp_path: Path) -> None:
    made = wheel(tmp_path / "h.whl", [("a.pyXevil", b"x", 0)])
    made.write_bytes(made.read_bytes().replace(b"a.pyXevil", b"a.py\0evil"))
    with errors.expect_user_error(errors.INVALID, where="h.whl", value="a.py\0evil"):
        wheel_source.read_wheel_files(made)


def test_a_file_larger_than_it_says_is_refused(tmp_path: Path) -> None:
    made = wheel(tmp_path / "h.whl", [("a.py", b"x" * 5000, 0)])
    data = made.read_bytes()
    assert data.count(struct.pack("<I", 5000)) == 2
    made.write_bytes(data.replace(struct.pack("<I", 5000), struct.pack("<I", 50)))
    with errors.expect_user_error(errors.DAMAGED, where="h.whl"):
        wheel_source.read_wheel_files(made)


def test_a_bomb_is_refused_by_file_and_by_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wheel(tmp_path / "h.whl", [("a", b"\0" * 1000, 0), ("b", b"\0" * 1000, 0)])
    monkeypatch.setattr(wheel_source, "_LARGEST_FILE", 1000)
    monkeypatch.setattr(wheel_source, "_LARGEST_WHEEL", 2000)
    assert len(wheel_source.read_wheel_files(made)) == 2
    monkeypatch.setattr(wheel_source, "_LARGEST_WHEEL", 1999)
    with errors.expect_user_error(errors.TOO_BIG, where="h.whl", value="b"):
        wheel_source.read_wheel_files(made)
    monkeypatch.setattr(wheel_source, "_LARGEST_FILE", 999)
    with errors.expect_user_error(errors.TOO_BIG, where="h.whl", value="a"):
        wheel_source.read_wheel_files(made)


@pytest.mark.parametrize("data", [b"", b"<html>log in</html>", b"PK\x05\x06"])
def test_what_is_no_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "h.whl"
    path.write_bytes(data)
    with errors.expect_user_error(errors.DAMAGED, where="h.whl"):
        wheel_source.read_wheel_files(path)


def test_a_cut_off_or_altered_wheel_is_refused(tmp_path: Path) -> None:
    whole = wheel(tmp_path / "h.whl", [("a.py", bytes(range(256)) * 20, 0)])
    data = whole.read_bytes()
    for broken in (data[:-40], data[: len(data) // 2], data[:60] + b"\xff" * 8 + data[68:]):
        whole.write_bytes(broken)
        with pytest.raises(UserError):
            wheel_source.read_wheel_files(whole)


def test_the_commit_depends_on_its_arguments_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = wheel_source.render_commit("ab" * 20, "p==1", "cd" * 32)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "me")
    assert wheel_source.render_commit("ab" * 20, "p==1", "cd" * 32) == made
    assert made.splitlines()[1] == b"author rosetta <rosetta@localhost> 315532800 +0000"
