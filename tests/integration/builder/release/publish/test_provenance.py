"""The provenance says what was asked for and what it was made of; nothing of it is secret or of the hour."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.release.publish import provenance
from builder.upstream import checkout, public_urls
from tests.support import errors
from tests.support.published_project import BOTH, COMMIT, SECRET, Project

if TYPE_CHECKING:
    from pathlib import Path


def _git(folder: Path, *arguments: str) -> str:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    who = ("-c", "user.name=u", "-c", "user.email=u@example.com")
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True, env=env
    ).stdout.strip()


def test_what_it_was_made_of(project: Project) -> None:
    records = {each: project.record(each) for each in BOTH}
    said = provenance.make_predicate(records, {}, provenance.BUILDER)
    assert said["buildDefinition"]["externalParameters"] == {
        "distribution": "thing",
        "accelerator": "cuda13",
        "architectures": ["amd64", "arm64"],
        "transformer_engine": False,
    }
    used = {each["name"]: each for each in said["buildDefinition"]["resolvedDependencies"]}
    assert used["thing"] == {
        "name": "thing",
        "uri": f"git+https://example.invalid/group/thing.git@{COMMIT}",
        "digest": {"gitCommit": COMMIT, "gitTree": "1" * 40},
    }
    assert set(used) == {
        "thing",
        "thing: greet.patch",
        "locks/thing-cuda13.txt",
        "base bootstrap:trixie for amd64",
        "base bootstrap:trixie for arm64",
    }
    assert (
        used["base bootstrap:trixie for arm64"]["digest"]["sha256"]
        == project.bases["arm64"].digest[7:]
    )
    assert SECRET not in str(said)
    assert said == provenance.make_predicate(
        dict(reversed(records.items())), {}, provenance.BUILDER
    )


def test_a_checkout(project: Project) -> None:
    folder = project.folder
    assert checkout.describe_checkout(folder) == {}
    assert checkout.read_publisher(folder) == checkout.Publisher()
    _git(folder, "init", "-q", "-b", "main")
    _git(
        folder,
        "remote",
        "add",
        "origin",
        f"https://me:{SECRET}@example.invalid/rosetta.git?token={SECRET}",
    )
    _git(folder, "add", "manifest.yaml")
    _git(folder, "commit", "-q", "-m", "first")
    described = checkout.describe_checkout(folder)
    assert described == {
        "commit": _git(folder, "rev-parse", "HEAD"),
        "url": "https://example.invalid/rosetta.git",
        "clean": False,
    }
    assert checkout.read_publisher(folder) == checkout.Publisher("https://example.invalid/rosetta")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "second")
    assert checkout.describe_checkout(folder)["clean"] is True
    assert checkout.read_publisher(folder) == checkout.Publisher(
        "https://example.invalid/rosetta", _git(folder, "rev-parse", "HEAD")
    )
    said = provenance.make_predicate(
        {"amd64": project.record("amd64")}, described, provenance.BUILDER
    )
    assert {
        "name": "rosetta",
        "uri": "git+https://example.invalid/rosetta.git",
        "digest": {"gitCommit": described["commit"]},
    } in said["buildDefinition"]["resolvedDependencies"]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/home/me/rosetta", ""),
        ("../rosetta.git", ""),
        ("file:///home/me/rosetta", ""),
        ("git@example.invalid:group/rosetta.git", "ssh://example.invalid/group/rosetta.git"),
        ("ssh://git@example.invalid:22/rosetta.git", "ssh://example.invalid:22/rosetta.git"),
        ("", ""),
    ],
)
def test_a_place_on_this_machine_is_not_published(address: str, said: str) -> None:
    assert public_urls.clean_remote(address) == said


def test_who_built_it() -> None:
    assert (
        provenance.parse_builder_id("https://me:secret@host/o/r/.github/workflows/n.yml")
        == "https://host/o/r/.github/workflows/n.yml"
    )
    assert provenance.parse_builder_id(provenance.BUILDER) == provenance.BUILDER
    with errors.expect_user_error(errors.INVALID, where="--builder-id", value="my laptop"):
        provenance.parse_builder_id("my laptop")
