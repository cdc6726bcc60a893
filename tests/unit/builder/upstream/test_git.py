from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.upstream.git import Git, build_command, extract_error
from rosetta.core.errors import UserError
from tests.support import errors, git_repository

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return git_repository.init_repository(tmp_path / "repo.git")


def hostile_config(marker: Path) -> str:
    """A config that runs a program and changes content wherever git lets it."""
    run = f"touch {marker} #"
    return f"""[core]
 fsmonitor = "{run}"
 hooksPath = {marker.parent}/hooks
 autocrlf = true
 attributesFile = {marker.parent}/attributes
 pager = "{run}"
 sshCommand = "{run}"
 quotePath = false
[init]
 templateDir = {marker.parent}/template
[commit]
 gpgsign = true
[gpg]
 program = {marker.parent}/gpg
[user]
 name = Somebody
 email = some@body
[alias]
 x = "!{run}"
[url "https://evil.invalid/"]
 insteadOf = https://
[filter "evil"]
 clean = "{run}"
 smudge = "{run}"
[diff]
 external = "{run}"
 noprefix = true
[uploadpack]
 packObjectsHook = "{run}"
[protocol "ext"]
 allow = always
[i18n]
 commitEncoding = latin1
"""


@pytest.fixture
def hostile_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home and environment in which every setting that git reads is against us; returns the file that must not appear."""
    home = tmp_path / "hostile"
    marker = home / "was-run"
    for folder in ("hooks", "template/hooks", ".config/git"):
        (home / folder).mkdir(parents=True)
    for config in (home / ".gitconfig", home / ".config" / "git" / "config"):
        config.write_text(hostile_config(marker))
    for attributes in (home / "attributes", home / ".config" / "git" / "attributes"):
        attributes.write_text("* text eol=crlf filter=evil\n")
    for program in (
        "gpg",
        "hooks/post-index-change",
        "hooks/reference-transaction",
        "template/hooks/post-checkout",
    ):
        (home / program).write_text(f"#!/bin/sh\ntouch {marker}\nexit 1\n")
        (home / program).chmod(0o755)
    (home / "template" / "description").write_text("from the template\n")
    hostile = {
        "HOME": home,
        "XDG_CONFIG_HOME": home / ".config",
        "GIT_DIR": home / "elsewhere",
        "GIT_WORK_TREE": home,
        "GIT_INDEX_FILE": home / "index",
        "GIT_OBJECT_DIRECTORY": home / "objects",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": home / "objects",
        "GIT_NAMESPACE": "x",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "alias.y",
        "GIT_CONFIG_VALUE_0": f"!touch {marker}",
        "GIT_CONFIG_PARAMETERS": f"'alias.z=!touch {marker}'",
        "GIT_EXTERNAL_DIFF": f"touch {marker}",
        "GIT_SSH_COMMAND": f"touch {marker}",
        "GIT_SSH": home / "gpg",
        "GIT_PROXY_COMMAND": home / "gpg",
        "GIT_TEMPLATE_DIR": home / "template",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00Z",
        "GIT_COMMITTER_NAME": "Somebody",
        "GIT_EXEC_PATH": home,
        "GIT_REPLACE_REF_BASE": "refs/x",
        "GIT_CEILING_DIRECTORIES": "/",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_TRACE": home / "trace",
        "EMAIL": "some@body",
    }
    for name, value in hostile.items():
        monkeypatch.setenv(name, str(value))
    return marker


def test_the_hostile_settings_bite_where_git_is_run_plainly(hostile_home: Path, repo: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "GIT_DIR": str(repo)}
    subprocess.run(["git", "x"], env=env, check=True)
    assert hostile_home.exists()


def test_nothing_of_the_user_reaches_git(hostile_home: Path, tmp_path: Path) -> None:
    git = Git(tmp_path / "ours.git")
    git.init()
    assert not (git.git_dir / "description").exists()
    assert "sha256" not in (git.git_dir / "config").read_text()
    blob = git.text("hash-object", "-w", "--stdin", stdin=b"a\r\n")
    tree = git.text("mktree", stdin=f"100644 blob {blob}\tx\n".encode())
    fixed = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    commit = git.text("commit-tree", tree, "-m", "ü", env=fixed)
    git.run("update-ref", "refs/heads/x", commit)
    shown = git.text("cat-file", "commit", commit)
    assert shown.splitlines()[1:3] == [
        "author rosetta <rosetta@localhost> 1700000000 +0000",
        "committer rosetta <rosetta@localhost> 1700000000 +0000",
    ]
    assert "encoding" not in shown
    assert "gpgsig" not in shown
    assert git.run("show", commit).stdout.count(b"+a\r\n") == 1
    for alias in ("x", "y", "z"):
        assert git.run(alias, check=False).returncode
    assert not hostile_home.exists()
    assert not (hostile_home.parent / "trace").exists()


def test_hooks_of_the_repository_are_not_run(repo: Path, tmp_path: Path) -> None:
    commit = git_repository.write_commit(repo, git_repository.make_tree(repo, {"a": b""}))
    marker = tmp_path / "was-run"
    hook = repo / "hooks" / "reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
    hook.chmod(0o755)
    Git(repo).run("update-ref", "refs/heads/a", commit)
    assert not marker.exists()
    git_repository.run_git(repo, "update-ref", "refs/heads/b", commit)
    assert marker.exists()


@pytest.mark.parametrize(
    "scheme",
    [
        "file://{}",
        "{}",
        "ext::sh -c 'touch {}/was-run'",
        "https://example.invalid/x",
        "ssh://example.invalid/x",
        "git://example.invalid/x",
    ],
)
def test_without_protocols_nothing_can_be_fetched(repo: Path, tmp_path: Path, scheme: str) -> None:
    other, pin = git_repository.make_upstream(tmp_path / "other.git")
    done = Git(repo).run("fetch", scheme.format(other), pin, check=False)
    assert done.returncode
    assert b"not allowed" in done.stderr
    assert not (other / "was-run").exists()
    assert (
        Git(repo, protocols="file").run("fetch", f"file://{other}", pin, check=False).returncode
        == 0
    )


def test_alternates_are_joined_whatever_their_path(repo: Path, tmp_path: Path) -> None:
    for name in ("plain", "co:lon", 'quo"te', '"first', "back\\slash", "new\nline", " space "):
        other, pin = git_repository.make_upstream(tmp_path / name)
        assert (
            Git(repo, alternates=(tmp_path, other / "objects")).text("cat-file", "-t", pin)
            == "commit"
        )
        assert Git(repo).run("cat-file", "-e", pin, check=False).returncode


def test_a_joined_history_is_not_cut_where_ours_is(repo: Path, tmp_path: Path) -> None:
    other, pin = git_repository.make_upstream(tmp_path / "other.git")
    (repo / "shallow").write_text(f"{pin}\n")
    joined = Git(repo, alternates=(other / "objects",))
    assert len(joined.text("rev-list", pin).splitlines()) == 2


def test_a_failure_is_one_line_without_credentials(repo: Path) -> None:
    with pytest.raises(UserError) as caught:
        Git(repo).run("fetch", "https://me:secret@example.invalid/x")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_last_words() -> None:
    assert extract_error(b"warning: a\nfatal: b\nhint: c\n") == "fatal: b"
    assert extract_error(b"hint: a\nsomething\n") == "something"
    assert extract_error(b"\n") == "no message"
    assert extract_error(b"fatal: https://u:p@h/ \xff") == "fatal: https://...@h/ \ufffd"


def test_without_git_there_is_one_clear_error(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repo))
    with errors.expect_user_error(errors.MISSING, where="git", remedy="apt-get install git"):
        Git(repo).run("version")


def test_settings_stand_before_the_verb() -> None:
    argv = build_command("fetch", "x")
    assert argv[0] == "git"
    assert argv[-2:] == ["fetch", "x"]
    assert "core.hooksPath=/dev/null" in argv
