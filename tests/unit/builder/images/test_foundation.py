"""The notes of what an image has below the package rosetta."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from builder.core.cache import Cache
from builder.core.command_context import Context
from builder.images import foundation
from builder.images.foundation import Foundation, Foundations, Notes
from builder.images.oci import layer
from builder.images.oci.tar_entry import make_file
from builder.packages.python_interpreter import Interpreter
from rosetta.core import errors as core_errors

REQUEST = {"distribution": "thing"}


@pytest.fixture
def checkout(tmp_path: Path) -> Context:
    """A checkout with one file of every kind that decides the lower layers."""
    root = tmp_path / "checkout"
    for name in (
        "manifest.yaml",
        "Dockerfile.base",
        "LICENSE",
        "builder/module.py",
        "docker/script",
        "locks/lock.txt",
        "patches/series",
        "rosetta/core/errors.py",
        "rosetta/core/never_imported.py",
        "rosetta/core/data.yaml",
        "rosetta/known_issues.yaml",
        "rosetta/t5x/network.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("before")
    return Context(root, root / "manifest.yaml", Cache(tmp_path / "cache"))


def _write_python(folder: Path) -> None:
    (folder / "python").write_text("#!/bin/sh")


def _make_foundations(cache: Cache) -> Foundations:
    folder = cache.ensure_folder("base", "python-key", _write_python)
    lower = layer.write_layer(cache, "key", "base", "zstd", lambda: [make_file("a", "text")])
    python = Interpreter(folder / "python", "3.13", "3.13.5", "cpython-313")
    record = {"architecture": "amd64", "sources": {"t5x": {"patches": []}}}
    found = Foundation(record, (lower,), ("LANG=C.UTF-8",), ("MIT",), python)
    return Foundations({"amd64": found}, "zstd", is_locked=True)


def _named(context: Context) -> list[Path]:
    return [context.root / "locks", context.root / "patches"]


@pytest.fixture
def noted(checkout: Context, monkeypatch: pytest.MonkeyPatch) -> Foundations:
    """Foundations that are noted for the checkout."""
    monkeypatch.setenv("ROSETTA_BISECT_PACKAGE", str(checkout.root / "rosetta"))
    # As if this process ran from the checkout.
    monkeypatch.setattr(core_errors, "__file__", str(checkout.root / "rosetta/core/errors.py"))
    found = _make_foundations(checkout.cache)
    notes = Notes(checkout, REQUEST)
    inputs = notes.hash_inputs(_named(checkout))
    notes.write(found, inputs, notes.hash_inputs(_named(checkout)))
    return found


def test_a_later_build_finds_what_was_noted(checkout: Context, noted: Foundations) -> None:
    assert Notes(checkout, REQUEST).find() == noted


@pytest.mark.usefixtures("noted")
def test_another_request_or_checkout_has_notes_of_its_own(
    checkout: Context, tmp_path: Path
) -> None:
    assert Notes(checkout, {"distribution": "other"}).find() is None
    copy = tmp_path / "copy"
    shutil.copytree(checkout.root, copy)
    other = Context(copy, copy / "manifest.yaml", checkout.cache)
    assert Notes(other, REQUEST).find() is None


@pytest.mark.parametrize(
    "name",
    [
        "manifest.yaml",
        "Dockerfile.base",
        "LICENSE",
        "builder/module.py",
        "docker/script",
        "locks/lock.txt",
        "patches/series",
        "rosetta/core/errors.py",
        "rosetta/core/data.yaml",
        "rosetta/known_issues.yaml",
    ],
)
def test_every_input_counts(checkout: Context, noted: Foundations, name: str) -> None:
    file = checkout.root / name
    file.write_text("after!")
    assert Notes(checkout, REQUEST).find() is None
    file.write_text("before")
    assert Notes(checkout, REQUEST).find() == noted
    file.unlink()
    assert Notes(checkout, REQUEST).find() is None


@pytest.mark.usefixtures("noted")
def test_a_new_file_and_a_mode_count(checkout: Context) -> None:
    added = checkout.root / "patches/0001.patch"
    added.write_text("a patch")
    assert Notes(checkout, REQUEST).find() is None
    added.unlink()
    (checkout.root / "docker/script").chmod(0o755)
    assert Notes(checkout, REQUEST).find() is None


@pytest.mark.parametrize("name", ["rosetta/t5x/network.py", "rosetta/core/never_imported.py"])
def test_an_edit_that_the_lower_layers_do_not_depend_on(
    checkout: Context, noted: Foundations, name: str
) -> None:
    (checkout.root / name).write_text("after!")
    assert Notes(checkout, REQUEST).find() == noted


def test_an_input_that_changes_during_the_build_is_not_noted(checkout: Context) -> None:
    found = _make_foundations(checkout.cache)
    notes = Notes(checkout, REQUEST)
    before = notes.hash_inputs(_named(checkout))
    (checkout.root / "patches/series").write_text("after!")
    notes.write(found, before, notes.hash_inputs(_named(checkout)))
    assert notes.find() is None


def test_damage_in_the_cache_is_noticed(checkout: Context, noted: Foundations) -> None:
    cache, notes = checkout.cache, Notes(checkout, REQUEST)
    blob = layer.blob_path(cache, noted.by_architecture["amd64"].layers[0].digest)
    state = os.stat(blob)
    os.utime(blob)  # as an editor leaves it
    assert notes.find() is None
    os.utime(blob, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert notes.find() == noted
    program = noted.by_architecture["amd64"].python.path
    state = os.stat(program)
    program.write_text("#!/bin/rc")  # of the same size and time
    os.utime(program, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert notes.find() is None


@pytest.mark.usefixtures("noted")
def test_a_damaged_note_is_ignored(checkout: Context) -> None:
    (stamp,) = (checkout.cache.root / "stamps").glob("foundation-*.json")
    stamp.write_text(stamp.read_text().replace("LANG=", "LONG="))
    assert Notes(checkout, REQUEST).find() is None


def test_missing_paths_have_an_empty_hash(tmp_path: Path) -> None:
    assert foundation._hash_paths([str(tmp_path / "missing")]) == {str(tmp_path / "missing"): ""}
