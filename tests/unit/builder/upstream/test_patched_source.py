"""Which patches apply to a pin, and what is said of those that do not."""

from __future__ import annotations

import pytest

from builder.upstream import overlay, patch_refresh, patch_series, patched_source
from rosetta.core.errors import UserError
from tests.support import errors
from tests.support.patch_series import Bench, bench_, make_text

pytestmark = pytest.mark.slow

__all__ = ["bench_"]  # a fixture


def _survey(bench: Bench, *, history: bool = True) -> patched_source.Survey:
    return patched_source.survey_patches(
        bench.pinned(history=history),
        patch_series.load_patches(bench.patches),
        overlay.load_overlay(bench.source().overlay),
    )


def test_two_patches_on_one_file_become_two_commits_on_the_pin(bench: Bench) -> None:
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l3="first\n")}))
    bench.add(
        "second",
        bench.upstream.diff(
            {"pkg/a.py": make_text(l20="second\n"), "pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}
        ),
    )
    done = patched_source.build_patched_source(bench.pinned(), bench.source())
    assert [one.outcome for one in done.patches] == ["applied", "applied"]
    assert bench.content(done.commit, "pkg/a.py") == make_text(l3="first\n", l20="second\n")
    git = bench.pinned().git
    pin = bench.pinned()
    log = git.text(
        "log", "--format=%H %P|%an <%ae>|%cn <%ce>|%at %ct|%ai|%s", f"{pin.commit}..{done.commit}"
    ).splitlines()
    first, second = (str(one.commit) for one in done.patches)
    who = "rosetta <rosetta@localhost>"
    assert log == [
        f"{second} {first}|{who}|{who}|{pin.date + 2} {pin.date + 2}|{git.text('log', '-1', '--format=%ai', second)}|up: second",
        f"{first} {pin.commit}|{who}|{who}|{pin.date + 1} {pin.date + 1}|{git.text('log', '-1', '--format=%ai', first)}|up: first",
    ]
    assert git.text("log", "-1", "--format=%ai", first).endswith("+0000")
    assert "Why: the test\n needs it\nUpstream-Status: Pending" in git.text(
        "log", "-1", "--format=%B", first
    )
    assert done.commit == second
    assert done.exported_tree == done.tree


def test_no_patches_give_the_pin_itself(bench: Bench) -> None:
    done = patched_source.build_patched_source(bench.pinned(), bench.source())
    assert (done.commit, done.tree, done.exported_tree) == (
        bench.pinned().commit,
        bench.pinned().tree,
        bench.pinned().tree,
    )


def test_a_patched_executable_stays_one(bench: Bench) -> None:
    bench.add(
        "script", bench.upstream.diff({"run.sh": b"#!/bin/sh\necho\n"}, modes={"run.sh": "100755"})
    )
    done = patched_source.build_patched_source(bench.pinned(), bench.source())
    assert bench.pinned().git.text("ls-tree", done.tree, "run.sh").startswith("100755 ")


def test_a_patch_whose_lines_moved_applies(bench: Bench) -> None:
    bench.add("moved", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.upstream.commit({"pkg/a.py": make_text(l1="top\ntop\ntop\n")})
    done = patched_source.build_patched_source(bench.pinned(), bench.source())
    assert bench.content(done.commit, "pkg/a.py") == make_text(l1="top\ntop\ntop\n", l20="ours\n")


def test_conflict_names_hunk_file_and_the_upstream_commit(bench: Bench) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l2="ours\n", l20="ours\n")}))
    bench.upstream.commit({"pkg/a.py": make_text(l29="harmless\n")}, "harmless")
    culprit = bench.upstream.commit(
        {"pkg/a.py": make_text(l20="theirs\n", l29="harmless\n")}, "rework line 20"
    )
    bench.upstream.commit(
        {"pkg/a.py": make_text(l5="later\n", l20="theirs\n", l29="harmless\n")}, "later"
    )
    (result,) = _survey(bench).results
    assert (result.outcome, result.commit, result.sound) == ("conflict", None, False)
    assert (
        result.detail
        == f'hunk 2 of 2 in pkg/a.py fits nowhere; changed upstream in {culprit[:12]} (Ada Upstream, 2020-09-16, "rework line 20")'
    )
    assert result.cause
    assert (result.cause.commit, result.cause.author) == (culprit, "Ada Upstream")
    with pytest.raises(UserError) as caught:
        patched_source.build_patched_source(bench.pinned(), bench.source())
    assert "conflict: hunk 2 of 2 in pkg/a.py" in caught.value.what
    assert caught.value.where.endswith("patches/up/mine.patch")
    assert culprit[:12] in str(caught.value)


def test_conflict_without_history_says_how_to_get_it(bench: Bench) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")})
    (result,) = _survey(bench, history=False).results
    assert (result.outcome, result.cause) == ("conflict", None)
    assert "history is not available: give --mirror" in result.detail


def test_conflict_found_although_a_patch_before_it_changes_the_same_file(bench: Bench) -> None:
    base = bench.upstream.head
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l10="first\n")}))
    both = bench.upstream.tree(
        {"pkg/a.py": make_text(l10="first\n", l11="second\n")}, f"{base}^{{tree}}"
    )
    one = bench.upstream.tree({"pkg/a.py": make_text(l10="first\n")}, f"{base}^{{tree}}")
    bench.add("second", patch_refresh.diff_trees(bench.upstream.git, one, both))
    culprit = bench.upstream.commit({"pkg/a.py": make_text(l12="theirs\n")}, "rework line 12")
    first, second = _survey(bench).results
    assert (first.outcome, second.outcome) == ("applied", "conflict")
    assert second.cause
    assert second.cause.commit == culprit


def test_a_conflict_between_our_own_patches_says_so(bench: Bench) -> None:
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l20="first\n")}))
    bench.add("second", bench.upstream.diff({"pkg/a.py": make_text(l20="second\n")}))
    _, second = _survey(bench).results
    assert second.outcome == "conflict"
    assert "our own patch first changes those lines before it" in second.detail


def test_a_merge_that_git_could_make_is_a_hint_and_not_a_build(bench: Bench) -> None:
    wide = bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}, context=3)
    bench.add("near", wide)
    bench.upstream.commit({"pkg/a.py": make_text(l18="theirs\n")}, "two lines above")
    (result,) = _survey(bench).results
    assert result.outcome == "conflict"
    assert "git can merge it: run `build.py patches refresh`" in result.detail
    with pytest.raises(UserError):
        patched_source.build_patched_source(bench.pinned(), bench.source())
    (merged,) = patched_source.survey_patches(
        bench.pinned(), patch_series.load_patches(bench.patches), (), merge=True
    ).results
    assert (merged.outcome, merged.detail) == ("applied", "by a three-way merge")


def test_already_upstream_is_left_out_with_the_same_tree(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("other", bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    bench.add("merged", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    culprit = bench.upstream.commit({"pkg/a.py": make_text(l20="ours\n")}, "take it")
    other, merged = _survey(bench).results
    assert (merged.outcome, merged.commit, merged.sound) == ("upstream", None, True)
    assert culprit[:12] in merged.detail
    done = patched_source.build_patched_source(bench.pinned(), bench.source())
    assert done.commit == other.commit
    assert "up: merged: " in capsys.readouterr().err
    assert (
        patched_source.build_patched_source(bench.pinned(history=False), bench.source()).commit
        == done.commit
    )


def test_already_upstream_inside_a_larger_commit(bench: Bench) -> None:
    bench.add("merged", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.upstream.commit(
        {"pkg/a.py": make_text(l3="more\n", l20="ours\n"), "pkg/b.py": b"x = 2\n"}, "superset"
    )
    assert _survey(bench, history=False).results[0].outcome == "upstream"


def test_already_upstream_and_edited_later_is_seen_through_the_history(bench: Bench) -> None:
    bench.add("merged", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    culprit = bench.upstream.commit({"pkg/a.py": make_text(l20="ours\n")}, "take it")
    bench.upstream.commit({"pkg/a.py": make_text(l20="ours, edited\n")}, "edit it")
    (result,) = _survey(bench).results
    assert (result.outcome, result.sound) == ("upstream", False)
    assert result.cause
    assert result.cause.commit == culprit
    with errors.expect_user_error(
        errors.CONFLICT, where="merged.patch", value="upstream", names=culprit[:12]
    ):
        patched_source.build_patched_source(bench.pinned(), bench.source())


def test_the_same_change_twice_in_our_stack_is_empty(bench: Bench) -> None:
    bench.add("once", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.add("again", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    _, again = _survey(bench).results
    assert (again.outcome, again.sound) == ("empty", False)


def test_a_patch_without_a_diff_is_empty(bench: Bench) -> None:
    bench.add("nothing", b"")
    (result,) = _survey(bench).results
    assert (result.outcome, result.detail) == ("empty", "the patch changes nothing: drop it")
    with errors.expect_user_error(errors.CONFLICT, where="nothing.patch", value="empty"):
        patched_source.build_patched_source(bench.pinned(), bench.source())


def test_gone_names_the_commit_that_deleted_the_file(bench: Bench) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    culprit = bench.upstream.commit({"pkg/a.py": None}, "clean up")
    bench.upstream.commit({"pkg/c.py": b"c\n"})
    (result,) = _survey(bench).results
    assert (result.outcome, result.cause and result.cause.commit) == ("gone", culprit)
    (blind,) = _survey(bench, history=False).results
    assert blind.outcome == "gone"
    assert "give --mirror" in blind.detail


def test_renamed_twice_names_where_the_file_is_now(bench: Bench) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    first = bench.upstream.commit(
        {"pkg/a.py": None, "pkg/mid.py": make_text(l2="touched\n")}, "move once"
    )
    bench.upstream.commit({"pkg/mid.py": None, "lib/a.py": make_text(l2="touched\n")}, "move twice")
    (result,) = _survey(bench).results
    assert (result.outcome, result.cause and result.cause.commit) == ("renamed", first)
    assert "pkg/a.py is now lib/a.py" in result.detail


def test_an_exact_rename_is_seen_without_history(bench: Bench) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.upstream.commit({"pkg/a.py": None, "lib/a.py": make_text()}, "move")
    (result,) = _survey(bench, history=False).results
    assert result.outcome == "renamed"
    assert "lib/a.py" in result.detail


def test_a_hunk_that_fits_in_several_places_is_not_guessed(bench: Bench) -> None:
    block = b"def f():\n  return 1\n\n"
    bench.upstream.commit({"pkg/d.py": b"import x\n" + block})
    bench.add("guess", bench.upstream.diff({"pkg/d.py": b"import x\ndef f():\n  return 2\n\n"}))
    assert _survey(bench).results[0].outcome == "applied"
    bench.upstream.commit({"pkg/d.py": b"import x\nimport y\n" + block + block})
    (result,) = _survey(bench).results
    assert result.outcome == "conflict"
    assert "fits 2 places of pkg/d.py" in result.detail


NOTE = b"# up\n\nNote: this\n\n## Overview\n"


def test_an_insertion_that_is_there_is_not_made_twice(bench: Bench) -> None:
    # Behind the inserted lines stands what stood before them: git alone would put them in a second time.
    bench.upstream.commit({"doc.md": b"# up\n\n## Overview\nall\n"})
    bench.add("note", bench.upstream.diff({"doc.md": NOTE + b"all\n"}))
    culprit = bench.upstream.commit({"doc.md": NOTE + b"all\nof it\n"}, "note")
    (result,) = _survey(bench).results
    assert (result.outcome, result.sound, result.cause and result.cause.commit) == (
        "upstream",
        False,
        culprit,
    )
    (blind,) = _survey(bench, history=False).results
    assert (blind.outcome, blind.detail) == (
        "conflict",
        "it fits doc.md, but the file has its change already as well: write it anew against the pin",
    )
    with errors.expect_user_error(
        errors.CONFLICT, where="note.patch", value="conflict", names="doc.md"
    ):
        patched_source.build_patched_source(bench.pinned(history=False), bench.source())


def test_a_deletion_is_never_taken_for_upstreams_without_proof(bench: Bench) -> None:
    bench.upstream.commit({"d.py": b"import a\nimport b\nimport c\nend\n"})
    bench.add("less", bench.upstream.diff({"d.py": b"import a\nimport c\nend\n"}))
    culprit = bench.upstream.commit(
        {"d.py": b"import a\nimport bb\nimport c\nend\nif x:\nimport a\nimport c\nfi\n"}, "other"
    )
    (blind,) = _survey(bench, history=False).results
    assert (blind.outcome, blind.sound) == ("conflict", False)
    (result,) = _survey(bench).results
    assert (result.sound, result.cause and result.cause.commit) == (False, culprit)


def test_patches_after_a_failed_one_are_still_tried(bench: Bench) -> None:
    bench.add("bad", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.add("good", bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")})
    assert [one.outcome for one in _survey(bench).results] == ["conflict", "applied"]


def test_a_patch_through_a_link_is_refused(bench: Bench) -> None:
    bench.upstream.commit({"pkg/link": b"b.py"}, modes={"pkg/link": "120000"})
    bench.add(
        "through",
        bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}).replace(
            b"pkg/a.py", b"pkg/link"
        ),
    )
    with errors.expect_user_error(
        errors.INVALID, where="through.patch:", value="pkg/link"
    ) as caught:
        _survey(bench)
    assert "through.patch:" in caught.value.where


def test_a_patch_below_a_link_is_refused(bench: Bench) -> None:
    bench.upstream.commit({"lib": b"pkg"}, modes={"lib": "120000"})
    bench.add(
        "below",
        bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}).replace(
            b"pkg/a.py", b"lib/a.py"
        ),
    )
    with errors.expect_user_error(errors.INVALID, where="below.patch:", value="lib"):
        _survey(bench)


def test_a_patch_that_takes_most_of_a_file_away_is_refused(bench: Bench) -> None:
    long = [b"line %d\n" % n for n in range(100)]
    bench.upstream.commit({"long.py": b"".join(long)})
    bench.add("half", bench.upstream.diff({"long.py": b"".join(long[:10] + long[60:])}))
    assert _survey(bench).results[0].outcome == "applied"
    bench.add("most", bench.upstream.diff({"long.py": b"".join(long[:10] + long[61:])}))
    with errors.expect_user_error(
        errors.TOO_BIG, where="most.patch:", value=51, names=("100", "long.py"), remedy="overlay"
    ):
        patched_source.survey_patches(
            bench.pinned(), patch_series.load_patches(bench.patches)[1:], ()
        )
