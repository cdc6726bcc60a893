"""The real stacks, carried back over real history and then bumped to the present pins: with the histories that $ROSETTA_MIRROR has.

ROSETTA_MIRROR=DIR python build.py test --no-lint tests/upstream/test_bump.py
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from builder import cli
from builder.core import manifest
from builder.core.cache import Cache
from builder.core.manifest import GitSource
from builder.release.bump import branch_state, manifest_edit, plan
from builder.release.bump.commit_log import list_commits
from builder.upstream import patch_file, patch_refresh, patch_series, patched_source
from builder.upstream.source import Access, acquire_source
from rosetta.core.errors import UserError
from tests.support.shipped_sources import ROOT, SHIPPED

pytestmark = pytest.mark.upstream

BACK = 40
FIELDS = {"Why": "the test", "Upstream-Status": "Pending", "Drop-When": "it is over"}
NAMES = [name for name in SHIPPED.sources if isinstance(SHIPPED.source(name), GitSource)]


@pytest.fixture
def mirror() -> str:
    folder = os.environ.get("ROSETTA_MIRROR", "")
    if not folder:
        pytest.skip(
            "NOT TESTED: set ROSETTA_MIRROR to a folder with complete clones of the upstreams"
        )
    return folder


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a bump may change, beside a cache of its own."""
    monkeypatch.setenv("ROSETTA_CACHE", str(tmp_path / "cache"))
    for name in ("patches", "overlay", "locks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "manifest.yaml", tmp_path)
    return tmp_path / "manifest.yaml"


def set_back(file: Path, name: str, access: Access) -> list[str]:
    """Pin a source 40 commits earlier, with its patches as they would have stood there; returns those that had no place yet."""
    source = manifest.load(file).source(name)
    assert isinstance(source, GitSource)
    with branch_state.open_upstream(source, access, source.commit) as upstream:
        assert isinstance(upstream, branch_state.Upstream)
        old = list_commits(upstream.git, "--first-parent", f"-{BACK + 1}", source.commit)[-1].commit
    manifest_edit.set_pin(file, name, source.commit, old)
    pinned = acquire_source(replace(source, commit=old), access)
    found = patched_source.survey_patches(
        pinned, patch_series.load_patches(source.patches), (), merge=True
    )
    for patch in patch_refresh.regenerate_patches(pinned, found).values():
        patch.file.write_bytes(patch.raw)
    return [result.name for result in found.results if result.outcome != "applied"]


def test_forty_commits_on_each_stack_is_what_it_was(
    copy: Path, mirror: str, capsys: pytest.CaptureFixture[str]
) -> None:
    access = Access(Cache(copy.parent / "cache"), offline=True, mirrors=(Path(mirror),))
    without = {name: set_back(copy, name, access) for name in NAMES}
    argv = ["bump", *NAMES, "--offline", "--mirror", mirror, "--manifest", str(copy)]
    moved = {
        str(file.relative_to(copy.parent))
        for file in copy.parent.glob("patches/*/*")
        if file.read_bytes() != (ROOT / file.relative_to(copy.parent)).read_bytes()
    }
    status = cli.main([*argv, "--json"])
    said = capsys.readouterr()
    document = json.loads(said.out)
    with capsys.disabled():
        print(f"\nno place {BACK} commits ago: {without}; other bytes there: {sorted(moved)}")
        for name, one in document["result"]["sources"].items():
            outcomes = {patch["name"]: patch["outcome"] for patch in one["patches"]}
            print(
                f"{name}: {one['from'][:12]} -> {one['pin'][:12]}, {one['commits']} commits, {one['days']} days: {outcomes}, rewritten {one['mechanical']['refreshed']}"
            )
    assert (status, document["ok"]) == (0, True)
    for name, one in document["result"]["sources"].items():
        assert one["commits"] == BACK
        assert one["pin"] == one["tip"] == SHIPPED.sources[name].commit
    assert copy.read_bytes() == (ROOT / "manifest.yaml").read_bytes()
    for file in sorted((ROOT / "patches").glob("*/*")):
        assert (copy.parent / file.relative_to(ROOT)).read_bytes() == file.read_bytes(), file


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_from_before_a_real_rework_names_the_commit(
    name: str, copy: Path, mirror: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A patch on a line that upstream changed since: the culprit must be the commit that git itself says removed that line."""
    access = Access(Cache(copy.parent / "cache"), offline=True, mirrors=(Path(mirror),))
    set_back(copy, name, access)
    source = manifest.load(copy).source(name)
    assert isinstance(source, GitSource)
    with branch_state.open_upstream(source, access, str(SHIPPED.sources[name].commit)) as upstream:
        assert isinstance(upstream, branch_state.Upstream)
        git, tip = upstream.git, upstream.tip
        path, line = _changed_line(upstream, source.commit)
        culprit = git.text(
            "log",
            "--first-parent",
            "-1",
            "--format=%H",
            f"-S{line}",
            f"{source.commit}..{tip}",
            "--",
            path,
        )
        text = git.run("cat-file", "blob", f"{source.commit}:{path}").stdout
        blob = git.text(
            "hash-object",
            "-w",
            "--stdin",
            stdin=text.replace(f"{line}\n".encode(), f"{line}  # ours\n".encode()),
        )
        index = {"GIT_INDEX_FILE": str(copy.parent / "index")}
        git.run("read-tree", source.commit, env=index)
        git.run("update-index", "--cacheinfo", f"100644,{blob},{path}", env=index)
        diff = patch_refresh.diff_trees(git, source.commit, git.text("write-tree", env=index))
    (source.patches / "ours.patch").write_bytes(
        patch_file.render_patch("a <a@b>", "ours", FIELDS, diff)
    )
    (source.patches / "series").write_text("ours\n")
    for file in source.patches.glob("*.patch"):
        if file.name != "ours.patch":
            file.unlink()
    assert (
        cli.main(
            [
                "bump",
                name,
                "--forecast",
                "--offline",
                "--mirror",
                mirror,
                "--manifest",
                str(copy),
                "--json",
            ]
        )
        == 1
    )
    (ours,) = json.loads(capsys.readouterr().out)["result"]["sources"][name]["patches"]
    with capsys.disabled():
        print(f"\n{name}: {path}: {line.strip()!r}: {ours['outcome']} since {ours['culprit']}")
    assert (ours["outcome"], ours["culprit"]["by"]["commit"]) == ("conflict", culprit)


@pytest.mark.parametrize("name", NAMES)
def test_what_upstream_really_did_next_counts_as_taken_from_a_patch_that_does_the_same(
    name: str, copy: Path, mirror: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real commits as patches on their parents: that commit took the patch out, or if it was reverted, one before which git can apply it."""
    access = Access(Cache(copy.parent / "cache"), offline=True, mirrors=(Path(mirror),))
    shipped = SHIPPED.source(name)
    assert isinstance(shipped, GitSource)
    folder = copy.parent / "one"
    folder.mkdir()
    (folder / "series").write_text("theirs\n")
    with branch_state.open_upstream(shipped, access, shipped.commit) as upstream:
        assert isinstance(upstream, branch_state.Upstream)
        commits = list_commits(
            upstream.git, "--first-parent", "--no-merges", f"-{BACK}", shipped.commit
        )
        made = []
        for one in commits[::-1]:
            parent = upstream.git.text("rev-parse", f"{one.commit}^")
            raw = patch_file.render_patch(
                "a <a@b>",
                "theirs",
                FIELDS,
                patch_refresh.diff_trees(upstream.git, parent, one.commit),
            )
            with contextlib.suppress(UserError):
                if patch_file.parse_patch(folder / "theirs.patch", raw).files:
                    made.append((one.commit, parent, raw))
    seen: list[tuple[str, ...]] = []
    for commit, parent, raw in made[:8]:
        (folder / "theirs.patch").write_bytes(raw)
        found = plan.examine_source(
            replace(shipped, commit=parent, patches=folder, overlay=None),
            access,
            target=shipped.commit,
        )
        (patch,) = found.patches
        assert patch.verdict.signals
        seen.append(
            (
                commit[:12],
                patch.verdict.outcome,
                f"{patch.verdict.signals.upstream_line_count}/{patch.verdict.signals.line_count}",
            )
        )
        assert patch.culprit
        culprit = patch.culprit.by.commit
        if culprit != commit:
            diff = patch_file.parse_patch(folder / "theirs.patch", raw).diff
            assert [
                _applies(access, shipped, diff, at, copy.parent / "index")
                for at in (f"{culprit}^", culprit)
            ] == [True, False]
            seen[-1] += (f"reverted, then broken by {culprit[:12]}",)
            assert patch.verdict.outcome != "taken"
            continue
        assert patch.verdict.signals.same_patch_id
        assert patch.verdict.signals.same_patch_id.commit == commit
        assert (
            patch.verdict.outcome == "taken"
            or patch.verdict.signals.upstream_line_count < patch.verdict.signals.line_count
        )
    with capsys.disabled():
        print(f"\n{name}: {seen}")
    assert [one[1] for one in seen].count("taken") >= 4


def _applies(access: Access, source: GitSource, diff: bytes, commit: str, file: Path) -> bool:
    with branch_state.open_upstream(source, access, source.commit) as upstream:
        assert isinstance(upstream, branch_state.Upstream)
        index = {"GIT_INDEX_FILE": str(file)}
        upstream.git.run("read-tree", commit, env=index)
        return (
            upstream.git.run(
                "apply", "--cached", "--check", "-", stdin=diff, env=index, check=False
            ).returncode
            == 0
        )


def _changed_line(upstream: branch_state.Upstream, pin: str) -> tuple[str, str]:
    """A line of a Python file, the only one of its kind there, that upstream took out since the pin."""
    diff = upstream.git.text(
        "diff-tree", "-r", "-p", "-U0", "--no-renames", "--diff-filter=M", pin, upstream.tip
    )
    path = ""
    for line in diff.splitlines():
        if line.startswith("--- a/"):
            path = line.removeprefix("--- a/")
        elif line.startswith("-  ") and path.endswith(".py"):
            text = [
                upstream.git.text("cat-file", "blob", f"{commit}:{path}").splitlines()
                for commit in (pin, upstream.tip)
            ]
            if (
                text[0].count(line[1:]) == 1
                and not any(line[1:] in one for one in text[1])
                and sum(line[1:] in one for one in text[0]) == 1
            ):
                return path, line[1:]
    pytest.fail("upstream took no line out since the pin")
