from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from builder import cli
from builder.core.cache import Cache
from builder.core.manifest import GitSource
from builder.release.bump import branch_state
from builder.upstream.source import Access
from tests.support import errors, git_repository
from tests.support.bump_history import Story
from tests.support.patch_series import URL, Bench, make_text


def _finding(story: Story) -> dict[str, str]:
    before = story.ours()
    status, document = story.json()
    assert (status, document["error"], story.ours()) == (1, None, before)
    found: dict[str, str] = document["result"]["sources"]["up"]["finding"]
    assert document["result"]["summary"] == {"up": found["kind"]}
    status, said = story.run()
    assert (status, len(said.splitlines())) == (1, 1)
    assert found["what"] in said
    return found


def test_a_force_push_that_left_the_pin_behind(story: Story) -> None:
    story.mine(l20="ours\n")
    up = story.bench.upstream
    fork = up.head
    pin = up.commit({"README": b"to be thrown away\n"}, "thrown away")
    story.pin()
    up.head = fork
    tip = up.commit({"README": b"instead\n"}, "instead")
    found = _finding(story)
    assert found["kind"] == "rewritten"
    assert all(fact in found["what"] for fact in ("main", tip, pin, fork))


def test_a_force_push_of_which_the_pin_is_not_at_hand(story: Story) -> None:
    story.pin()
    story.manifest.write_text(
        story.manifest.read_text().replace(story.bench.upstream.head, "1a" * 20)
    )
    found = _finding(story)
    assert (found["kind"], "1a1a" in found["what"]) == ("rewritten", True)


def test_a_branch_that_was_moved_back(story: Story) -> None:
    up = story.bench.upstream
    back = up.head
    up.commit({"README": b"x\n"}, "later")
    story.pin()
    up.git.run("update-ref", "refs/heads/main", back)
    found = _finding(story)
    assert found["kind"] == "rewritten"
    assert all(fact in found["what"] for fact in (" back ", back))


def test_a_branch_that_was_renamed(story: Story) -> None:
    story.pin()
    up = story.bench.upstream
    tip = up.commit({"README": b"x\n"}, "later")
    up.git.run("update-ref", "refs/heads/trunk", tip)
    up.git.run("update-ref", "-d", "refs/heads/main")
    up.git.run("pack-refs", "--all")
    up.git.run(
        "update-ref",
        "refs/heads/old/stuff",
        up.git.text("commit-tree", f"{tip}^{{tree}}", stdin=b"no child of the pin"),
    )
    found = _finding(story)
    assert found == {
        "kind": "branch-lost",
        "what": "the branch main was deleted or renamed; upstream has: trunk",
        "do": "set `track` of up in the manifest to the branch that replaces it",
    }


def test_a_branch_that_was_deleted_from_a_server(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story.pin()
    up = story.bench.upstream
    up.git.run("update-ref", "refs/heads/other", up.head)
    up.git.run("update-ref", "-d", "refs/heads/main")
    with branch_state.open_upstream(
        _served(story), Access(Cache(tmp_path / "c"), protocols=("file",))
    ) as found:
        assert isinstance(found, branch_state.BranchProblem)
        assert (found.kind, "has: other" in found.what) == ("branch-lost", True)
    up.git.run("update-ref", "-d", "refs/heads/other")
    with branch_state.open_upstream(
        _served(story), Access(Cache(tmp_path / "c"), protocols=("file",))
    ) as found:
        assert isinstance(found, branch_state.BranchProblem)
        assert found.kind == "unreachable"
    capsys.readouterr()


def _served(story: Story) -> GitSource:
    source = story.bench.source()
    return GitSource(
        source.name,
        f"file://{story.bench.upstream.git.git_dir}",
        source.track,
        source.commit,
        source.patches,
        None,
        (),
    )


def test_a_tag_that_was_moved(story: Story) -> None:
    story.pin()
    up = story.bench.upstream
    pin = up.head
    up.git.run("update-ref", "refs/tags/v1", pin)
    story.manifest.write_text(story.manifest.read_text().replace("track: main", "track: v1"))
    assert story.run()[0] == 0
    tip = up.commit({"README": b"x\n"}, "later")
    up.git.run("update-ref", "refs/tags/v1", tip)
    assert all(fact in _finding(story)["what"] for fact in ("tag v1 ", f"{pin} to {tip}"))


def test_a_mirror_that_is_cut_off(story: Story) -> None:
    story.pin()
    up = story.bench.upstream
    first = up.commit({"README": b"x\n"}, "one")
    up.commit({"README": b"y\n"}, "two")
    shallow = story.bench.root / "shallow/up.git"
    shallow.parent.mkdir()
    git_repository.run_git(
        story.bench.root,
        "clone",
        "--quiet",
        "--bare",
        "--branch=main",
        "--depth=1",
        f"file://{up.git.git_dir}",
        str(shallow),
    )
    shutil.rmtree(story.bench.root / "mirror")
    (story.bench.root / "shallow").rename(story.bench.root / "mirror")
    found = _finding(story)
    assert (found["kind"], "--mirror" in found["do"]) == ("unreadable", True)
    assert first not in found["what"]


def test_nobody_to_ask(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.pin()
    assert cli.main(["bump", "--offline", "--manifest", str(story.manifest)]) == 1
    assert (
        "up: unreachable: no mirror has the source, so the commit of main is not known"
        in capsys.readouterr().out
    )


def test_from_a_server_the_history_comes_once(
    story: Story, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its URL, with no mirror: the tip, the history, the culprit, and the commit that the pin goes to."""
    bench = story.bench
    story.mine(l20="ours\n")
    story.pin()
    bench.upstream.commit({"README": b"x\n"}, "words")
    good = bench.upstream.head
    culprit = bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")}, "rework")
    story.manifest.write_text(
        story.manifest.read_text().replace(URL, f"file://{bench.upstream.git.git_dir}")
    )
    argv = ["bump", "--allow-protocol", "file", "--manifest", str(story.manifest)]
    assert cli.main(argv) == 1
    out = capsys.readouterr().out
    assert culprit[:12] in out
    assert story.pinned == good
    history = tmp_path / "cache/git/up+history.git"
    before = git_repository.read_folder(history)
    assert cli.main(argv) == 1
    assert git_repository.read_folder(history) == before
    # What was fetched is enough to go on without the server.
    shutil.move(bench.upstream.git.git_dir, tmp_path / "away.git")
    (bench.patches / "series").write_text("")
    (bench.patches / "mine.patch").unlink()
    assert cli.main([*argv, "--continue"]) == 0
    assert story.pinned == culprit


def test_a_name_that_git_could_take_for_an_option(story: Story, tmp_path: Path) -> None:
    story.pin()
    source = Bench.source(story.bench)
    bad = GitSource(
        source.name, source.git, "--upload-pack=x", source.commit, source.patches, None, ()
    )
    with (
        errors.expect_user_error(errors.INVALID, where="source 'up'", value="--upload-pack=x"),
        branch_state.open_upstream(bad, Access(Cache(tmp_path / "c"))),
    ):
        pass
