"""The whole command on scripted upstreams: real git, real patches; the cheap stage, which needs no packages."""

from __future__ import annotations

import math

import pytest

from tests.support import errors, small_distribution
from tests.support.bisect_history import Story, get_only_culprit, make_numbered_file

pytestmark = pytest.mark.slow

BAD = "'bad' in text('bad.py')"


def test_a_commit_of_an_upstream(story: Story) -> None:
    story.end("good")
    commits = story.many(40, bad=27)
    story.end("bad")
    found = get_only_culprit(result := story.found(BAD))
    assert (found["kind"], found["source"], found["commit"], found["subject"]) == (
        "commit",
        "thing",
        commits[27],
        "step 27",
    )
    assert (found["author"], found["files"]) == ("Ada", ["bad.py", "f27.py"])
    assert (result["candidates"], result["alone"], result["skipped"]) == (40, True, [])
    assert result["builds"] == story.calls() - 2 <= math.log2(40) + 2


@pytest.mark.parametrize("index", [0, 1, 39])
def test_at_either_end_of_the_list(story: Story, index: int) -> None:
    story.end("good")
    commits = story.many(40, bad=index)
    story.end("bad")
    assert get_only_culprit(story.found(BAD))["commit"] == commits[index]


def test_a_patch_among_commits(story: Story) -> None:
    story.commit(
        "files",
        one_py=make_numbered_file("x"),
        two_py=make_numbered_file("x"),
        three_py=make_numbered_file("x"),
    )
    story.end("good")
    story.many(20)
    story.end("bad")
    for name in ("one", "two", "three"):
        story.patch(
            "bad", name, f"{name}.py", make_numbered_file("bad" if name == "two" else "good")
        )
    found = get_only_culprit(result := story.found("'bad' in text('two.py')"))
    assert (found["kind"], found["name"], found["files"]) == ("patch", "two", ["two.py"])
    assert "added" in found["what"]
    assert result["candidates"] == 23


def test_a_changed_and_a_removed_patch(story: Story) -> None:
    story.commit("files", mine_py=make_numbered_file("x"), needed_py=make_numbered_file("x"))
    for end in ("good", "bad"):
        story.end(end)
        story.patch(end, "mine", "mine.py", make_numbered_file("fine" if end == "good" else "bad"))
    story.patch("good", "needed", "needed.py", make_numbered_file("ours"))
    for name, expression, change in (
        ("mine", "'bad' in text('mine.py')", "changed"),
        ("needed", "'ours' not in text('needed.py')", "removed"),
    ):
        found = get_only_culprit(story.found(expression))
        assert (found["kind"], found["name"]) == ("patch", name)
        assert change in found["what"]


def test_a_pair_of_a_commit_and_a_patch(story: Story) -> None:
    story.commit("files", half_py=make_numbered_file("x"), other_py=make_numbered_file("x"))
    story.end("good")
    commits = story.many(30, bad=11)
    story.end("bad")
    story.patch("bad", "half", "half.py", make_numbered_file("bad"))
    story.patch("bad", "other", "other.py", make_numbered_file("fine"))
    result = story.found(f"{BAD} and 'bad' in text('half.py')")
    assert result["pair"]
    assert [[unit["name"] for unit in group] for group in result["culprits"]] == [
        ["half"],
        [commits[11]],
    ]


def test_the_commit_that_a_merge_brought(story: Story) -> None:
    story.end("good")
    base = story.many(4)[-1]
    inner = [
        story.commit(
            f"branch {each}",
            *([base] if each == 0 else []),
            **{f"g{each}_py": "x\n"},
            **({"bad_py": "bad\n"} if each == 2 else {}),
        )
        for each in range(6)
    ]
    merge = story.commit("merge", base, inner[-1])
    story.many(4)
    story.end("bad")
    found = get_only_culprit(story.found(BAD, merged=7))
    assert (found["commit"], found["merged_by"], found["files"]) == (
        inner[2],
        merge,
        ["bad.py", "g2.py"],
    )


def test_a_merge_that_is_itself_to_blame(story: Story) -> None:
    story.end("good")
    base = story.many(4)[-1]
    inner = story.commit("branch", base, g_py="x\n")
    merge = story.commit("merge", base, inner, bad_py="bad\n")
    story.end("bad")
    found = get_only_culprit(story.found(BAD, merged=2))
    assert (found["commit"], found["merged_by"]) == (merge, None)


def test_the_bad_end_may_be_the_older_one(story: Story) -> None:
    story.end("bad")
    commits = story.many(20, bad=7)
    story.end("good")
    found = get_only_culprit(story.found("not text('bad.py')"))
    assert (found["commit"], found["back"]) == (commits[7], True)
    assert found["what"].startswith("without ")


def test_pins_that_share_no_line_are_one_change(story: Story) -> None:
    first = story.many(3)[0]
    story.end("good")
    story.commit("elsewhere", first, bad_py="bad\n")
    story.end("bad")
    result = story.found(BAD)
    assert get_only_culprit(result)["kind"] == "move"
    assert "force-pushed" in result["notes"][0]


def test_a_patch_made_anew_is_no_change_and_is_taken_as_it_applies(story: Story) -> None:
    """Its context moves at commit 5: the good end's version applies before, the bad end's after."""
    story.end("good")
    story.many(5)
    reworded = small_distribution.SOURCE.replace("# a thing", "# the thing")
    story.commit("reworded", **{"thing/__init__.py": reworded})
    commits = story.many(10, bad=6)
    patch = story.end("bad") / "patches/thing/greet.patch"
    for text in (
        small_distribution.SOURCE,
        small_distribution.SOURCE.replace("hi", "good morning"),
    ):
        patch.write_text(
            patch.read_text().replace(
                small_distribution.hash_blob(text),
                small_distribution.hash_blob(text.replace("# a thing", "# the thing")),
            )
        )
    patch.write_text(patch.read_text().replace("# a thing", "# the thing"))
    result = story.found(BAD)
    assert (get_only_culprit(result)["commit"], result["candidates"], result["skipped"]) == (
        commits[6],
        16,
        [],
    )


def test_a_file_of_ours(story: Story) -> None:
    for end in ("good", "bad"):
        into = story.end(end) / "overlay/thing"
        into.mkdir(parents=True)
        manifest = into.parents[1] / "manifest.yaml"
        manifest.write_text(
            manifest.read_text().replace(
                "patches: patches/thing", "patches: patches/thing, overlay: overlay/thing"
            )
        )
        for name in ("a.py", "b.py"):
            (into / name).write_text("bad\n" if (end, name) == ("bad", "b.py") else f"{end}\n")
        (into / "REPLACES").write_text("a.py new\nb.py new\n")
    found = get_only_culprit(story.found("text('b.py') == 'bad\\n'"))
    assert (found["kind"], found["name"]) == ("overlay", "b.py")
    assert "changed" in found["what"]


def test_skips_are_gone_around_and_told(story: Story) -> None:
    story.end("good")
    commits = story.many(32, bad=20)
    story.end("bad")
    status, document = story.run(f"125 if text('f15.py') and not text('f16.py') else {BAD}")
    assert (status, get_only_culprit(document["result"])["commit"]) == (0, commits[20])
    assert [each["why"] for each in document["result"]["skipped"]] == [
        "the command ended with status 125"
    ]


def test_what_cannot_be_told_apart_is_all_named(story: Story) -> None:
    story.end("good")
    commits = story.many(16, bad=9)
    story.end("bad")
    status, document = story.run(f"125 if text('f8.py') and not text('f10.py') else {BAD}")
    assert (status, document["result"]["certain"]) == (1, False)
    assert [unit["commit"] for unit in document["result"]["culprits"][0]] == commits[8:11]


def test_a_mixture_that_cannot_be_built_is_skipped(story: Story) -> None:
    """Both pins have patches of their own that fit nowhere else; between them nothing can be built."""
    story.commit("files", mine_py=make_numbered_file("old"))
    story.end("good")
    story.patch("good", "mine", "mine.py", make_numbered_file("ours"))
    commits = [story.commit("rewritten", mine_py=make_numbered_file("new")), *story.many(8, bad=3)]
    story.end("bad")
    story.patch("bad", "mine", "mine.py", make_numbered_file("ours and new"))
    status, document = story.run(BAD)
    assert status == 1
    skipped = document["result"]["skipped"]
    assert skipped
    assert all("mine.patch" in each["why"] for each in skipped)
    assert {unit["name"] for group in document["result"]["culprits"] for unit in group} >= {
        commits[4]
    }


@pytest.mark.parametrize(
    ("expression", "answer", "where"),
    [
        ("True", "bad", "--good"),
        ("False", "good", "--bad"),
        ("125", "skip", "--good"),
    ],
)
def test_ends_that_tell_nothing(story: Story, expression: str, answer: str, where: str) -> None:
    story.end("good")
    story.many(4)
    story.end("bad")
    status, document = story.run(expression)
    assert status == 2
    errors.check_error(errors.from_document(document), errors.CONFLICT, where=where, value=answer)
    assert story.calls() == (2 if where == "--bad" else 1)
    assert story.main("bisect", "--status", *story.common())[0] == 2


def test_a_command_that_answers_in_two_ways(story: Story) -> None:
    story.end("good")
    story.many(4)
    story.end("bad")
    status, document = story.run("calls % 2", "--repeat", "2")
    assert status == 2
    errors.check_error(errors.from_document(document), errors.DIFFERS, value="bad, good")


@pytest.mark.parametrize("status", [126, 130, -9])
def test_a_command_that_gives_up_loses_no_answer(story: Story, status: int) -> None:
    story.end("good")
    commits = story.many(20, bad=5)
    story.end("bad")
    stop = story.folder / "stop"
    stop.touch()
    ending = f"os.kill(os.getpid(), {-status})" if status < 0 else str(status)
    expression = f"{ending} if calls == 4 and os.path.exists({str(stop)!r}) else {BAD}"
    assert story.run(expression)[0] == 2
    assert story.calls() == 4
    status_, document = story.main("bisect", "--status", *story.common())
    assert (status_, len(document["result"]["trials"]), document["result"]["done"]) == (0, 3, False)
    stop.unlink()
    status_, document = story.main("bisect", *story.common())
    assert (status_, get_only_culprit(document["result"])["commit"]) == (0, commits[5])
    assert story.calls() == 2 + document["result"]["builds"] + 1


def test_one_at_a_time_and_it_can_be_given_up(story: Story) -> None:
    story.end("good")
    story.many(8, bad=5)
    story.end("bad")
    assert story.run("126 if calls == 3 else " + BAD)[0] == 2
    status, document = story.run(BAD)
    assert status == 2
    assert "--abort" in document["error"]["do"]
    assert (
        "good"
        in story.main("bisect", "--log", *story.common())[1]["result"]["trials"][0]["what"].split()
    )
    assert story.main("bisect", "--abort", *story.common())[0] == 0
    assert not (story.folder / "work").exists()
    assert story.run(BAD)[0] == 0
    assert story.main("bisect", "--status", *story.common())[1]["result"]["done"]
    calls = story.calls()
    assert story.run(BAD)[0] == 0
    assert story.calls() == calls, "what is known is not built again"


def test_nothing_differs(story: Story) -> None:
    story.end("good")
    story.end("bad")
    status, document = story.run("calls > 1")
    assert status == 2
    assert document["error"]["where"] == "--bad"


def test_bad_requests(story: Story) -> None:
    story.end("good")
    story.end("bad")
    error = errors.from_document(story.run(BAD, good="no:where")[1])
    assert error.where == "--good"
    (story.folder / "work").mkdir()
    (story.folder / "work/thesis").write_text("mine")
    error = errors.from_document(story.run(BAD)[1])
    errors.check_error(error, errors.EXISTS, where=story.folder / "work", remedy="--work DIR")
    assert (story.folder / "work/thesis").read_text() == "mine"
    assert story.run(BAD, "--distribution", "other")[0] == 2
    document = story.main("bisect", "--good", "x", *story.common())[1]
    errors.check_error(
        errors.from_document(document), errors.MISSING, where="bisect", remedy="--bad END"
    )
