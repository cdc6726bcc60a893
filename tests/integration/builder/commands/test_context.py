"""The folders for Dockerfile.t5x and Dockerfile.pax, and that what these make is what the builder writes itself."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.images import image_settings, layer_assignment
from builder.images.engines import image_archive
from builder.images.oci import blob_compression, layout
from builder.pipeline.build_context import FOLDERS, render_build_command, render_labels
from tests.support import container_engines, errors, image_bases, small_distribution
from tests.support.package_index import serve_index
from tests.support.small_distribution import ROOT, Chain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.images.oci.oci_documents import Image

pytestmark = pytest.mark.engine

RECIPES = {"t5x": ROOT / "Dockerfile.t5x", "pax": ROOT / "Dockerfile.pax"}


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with serve_index() as index:
        made = small_distribution.make_distribution(tmp_path, index)
        status, _, stderr = image_bases.build_image(made, "--platform", f"linux/{image_bases.OWN}")
        assert status == 0, stderr
        yield made


def _context(chain: Chain, folder: Path) -> tuple[int, dict[str, Any], str]:
    common = [
        "--manifest",
        str(chain.folder / "manifest.yaml"),
        "--mirror",
        str(chain.mirror),
        "--json",
        "--base",
        f"oci:{chain.folder}/base-layout",
    ]
    argv = [
        sys.executable,
        "-I",
        "-c",
        small_distribution._MAIN,
        str(ROOT),
        "context",
        "thing",
        str(folder),
        *common,
    ]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=chain.environment(), cwd=chain.folder
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def _tree(stream: Any, found: dict[str, tuple[Any, ...]]) -> None:
    """What a layer says of each path, but for times: an engine gives files its own."""
    with (
        blob_compression.decompress_stream(stream) as plain,
        tarfile.open(fileobj=plain, mode="r|") as archive,
    ):
        for member in archive:
            data = archive.extractfile(member) if member.isreg() else None
            name = member.name.strip("/")
            name = name.removeprefix("./")
            found[name] = (
                member.type,
                member.mode & 0o7777,
                member.uid,
                member.gid,
                member.linkname,
                hashlib.sha256(data.read()).hexdigest() if data else "",
            )


def _of_image(folder: Path) -> tuple[Image, dict[str, tuple[Any, ...]]]:
    read = layout.read_layout(folder)
    (image,) = read.index.images
    found: dict[str, tuple[Any, ...]] = {}
    for one in image.layers:
        if one.name in layer_assignment.LAYERS:
            with open(layout.blob_path(folder, one), "rb") as stream:
                _tree(stream, found)
    return image, found


def test_the_folders_hold_the_layers(chain: Chain) -> None:
    folder = chain.folder / "context"
    status, document, stderr = _context(chain, folder)
    assert status == 0, stderr
    _, wanted = _of_image(chain.folder / "image")
    found = {}
    for name in FOLDERS:
        for path in (folder / name).rglob("*"):
            if path.is_symlink() or not path.is_dir():
                found[str(path.relative_to(folder / name))] = (
                    os.readlink(path)
                    if path.is_symlink()
                    else hashlib.sha256(path.read_bytes()).hexdigest()
                )
    files = {
        name: row[4] or row[5]
        for name, row in wanted.items()
        if row[0] != tarfile.DIRTYPE and name != "opt/rosetta/lock.json"
    }
    lock = (folder / "record/opt/rosetta/lock.json").read_text()
    assert json.loads(lock)["compression"] == "zstd"
    del found["opt/rosetta/lock.json"]
    changed = {name for name in files if files[name] != found.get(name)}
    # The context is made of zstd layers, whose digests lock.json lists, and what hangs on its text.
    assert changed <= {"opt/rosetta/sources/thing/PATCHES.json"}
    assert files.keys() == found.keys()
    assert (folder / "labels").read_text().startswith("--label=io.rosetta.accelerator=cpu\n")
    assert document["result"]["folder"] == str(folder)


def test_a_foreign_folder_is_refused(chain: Chain) -> None:
    folder = chain.folder / "context"
    folder.mkdir()
    (folder / "mine").touch()
    status, document, _ = _context(chain, folder)
    assert status == 2
    errors.check_error(errors.from_document(document), errors.EXISTS, where=folder)
    assert (folder / "mine").exists()


def test_the_printed_command_gives_the_engine_every_label_whole(tmp_path: Path) -> None:
    folder = tmp_path / "a folder's"
    folder.mkdir()
    labels = {
        "io.rosetta.te.version": "none: it needs CUDA",
        "quoted": 'it\'s "so" $HOME \\n *',
        "plain": "1",
    }
    (folder / "labels").write_text(render_labels(labels))
    (tmp_path / "docker").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "docker").chmod(0o755)
    command = render_build_command(folder, tmp_path / "Dockerfile.t5x", "t5x")
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    argv = done.stdout.splitlines()
    assert argv[:7] == [
        "build",
        "-f",
        f"{tmp_path}/Dockerfile.t5x",
        "--build-arg",
        "BASE=my-base",
        "-t",
        "my-t5x",
    ]
    assert argv[7:] == [
        str(folder),
        *(f"--label={key}={value}" for key, value in sorted(labels.items())),
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_sets_what_the_image_sets(name: str) -> None:
    text = RECIPES[name].read_text().replace("\\\n", " ")
    env = dict(
        pair.split("=", 1)
        for pair in next(
            re.findall(r"\S+=\S+", line) for line in text.splitlines() if line.startswith("ENV ")
        )
    )
    record = {"distribution": name}
    assert [f"{key}={value}" for key, value in env.items()] == image_settings.make_env()
    assert f"\nWORKDIR /{image_settings.choose_work_folder(record)}\n" in text
    assert json.loads(
        next(line for line in text.splitlines() if line.startswith("ENTRYPOINT ")).partition(" ")[2]
    ) == [image_settings.ENTRYPOINT]
    assert '\nCMD ["bash"]\n' in text
    assert re.findall(r"(?m)^COPY (\w+)/ /$", text) == list(FOLDERS)


def _build_by_recipe(name: str, folder: Path, base: str, tag: str) -> None:
    """Build the image of our Dockerfile with an engine, from a build context and a base."""
    argv = ["buildah", "bud", "--isolation", "chroot", "--layers=false"]
    if name == "docker":
        argv = ["docker", "build"]
    argv += ["--file", str(RECIPES["t5x"]), "--build-arg", f"BASE={base}", "--tag", tag]
    argv += [*(folder / "labels").read_text().split("\n")[:-1], str(folder)]
    settings = {"DOCKER_BUILDKIT": "1", "BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, **settings}
    )
    assert done.returncode == 0, done.stderr


def _compare_settings(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Assert that the engine's image has the settings and the labels of the builder's image."""
    for key in ("Env", "Entrypoint", "Cmd"):
        assert theirs[key] == ours[key]
    assert ours["Labels"].items() <= theirs["Labels"].items()


@pytest.mark.parametrize("name", ["docker", "buildah"])
def test_an_engine_makes_the_same_content_of_the_recipe(chain: Chain, name: str) -> None:
    """The engine's COPY steps add the same paths, modes, owners, targets and bytes as the builder."""
    engine = container_engines.need_engine(name, builds=True)
    folder = chain.folder / "context"
    status, _, stderr = _context(chain, folder)
    assert status == 0, stderr
    place = chain.folder / "zstd"
    status, _, stderr = image_bases.build_image(
        chain,
        "--platform",
        f"linux/{image_bases.OWN}",
        "--compression",
        "zstd",
        output=f"oci:{place}",
    )
    assert status == 0, stderr
    image, wanted = _of_image(place)
    base, tag = "localhost/rosetta-test-context:base", "localhost/rosetta-test-context:made"
    try:
        container_engines.import_layout(engine, chain.folder / "base-layout", base, image_bases.OWN)
        _build_by_recipe(name, folder, base, tag)
        engine.save(tag, chain.folder / "made.tar")
        made = image_archive.read_archive(chain.folder / "made.tar")
        built: dict[str, tuple[Any, ...]] = {}
        for open_ in made.layers[1:]:
            with open_() as stream:
                _tree(stream, built)
        files = {path: row for path, row in built.items() if row[0] != tarfile.DIRTYPE}
        assert files == {path: row for path, row in wanted.items() if row[0] != tarfile.DIRTYPE}
        folders = {path: row for path, row in wanted.items() if row[0] == tarfile.DIRTYPE}
        assert {path: row for path, row in built.items() if path in folders} == folders
        _compare_settings(made.config["config"], json.loads(image.config)["config"])
    finally:
        engine.remove([tag, base])
