from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.upstream.git import Git
from builder.upstream.source import acquire_source
from rosetta.core.errors import UserError
from tests.support import errors, git_repository
from tests.unit.builder.upstream.test_git import hostile_home  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, str]:
    """A mirror's clone of the upstream `t5x`, and the pin."""
    return git_repository.make_upstream(tmp_path / "mirror" / "t5x.git")


# corruption


def test_a_corrupt_mirror_is_named_and_nothing_of_it_is_kept(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    clone, pin = served
    bad, other = (
        git_repository.run_git(clone, "rev-parse", f"{pin}:{path}")
        for path in ("t5x/run.sh", "setup.py")
    )
    git_repository.damage_object(clone, bad, other)
    with errors.expect_user_error(errors.DAMAGED, where=f"mirror {clone}, object {bad}") as caught:
        acquire_source(
            git_repository.make_source(pin),
            git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
        )
    assert caught.value.where == f"mirror {clone}, object {bad}"
    assert not git_repository.list_cached_files(tmp_path / "cache")


@pytest.mark.parametrize("what", ["commit", "tree"])
def test_a_forged_commit_or_tree_is_refused(
    served: tuple[Path, str], tmp_path: Path, what: str
) -> None:
    clone, pin = served
    bad, good = (
        git_repository.run_git(clone, "rev-parse", f"{pin}{up}^{{{what}}}") for up in ("", "^")
    )
    git_repository.damage_object(clone, bad, good)
    with errors.expect_user_error(errors.DAMAGED, where=bad):
        acquire_source(
            git_repository.make_source(pin),
            git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
        )
    assert not git_repository.list_cached_files(tmp_path / "cache")


def test_a_corrupt_cache_is_not_believed(served: tuple[Path, str], tmp_path: Path) -> None:
    pin = served[1]
    pinned = acquire_source(
        git_repository.make_source(pin),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    ours = pinned.git.git_dir
    bad, other = (
        Git(ours).text("rev-parse", f"{pin}:{path}") for path in ("t5x/run.sh", "setup.py")
    )
    git_repository.damage_object(ours, bad, other)
    with errors.expect_user_error(errors.DAMAGED, where=f"{ours}, object {bad}") as caught:
        git_repository.export_pin(pinned, tmp_path / "out")
    assert f"{ours}, object {bad}" in caught.value.where
    shutil.rmtree(ours / "rosetta-verified")
    with errors.expect_user_error(errors.DAMAGED, where=ours, remedy="delete"):
        acquire_source(
            git_repository.make_source(pin),
            git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
        )
    shutil.rmtree(ours)
    assert (
        acquire_source(
            git_repository.make_source(pin),
            git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
        ).tree
        == pinned.tree
    )


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"commit": 1}', '{"commit": "x", "tree": "y", "date": "z"}']
)
def test_a_mangled_stamp_is_no_stamp(served: tuple[Path, str], tmp_path: Path, text: str) -> None:
    source, access = (
        git_repository.make_source(served[1]),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    pinned = acquire_source(source, access)
    (stamp,) = (pinned.git.git_dir / "rosetta-verified").iterdir()
    stamp.write_text(text)
    assert acquire_source(source, access).tree == pinned.tree
    assert json.loads(stamp.read_text())["commit"] == pinned.commit


# a hostile mirror and a hostile user


def test_config_hooks_replacements_and_grafts_of_a_mirror_play_no_part(
    served: tuple[Path, str], tmp_path: Path
) -> None:
    clone, pin = served
    clean = git_repository.export_pin(
        acquire_source(
            git_repository.make_source(pin),
            git_repository.make_access(tmp_path / "cache1", tmp_path / "mirror"),
        ),
        tmp_path / "out1",
    )
    marker = tmp_path / "was-run"
    evil = git_repository.write_commit(
        clone, git_repository.make_tree(clone, {"setup.py": b"evil\n"})
    )
    blob, evil_blob = (
        git_repository.run_git(clone, "rev-parse", f"{pin}:setup.py"),
        git_repository.run_git(clone, "rev-parse", f"{evil}:setup.py"),
    )
    git_repository.run_git(clone, "replace", pin, evil)
    git_repository.run_git(clone, "replace", blob, evil_blob)
    (clone / "info").mkdir(exist_ok=True)
    (clone / "info" / "grafts").write_text(f"{pin} {evil}\n")
    (clone / "info" / "attributes").write_text("* text eol=crlf filter=evil\n")
    (clone / "hooks").mkdir(exist_ok=True)
    for name in ("pre-auto-gc", "reference-transaction", "post-index-change"):
        (clone / "hooks" / name).write_text(f"#!/bin/sh\ntouch {marker}\n")
        (clone / "hooks" / name).chmod(0o755)
    with open(clone / "config", "a") as config:
        run = f"touch {marker} #"
        config.write(
            f'[core]\n fsmonitor = "{run}"\n pager = "{run}"\n[alias]\n cat-file = "!{run}"\n x = "!{run}"\n[uploadpack]\n packObjectsHook = "{run}"\n'
        )
        config.write(
            f'[extensions]\n partialClone = evil\n[remote "evil"]\n promisor = true\n url = "ext::{run}"\n uploadpack = "{run}"\n'
        )
    pinned = acquire_source(
        git_repository.make_source(pin),
        git_repository.make_access(tmp_path / "cache2", tmp_path / "mirror"),
    )
    assert git_repository.export_pin(pinned, tmp_path / "out2") == clean
    assert pinned.git.text("rev-list", "--count", pin) == "2"
    assert not marker.exists()
    assert git_repository.run_git(clone, "cat-file", "blob", f"{pin}:setup.py") == "evil", (
        "the replacement does hold where git runs in the mirror"
    )
    git_repository.run_git(clone, "x")
    assert marker.exists(), "and so does its config"


def test_settings_of_the_user_play_no_part(
    served: tuple[Path, str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = git_repository.make_source(served[1])
    clean = acquire_source(
        source, git_repository.make_access(tmp_path / "cache1", tmp_path / "mirror")
    )
    before = git_repository.export_pin(clean, tmp_path / "out1")
    marker: Path = request.getfixturevalue("hostile_home")
    old = os.umask(0o077)
    try:
        pinned = acquire_source(
            source, git_repository.make_access(tmp_path / "cache2", tmp_path / "mirror")
        )
        after = git_repository.export_pin(pinned, tmp_path / "out2")
    finally:
        os.umask(old)
    assert (pinned.commit, pinned.tree, pinned.date) == (clean.commit, clean.tree, clean.date)
    assert after == before
    assert not marker.exists()


def _tree_with(name: bytes, mode: str = "100644") -> Callable[[Path], str]:
    def make(repo: Path) -> str:
        blob = git_repository.write_raw_object(repo, "blob", b"x")
        inner = git_repository.raw_tree(repo, [("100644", b"x", blob)])
        sub = git_repository.raw_tree(
            repo, [(mode, name, {"40000": inner, "160000": "12" * 20}.get(mode, blob))]
        )
        return git_repository.raw_tree(repo, [("100644", b"a.py", blob), ("40000", b"sub", sub)])

    return make


def _links(**links: str) -> Callable[[Path], str]:
    return lambda repo: git_repository.make_tree(
        repo,
        {path.replace("__", "/"): ("120000", target.encode()) for path, target in links.items()},
    )


def _link_and_folder(repo: Path) -> str:
    link, blob = (
        git_repository.write_raw_object(repo, "blob", b"/etc"),
        git_repository.write_raw_object(repo, "blob", b"x"),
    )
    return git_repository.raw_tree(
        repo,
        [
            ("120000", b"a", link),
            ("40000", b"a", git_repository.raw_tree(repo, [("100644", b"passwd", blob)])),
        ],
    )


HOSTILE: dict[str, Callable[[Path], str]] = {
    "parent": _tree_with(b"..", "40000"),
    "dot": _tree_with(b".", "40000"),
    "empty": _tree_with(b""),
    "git": _tree_with(b".git", "40000"),
    "GIT": _tree_with(b".GIT", "40000"),
    "git with a blank": _tree_with(b".git "),
    "git's short name": _tree_with(b"git~1", "40000"),
    "gitmodules": _tree_with(b".gitmodules"),
    "submodule": _tree_with(b"vendored", "160000"),
    "slash": _tree_with(b"a/b"),
    "backslash": _tree_with(b"a\\b"),
    "control": _tree_with(b"a\x1b[2J"),
    "absolute link": _links(l="/etc/passwd"),
    "climbing link": _links(a__l="../../x"),
    "link to .git": _links(l=".git"),
    "climbing by way of a link": _links(d__e__l="../..", d__m="e/l/../x"),
    "link and folder": _link_and_folder,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tree_is_refused_and_nothing_kept(tmp_path: Path, case: str) -> None:
    clone = git_repository.init_repository(tmp_path / "mirror" / "t5x.git")
    pin = git_repository.write_commit(clone, HOSTILE[case](clone))
    with pytest.raises(UserError) as caught:
        acquire_source(
            git_repository.make_source(pin),
            git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
        )
    assert str(clone) in caught.value.where
    assert not git_repository.list_cached_files(tmp_path / "cache")


def test_the_same_kind_of_tree_without_hostility_passes(tmp_path: Path) -> None:
    clone = git_repository.init_repository(tmp_path / "mirror" / "t5x.git")
    pin = git_repository.write_commit(clone, _tree_with(b".gitignore")(clone))
    pinned = acquire_source(
        git_repository.make_source(pin),
        git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
    )
    assert list(git_repository.export_pin(pinned, tmp_path / "out")) == [
        "a.py",
        "sub",
        "sub/.gitignore",
    ]
    assert not pinned.history
    assert not (pinned.git.git_dir / "shallow").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"url": "ext::sh -c x"},
        {"url": "--upload-pack=x"},
        {"url": "http://h/x"},
        {"url": "file:///x"},
        {"track": "-x"},
        {"name": "../x"},
    ],
)
def test_a_hostile_source_is_refused_though_it_is_in_the_cache(
    served: tuple[Path, str], tmp_path: Path, change: dict[str, Any]
) -> None:
    access = git_repository.make_access(tmp_path / "cache", tmp_path / "mirror")
    acquire_source(git_repository.make_source(served[1]), access)
    with pytest.raises(UserError):
        acquire_source(git_repository.make_source(served[1], **change), access)


@pytest.mark.parametrize("commit", ["main", "--help", "AB" * 20, "ab" * 19, "ab" * 20 + "\n", ""])
def test_a_pin_is_forty_hex_digits(tmp_path: Path, commit: str) -> None:
    with errors.expect_user_error(errors.INVALID, where="t5x", value=commit):
        acquire_source(
            git_repository.make_source(commit), git_repository.make_access(tmp_path / "cache")
        )


def test_a_pin_that_is_no_commit_is_refused(served: tuple[Path, str], tmp_path: Path) -> None:
    clone, pin = served
    for name, kind in ((f"{pin}:setup.py", "blob"), (f"{pin}^{{tree}}", "tree")):
        with errors.expect_user_error(errors.INVALID, value=kind, remedy="commit"):
            acquire_source(
                git_repository.make_source(git_repository.run_git(clone, "rev-parse", name)),
                git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
            )
    odd = git_repository.write_raw_object(
        clone, "commit", b"tree " + b"ab" * 20 + b"\nauthor x\n\nno committer\n"
    )
    with errors.expect_user_error(errors.INVALID, where=odd, value=None):
        acquire_source(
            git_repository.make_source(odd),
            git_repository.make_access(tmp_path / "cache", tmp_path / "mirror"),
        )
