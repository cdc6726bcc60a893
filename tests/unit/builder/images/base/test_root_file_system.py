"""Views over stacks of layers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.core.cache import Cache
from builder.images.base import root_file_system
from builder.images.oci import layer
from builder.images.oci.tar_entry import Entry, file, folder, link


def _view(cache: Cache, *layers: Sequence[Entry], compression: str = "gzip") -> dict[str, Entry]:
    made = [
        layer.write(cache, f"key{number}", "base", compression, lambda entries=entries: entries)  # type: ignore[misc]
        for number, entries in enumerate(layers)
    ]
    return root_file_system.view([layer.blob(cache, each.digest) for each in made], lambda _: True)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_later_layers_count(cache: Cache, compression: str) -> None:
    shown = _view(
        cache,
        [file("a/x", "old"), file("a/y", "kept")],
        [file("a/x", "new", 0o755)],
        compression=compression,
    )
    assert shown["a/x"].data == b"new"
    assert shown["a/x"].mode == 0o755
    assert shown["a/y"].data == b"kept"


def test_whiteouts_hide_files_and_folders(cache: Cache) -> None:
    shown = _view(
        cache,
        [file("a/x/1", ""), file("a/xy", ""), file("top", "")],
        [root_file_system.whiteout("a/x"), root_file_system.whiteout("top")],
    )
    assert sorted(shown) == ["a", "a/xy"]


def test_opaque_folders_show_only_their_own(cache: Cache) -> None:
    shown = _view(
        cache, [file("a/x/1", ""), file("b", "")], [file("a/.wh..wh..opq", ""), file("a/z", "")]
    )
    assert sorted(shown) == ["a", "a/z", "b"]


def test_a_file_in_place_of_a_folder_hides_it(cache: Cache) -> None:
    assert sorted(_view(cache, [file("a/x/1", "")], [link("a/x", "/b")])) == ["a", "a/x"]


def test_only_what_is_wanted_has_content(cache: Cache) -> None:
    made = layer.write(cache, "key", "base", "gzip", lambda: [file("a", "1"), file("b", "2")])
    shown = root_file_system.view([layer.blob(cache, made.digest)], lambda entry: entry.path == "b")
    assert (shown["a"].data, shown["b"].data) == (None, b"2")


def test_links_are_followed_inside(cache: Cache) -> None:
    shown = _view(
        cache,
        [
            link("lib", "usr/lib"),
            link("lib64", "/usr/lib64"),
            file("usr/lib64/x.so.1", ""),
            link("usr/lib/x.so", "../lib64/x.so.1"),
            link("loop", "loop"),
            link("out", "../../../lib/x.so"),
        ],
    )
    for path in ("lib/x.so", "lib64/x.so.1", "usr/lib/x.so", "out", "/lib/./x.so"):
        assert root_file_system.resolve(shown, path) == "usr/lib64/x.so.1"
    assert [root_file_system.resolve(shown, path) for path in ("loop", "none", "lib/none/x")] == [
        "",
        "",
        "",
    ]


def test_what_is_gone_becomes_a_whiteout() -> None:
    lower = [folder("a"), file("a/x", ""), folder("b"), file("b/y", ""), file("c", "")]
    assert [each.path for each in root_file_system.gone(lower, [folder("a"), file("c", "")])] == [
        "a/.wh.x",
        ".wh.b",
    ]


def test_nothing_of_the_machine_is_kept() -> None:
    for path in (
        "etc/resolv.conf",
        "etc/hostname",
        "etc/hosts",
        "etc/machine-id",
        "var/log/dpkg.log",
        "tmp/x",
        "var/cache/apt/pkgcache.bin",
        "etc/apt/sources.list",
        "usr/bin/qemu-aarch64-static",
    ):
        assert root_file_system.dropped(file(path, "x")), path
    for entry in (
        file("etc/passwd", ""),
        folder("var/log/apt"),
        folder("var/cache/apt"),
        file("usr/share/doc/git/copyright", ""),
        file("usr/lib/python3/x.py", ""),
    ):
        assert not root_file_system.dropped(entry), entry.path


def test_unpacked_it_can_be_read(cache: Cache, tmp_path: Path) -> None:
    shown = _view(
        cache,
        [
            file("usr/bin/x", "hello", 0o755),
            link("bin", "/usr/bin"),
            Entry("usr/bin/y", "hard", 0o755, target="usr/bin/x"),
        ],
    )
    root_file_system.unpack(shown, tmp_path / "root")
    assert (tmp_path / "root/bin/y").read_text() == "hello"
    assert os.access(tmp_path / "root/bin/x", os.X_OK)
    assert not os.readlink(tmp_path / "root/bin").startswith("/")
