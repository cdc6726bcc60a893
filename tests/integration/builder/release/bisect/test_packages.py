"""Whole environments: locked packages from an index on the loopback address, baked by the builder as a person starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import git_repository, package_archives, small_distribution
from tests.support.bisect_history import Story, get_only_culprit

pytestmark = pytest.mark.slow

NAMES = ("alpha", "beta", "gamma", "delta")


def _lock(story: Story, end: Path, versions: dict[str, str], **requires: str) -> None:
    lock = end / "locks/thing-cpu.txt"
    text = lock.read_text()
    for name, version in versions.items():
        wanted = [requires[name]] if name in requires else []
        digest = package_archives.publish_wheel(
            story.chain.index, story.folder, name, version, *wanted
        )
        text += f"{name}=={version} \\\n    --hash=sha256:{digest}\n"
    lock.write_text(text)


@pytest.fixture
def two(story: Story) -> Story:
    """Two ends whose four packages differ, and some commits."""
    _lock(story, story.end("good"), dict.fromkeys(NAMES, "1.0"))
    story.many(4, bad=2)
    _lock(story, story.end("bad"), dict.fromkeys(NAMES, "2.0"))
    return story


def test_a_locked_package(two: Story) -> None:
    found = get_only_culprit(result := two.found("version('gamma') == '2.0'", "--stage", "env"))
    assert (found["kind"], found["what"], found["files"]) == (
        "package",
        "gamma 1.0 -> 2.0",
        ["locks/thing-cpu.txt"],
    )
    assert result["candidates"] == 8


def test_a_pair_of_a_package_and_a_commit(two: Story) -> None:
    result = two.found("version('beta') == '2.0' and 'bad' in text('bad.py')", "--stage", "env")
    assert [
        [unit["what"].partition(" (")[2] or unit["what"] for unit in group]
        for group in result["culprits"]
    ] == [["beta 1.0 -> 2.0"], ['Ada, 2023-11-17, "step 2")']]


def test_packages_that_do_not_go_together_are_one_group(story: Story) -> None:
    """Version 2 of `one` asks for version 2 of `two`: with one of them alone nothing can be built."""
    _lock(story, story.end("good"), {"one": "1.0", "two": "1.0"}, one="two<2")
    _lock(story, story.end("bad"), {"one": "2.0", "two": "2.0"}, one="two>=2")
    status, document = story.run("version('two') == '2.0'", "--stage", "env")
    assert status == 1
    ((first, second),) = document["result"]["culprits"]
    assert (first["name"], second["name"], len(document["result"]["skipped"])) == ("one", "two", 1)


def test_the_command_finds_the_environment_on_its_path(two: Story) -> None:
    out = two.folder / "which"
    argv = two.argv("", "--stage", "env", "--work", str(two.folder / "work"))
    command = [
        "sh",
        "-c",
        f'command -v python >> {out}; echo "$ROSETTA_ENV" >> {out}; python -c "import alpha, thing"; exit 0',
    ]
    status, document = two.main(*argv[: argv.index("--") + 1], *command)
    assert (status, document["error"]["where"]) == (2, "--bad")
    place = two.folder / "work/env"
    assert out.read_text().split() == [str(place / "bin/python"), str(place)] * 2


def test_revisions_of_this_repository(story: Story) -> None:
    """Our own commits: of rosetta/ each is a change, and of a patch the one that changed it is told."""
    repo = story.folder / "ours"
    git_repository.run_git(story.folder, "init", "--quiet", "--initial-branch=main", str(repo))

    def commit(subject: str, **files: str) -> str:
        for name, text in files.items():
            path = repo / "rosetta" / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        git_repository.run_git(repo, "add", ".")
        git_repository.run_git(repo, "commit", "--quiet", "--allow-empty", "-m", subject)
        return git_repository.run_git(repo, "rev-parse", "HEAD")

    for part in ("patches", "locks", "manifest.yaml"):
        (story.folder / part).rename(repo / part)
    known = Path(__file__).parents[5] / "rosetta/known_issues.yaml"
    (repo / "rosetta/standins").mkdir(parents=True)
    (repo / "rosetta/known_issues.yaml").write_bytes(known.read_bytes())
    good = commit("begin", __init__="", one="fine\n")
    commit("elsewhere")
    commits = [
        commit(f"step {each}", one=f"{'bad' if each >= 3 else 'fine'} {each}\n")
        for each in range(6)
    ]
    argv = [
        "--manifest",
        str(repo / "manifest.yaml"),
        "--mirror",
        str(story.chain.mirror),
        "--json",
    ]
    judge = story.argv("'bad' in (root / 'opt/rosetta/rosetta/one.py').read_text()")
    status, document = story.main(
        "bisect",
        "--good",
        good,
        "--bad",
        "main",
        "--work",
        str(story.folder / "work"),
        *argv,
        *judge[judge.index("--") :],
    )
    assert status == 0, document
    found = get_only_culprit(document["result"])
    assert (found["kind"], found["commit"], found["subject"], found["files"]) == (
        "rosetta",
        commits[3],
        "step 3",
        ["rosetta/one.py"],
    )
    assert document["result"]["candidates"] == 6

    greet = repo / "patches/thing/greet.patch"
    polite, loud = (
        small_distribution.hash_blob(small_distribution.SOURCE.replace("hi", word))
        for word in ("good morning", "HELLO")
    )
    greet.write_text(greet.read_text().replace(polite, loud).replace("good morning", "HELLO"))
    by = commit("shout")
    commit("later", one="bad again\n")
    judge = story.argv("'HELLO' in text('thing/__init__.py')")
    status, document = story.main(
        "bisect",
        "--good",
        good,
        "--bad",
        "HEAD",
        "--stage",
        "tree",
        "--work",
        str(story.folder / "work"),
        *argv,
        *judge[judge.index("--") :],
    )
    assert status == 0, document
    found = get_only_culprit(document["result"])
    assert (found["kind"], found["name"], found["commit"], found["subject"]) == (
        "patch",
        "greet",
        by,
        "shout",
    )
