"""The commits of a patched source: what is in them, what decides them, and runs that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.upstream import patched_source
from builder.upstream.git_objects import Reader
from tests.support import errors
from tests.support.patch_series import Bench, bench_, make_text

__all__ = ["bench_"]  # a fixture
ROOT = Path(__file__).resolve().parents[4]


def test_absent_paths_never_reach_the_exported_tree(bench: Bench) -> None:
    bench.upstream.commit({"data/big.bin": b"\0big", "data/small": b"s\n"})
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    plain = patched_source.build_patched_source(bench.pinned(), bench.source())
    absent = ("data/big.bin",)
    done = patched_source.build_patched_source(
        bench.pinned(absent=absent), bench.source(absent=absent)
    )
    assert (done.commit, done.tree) == (plain.commit, plain.tree)
    assert done.exported_tree != done.tree
    names = bench.pinned().git.text("ls-tree", "-r", "--name-only", done.exported_tree).splitlines()
    assert "data/small" in names
    assert "data/big.bin" not in names


def test_the_same_commits_where_the_absent_blob_does_not_exist(
    bench: Bench, tmp_path: Path
) -> None:
    bench.upstream.commit({"data/big.bin": b"\0big"})
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    absent = ("data/big.bin",)
    whole = patched_source.build_patched_source(
        bench.pinned(absent=absent), bench.source(absent=absent)
    )
    blob = bench.upstream.git.text("rev-parse", f"{bench.upstream.head}:data/big.bin")
    (bench.upstream.git.git_dir / "objects" / blob[:2] / blob[2:]).unlink()
    again = Bench.__new__(Bench)
    again.__dict__.update(bench.__dict__)
    again.cache = type(bench.cache)(tmp_path / "cache2")
    lacking = patched_source.build_patched_source(
        again.pinned(absent=absent), again.source(absent=absent)
    )
    assert (lacking.commit, lacking.tree, lacking.exported_tree) == (
        whole.commit,
        whole.tree,
        whole.exported_tree,
    )


def test_a_patch_of_an_absent_file_is_refused(bench: Bench) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    with errors.expect_user_error(
        errors.CONFLICT, where="mine.patch", value="pkg/a.py", remedy="absent"
    ):
        patched_source.build_patched_source(
            bench.pinned(absent=("pkg/a.py",)), bench.source(absent=("pkg/a.py",))
        )


def test_everything_of_the_patched_commit_lies_in_our_own_repository(bench: Bench) -> None:
    # The mirror has the patched content already: it must not be leant on.
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    done = patched_source.build_patched_source(bench.pinned(), bench.source())
    bench.upstream.git.git_dir.rename(bench.root / "moved-away")
    git = bench.pinned(history=False).git
    with Reader(git) as reader:
        for line in git.text("ls-tree", "-r", "-t", done.tree).splitlines():
            reader.read(line.split()[2], line.split()[1])


def test_inputs_change_with_everything_that_decides_the_result(bench: Bench) -> None:
    file = bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    bench.lay("new.txt", b"new\n", "new")
    source = bench.source()
    seen = [patched_source.collect_inputs(source)]
    file.write_bytes(file.read_bytes().replace(b"the test\n", b"a test\n"))
    seen.append(patched_source.collect_inputs(source))
    (bench.overlay / "new.txt").write_bytes(b"newer\n")
    seen.append(patched_source.collect_inputs(source))
    (bench.overlay / "new.txt").chmod(0o755)
    seen.append(patched_source.collect_inputs(source))
    (bench.patches / "series").write_text("")
    file.unlink()
    seen.append(patched_source.collect_inputs(source))
    seen.append(patched_source.collect_inputs(bench.source(absent=("run.sh",))))
    assert all(a != b for n, a in enumerate(seen) for b in seen[:n])
    assert patched_source.collect_inputs(bench.source(absent=("run.sh",))) == seen[-1]


def test_a_repository_that_cannot_be_written_is_not_blamed_on_the_patch(bench: Bench) -> None:
    bench.add("mine", bench.upstream.diff({"pkg/a.py": make_text(l20="ours\n")}))
    pinned = bench.pinned()
    blob = bench.upstream.git.text("hash-object", "--stdin", stdin=make_text(l20="ours\n"))
    shelf = pinned.git.git_dir / "objects" / blob[:2]
    assert not shelf.exists()
    shelf.write_text("in the way of git's new object")
    with errors.expect_user_error(errors.FAILED, where="mine.patch", names="git"):
        patched_source.build_patched_source(pinned, bench.source())
    shelf.unlink()
    assert (
        patched_source.build_patched_source(pinned, bench.source()).patches[0].outcome == "applied"
    )


PROGRAM = """
import sys
from pathlib import Path
from builder.upstream import patched_source
from builder.core.cache import Cache
from builder.core.manifest import GitSource
from builder.upstream.source import Access, acquire_source
root, cache, head = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
source = GitSource("up", "https://example.org/up.git", "main", head, root / "patches/up", root / "overlay/up", ())
done = patched_source.build_patched_source(acquire_source(source, Access(Cache(cache), offline=True, mirrors=(root / "mirror",))), source)
print(done.commit, done.tree, done.exported_tree)
"""


def _elsewhere(bench: Bench, home: Path, umask: int, **env: str) -> str:
    argv = [
        sys.executable,
        "-c",
        f"import os; os.umask({umask})\n{PROGRAM}",
        str(bench.root),
        str(home / "cache"),
        bench.upstream.head,
    ]
    clean = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        argv, check=True, capture_output=True, text=True, env=clean, cwd=home
    ).stdout


def test_the_same_shas_whatever_the_machine(bench: Bench, tmp_path: Path) -> None:
    crlf = b"one\r\ntwo\r\n"
    bench.upstream.commit(
        {".gitattributes": b"* text=auto eol=crlf ident\n*.py merge=union\n", "dos.txt": crlf}
    )
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l3="$Id$ trailing \n")}))
    bench.add("second", bench.upstream.diff({"pkg/a.py": make_text(l20="second\n")}))
    bench.lay(
        "run.sh",
        b"#!/bin/sh\necho ours\n",
        bench.upstream.git.text("rev-parse", f"{bench.upstream.head}:run.sh"),
    ).chmod(0o755)
    plain, odd = tmp_path / "plain", tmp_path / "odd"
    for home in (plain, odd):
        home.mkdir()
    hooks = odd / "hooks"
    hooks.mkdir()
    for name in (
        "pre-commit",
        "post-commit",
        "applypatch-msg",
        "post-index-change",
        "reference-transaction",
    ):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {odd}/hook-ran\nexit 1\n")
        (hooks / name).chmod(0o755)
    (odd / ".gitconfig").write_text(
        "[core]\n autocrlf = true\n eol = crlf\n safecrlf = true\n attributesFile = ~/attributes\n"
        f" hooksPath = {hooks}\n[commit]\n gpgsign = true\n[user]\n name = Mallory\n email = m@example.org\n"
        "[apply]\n whitespace = fix\n ignoreWhitespace = change\n[i18n]\n commitEncoding = latin1\n[diff]\n noprefix = true\n context = 9\n[init]\n defaultObjectFormat = sha256\n"
    )
    (odd / "attributes").write_text("* text eol=crlf whitespace=trailing-space\n")
    here = _elsewhere(bench, plain, 0o022)
    there = _elsewhere(
        bench,
        odd,
        0o077,
        TZ="Asia/Kathmandu",
        LANG="de_DE.UTF-8",
        GIT_AUTHOR_DATE="2001-01-01T00:00:00Z",
        GIT_DIR="/nonexistent",
        GIT_INDEX_FILE="/nonexistent",
        GIT_COMMITTER_NAME="Mallory",
        GIT_CONFIG_COUNT="1",
        GIT_CONFIG_KEY_0="apply.whitespace",
        GIT_CONFIG_VALUE_0="fix",
        GIT_DEFAULT_HASH="sha256",
        XDG_CONFIG_HOME=str(odd),
    )
    assert here == there
    assert not (odd / "hook-ran").exists()
    done = patched_source.build_patched_source(bench.pinned(), bench.source())
    assert here.split() == [done.commit, done.tree, done.exported_tree]
    assert bench.content(done.commit, "dos.txt") == crlf
    assert bench.content(done.commit, "pkg/a.py") == make_text(
        l3="$Id$ trailing \n", l20="second\n"
    )


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_killed_run_leaves_what_the_next_one_finishes(
    bench: Bench, tmp_path: Path, at: int
) -> None:
    bench.add("first", bench.upstream.diff({"pkg/a.py": make_text(l3="first\n")}))
    bench.add("second", bench.upstream.diff({"pkg/a.py": make_text(l20="second\n")}))
    bench.lay("more.txt", b"more\n", "new")
    killer = f"""
import os, signal
from builder.upstream import git_index
for name in ("write_tree", "put"):
    def slain(*args, real=getattr(git_index.Index, name)):
        slain.left -= 1
        result = real(*args)
        if slain.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    slain.left = {at} if name == "write_tree" else {at} - 3
    if {at} < 3 and name == "write_tree" or {at} == 3 and name == "put":
        setattr(git_index.Index, name, slain)
"""
    argv = [
        sys.executable,
        "-c",
        killer + PROGRAM,
        str(bench.root),
        str(tmp_path / "cache"),
        bench.upstream.head,
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    assert subprocess.run(argv, check=False, capture_output=True, env=env).returncode == -9
    done = patched_source.build_patched_source(bench.pinned(), bench.source())
    again = subprocess.run(
        [*argv[:2], PROGRAM, *argv[3:]], check=True, capture_output=True, text=True, env=env
    )
    assert again.stdout.split() == [done.commit, done.tree, done.exported_tree]
