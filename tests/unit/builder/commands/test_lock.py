"""`build.py lock` as a whole: wheels as sources, an index on the loopback address, the real uv."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.commands import lock
from builder.core import manifest
from builder.core.cache import Cache
from builder.core.command_context import Context, Result
from builder.packages import declared_requirements, lock_file
from builder.pipeline import locks
from builder.upstream.source import Access
from rosetta.core.errors import UserError
from tests.support import errors, git_repository
from tests.support.package_archives import publish_wheel, write_wheel

if TYPE_CHECKING:
    from tests.support.package_index import Index

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
PATCH = """From: rosetta <rosetta@localhost>
Subject: [PATCH] one: {subject}

Why: a test
Upstream-Status: Pending
Drop-When: never

---
{diff}"""
DIFF = """diff --git a/{path} b/{path}
index {old}..{new} 100644
--- a/{path}
+++ b/{path}
@@ -1,2 +1,2 @@
 first
-second
+third
"""


@pytest.fixture
def repo(tmp_path: Path, index: Index) -> Path:
    """Two distributions, `one` and `two`, of a line; `one` for a cuda12 as well. shared 1 and 2 exist, two wants the old one."""
    made = tmp_path / "made"
    made.mkdir()
    digests = {
        "one": publish_wheel(index, made, "one", "1.0", "dep", "shared"),
        "two": publish_wheel(index, made, "two", "1.0", "one", "shared<2", "nightly"),
    }
    publish_wheel(index, made, "dep", "1", "nightly")
    for name, versions in {
        "base": ("1", "2"),
        "plugin": ("1",),
        "shared": ("1", "2"),
        "extra": ("1",),
        "nightly": ("1",),
    }.items():
        for version in versions:
            publish_wheel(index, made, name, version)
    root = tmp_path / "repo"
    for name in ("locks/l", "patches/one", "patches/two"):
        (root / name).mkdir(parents=True)
    for name in ("one", "two"):
        (root / f"patches/{name}/series").write_text("")
    (root / "locks/l/common.in").write_text("base  # the ground\n")
    (root / "locks/l/cuda12.in").write_text("plugin  # for the GPU\n")
    (root / "locks/two.in").write_text("extra  # undeclared\n")
    sources = "".join(
        f'  {name}: {{wheel: {name}==1.0, sha256: "{digest}", patches: patches/{name}}}\n'
        for name, digest in digests.items()
    )
    (root / "manifest.yaml").write_text(f"""version: 1
sources:
{sources}lines:
  l: {{python: "3.12", pythons: ["3.11", "3.12"], common: locks/l/common.in}}
distributions:
  one: {{line: l, sources: [one], accelerators: [cpu, cuda12], architectures: [amd64, arm64]}}
  two: {{line: l, sources: [two], accelerators: [cpu], architectures: [amd64]}}
overrides:
  - {{drop: nightly, why: "overwrites the module of another"}}
""")
    return root


def _run(root: Path, *args: str, offline: bool = False, cache: str = "cache") -> Result:
    parser = argparse.ArgumentParser()
    lock.add_arguments(parser)
    context = Context(root, root / "manifest.yaml", Cache(root.parent / cache), offline)
    return lock.run(context, parser.parse_args(args))


def _pins(root: Path, name: str) -> list[str]:
    return [pin.text for pin in lock_file.read_lock(root / f"locks/{name}")]


def _files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def _problems(root: Path, *, offline: bool = True) -> list[str]:
    result = _run(root, "--check", offline=offline)
    assert result.ok == (not result.data["problems"])
    return list(result.data["problems"])


def test_every_lock_is_a_part_of_one_resolution(repo: Path) -> None:
    result = _run(repo)
    assert result.ok
    assert _pins(repo, "l/common.txt") == ["base==2", "plugin==1"]
    assert _pins(repo, "one-cpu.txt") == ["base==2", "dep==1", "shared==1"]
    assert _pins(repo, "one-cuda12.txt") == ["base==2", "dep==1", "plugin==1", "shared==1"]
    assert _pins(repo, "two-cpu.txt") == ["base==2", "extra==1", "shared==1"]
    assert set(result.data["locks"]) == {
        "locks/l/common.txt",
        "locks/one-cpu.txt",
        "locks/one-cuda12.txt",
        "locks/two-cpu.txt",
    }
    record = json.loads((repo / "locks/declared.json").read_text())["sources"]
    assert record["two"]["requirements"] == ["nightly", "shared<2"]
    assert "one" in json.loads((repo / "locks/sources.json").read_text())["sources"]
    for name in ("one-cpu.txt", "l/common.txt"):
        text = (repo / "locks" / name).read_text()
        assert re.match(
            r"# Machine-owned: .*\n# uv \S+\n# inputs: [0-9a-f]{64}\n# pins: [0-9a-f]{64}\nbase==2 \\\n    --hash=sha256:[0-9a-f]{64}\n",
            text,
        )
        assert str(repo.parent) not in text
        assert "://" not in text


def test_the_release_of_jax_is_recorded_with_the_day_that_the_index_gives(
    repo: Path, index: Index, tmp_path: Path
) -> None:
    publish_wheel(index, tmp_path, "jax", "0.12.0")
    index.upload_times["jax-0.12.0-py3-none-any.whl"] = "2026-10-19T10:39:30.344640Z"
    (repo / "locks/l/common.in").write_text("base  # the ground\njax  # the framework\n")
    _run(repo)
    record = repo / "locks/jax.json"
    entry = {"version": "0.12.0", "released": "2026-10-19"}
    assert json.loads(record.read_text()) == {"schema": 1, "lines": {"l": entry}}
    assert _problems(repo) == []
    record.write_text(record.read_text().replace("0.12.0", "0.11.2"))
    (problem,) = _problems(repo)
    assert all(word in problem for word in ("locks/jax.json", "0.12.0", "0.11.2"))
    _run(repo, offline=True)
    assert json.loads(record.read_text())["lines"]["l"] == {**entry, "released": None}
    _run(repo)
    assert json.loads(record.read_text())["lines"]["l"] == entry


def test_distributions_may_share_their_own_requirements(repo: Path) -> None:
    manifest_file = repo / "manifest.yaml"
    shared = manifest_file.read_text().replace(
        "sources: [one], ", "sources: [one], requirements: locks/two.in, "
    )
    manifest_file.write_text(shared)
    _run(repo)
    assert "extra==1" in _pins(repo, "one-cpu.txt")
    manifest_file.write_text(shared.replace("locks/two.in", "locks/no-such-file.in"))
    with errors.expect_user_error(errors.MISSING, where="locks/no-such-file.in"):
        _run(repo)


def test_again_changes_nothing_and_new_releases_come_only_when_asked_for(
    repo: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(repo)
    before = _files(repo)
    publish_wheel(index, tmp_path, "base", "3")
    publish_wheel(index, tmp_path, "extra", "2")
    monkeypatch.setenv(
        "UV_CACHE_DIR", str(tmp_path / "fresh-uv")
    )  # uv believes an index page for ten minutes
    assert set(_run(repo).text.splitlines()) == {
        f"{path}: unchanged"
        for path in (
            "locks/l/common.txt",
            "locks/one-cpu.txt",
            "locks/one-cuda12.txt",
            "locks/two-cpu.txt",
        )
    }
    assert _files(repo) == before
    assert _problems(repo, offline=False) == []


def test_upgrade_moves_what_is_named(
    repo: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(repo)
    publish_wheel(index, tmp_path, "base", "3")
    publish_wheel(index, tmp_path, "extra", "2")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "fresh-uv"))
    result = _run(repo, "--upgrade", "base")
    assert result.data["locks"]["locks/two-cpu.txt"] == ["base 2 -> 3"]
    assert "locks/two-cpu.txt: 1 changes\n  base 2 -> 3" in result.text
    assert _run(repo, "--upgrade", "all").data["locks"]["locks/two-cpu.txt"] == ["extra 1 -> 2"]


def test_a_failure_leaves_every_file_as_it_was(repo: Path) -> None:
    _run(repo)
    (repo / "locks/two.in").write_text("extra\nno-such-project\n")
    before = _files(repo)
    with pytest.raises(UserError, match="no-such-project"):
        _run(repo)
    assert _files(repo) == before


@pytest.mark.parametrize("survivors", range(4))
def test_killed_while_it_writes(repo: Path, survivors: int) -> None:
    """SIGKILL after `survivors` files were renamed into place, the next one half-written beside its place."""
    _run(repo)
    whole = _files(repo)
    for name in (
        "declared.json",
        "sources.json",
        "one-cpu.txt",
        "one-cuda12.txt",
        "two-cpu.txt",
        "l/common.txt",
    ):
        (repo / "locks" / name).unlink()
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from builder import cli\n"
        "left, replace = int(sys.argv[2]), os.replace\n"
        "def dying(source, target):\n"
        "    global left\n"
        "    if '/locks/' in str(target):\n"
        "        left -= 1\n"
        "        if left < 0:\n"
        "            os.truncate(source, 10)\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    replace(source, target)\n"
        "os.replace = dying\n"
        "cli.main(['lock', '--manifest', sys.argv[3]])\n"
    )
    env = {**os.environ, "ROSETTA_CACHE": str(repo.parent / "cache")}
    argv = [sys.executable, "-c", program, str(ROOT), str(survivors), str(repo / "manifest.yaml")]
    assert (
        subprocess.run(argv, env=env, check=False, capture_output=True).returncode
        == -signal.SIGKILL
    )
    assert any(path.name.startswith(".tmp-") for path in (repo / "locks").rglob("*"))
    _run(repo)
    assert _files(repo) == whole


def test_a_sound_set_has_no_problem_and_needs_no_network(repo: Path, index: Index) -> None:
    _run(repo)
    index.requests.clear()
    result = _run(repo, "--check", offline=True)
    assert (result.ok, index.requests) == (True, [])
    assert result.text.endswith("4 locks checked: no problems")


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        ("locks/l/common.in", "base", "base<9", 4),
        ("locks/two.in", "extra", "extra==1", 4),
        ("manifest.yaml", 'pythons: ["3.11", "3.12"]', 'pythons: ["3.12"]', 4),
        (
            "manifest.yaml",
            "[cpu], architectures: [amd64]",
            "[cpu], architectures: [amd64, arm64]",
            1,
        ),
        ("manifest.yaml", "{drop: nightly", "{drop: other", 4),
    ],
)
def test_what_decides_a_lock_makes_it_stale(
    repo: Path, file: str, old: str, new: str, stale: int
) -> None:
    _run(repo)
    text = (repo / file).read_text()
    assert old in text
    (repo / file).write_text(text.replace(old, new))
    assert len([problem for problem in _problems(repo) if ": stale:" in problem]) == stale


def test_comments_and_reasons_do_not(repo: Path) -> None:
    _run(repo)
    (repo / "locks/l/common.in").write_text("# another word\nbase\n")
    (repo / "manifest.yaml").write_text(
        (repo / "manifest.yaml")
        .read_text()
        .replace("overwrites the module", "writes over the module")
    )
    assert _problems(repo) == []


def _sealed(text: str) -> str:
    """An edited lock whose sum was made right again."""
    head, mark, rest = text.partition("# pins: ")
    body = rest.partition("\n")[2]
    return f"{head}{mark}{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def test_edits_by_hand(repo: Path) -> None:
    _run(repo)
    path = repo / "locks/two-cpu.txt"
    whole = path.read_text()
    path.write_text(re.sub(r"extra==1 .*\n.*\n", "", whole))
    assert [problem.rpartition("/")[2] for problem in _problems(repo)] == [
        "two-cpu.txt: was edited or cut off since it was made; the file is machine-owned: git checkout it, or python build.py lock"
    ]
    path.write_text(_sealed(whole.replace("shared==1", "shared==2")))
    found = _problems(repo)
    assert (
        "shared: 1 in locks/one-cpu.txt, locks/one-cuda12.txt; 2 in locks/two-cpu.txt (for Python 3.11 on x86_64)"
        in found
    )
    path.write_text(
        _sealed(whole) + "other @ https://example.com/other.whl --hash=sha256:" + "0" * 64 + "\n"
    )
    assert any("a URL or an option" in problem for problem in _problems(repo))
    path.write_text(_sealed(whole.replace("--hash=sha256:", "--hash=md5:", 1)))
    assert any("not pinned by version and sha256" in problem for problem in _problems(repo))
    path.unlink()
    (repo / "locks/gone-cpu.txt").write_text(whole)
    assert _problems(repo) == [
        "locks/two-cpu.txt: missing",
        "locks/gone-cpu.txt: nothing in the manifest uses it; remove it",
    ]
    (repo / "locks/gone-cpu.txt").unlink()
    _run(repo)
    assert (path.read_text(), _problems(repo)) == (whole, [])


def test_a_broken_lock_is_made_anew(repo: Path) -> None:
    _run(repo)
    before = _files(repo)
    (repo / "locks/one-cpu.txt").write_text("<<<<<<< ours\n")
    _run(repo)
    assert _files(repo) == before


def test_with_network_it_says_what_would_change(
    repo: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(repo)
    index.files["shared"].pop("shared-1-py3-none-any.whl")
    index.add("shared", write_wheel(tmp_path, "shared", "1.5"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "fresh-uv"))
    assert "locks/one-cpu.txt: would change: shared 1 -> 1.5" in _problems(repo, offline=False)


def test_an_override_that_does_nothing(repo: Path) -> None:
    with (repo / "manifest.yaml").open("a") as out:
        out.write(
            '  - {drop: never-heard-of, why: "a reason that is none"}\n  - {pin: "shared==1", why: "what comes out anyway"}\n'
        )
    _run(repo)
    assert _problems(repo, offline=False) == [
        "override of never-heard-of: changes nothing in line l; remove it",
        "override of shared: changes nothing in line l; remove it",
    ]


def test_entries_of_the_manifest_that_nothing_needs(repo: Path) -> None:
    with (repo / "manifest.yaml").open("a") as out:
        out.write(
            'strip: [{name: base, architectures: [arm64], why: "in every lock"}, {name: away, architectures: [arm64], why: "in no lock"}]\n'
        )
        out.write('sdists: [{name: gone, why: "in no lock"}]\n')
    _run(repo)
    assert _problems(repo) == [
        "sdists: gone: no lock pins it; remove it",
        "strip: away: no lock pins it; remove it",
    ]


def test_only_the_lines_that_are_named(repo: Path) -> None:
    with errors.expect_user_error(errors.UNKNOWN, where="lock", value="x"):
        _run(repo, "x")
    assert _run(repo, "l").ok


@pytest.mark.parametrize(
    ("name", "text", "kind", "value"),
    [
        ("two.in", "extra @ https://example.com/x\n", errors.UNSUPPORTED, "extra"),
        ("l/common.in", "-r other\n", errors.UNSUPPORTED, "-r"),
        ("l/cuda12.in", None, errors.MISSING, None),
    ],
)
def test_input_files_are_checked(
    repo: Path, name: str, text: str | None, kind: str, value: str | None
) -> None:
    path = repo / "locks" / name
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    with errors.expect_user_error(kind, where=path.name, value=value):
        _run(repo)


def test_without_the_source_its_record_serves_while_it_is_of_the_same_pin(repo: Path) -> None:
    with pytest.raises(UserError, match="one"):
        _run(repo, "--check", offline=True, cache="empty")
    _run(repo)
    before = _files(repo)
    result = _run(repo, "--check", offline=True, cache="empty")
    assert result.ok
    assert [note.split(":")[0] for note in result.data["notes"]] == ["one", "two", "offline"]
    assert _files(repo) == before
    (repo / "manifest.yaml").write_text(
        re.sub(
            r'(one==1.0, sha256: )"[0-9a-f]{64}"',
            rf'\1"{"0" * 64}"',
            (repo / "manifest.yaml").read_text(),
        )
    )
    with pytest.raises(UserError, match="one"):
        _run(repo, "--check", offline=True, cache="empty")


def test_only_patches_of_what_declares_count_for_the_record(repo: Path) -> None:
    entry = manifest.load(repo / "manifest.yaml").source("one")
    bare = declared_requirements.compute_key(entry)
    diff = DIFF.format(path="one.py", old="1" * 40, new="2" * 40)
    (repo / "patches/one/series").write_text("other\n")
    (repo / "patches/one/other.patch").write_text(PATCH.format(subject="other", diff=diff))
    assert declared_requirements.compute_key(entry) == bare
    (repo / "patches/one/other.patch").write_text(
        PATCH.format(subject="other", diff=diff.replace("one.py", "setup.py"))
    )
    assert declared_requirements.compute_key(entry) != bare


def test_tools(repo: Path, index: Index, tmp_path: Path) -> None:
    publish_wheel(index, tmp_path, "setuptools", "80")
    (repo / "locks/build.in").write_text("setuptools  # builds\n")
    assert _run(repo, "--tools").data["locks"] == {"locks/build.txt": ["+ setuptools 80"]}
    assert _pins(repo, "build.txt") == ["setuptools==80"]


def test_a_pin_whose_branch_moved_away_or_was_lost_is_found(tmp_path: Path) -> None:
    """The upstream grows, is rewritten under the pin, and loses its branch: --check says which; without a mirror it says that it could not tell."""
    upstream = git_repository.init_repository(tmp_path / "mirrors/up.git")
    pin = git_repository.write_commit(
        upstream, git_repository.make_tree(upstream, {"README": b"first"})
    )
    text = f"""version: 1
sources:
  up: {{git: "{git_repository.URL.format("up")}", track: main, commit: {pin}, patches: patches/up}}
lines:
  l: {{python: "3.12", pythons: ["3.12"], common: locks/common.in}}
distributions:
  one: {{line: l, sources: [up], accelerators: [cpu], architectures: [amd64]}}
"""
    (tmp_path / "manifest.yaml").write_text(text)
    loaded = manifest.load(tmp_path / "manifest.yaml")
    access = Access(Cache(tmp_path / "cache"), offline=True, mirrors=(tmp_path / "mirrors",))
    git_repository.set_branch(
        upstream,
        git_repository.write_commit(
            upstream, git_repository.make_tree(upstream, {"README": b"second"}), pin
        ),
    )
    assert locks._check_branches(loaded, access) == ([], [])
    git_repository.set_branch(
        upstream,
        git_repository.write_commit(
            upstream, git_repository.make_tree(upstream, {"README": b"other"})
        ),
    )
    problems, notes = locks._check_branches(loaded, access)
    assert notes == []
    assert "source up" in problems[0]
    assert "is not on main" in problems[0]
    problems, notes = locks._check_branches(loaded, replace(access, mirrors=()))
    assert (problems, len(notes)) == ([], 1)
    assert "could not check" in notes[0]
    git_repository.run_git(upstream, "update-ref", "-d", "refs/heads/main")
    assert "could not check" in locks._check_branches(loaded, access)[1][0]
