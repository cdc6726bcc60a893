"""Which base is taken; what is in the cache needs neither engine nor apt."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.core.cache import Cache, stage_key
from builder.core.cache_records import write_stamp
from builder.core.command_context import Context
from builder.core.manifest import Manifest
from builder.images.base import base_image, debian_bootstrap, hash_based_bytecode
from builder.images.engines import dockerfile_step
from builder.images.oci import layer
from builder.images.oci.tar_entry import Entry, make_file
from builder.packages import debian_lock, debian_resolution
from builder.packages.debian_lock import BaseLock, Deb
from tests.support import debian_packages, errors

DEB = Deb("thing", "1.0", "all", "pool/main/t/thing/thing_1.0_all.deb", "a" * 64, 10, "os")
IMAGE = "debian:trixie-slim"
DIGEST = "sha256:" + "d" * 64


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """The real manifest, on a machine with no program at all."""
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return debian_packages.load_manifest(tmp_path)


def _resolve(
    cache: Cache,
    loaded: Manifest,
    asked: str = "",
    architectures: Sequence[str] = ("amd64",),
    compression: str = "gzip",
    line: str = "current",
    *,
    offline: bool = False,
) -> dict[str, base_image.Base]:
    context = Context(loaded.root, loaded.root / "manifest.yaml", cache, offline)
    return base_image.resolve_bases(context, loaded, line, asked, architectures, "", compression)


def _lock(loaded: Manifest, architecture: str = "amd64", **changes: Any) -> BaseLock:
    lock = replace(
        BaseLock(
            "trixie",
            "trixie",
            architecture,
            debian_lock.compute_inputs_key(loaded, "trixie", architecture),
            (),
            (DEB,),
        ),
        **changes,
    )
    debian_lock.lock_path(loaded, "trixie", architecture).write_text(
        debian_lock.render_lock(lock), encoding="utf-8"
    )
    return lock


def _system(architecture: str, **parts: Any) -> list[Entry]:
    found = debian_packages.list_system_files(**parts)
    if architecture == "amd64":
        return found
    libc = debian_packages.FACTS["libc"]
    return debian_packages.list_system_files(
        libc=libc[:18] + (183).to_bytes(2, "little") + libc[20:], **parts
    )


def _bootstrapped(cache: Cache, lock: BaseLock, compression: str = "gzip", **parts: Any) -> None:
    """As if mmdebstrap had run for this lock."""
    keys = debian_bootstrap.compute_layer_keys(lock, debian_lock.ROOT)
    layer.write_layer(
        cache, keys["base"], "base", compression, lambda: _system(lock.architecture, **parts)
    )
    layer.write_layer(
        cache, keys["os"], "os", compression, lambda: [make_file("usr/bin/git", lock.architecture)]
    )


def _pulled(cache: Cache, digest: str = DIGEST, **parts: Any) -> None:
    """As if an engine had built Dockerfile.base on the image of this digest."""
    layer.write_layer(
        cache, "k1", "base", "gzip", lambda: debian_packages.list_system_files(**parts)
    )
    layer.write_layer(cache, "k2", "os", "gzip", lambda: [make_file("usr/bin/git", "engine")])
    key = stage_key(
        "base",
        {
            "image": digest,
            "architecture": "amd64",
            "recipe": dockerfile_step.hash_recipe(debian_lock.ROOT),
            "version": 1,
            "bytecode": hash_based_bytecode.RULES_VERSION,
        },
    )
    env = [
        "PATH=/x",
        "LANG=C.UTF-8",
        "NVIDIA_VISIBLE_DEVICES=none",
        "PYTHONPATH=/x",
        "XLA_FLAGS=x",
        "CUDA_VERSION=13.0",
    ]
    write_stamp(
        cache.path("stamps", f"base-{key}.json"),
        {"layers": [["base", "k1"], ["os", "k2"]], "env": env},
    )


def test_what_is_locked_is_taken(cache: Cache, loaded: Manifest) -> None:
    lock = _lock(loaded)
    _bootstrapped(cache, lock)
    found = _resolve(cache, loaded)["amd64"]
    assert (found.name, found.digest, found.python, found.python_full, found.glibc, found.env) == (
        "bootstrap:trixie",
        lock.digest,
        "3.13",
        "3.13.5",
        "2.41",
        (),
    )
    assert [each.name for each in found.layers] == ["base", "os"]
    assert _resolve(cache, loaded, "bootstrap", offline=True) == {"amd64": found}


def test_the_other_compression_is_the_same_content(cache: Cache, loaded: Manifest) -> None:
    _bootstrapped(cache, _lock(loaded), "zstd")
    one, other = (_resolve(cache, loaded, compression=each)["amd64"] for each in ("zstd", "gzip"))
    assert [each.diff_id for each in one.layers] == [each.diff_id for each in other.layers]
    assert [each.media_type.rpartition("+")[2] for each in other.layers] == ["gzip", "gzip"]
    assert replace(one, layers=()) == replace(other, layers=())


def test_the_machines_own_architecture_comes_along(cache: Cache, loaded: Manifest) -> None:
    for architecture in ("amd64", "arm64"):
        _bootstrapped(cache, _lock(loaded, architecture))
    assert sorted(_resolve(cache, loaded, architectures=["arm64"])) == ["amd64", "arm64"]


def test_one_python_on_all_architectures(cache: Cache, loaded: Manifest) -> None:
    _bootstrapped(cache, _lock(loaded))
    _bootstrapped(cache, _lock(loaded, "arm64"), version="3.12", python=b"\0003.12.3\0")
    with errors.expect_user_error(
        errors.DIFFERS, where="trixie", names=("3.13.5", "3.12.3"), remedy="--base"
    ):
        _resolve(cache, loaded, architectures=["amd64", "arm64"])


def test_an_image_whose_digest_was_recorded(cache: Cache, loaded: Manifest) -> None:
    _lock(loaded, packages=(), images=((IMAGE, DIGEST),))
    _pulled(cache)
    found = _resolve(cache, loaded)["amd64"]
    assert (found.name, found.digest, found.env) == (
        IMAGE,
        DIGEST,
        ("LANG=C.UTF-8", "CUDA_VERSION=13.0"),
    )
    assert _resolve(cache, loaded, IMAGE)["amd64"] == found


def test_packages_before_an_image_unless_it_is_named(cache: Cache, loaded: Manifest) -> None:
    _bootstrapped(cache, _lock(loaded, images=((IMAGE, DIGEST),)))
    _pulled(cache)
    assert [_resolve(cache, loaded, each)["amd64"].name for each in ("", IMAGE, "bootstrap")] == [
        "bootstrap:trixie",
        IMAGE,
        "bootstrap:trixie",
    ]


def test_an_image_by_digest_needs_no_record(cache: Cache, loaded: Manifest) -> None:
    _pulled(cache, version="3.12", python=b"\0003.12.3\0")
    found = _resolve(cache, loaded, f"nvidia/cuda:13.0@{DIGEST}")["amd64"]
    assert (found.python, found.digest) == ("3.12", DIGEST)


def test_a_base_that_will_not_do_is_refused(cache: Cache, loaded: Manifest) -> None:
    _pulled(cache, version="3.9", python=b"\0003.9.2\0")
    with errors.expect_user_error(
        errors.UNSUPPORTED, where=f"old@{DIGEST}", names=("3.11", "3.12", "3.13", "/usr/bin", "3.9")
    ) as caught:
        _resolve(cache, loaded, f"old@{DIGEST}")
    assert caught.value.where == f"old@{DIGEST}"


def test_a_lost_blob_is_not_taken_for_there(cache: Cache, loaded: Manifest) -> None:
    _pulled(cache)
    _resolve(cache, loaded, f"x@{DIGEST}")
    made = layer.find_layer(cache, "k2", "os", "gzip")
    assert made
    layer.blob_path(cache, made.digest).unlink()
    with errors.expect_user_error(errors.MISSING, where=f"x@{DIGEST}", remedy="--offline"):
        _resolve(cache, loaded, f"x@{DIGEST}", offline=True)


@pytest.mark.parametrize("name", ["--privileged", "a b", "x;id", "$(id)", "x@sha256:12 "])
def test_no_name_of_an_image(cache: Cache, loaded: Manifest, name: str) -> None:
    with errors.expect_user_error(errors.INVALID, where="--base", value=name):
        _resolve(cache, loaded, name)


def test_without_programs_it_says_which(cache: Cache, loaded: Manifest) -> None:
    _lock(loaded)
    with errors.expect_user_error(
        errors.MISSING, where="trixie", remedy=("apt-get install mmdebstrap", "--base IMAGE")
    ) as caught:
        _resolve(cache, loaded)
    assert "--base IMAGE" in caught.value.do
    with errors.expect_user_error(errors.MISSING, where="--engine", remedy="buildah"):
        _resolve(cache, loaded, "nvidia/cuda:13.0")
    with errors.expect_user_error(errors.MISSING, where="nvidia/cuda:13.0", remedy="--offline"):
        _resolve(cache, loaded, "nvidia/cuda:13.0", offline=True)


def test_nothing_locked_and_offline(
    cache: Cache, loaded: Manifest, capsys: pytest.CaptureFixture[str]
) -> None:
    with errors.expect_user_error(
        errors.MISSING, where="base-trixie-amd64.json", remedy="lock --base"
    ) as caught:
        _resolve(cache, loaded, offline=True)
    assert "lock --base" in caught.value.do
    assert capsys.readouterr().err == ""  # no engine is asked for


def test_a_line_without_a_base(cache: Cache, loaded: Manifest) -> None:
    lines = {name: each.model_copy(update={"base": None}) for name, each in loaded.lines.items()}
    other = loaded.model_copy(update={"lines": lines})
    other.__dict__["_root"] = loaded.root
    with errors.expect_user_error(errors.MISSING, where="line current", remedy="trixie"):
        _resolve(cache, other)


def _superseded(
    monkeypatch: pytest.MonkeyPatch, locked: BaseLock, version: str = "2.0"
) -> BaseLock:
    """Debian has superseded the locked package: its files are gone, and its suite has another version."""
    current = replace(locked, packages=(replace(DEB, version=version, sha256="c" * 64),))
    taken = debian_bootstrap.make_layers

    def layers(cache: Cache, lock: BaseLock, *arguments: Any, **options: Any) -> Any:
        if lock.digest == locked.digest:
            raise debian_lock.SupersededError(
                "the Debian mirror no longer has thing 1.0", "404", "python build.py lock --base"
            )
        return taken(cache, lock, *arguments, **options)

    monkeypatch.setattr(debian_bootstrap, "make_layers", layers)
    monkeypatch.setattr(debian_resolution, "resolve_packages", lambda *_: current)
    return current


def test_a_local_build_takes_current_packages_and_says_so(
    cache: Cache,
    loaded: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    locked = _lock(loaded)
    current = _superseded(monkeypatch, locked)
    _bootstrapped(cache, current)
    monkeypatch.setattr(
        debian_resolution, "refuse_older", lambda *_: None
    )  # asks dpkg, which is not on this PATH
    context = Context(loaded.root, loaded.root / "manifest.yaml", cache)
    found = base_image.resolve_bases(
        context, loaded, "current", "", ["amd64"], "", "gzip", allow_current=True
    )["amd64"]
    assert found.digest == current.digest
    assert found.replaced == (debian_resolution.Replacement("thing", "1.0", "2.0"),)
    assert "thing 1.0 -> 2.0" in capsys.readouterr().err


def test_any_other_build_stays_locked(
    cache: Cache, loaded: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bootstrapped(cache, _superseded(monkeypatch, _lock(loaded)))
    with pytest.raises(debian_lock.SupersededError):
        _resolve(cache, loaded)


def test_a_mirror_that_is_older_than_the_lock_is_refused() -> None:
    debian_packages.need_programs("dpkg")
    debian_resolution.refuse_older(
        debian_resolution.Replacement("thing", "1.0-1+deb13u2", "1.0-1+deb13u3"), "Debian"
    )
    debian_resolution.refuse_older(debian_resolution.Replacement("thing", "", "1.0"), "Debian")
    with errors.expect_user_error(errors.CONFLICT, value="1.0-1", names=("thing", "1.0-1+deb13u2")):
        debian_resolution.refuse_older(
            debian_resolution.Replacement("thing", "1.0-1+deb13u2", "1.0-1"), "Debian"
        )
