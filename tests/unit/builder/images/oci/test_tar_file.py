"""Our tars, as Python's tarfile, GNU tar and the disk see them."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

from builder.images.oci import tar_file
from builder.images.oci.tar_entry import EPOCH, Entry, make_file, make_folder, make_link
from rosetta.core.errors import UserError
from tests.support import errors

LONG = "/".join(["d" * 60] * 5)
ODD = [
    "plain",
    "n" * 100,
    "n" * 101,
    "p" * 155 + "/" + "n" * 100,
    "p" * 156 + "/" + "n" * 100,
    "p" * 155 + "/" + "n" * 101,
    LONG + "/leaf",
    "a/" + "n" * 99,
    "Főtanúsítvány.crt",
    "with space\tand\nline feed",
    "-rf",
    "raw\udcff\udcfebytes",
]


def _bytes(*entries: Entry) -> bytes:
    out = io.BytesIO()
    tar_file.write_tar(entries, tar_file.PlainSink(out))
    return out.getvalue()


def _members(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(
        fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape"
    ) as archive:
        return archive.getmembers()


def _need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"NOT CHECKED: {program} is not on this machine")


@pytest.mark.parametrize("path", ODD)
def test_names_survive(path: str) -> None:
    data = _bytes(
        make_file(path, b"content"),
        make_folder(path + ".d"),
        make_link(path + ".l", path),
        Entry(path + ".h", "hard", 0o644, target=path),
    )
    found = _members(data)
    assert [each.name for each in found] == [path, path + ".d", path + ".l", path + ".h"]
    assert [each.linkname for each in found] == ["", "", path, path]
    assert [each.type for each in found] == [
        tarfile.REGTYPE,
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
    ]


@pytest.mark.parametrize("path", ODD)
def test_gnu_tar_unpacks_the_same(path: str, tmp_path: Path) -> None:
    _need("tar")
    if any(len(os.fsencode(part)) > 255 for part in path.split("/")):
        pytest.skip("no file system holds it")
    data = _bytes(make_file(path, b"content", 0o755), make_link("zz-link", path))
    subprocess.run(
        ["tar", "-xpf", "-", "-C", str(tmp_path)], input=data, check=True, capture_output=True
    )
    assert (tmp_path / path).read_bytes() == b"content"
    assert (tmp_path / path).stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / path).stat().st_mtime == EPOCH
    assert os.readlink(tmp_path / "zz-link") == path


def test_a_plain_header_is_byte_for_byte_what_tarfile_writes() -> None:
    ours = _bytes(make_file("opt/x/y.py", b"x" * 700, 0o755))
    info = tarfile.TarInfo("opt/x/y.py")
    info.size, info.mode, info.mtime = 700, 0o755, EPOCH
    assert ours[:512] == info.tobuf(tarfile.USTAR_FORMAT)
    assert len(ours) == 512 + 1024 + 1024


def test_everything_an_engine_may_give() -> None:
    odd = (
        Entry("dev/null", "char", 0o666, device=(1, 3)),
        Entry("dev/sda", "block", 0o660, gid=6, device=(8, 0)),
        Entry("pipe", "fifo", 0o600),
        Entry(
            "ping",
            "file",
            0o4755,
            data=b"x",
            size=1,
            uid=3_000_000_000,
            gid=2_097_152,
            xattrs=(("security.capability", b"\x01\0\0\x02=\n\xff"), ("user.a", b"")),
        ),
        Entry("sticky", "dir", 0o1777, uid=12, gid=13),
    )
    back = [entry for entry, _ in tar_file.read_tar(io.BytesIO(_bytes(*odd)))]
    assert [
        (each.path, each.kind, each.mode, each.uid, each.gid, each.device, each.xattrs, each.size)
        for each in back
    ] == [
        (each.path, each.kind, each.mode, each.uid, each.gid, each.device, each.xattrs, each.size)
        for each in odd
    ]


def test_a_file_of_more_than_8_gib_says_its_size(tmp_path: Path) -> None:
    big = tmp_path / "big"
    size = 8**11 + 5
    with open(big, "wb") as out:
        out.truncate(size)

    class Counting:
        """A sink that keeps headers and drops content."""

        def __init__(self) -> None:
            self.kept, self.copied = b"", 0

        def write(self, data: bytes) -> None:
            self.kept += data

        def copy(self, descriptor: int, count: int) -> int:
            assert os.fstat(descriptor).st_size == count
            self.copied = count
            return count

    sink = Counting()
    tar_file.write_tar([Entry("big", "file", 0o644, source=str(big), size=size)], sink)
    assert sink.copied == size
    assert tarfile.TarInfo.frombuf(sink.kept[1024:1536], "utf-8", "strict").name == "big"
    assert b"19 size=8589934597\n" in sink.kept[512:1024]


def test_walk(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/run").write_text("x")
    (tmp_path / "a/b/run").chmod(0o700)
    (tmp_path / "a/plain").write_text("xy")
    (tmp_path / "a/plain").chmod(0o466)
    os.link(tmp_path / "a/plain", tmp_path / "a/second")
    (tmp_path / "a/dead").symlink_to("../nowhere")
    (tmp_path / "a/todir").symlink_to("b")
    found = {
        each.path: (each.kind, each.mode, each.target, each.size)
        for each in tar_file.walk_folder(tmp_path / "a", "opt/x")
    }
    assert found == {
        "opt/x/b": ("dir", 0o755, "", 0),
        "opt/x/b/run": ("file", 0o755, "", 1),
        "opt/x/plain": ("file", 0o644, "", 2),
        "opt/x/second": ("file", 0o644, "", 2),
        "opt/x/dead": ("link", 0o777, "../nowhere", 0),
        "opt/x/todir": ("link", 0o777, "b", 0),
    }
    assert {each.path for each in tar_file.walk_folder(tmp_path, "")} >= {"a", "a/b", "a/b/run"}


@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_walk_refuses_what_no_layer_holds(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if kind == "fifo":
        os.mkfifo("it")
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("it")
    with errors.expect_user_error(errors.INVALID, where="it", remedy="remove"):
        list(tar_file.walk_folder(tmp_path, ""))


@pytest.mark.parametrize("now", [b"", b"shorter", b"longer than it was before"])
def test_a_file_that_changes_is_an_error(tmp_path: Path, now: bytes) -> None:
    (tmp_path / "f").write_bytes(b"as it was, once")
    entries = list(tar_file.walk_folder(tmp_path, ""))
    (tmp_path / "f").write_bytes(now)
    with errors.expect_user_error(errors.CONFLICT, where="f", names="changed"):
        _bytes(*entries)
    (tmp_path / "f").unlink()
    with errors.expect_user_error(errors.CONFLICT, where="f", names="gone"):
        _bytes(*entries)


def test_read_gives_contents_in_order() -> None:
    data = _bytes(
        make_file("a", b"1"),
        make_folder("d"),
        make_file("d/.wh.gone", b""),
        make_file("d/.wh..wh..opq", b""),
        make_link("l", "a"),
    )
    found = [
        (entry.path, entry.kind, content.read() if content else None)
        for entry, content in tar_file.read_tar(io.BytesIO(data))
    ]
    assert found == [
        ("a", "file", b"1"),
        ("d", "dir", None),
        ("d/.wh.gone", "file", b""),
        ("d/.wh..wh..opq", "file", b""),
        ("l", "link", None),
    ]


def _foreign(*members: tuple[str, bytes, str], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar as others write it: (name, type, link)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, kind, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mtime = kind, target, 1_700_000_000
            content = f"content of {name}".encode() if kind == tarfile.REGTYPE else b""
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_spooled(tmp_path: Path, form: int) -> None:
    data = _foreign(
        ("./", tarfile.DIRTYPE, ""),
        ("./z", tarfile.REGTYPE, ""),
        ("./m", tarfile.LNKTYPE, "./z"),
        ("./b/" + "n" * 90, tarfile.REGTYPE, ""),
        ("./b/" + "n" * 90, tarfile.REGTYPE, ""),
        ("/a", tarfile.LNKTYPE, "m"),
        ("./l", tarfile.SYMTYPE, "./z"),
        form=form,
    )
    with tar_file.spool_tar(io.BytesIO(data), tmp_path / "spool") as entries:
        written = _bytes(*entries)
    assert os.listdir(tmp_path) == []
    found = _members(written)
    assert [(each.name, each.type, each.linkname) for each in found] == [
        ("a", tarfile.REGTYPE, ""),
        ("b/" + "n" * 90, tarfile.REGTYPE, ""),
        ("l", tarfile.SYMTYPE, "./z"),
        ("m", tarfile.LNKTYPE, "a"),
        ("z", tarfile.LNKTYPE, "a"),
    ]
    with tarfile.open(fileobj=io.BytesIO(written)) as archive:
        content = archive.extractfile("a")
        assert content is not None
        assert content.read() == b"content of ./z"


def test_a_sparse_file_of_gnu_tar(tmp_path: Path) -> None:
    _need("tar")
    with open(tmp_path / "sparse", "wb") as out:
        out.write(b"head")
        out.seek(1 << 20)
        out.write(b"tail")
    packed = subprocess.run(
        ["tar", "-S", "-C", str(tmp_path), "-cf", "-", "sparse"], check=True, capture_output=True
    ).stdout
    if len(packed) > 1 << 19:
        pytest.skip("NOT CHECKED: this file system keeps no holes")
    with (
        tar_file.spool_tar(io.BytesIO(packed), tmp_path / "spool") as entries,
        tarfile.open(fileobj=io.BytesIO(_bytes(*entries))) as archive,
    ):
        content = archive.extractfile("sparse")
        assert content is not None
        assert content.read() == (tmp_path / "sparse").read_bytes()


@pytest.mark.parametrize("name", ["../up", "a/../../b"])
def test_a_tar_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    data = _foreign((name, tarfile.REGTYPE, ""))
    with errors.expect_user_error(errors.INVALID, value=name):
        list(tar_file.read_tar(io.BytesIO(data)))
    with (
        errors.expect_user_error(errors.INVALID, value=name),
        tar_file.spool_tar(io.BytesIO(data), tmp_path / "spool"),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_a_tar_that_is_none_or_cut_off_is_refused(tmp_path: Path) -> None:
    whole = _foreign(("a", tarfile.REGTYPE, ""), ("b", tarfile.REGTYPE, ""))
    for broken in (b"not a tar at all" * 64, whole[:1030]):
        with errors.expect_user_error(errors.DAMAGED):
            list(tar_file.read_tar(io.BytesIO(broken)))
        with (
            pytest.raises(UserError) as caught,
            tar_file.spool_tar(io.BytesIO(broken), tmp_path / "spool") as entries,
        ):
            _bytes(*entries)
        assert caught.value.kind in {errors.DAMAGED, errors.CONFLICT}


def test_a_hard_link_to_nothing_is_refused(tmp_path: Path) -> None:
    data = _foreign(("a", tarfile.LNKTYPE, "gone"))
    with (
        errors.expect_user_error(errors.INVALID, where="a", value="gone"),
        tar_file.spool_tar(io.BytesIO(data), tmp_path / "spool"),
    ):
        pass
