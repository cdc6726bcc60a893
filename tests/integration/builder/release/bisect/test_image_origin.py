"""Ends that were built before: an environment, an image layout, and the nightlies of a registry; each by its own lock.json."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder import __version__
from builder.core.cache import Cache
from builder.images.oci import layer, layout, oci_documents
from builder.images.oci.tar_entry import make_file
from builder.images.registry import image_push
from builder.packages import build_record
from tests.support import errors, git_repository
from tests.support.bisect_history import Story, get_only_culprit, make_numbered_file
from tests.support.image_registry import Served, serve_answers
from tests.support.published_project import Listing

pytestmark = pytest.mark.engine

BAD = "'bad' in text('bad.py')"
DAYS = [f"2026-03-{day:02}" for day in range(1, 13)]


def _files(end: Path) -> dict[str, tuple[str, int]]:
    """What an image made of an end has of it: lock.json, the patches, an overlaid file."""
    patches = {
        path.stem: path.read_text() for path in sorted((end / "patches/thing").glob("*.patch"))
    }
    lock = (end / "locks/thing-cpu.txt").read_bytes()
    overlay = {"ours.sh": "#!/bin/sh\n"}
    source = {
        "name": "thing",
        "url": "https://example.invalid/thing.git",
        "commit": (end / "manifest.yaml").read_text().partition("commit: ")[2][:40],
        "tree": "1" * 40,
        "patched_commit": "2" * 40,
        "patched_tree": "3" * 40,
        "exported_tree": "3" * 40,
        "absent": [],
        "date": git_repository.DATE,
        "patches": [
            {
                "name": name,
                "sha256": hashlib.sha256(patches[name].encode()).hexdigest(),
                "subject": "s",
                "outcome": "applied",
            }
            for name in (end / "patches/thing/series").read_text().split()
        ],
        "overlay": [
            [
                path,
                hashlib.sha1(
                    b"blob %d\0%s" % (len(text), text.encode()), usedforsecurity=False
                ).hexdigest(),
            ]
            for path, text in overlay.items()
        ],
    }
    record: dict[str, Any] = {
        "schema": 1,
        "distribution": "thing",
        "line": "line",
        "accelerator": "cpu",
        "architecture": "amd64",
        "python": "3.11",
        "builder": __version__,
        "sources": {"thing": source},
        "requirements": {"file": "thing-cpu.txt", "sha256": hashlib.sha256(lock).hexdigest()},
    }
    files = {
        f"opt/rosetta/sources/thing/{name}.patch": (text, 0o644) for name, text in patches.items()
    }
    return {
        **files,
        "opt/rosetta/lock.json": (build_record.lock_text(record), 0o644),
        **{f"opt/thing/{path}": (text, 0o755) for path, text in overlay.items()},
    }


def _image(story: Story, end: Path) -> oci_documents.Index:
    """Two layers, as an image has: the lower one is never needed."""
    cache, files = Cache(story.folder / "blobs"), _files(end)
    key = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    low = layer.write_layer(
        cache, "0" * 64, "base", "gzip", lambda: [make_file("base.txt", "base\n", 0o644)]
    )
    high = layer.write_layer(
        cache,
        key,
        "rosetta",
        "gzip",
        lambda: [make_file(path, text, mode) for path, (text, mode) in sorted(files.items())],
    )
    return oci_documents.make_index(
        [
            oci_documents.make_image(
                "amd64", [low, high], "2026-01-01T00:00:00Z", {"Cmd": ["true"]}, {}
            )
        ],
        {},
    )


def _layout(story: Story, end: Path) -> str:
    into = story.folder / f"{end.name}.oci"
    layout.write_layout(Cache(story.folder / "blobs"), _image(story, end), into, name="thing:1")
    return f"oci:{into}"


def _environment(story: Story, end: Path) -> str:
    into = story.folder / f"{end.name}.env"
    for path, (text, mode) in _files(end).items():
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_text(text)
        (into / path).chmod(mode)
    return f"env:{into}"


@pytest.fixture
def registry_of_nights() -> Iterator[tuple[Listing, Served]]:
    kept = Listing()
    with serve_answers(kept.answer, kept.lose) as served:
        yield kept, served


@pytest.mark.parametrize("kind", [_layout, _environment])
def test_two_that_were_built_before(story: Story, kind: Any) -> None:
    story.commit("files", mine_py=make_numbered_file("x"))
    good = story.end("good")
    commits = story.many(10, bad=4)
    bad = story.end("bad")
    story.patch("bad", "mine", "mine.py", make_numbered_file("ours"))
    result = story.found(BAD, good=kind(story, good), bad=kind(story, bad))
    assert (get_only_culprit(result)["commit"], result["candidates"]) == (commits[4], 11)
    assert (story.folder / "work/tree/opt/thing/ours.sh").stat().st_mode & 0o111
    assert story.found(BAD, good="good", bad=kind(story, bad))["culprits"] == result["culprits"]


@pytest.mark.parametrize("damage", ["patch", "lock", "record"])
def test_what_is_not_as_it_was_made_is_refused(story: Story, damage: str) -> None:
    place = _environment(story, story.end("good"))
    root = Path(place.removeprefix("env:"))
    if damage == "patch":
        (root / "opt/rosetta/sources/thing/greet.patch").write_text("another")
    elif damage == "lock":
        with open(story.folder / "locks/thing-cpu.txt", "a") as lock:
            lock.write("# edited\n")
    else:
        (root / "opt/rosetta/lock.json").write_text('{"sources": 3}')
    story.end("bad")
    status, document = story.run(BAD, good=place)
    assert status == 2
    kind, fact = {
        "patch": (errors.DAMAGED, "greet.patch"),
        "lock": (errors.MISSING, "locks/thing-cpu.txt"),
        "record": (errors.DAMAGED, "lock.json"),
    }[damage]
    errors.check_error(errors.from_document(document), kind, names=fact)
    assert story.calls() == 0


def test_a_lock_is_found_in_our_history(story: Story) -> None:
    story.end("good")
    place = _environment(story, story.folder / "good")
    git_repository.run_git(story.folder, "init", "--quiet", "--initial-branch=main", ".")
    git_repository.run_git(story.folder, "add", "locks", "manifest.yaml", "patches")
    git_repository.run_git(story.folder, "commit", "--quiet", "-m", "as it was")
    with open(story.folder / "locks/thing-cpu.txt", "a") as lock:
        lock.write("# edited\n")
    commits = story.many(4, bad=1)
    story.end("bad")
    assert get_only_culprit(story.found(BAD, good=place))["commit"] == commits[1]


def test_first_by_nightly_then_inside_the_night(
    story: Story, registry_of_nights: tuple[Listing, Served]
) -> None:
    """Twelve nights, each some commits on; the culprit is told apart first among nights, then among one night's commits."""
    _, served = registry_of_nights
    commits: list[str] = []
    for number, day in enumerate(DAYS):
        commits += story.many(6, bad=3 if number == 8 else -1)
        image_push.push_image(
            Cache(story.folder / "blobs"),
            _image(story, story.end(day)),
            f"{served.host}/team/thing:nightly-{day}",
        )
    name = f"registry:{served.host}/team/thing:nightly-"
    status, document = story.run(BAD, good=f"{name}{DAYS[0]}", bad=f"{name}{DAYS[-1]}")
    assert status == 0, document
    result = document["result"]
    assert get_only_culprit(result)["commit"] == commits[8 * 6 + 3]
    assert (result["between"], result["candidates"]) == (
        [f"{name}{DAYS[7]}", f"{name}{DAYS[8]}"],
        6,
    )
    assert result["builds"] == story.calls() - 2 <= math.log2(len(DAYS) - 1) + math.log2(6) + 2


def test_a_night_that_is_lost_is_passed_by(
    story: Story, registry_of_nights: tuple[Listing, Served]
) -> None:
    kept, served = registry_of_nights
    commits: list[str] = []
    for number, day in enumerate(DAYS[:5]):
        commits += story.many(2, bad=1 if number == 3 else -1)
        image_push.push_image(
            Cache(story.folder / "blobs"),
            _image(story, story.end(day)),
            f"{served.host}/team/thing:nightly-{day}",
        )
    for name, tag in list(kept.manifests):
        if tag == f"nightly-{DAYS[2]}":
            kept.manifests[name, tag] = (oci_documents.MANIFEST, b"{}")
    name = f"registry:{served.host}/team/thing:nightly-"
    status, document = story.run(BAD, good=f"{name}{DAYS[0]}", bad=f"{name}{DAYS[4]}")
    assert (status, get_only_culprit(document["result"])["commit"]) == (0, commits[7])
