from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder import cli
from tests.support.patch_series import Bench, Upstream, make_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("ROSETTA_CACHE", str(tmp_path / "cache"))
    made = Bench(tmp_path)
    made.upstream.commit({"README": b"up\n"})
    made.upstream.commit({"pkg/a.py": make_text(), "pkg/b.py": b"x = 1\ny = 2\nz = 3\n"})
    return made


def _arguments(bench: Bench, *argv: str) -> list[str]:
    return [
        "patches",
        "--offline",
        "--mirror",
        str(bench.root / "mirror"),
        "--manifest",
        str(bench.manifest()),
        *argv,
    ]


def _run(bench: Bench, *argv: str) -> int:
    return cli.main(_arguments(bench, *argv))


def _json(
    bench: Bench, capsys: pytest.CaptureFixture[str], *argv: str
) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = _run(bench, *argv, "--json")
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["command"]) == (1, "patches")
    assert document["ok"] is (status == 0)
    return status, document


def _files(bench: Bench) -> dict[str, bytes]:
    return {
        str(file.relative_to(bench.root)): file.read_bytes()
        for file in sorted(bench.patches.iterdir())
    }


def test_check_passes_and_prints_a_line_a_patch(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l3="ours\n")}))
    bench.lay("more.txt", b"more\n", "new")
    assert _run(bench, "check", "up") == 0
    assert capsys.readouterr().out.split("\n") == [
        "up  mine              applied",
        "up  overlay more.txt  applied",
        "2 of 2 applied",
        "",
    ]


def test_check_fails_with_status_1_and_names_the_cause(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.add("fine", bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    culprit = bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")}, "rework")
    assert _run(bench, "check") == 1
    out = capsys.readouterr().out
    assert culprit[:12] in out
    assert "1 of 2 applied" in out
    status, document = _json(bench, capsys, "check")
    mine, fine = document["result"]["sources"]["up"]["patches"]
    assert (status, mine["outcome"], mine["cause"]["commit"], fine["outcome"]) == (
        1,
        "conflict",
        culprit,
        "applied",
    )


@pytest.mark.parametrize(
    "argv",
    [
        ("check", "--why", "x"),
        ("check", "--dry-run"),
        ("check", "nosuch"),
        ("import",),
        ("import", "a", "b"),
        (),
        ("mend",),
    ],
)
def test_wrong_use_is_status_2(
    bench: Bench, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(bench, *argv) == 2
    assert capsys.readouterr().err


def test_options_may_stand_anywhere(bench: Bench) -> None:
    diff = bench.upstream.diff({"pkg/a.py": make_text(l3="ours\n")}, context=3)
    bench.add("wide", diff)
    common = [
        "--offline",
        "--mirror",
        str(bench.root / "mirror"),
        "--manifest",
        str(bench.manifest()),
    ]
    assert cli.main(["patches", "refresh", *common, "--dry-run", "up"]) == 1
    assert cli.main(["patches", "refresh", "up", *common]) == 0
    assert cli.main(["patches", "refresh", "up", "--dry-run", *common]) == 0


def test_a_broken_patch_file_is_told_before_anything_is_fetched(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("mine", b"nonsense\n")
    status, document = _json(bench, capsys, "check")
    assert status == 2
    assert document["error"]["where"].endswith("patches/up/mine.patch:10")
    assert not (bench.root / "cache/git").exists()


def test_status_tells_size_and_what_is_stale(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("tidy", bench.upstream.diff({"pkg/a.py": make_text(l3="ours\nours\n")}))
    bench.add(
        "wide",
        bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}, context=3),
        **{"Upstream-Status": "Denied [not theirs]"},
    )
    status, document = _json(bench, capsys, "status")
    tidy, wide = document["result"]["sources"]["up"]["patches"]
    assert (status, tidy["added"], tidy["removed"], tidy["stale"]) == (0, 2, 1, False)
    assert (wide["added"], wide["removed"], wide["stale"], wide["upstream_status"]) == (
        1,
        1,
        True,
        "Denied [not theirs]",
    )
    assert _run(bench, "status") == 0
    out = capsys.readouterr().out
    assert "+2 -1  Pending   applied" in out
    assert "+1 -1  Denied    applied  stale: run `build.py patches refresh`" in out


def test_refresh_rewrites_only_what_changes_and_then_nothing(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    tidy = bench.add("tidy", bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    wide = bench.add("wide", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}, context=3))
    bench.upstream.commit(
        {"pkg/a.py": make_text(l1="top\ntop\n", l18="theirs\n")}
    )  # moves it, and spoils its context
    before, kept = _files(bench), tidy.stat().st_mtime_ns
    assert _run(bench, "check") == 1
    assert _run(bench, "refresh", "--dry-run") == 1
    assert "wide  stale" in capsys.readouterr().out
    assert _files(bench) == before
    assert _run(bench, "refresh") == 0
    assert "up  wide  rewritten" in capsys.readouterr().out
    after = _files(bench)
    assert [name for name in before if before[name] != after[name]] == ["patches/up/wide.patch"]
    assert tidy.stat().st_mtime_ns == kept
    assert b"@@ -20,3 +20,3 @@" in wide.read_bytes()
    assert (
        wide.read_bytes().split(b"---\n")[0] == before["patches/up/wide.patch"].split(b"---\n")[0]
    )
    assert _run(bench, "check") == 0
    assert _run(bench, "refresh", "--dry-run") == 0
    assert _run(bench, "refresh") == 0
    assert _files(bench) == after


def test_refresh_leaves_what_stands_behind_a_failed_patch(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l3="first\n")}, context=3))
    bench.add("bad", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.add("last", bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}, context=3))
    bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")})
    before = _files(bench)
    assert _run(bench, "refresh") == 1
    out = capsys.readouterr().out
    assert "first  rewritten" in out
    assert "bad    conflict" in out
    after = _files(bench)
    assert [name for name in before if before[name] != after[name]] == ["patches/up/first.patch"]


def _clone(
    bench: Bench, *, files: dict[str, bytes | None], subject: str = "pkg: Say it (twice)"
) -> Path:
    """A person's clone with one commit more, on the branch `work`."""
    folder = bench.root / "clone"
    env = {"PATH": os.environ["PATH"], "HOME": str(bench.root), "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*argv: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=Grace Dev", "-c", "user.email=grace@example.org", *argv],
            check=True,
            capture_output=True,
            env=env,
        )

    git("clone", "--quiet", str(bench.root / "mirror/up.git"), str(folder), "-b", "main")
    git("-C", str(folder), "checkout", "--quiet", "-b", "work")
    for path, data in files.items():
        target = folder / path
        if data is None:
            target.unlink()
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    git("-C", str(folder), "add", "-A")
    git("-C", str(folder), "commit", "--quiet", "-m", f"{subject}\n\nlong story\n")
    # What must have no effect: a hostile config and hooks of that clone.
    (folder / ".git/config").write_text(
        (folder / ".git/config").read_text()
        + f"[core]\n fsmonitor = touch {bench.root}/ran\n[diff]\n external = touch {bench.root}/ran\n"
    )
    return folder


HEAD = ("--why", "it has to be said", "--status", "Pending", "--drop-when", "it was said")


def test_import_makes_a_patch_at_the_end_of_the_series(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l3="ours\n")}))
    clone = _clone(bench, files={"pkg/a.py": make_text(l20="theirs\n")})
    before = _files(bench)
    arguments = ("import", "HEAD", "--source", "up", "--repo", str(clone), *HEAD)
    assert _run(bench, *arguments, "--dry-run") == 0
    assert _files(bench) == before
    assert _run(bench, *arguments) == 0
    raw = (bench.patches / "say-it-twice.patch").read_text()
    assert raw.startswith(
        "From: Grace Dev <grace@example.org>\nSubject: [PATCH] pkg: Say it (twice)\n\n"
        "Why: it has to be said\nUpstream-Status: Pending\nDrop-When: it was said\n\n---\ndiff --git a/pkg/a.py b/pkg/a.py\n"
    )
    assert (bench.patches / "series").read_text() == "mine\nsay-it-twice\n"
    capsys.readouterr()
    assert _run(bench, "check") == 0
    assert _run(bench, "refresh", "--dry-run") == 0
    assert not (bench.root / "ran").exists()
    assert _run(bench, *arguments) == 2
    assert "--replace" in capsys.readouterr().err


@pytest.mark.parametrize("ref", ["work", "work~0", "refs/heads/work", "HEAD~0", "origin/main"])
def test_import_reads_the_clones_refs(
    bench: Bench, ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.upstream.commit({"pkg/b.py": b"x = 2\ny = 2\nz = 3\n"}, "upstream: change x")
    clone = _clone(bench, files={"pkg/a.py": make_text(l20="theirs\n")})
    status = _run(bench, "import", ref, "--repo", str(clone), *HEAD)
    if ref == "origin/main":  # the pin itself: nothing new in it
        assert status == 2
        assert re.search(r"change-x\b.*\bupstream:", capsys.readouterr().err)
    else:
        assert status == 0
        assert (bench.patches / "say-it-twice.patch").exists()


def test_import_of_a_later_upstream_commit_as_a_backport(bench: Bench) -> None:
    pin = bench.upstream.head
    later = bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")}, "Fix line 20")
    bench.upstream.head = pin
    assert (
        _run(
            bench,
            "import",
            later[:12],
            "--name",
            "fix",
            "--why",
            "w",
            "--status",
            "Backport",
            "--drop-when",
            "the pin has it",
        )
        == 0
    )
    assert f"\nOrigin: {later}\n" in (bench.patches / "fix.patch").read_text()
    assert _run(bench, "check") == 0


def test_import_in_the_place_of_a_conflicting_patch(bench: Bench) -> None:
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.add("second", bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}))
    bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")})
    clone = _clone(bench, files={"pkg/a.py": make_text(l20="theirs and ours\n")})
    assert _run(bench, "check") == 1
    assert _run(bench, "import", "HEAD", "--repo", str(clone), "--name", "first", "--replace") == 0
    raw = (bench.patches / "first.patch").read_text()
    assert "Subject: [PATCH] up: first\n" in raw
    assert "Why: the test\n needs it\n" in raw
    assert "+theirs and ours\n" in raw
    assert (bench.patches / "series").read_text() == "first\nsecond\n"
    assert _run(bench, "check") == 0


MENDED = {
    "first": make_text(l3="theirs 3\n", l20="theirs and first\n"),
    "second": make_text(l3="theirs and second\n", l20="theirs 20\n"),
}


def _mend(bench: Bench, name: str, data: bytes, *options: str) -> int:
    """Import a commit that sets pkg/a.py to `data`, in the place of the patch `name`."""
    commit = bench.upstream.commit({"pkg/a.py": data}, f"mend {name}")
    bench.upstream.head = bench.upstream.git.text("rev-parse", f"{commit}^")
    return _run(bench, "import", commit, "--name", name, "--replace", *options)


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_patches_broken_by_one_commit_are_mended_one_after_the_other(
    bench: Bench, order: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.add("second", bench.upstream.diff({"pkg/a.py": make_text(l3="ours\n")}))
    bench.add("wide", bench.upstream.diff({"pkg/b.py": b"x = 1\ny = 2\nz = 4\n"}, context=3))
    bench.upstream.commit({"pkg/a.py": make_text(l3="theirs 3\n", l20="theirs 20\n")}, "one commit")
    before = _files(bench)
    assert _mend(bench, order[0], MENDED[order[0]], "--dry-run") == 0
    assert _files(bench) == before
    capsys.readouterr()
    assert _mend(bench, order[0], MENDED[order[0]]) == 0
    assert f"still to repair: {order[1]} is conflict: " in capsys.readouterr().out
    changed = {name for name, data in _files(bench).items() if before[name] != data}
    assert changed == {f"patches/up/{order[0]}.patch"} | (
        {"patches/up/wide.patch"} if order[0] == "second" else set()
    )
    assert _run(bench, "check") == 1
    assert _mend(bench, order[1], MENDED[order[1]]) == 0
    assert "still to repair" not in capsys.readouterr().out
    assert _run(bench, "check") == 0
    assert _run(bench, "refresh", "--dry-run") == 0


def test_a_mended_patch_may_break_those_behind_it_which_were_judged_without_it(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.add("second", bench.upstream.diff({"pkg/a.py": make_text(l25="second\n")}))
    bench.upstream.commit({"pkg/a.py": make_text(l20="theirs 20\n")}, "one commit")
    both = make_text(l20="theirs 20\n", l25="first, in another place\n")
    assert _mend(bench, "first", both) == 0
    assert "still to repair: second is conflict: " in capsys.readouterr().out
    base = bench.upstream.head
    bench.upstream.commit({"pkg/a.py": both})
    commit = bench.upstream.commit(
        {"pkg/a.py": both.replace(b"first, in", b"first and second, in")}
    )
    bench.upstream.head = base
    assert _run(bench, "import", commit, "--name", "second", "--replace") == 0
    assert _run(bench, "check") == 0


def test_import_breaks_no_patch_of_a_series_that_applies(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.add("second", bench.upstream.diff({"pkg/a.py": make_text(l3="second\n")}))
    before = _files(bench)
    assert _mend(bench, "first", make_text(l3="first too\n")) == 2
    assert re.search(r"second\b.*\bconflict:", capsys.readouterr().err)
    assert _files(bench) == before


def test_a_new_patch_waits_until_the_series_applies(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.upstream.commit({"pkg/a.py": make_text(l20="theirs\n")})
    clone, before = _clone(bench, files={"pkg/b.py": b"x = 2\ny = 2\nz = 3\n"}), _files(bench)
    assert _run(bench, "import", "HEAD", "--repo", str(clone), *HEAD) == 2
    assert re.search(r"first\b.*\(conflict: ", capsys.readouterr().err)
    assert _files(bench) == before


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"pkg/new.py": b"x\n"}, "overlay"),
        ({"pkg/b.py": None}, "deletes"),
        ({"pkg/b.py": None, "pkg/c.py": b"x = 1\ny = 2\nz = 3\n"}, "deletes"),
        ({".gitmodules": b'[submodule "x"]\n'}, ".gitmodules"),
        ({"pkg/a.py": make_text(l3="a\r\n")}, "carriage return"),
        ({"pkg/a.py": make_text(l3="a\0b\n")}, "is binary"),
        ({"pkg/b.py": b"all\nnew\n"}, "whole file"),
    ],
)
def test_import_refuses_what_no_patch_may_do(
    bench: Bench, files: dict[str, bytes | None], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clone, before = _clone(bench, files=files), _files(bench)
    assert _run(bench, "import", "HEAD", "--repo", str(clone), *HEAD) == 2
    assert what in capsys.readouterr().err
    assert _files(bench) == before


def test_import_refuses_merges_first_commits_empty_ones_and_conflicts(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    pin = bench.upstream.head
    first = bench.upstream.git.text("rev-parse", f"{pin}^")
    other = Upstream(bench.root / "mirror")
    other.head = pin
    side = other.commit({"pkg/b.py": b"x = 2\n"}, "side")
    merge = other.commit({"pkg/a.py": make_text(l3="x\n")}, "merge", parents=(pin, side))
    other.head = pin
    empty = other.commit({}, "empty", parents=(pin,))
    base = other.commit({"pkg/a.py": make_text(l20="unrelated\n")}, "base", parents=(pin,))
    clash = other.commit({"pkg/a.py": make_text(l20="clash\n")}, "clash", parents=(base,))
    bench.upstream.head = pin
    before = _files(bench)
    for commit, what in (
        (merge, "is a merge"),
        (first, "has no parent"),
        (empty, "changes nothing"),
        (clash, "with it, clash is conflict"),
        ("f" * 40, "no commit"),
    ):
        assert _run(bench, "import", commit, *HEAD) == 2
        assert what in capsys.readouterr().err
    assert _files(bench) == before


@pytest.mark.parametrize(
    "ref",
    [
        "--upload-pack=x",
        "-x",
        "a:b",
        "HEAD@{1}",
        "work..main",
        "$(touch ran)",
        "../x",
        "HEAD^{/x}",
        "HEAD",
    ],
)
def test_import_takes_no_strange_refs(
    bench: Bench, ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _files(bench)
    assert _run(bench, "import", *HEAD, "--", ref) == 2
    assert f"{ref!r}" in capsys.readouterr().err
    assert _files(bench) == before


@pytest.mark.parametrize("missing", ["--why", "--status", "--drop-when"])
def test_import_wants_its_fields(
    bench: Bench, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = _clone(bench, files={"pkg/a.py": make_text(l20="theirs\n")})
    given = [
        part
        for option, value in zip(HEAD[::2], HEAD[1::2], strict=True)
        if option != missing
        for part in (option, value)
    ]
    assert _run(bench, "import", "HEAD", "--repo", str(clone), *given) == 2
    assert missing in capsys.readouterr().err


KILLER = """
import os, signal, sys
from builder import cli
count, real = int(sys.argv[1]), os.replace
def replace(a, b):
    global count
    if "/patches/up/" in str(b):
        count -= 1
        if count < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    real(a, b)
os.replace = replace
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize("after", [0, 1])
def test_a_killed_import_is_finished_by_a_rerun(bench: Bench, after: int) -> None:
    clone = _clone(bench, files={"pkg/a.py": make_text(l20="theirs\n")})
    arguments = _arguments(bench, "import", "HEAD", "--repo", str(clone), *HEAD)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(bench.root)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, str(after), *arguments],
        check=False,
        capture_output=True,
        env=env,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (bench.patches / "series").read_text() == ""
    assert (bench.patches / "say-it-twice.patch").exists() is (after == 1)
    assert cli.main(arguments) == 0
    assert (bench.patches / "series").read_text() == "say-it-twice\n"
    assert _run(bench, "check") == 0


def test_a_killed_refresh_is_finished_by_a_rerun(bench: Bench) -> None:
    for n, name in ((3, "one"), (20, "two")):
        bench.add(
            name, bench.upstream.diff({"pkg/a.py": make_text(**{f"l{n}": "ours\n"})}, context=3)
        )
    arguments = _arguments(bench, "refresh")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(bench.root)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, "1", *arguments], check=False, capture_output=True, env=env
    )
    assert killed.returncode == -signal.SIGKILL
    assert cli.main(arguments) == 0
    assert _run(bench, "refresh", "--dry-run") == 0
    assert _run(bench, "check") == 0
