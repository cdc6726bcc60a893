"""Views over stacks of layers."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.core.cache import Cache
from builder.images.base import root_file_system
from builder.images.oci import layer
from builder.images.oci.tar_entry import Entry, make_file, make_folder, make_link


def _view(cache: Cache, *layers: Sequence[Entry], compression: str = "gzip") -> dict[str, Entry]:
    made = [
        layer.write_layer(
            cache, f"key{number}", "base", compression, functools.partial(list, entries)
        )
        for number, entries in enumerate(layers)
    ]
    return root_file_system.merge_layers(
        [layer.blob_path(cache, each.digest) for each in made], lambda _: True
    )


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_later_layers_count(cache: Cache, compression: str) -> None:
    shown = _view(
        cache,
        [make_file("a/x", "old"), make_file("a/y", "kept")],
        [make_file("a/x", "new", 0o755)],
        compression=compression,
    )
    assert shown["a/x"].data == b"new"
    assert shown["a/x"].mode == 0o755
    assert shown["a/y"].data == b"kept"


def test_whiteouts_hide_files_and_folders(cache: Cache) -> None:
    shown = _view(
        cache,
        [make_file("a/x/1", ""), make_file("a/xy", ""), make_file("top", "")],
        [root_file_system.make_whiteout("a/x"), root_file_system.make_whiteout("top")],
    )
    assert sorted(shown) == ["a", "a/xy"]


def test_opaque_folders_show_only_their_own(cache: Cache) -> None:
    shown = _view(
        cache,
        [make_file("a/x/1", ""), make_file("b", "")],
        [make_file("a/.wh..wh..opq", ""), make_file("a/z", "")],
    )
    assert sorted(shown) == ["a", "a/z", "b"]


def test_a_file_in_place_of_a_folder_hides_it(cache: Cache) -> None:
    assert sorted(_view(cache, [make_file("a/x/1", "")], [make_link("a/x", "/b")])) == ["a", "a/x"]


def test_only_what_is_wanted_has_content(cache: Cache) -> None:
    made = layer.write_layer(
        cache, "key", "base", "gzip", lambda: [make_file("a", "1"), make_file("b", "2")]
    )
    shown = root_file_system.merge_layers(
        [layer.blob_path(cache, made.digest)], lambda entry: entry.path == "b"
    )
    assert (shown["a"].data, shown["b"].data) == (None, b"2")


def test_links_are_followed_inside(cache: Cache) -> None:
    shown = _view(
        cache,
        [
            make_link("lib", "usr/lib"),
            make_link("lib64", "/usr/lib64"),
            make_file("usr/lib64/x.so.1", ""),
            make_link("usr/lib/x.so", "../lib64/x.so.1"),
            make_link("loop", "loop"),
            make_link("out", "../../../lib/x.so"),
        ],
    )
    for path in ("lib/x.so", "lib64/x.so.1", "usr/lib/x.so", "out", "/lib/./x.so"):
        assert root_file_system.resolve_path(shown, path) == "usr/lib64/x.so.1"
    assert [
        root_file_system.resolve_path(shown, path) for path in ("loop", "none", "lib/none/x")
    ] == [
        "",
        "",
        "",
    ]


def test_what_is_gone_becomes_a_whiteout() -> None:
    lower = [
        make_folder("a"),
        make_file("a/x", ""),
        make_folder("b"),
        make_file("b/y", ""),
        make_file("c", ""),
    ]
    assert [
        each.path
        for each in root_file_system.find_removed(lower, [make_folder("a"), make_file("c", "")])
    ] == [
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
        assert root_file_system.is_dropped(make_file(path, "x")), path
    for entry in (
        make_file("etc/passwd", ""),
        make_folder("var/log/apt"),
        make_folder("var/cache/apt"),
        make_file("usr/share/doc/git/copyright", ""),
        make_file("usr/lib/python3/x.py", ""),
    ):
        assert not root_file_system.is_dropped(entry), entry.path


def test_unpacked_it_can_be_read(cache: Cache, tmp_path: Path) -> None:
    shown = _view(
        cache,
        [
            make_file("usr/bin/x", "hello", 0o755),
            make_link("bin", "/usr/bin"),
            Entry("usr/bin/y", "hard", 0o755, target="usr/bin/x"),
        ],
    )
    root_file_system.unpack_files(shown, tmp_path / "root")
    assert (tmp_path / "root/bin/y").read_text() == "hello"
    assert os.access(tmp_path / "root/bin/x", os.X_OK)
    assert not os.readlink(tmp_path / "root/bin").startswith("/")
