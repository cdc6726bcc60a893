"""The layer of a step: what it changed, whatever else an engine lists, and nothing of when and where it ran."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from builder.images.engines import image_archive, layer_normalisation
from tests.support import errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.oci.tar_entry import Entry

Row = tuple[
    str, "str | bytes | None"
]  # a path and its content; None: a folder; "-> X": a link, "=> X": a hard link


def _tar(
    rows: list[Row], *, mtime: int = 1_700_000_000, prefix: str = "", mode: int = 0, uid: int = 0
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in rows:
            member = tarfile.TarInfo(prefix + path)
            member.mtime, member.mode = mtime, mode or (0o755 if content is None else 0o644)
            member.uid = uid
            data = b""
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str) and content.startswith("-> "):
                member.type, member.linkname = tarfile.SYMTYPE, content[3:]
            elif isinstance(content, str) and content.startswith("=> "):
                member.type, member.linkname = tarfile.LNKTYPE, prefix + content[3:]
            else:
                data = content.encode() if isinstance(content, str) else content
                member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _exported(*layers: bytes, below: int = 1) -> image_archive.ExportedImage:
    return image_archive.ExportedImage(
        {},
        (),
        tuple((lambda data=data: io.BufferedReader(io.BytesIO(data))) for data in layers),  # type: ignore[misc]
        below,
    )


def _changes(tmp_path: Path, base: bytes, *above: bytes) -> dict[str, Entry]:
    with layer_normalisation.find_changes(_exported(base, *above), tmp_path / "spool") as entries:
        assert [entry.path for entry in entries] == sorted(entry.path for entry in entries)
        return {entry.path: entry for entry in entries}


BASE: list[Row] = [
    ("etc", None),
    ("etc/same", "same"),
    ("etc/twin", "=> etc/same"),
    ("etc/edited", "before"),
    ("etc/gone", "x"),
    ("etc/dir", None),
    ("etc/dir/a", "a"),
    ("etc/dir/b", "b"),
    ("bin", "-> usr/bin"),
    ("usr", None),
    ("usr/bin", None),
    ("var", None),
    ("var/log", None),
    ("var/log/old", "log"),
    ("etc/hosts", "mine"),
]


def test_only_what_differs_from_the_base_is_kept(tmp_path: Path) -> None:
    listed: list[Row] = [
        *((path, content) for path, content in BASE if path not in ("etc/edited", "etc/gone")),
        ("etc/edited", "after!"),
        ("usr/bin/new", "n"),
        ("etc/.wh.gone", ""),
    ]
    assert set(_changes(tmp_path, _tar(BASE), _tar(listed))) == {
        "etc",
        "etc/edited",
        "etc/.wh.gone",
        "usr",
        "usr/bin",
        "usr/bin/new",
    }


def test_the_same_length_and_time_with_other_content_is_a_change(tmp_path: Path) -> None:
    assert "etc/edited" in _changes(tmp_path, _tar(BASE), _tar([("etc/edited", "BEFORE")]))
    assert _changes(tmp_path, _tar(BASE), _tar([("etc/edited", "before")])) == {}
    assert _changes(tmp_path, _tar(BASE), _tar([("etc/twin", "same")])) == {}


@pytest.mark.parametrize(("mode", "uid"), [(0o600, 0), (0o644, 7)])
def test_owner_and_mode_count(tmp_path: Path, mode: int, uid: int) -> None:
    changed = _changes(tmp_path, _tar(BASE), _tar([("etc/edited", "before")], mode=mode, uid=uid))[
        "etc/edited"
    ]
    assert (changed.mode, changed.uid) == (mode, uid)


def test_two_ways_to_list_one_change_give_one_layer(cache: Cache) -> None:
    short = _tar([("etc/new", "n"), ("etc/link", "=> etc/new")], mtime=5)
    full: list[Row] = [
        ("etc", None),
        ("etc/link", "n"),
        ("etc/new", "=> etc/link"),
        ("etc/same", "same"),
        ("usr", None),
        ("tmp/x", "now"),
        ("var/log", None),
        ("var/log/x", "today"),
    ]
    other = _tar([("etc/new", "m"), ("etc/link", "=> etc/new")])
    made = [
        layer_normalisation.make_os_layer(
            cache, f"key{number}", "gzip", _exported(_tar(BASE), data)
        ).digest
        for number, data in enumerate((short, _tar(full, prefix="./"), other))
    ]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    "path",
    [
        "etc/hosts",
        "etc/machine-id",
        "etc/passwd-",
        "etc/.pwd.lock",
        "run/secrets/rosetta-ca",
        "run/x",
        "tmp/x",
        "var/log/apt/history.log",
        "var/lib/apt/lists/lock",
        "var/lib/dpkg/status-old",
        "var/lib/dpkg/lock-frontend",
        "var/cache/apt/pkgcache.bin",
        "var/cache/ldconfig/aux-cache",
        "var/cache/debconf/config.dat-old",
        "root/.bash_history",
    ],
)
def test_what_says_when_and_where_is_dropped(tmp_path: Path, path: str) -> None:
    assert _changes(tmp_path, _tar(BASE), _tar([(path, "now")])) == {}
    assert (
        _changes(
            tmp_path,
            _tar([*BASE, (path, "base's")]),
            _tar([(f"{path.rpartition('/')[0]}/.wh.{path.rpartition('/')[2]}", "")]),
        )
        == {}
    )


@pytest.mark.parametrize(
    "path",
    [
        "etc/passwd",
        "var/lib/dpkg/status",
        "var/cache/debconf/config.dat",
        "etc/ld.so.cache",
        "usr/share/root/x",
        "etc/hosts.allow",
    ],
)
def test_what_packages_own_stays(tmp_path: Path, path: str) -> None:
    assert path in _changes(tmp_path, _tar(BASE), _tar([(path, "content")]))


def test_bytecode_that_goes_by_times_is_dropped(tmp_path: Path) -> None:
    magic = b"\xcb\x0d\x0d\x0a"
    above = _tar(
        [
            ("usr/a.pyc", magic + bytes(4) + b"timesize"),
            ("usr/b.pyc", magic + b"\1\0\0\0" + b"hashhash"),
            ("usr/c.pyc", magic + b"\3\0\0\0" + b"hashhash"),
            ("usr/d.pyc", b""),
        ]
    )
    assert set(_changes(tmp_path, _tar(BASE), above)) == {"usr", "usr/b.pyc", "usr/c.pyc"}


def test_folders_that_were_emptied_and_filled_again(tmp_path: Path) -> None:
    opaque = _tar(
        [("etc/dir", None), ("etc/dir/.wh..wh..opq", ""), ("etc/dir/b", "b"), ("etc/dir/c", "c")]
    )
    assert set(_changes(tmp_path, _tar(BASE), opaque)) == {
        "etc",
        "etc/dir",
        "etc/dir/.wh.a",
        "etc/dir/c",
    }
    assert set(_changes(tmp_path, _tar(BASE), _tar([("etc/.wh.dir", "")]))) == {
        "etc",
        "etc/.wh.dir",
    }


def test_several_steps_count_as_one(tmp_path: Path) -> None:
    first, second = (
        _tar([("etc/new", "1"), ("etc/short-lived", "x"), ("etc/.wh.gone", "")]),
        _tar([("etc/new", "2"), ("etc/.wh.short-lived", ""), ("etc/gone", "back")]),
    )
    changed = _changes(tmp_path, _tar(BASE), first, second)
    assert set(changed) == {"etc", "etc/new", "etc/gone"}


def test_a_layer_that_exists_is_not_read_again(cache: Cache) -> None:
    made = layer_normalisation.make_os_layer(
        cache, "key", "gzip", _exported(_tar(BASE), _tar([("etc/new", "n")]))
    )

    def refuse() -> object:
        raise AssertionError("was opened")

    assert (
        layer_normalisation.make_os_layer(
            cache,
            "key",
            "gzip",
            image_archive.ExportedImage({}, (), (refuse, refuse), 1),  # type: ignore[arg-type]
        )
        == made
    )


def _archive(
    path: Path, *, config: Mapping[str, object] | None = None, layers: int = 2, cut: int = 0
) -> Path:
    files = {f"{number}.tar": _tar([("etc/x", str(number))]) for number in range(layers)}
    document = config or {
        "architecture": "amd64",
        "config": {"Env": ["A=b"]},
        "rootfs": {"diff_ids": ["sha256:0", "sha256:1"]},
        "history": [{"created_by": "RUN sh install-packages"}],
    }
    files |= {
        "config": json.dumps(document).encode(),
        "manifest.json": json.dumps([{"Config": "config", "Layers": list(files)}]).encode(),
    }
    data = _tar(list(files.items()))
    path.write_bytes(data[: len(data) - cut])
    return path


def test_an_archive_is_read(tmp_path: Path) -> None:
    exported = image_archive.read_built_archive(_archive(tmp_path / "a.tar"))
    assert (exported.base_count, exported.env, exported.diff_ids) == (
        1,
        ("A=b",),
        ("sha256:0", "sha256:1"),
    )
    # Each is opened for itself, also twice at a time.
    with (
        exported.layers[0]() as first,
        exported.layers[0]() as again,
        exported.layers[1]() as other,
    ):
        assert first.read() == again.read() != other.read()


def test_a_step_that_changed_nothing_has_no_layer(tmp_path: Path) -> None:
    config = {
        "rootfs": {"diff_ids": ["sha256:0", "sha256:1"]},
        "history": [
            {"created_by": "x"},
            {"created_by": "RUN install-packages", "empty_layer": True},
        ],
    }
    assert (
        image_archive.read_built_archive(_archive(tmp_path / "a.tar", config=config)).base_count
        == 2
    )


@pytest.mark.parametrize("broken", ["cut", "layers", "step", "json"])
def test_an_archive_that_is_not_one_is_refused(tmp_path: Path, broken: str) -> None:
    path = _archive(
        tmp_path / "a.tar",
        layers=1 if broken == "layers" else 2,
        cut=20_000 if broken == "cut" else 0,
        config={
            "rootfs": {"diff_ids": ["sha256:0", "sha256:1"]},
            "history": [{"created_by": "RUN make"}],
        }
        if broken == "step"
        else {"x": 1}
        if broken == "json"
        else None,
    )
    with errors.expect_user_error(errors.DAMAGED, remedy="storage"):
        image_archive.read_built_archive(path)
