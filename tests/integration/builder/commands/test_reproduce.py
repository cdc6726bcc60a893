"""An image is built again from its own lock: the same, or the first difference by its name."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.core.cache import Cache
from builder.images.oci import layer, layout, oci_documents
from builder.images.oci.tar_entry import Entry
from tests.support import container_engines, image_bases, small_distribution
from tests.support.package_index import serve_index
from tests.support.small_distribution import ROOT, Chain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.engine


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with serve_index() as index:
        made = small_distribution.make_distribution(tmp_path, index)
        status, _, stderr = image_bases.build_image(made)
        assert status == 0, stderr
        yield made


def _reproduce(chain: Chain, image: str = "", *more: str) -> tuple[int, dict[str, Any], str]:
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
        "reproduce",
        image or f"oci:{chain.folder}/image",
        *common,
        *more,
    ]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=chain.environment(), cwd=chain.folder
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def _altered(
    chain: Chain,
    name: str,
    alter: Callable[[Entry], Entry | None],
    *,
    config: Callable[[dict[str, Any]], None] | None = None,
) -> str:
    """A copy of the image in which one layer's entries were changed."""
    read, cache = layout.read_layout(chain.folder / "image"), Cache(chain.folder / "altered-cache")
    images = []
    for image in read.index.images:
        layers = []
        for one in image.layers:
            blob = layout.blob_path(read.folder, one)

            def change(entries: list[Entry], altered: bool = one.name == name) -> list[Entry]:
                kept = map(alter, entries) if altered else entries
                return [entry for entry in kept if entry is not None]

            layers.append(
                layer.rewrite_layer(
                    cache,
                    f"{one.diff_id}-{name}",
                    one.name,
                    "gzip",
                    lambda blob=blob: open(blob, "rb"),  # type: ignore[misc]  # noqa: SIM115
                    change,
                )
            )
        document = json.loads(image.config)
        if config:
            config(document["config"])
        images.append(
            oci_documents.make_image(
                image.architecture,
                layers,
                document["created"],
                document["config"],
                json.loads(image.manifest)["annotations"],
            )
        )
    layout.write_layout(
        cache,
        oci_documents.make_index(images, json.loads(read.index.document)["annotations"]),
        chain.folder / "altered",
        name="altered",
    )
    return f"oci:{chain.folder}/altered"


def test_the_same(chain: Chain) -> None:
    status, document, stderr = _reproduce(chain)
    assert status == 0, stderr
    assert document["result"]["same"] is True
    assert (
        document["result"]["digest"]
        == document["result"]["rebuilt"]
        == layout.read_layout(chain.folder / "image").index.digest
    )
    assert [
        path.name for path in (chain.cache / "blobs").iterdir() if path.name.startswith(".tmp")
    ] == []


def test_it_does_not_take_the_layers_it_is_to_compare_with(chain: Chain) -> None:
    """A layer that was wrong from the start, in the image and in the cache alike, is found."""

    def alter(entry: Entry) -> Entry:
        return (
            Entry(entry.path, "file", 0o644, data=b"x = 1\n", size=6)
            if entry.path.endswith("site-packages/helper.py")
            else entry
        )

    image = _altered(chain, "python-3", alter)
    for record in (chain.cache / "layers").glob("*.gzip.json"):
        known = json.loads(record.read_text())
        if known["name"] == "python-3":
            wrong = next(
                one
                for each in layout.read_layout(chain.folder / "altered").index.images
                for one in each.layers
                if one.name == "python-3"
            )
            target = chain.cache / "blobs/sha256" / wrong.digest[7:]
            target.write_bytes(layout.blob_path(chain.folder / "altered", wrong).read_bytes())
            record.write_text(
                json.dumps(
                    {**known, "digest": wrong.digest, "diff_id": wrong.diff_id, "size": wrong.size}
                )
            )
    status, document, stderr = _reproduce(chain, image)
    assert status == 1, stderr
    assert "layer python-3: " in document["result"]["difference"]
    assert "site-packages/helper.py: another size and content" in document["result"]["difference"]


@pytest.mark.parametrize(
    ("name", "alter", "word"),
    [
        (
            "sources",
            lambda entry: None if entry.path.endswith("thing/__init__.py") else entry,
            "opt/thing/thing/__init__.py is in the rebuilt image only",
        ),
        (
            "sources",
            lambda entry: (
                Entry(
                    entry.path,
                    "file",
                    0o755,
                    entry.source,
                    entry.data,
                    "",
                    entry.size,
                    offset=entry.offset,
                )
                if entry.path == "opt/thing/LICENSE"
                else entry
            ),
            "opt/thing/LICENSE: another mode",
        ),
        (
            "programs",
            lambda entry: (
                Entry(entry.path, "link", 0o777, target="/bin/false")
                if entry.path == "opt/rosetta/bin/rosetta"
                else entry
            ),
            "opt/rosetta/bin/rosetta: another type",
        ),
    ],
)
def test_the_first_difference_is_named(
    chain: Chain, name: str, alter: Callable[[Entry], Entry | None], word: str
) -> None:
    status, document, stderr = _reproduce(chain, _altered(chain, name, alter))
    assert status == 1, stderr
    assert f"layer {name}: " in document["result"]["difference"]
    assert word in document["result"]["difference"]


def test_another_setting_is_named(chain: Chain) -> None:
    status, document, stderr = _reproduce(
        chain,
        _altered(
            chain, "", lambda entry: entry, config=lambda settings: settings.update(User="1000")
        ),
    )
    assert status == 1, stderr
    assert document["result"]["difference"].endswith(", config: config")


def test_a_checkout_with_other_inputs_says_which(chain: Chain) -> None:
    chain.write_patch("good evening")
    status, document, _ = _reproduce(chain)
    assert status == 2
    assert "sources.thing.patched_commit" in document["error"]["what"]
    assert "check out" in document["error"]["do"]


def test_what_is_no_image_of_ours(chain: Chain) -> None:
    status, document, _ = _reproduce(chain, f"oci:{chain.folder}/base-layout")
    assert status == 2
    assert "lock.json" in document["error"]["what"]


@pytest.mark.parametrize("name", ["docker", "buildah"])
def test_an_image_in_an_engine(chain: Chain, name: str) -> None:
    engine = container_engines.need_engine(name)
    tag = f"localhost/rosetta-test-reproduce:{chain.folder.name.replace('[', '-').replace(']', '')}".lower()
    own = ("--platform", f"linux/{image_bases.OWN}", "--engine", name)
    for variable in ("DOCKER_HOST", "DOCKER_CONFIG"):
        if value := os.environ.get(variable):
            chain.extra[variable] = value
    try:
        status, document, stderr = image_bases.build_image(chain, *own, output=f"image:{tag}")
        assert status == 0, stderr
        status, document, stderr = _reproduce(chain, tag, "--engine", name)
        assert status == 0, (document, stderr)
    finally:
        engine.remove([tag])


def test_members_are_read_as_they_are() -> None:
    """The comparison sees what a tar can say of a file."""
    from builder.pipeline.reproduction import _read_entries

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        entry = tarfile.TarInfo("a")
        entry.size, entry.mode, entry.uid = 1, 0o600, 7
        archive.addfile(entry, io.BytesIO(b"x"))
    raw.seek(0)
    ((path, contents),) = _read_entries(raw).items()
    assert path == "a"
    assert (contents.mode, contents.owner) == (0o600, (7, 0))
