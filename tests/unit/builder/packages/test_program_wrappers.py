from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.packages import program_wrappers
from rosetta.core import value_parsing
from tests.support import small_environment
from tests.support.small_environment import Place

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def place() -> Iterator[Place]:
    yield from small_environment.make_place()


def test_only_what_people_call_has_a_door(place: Place) -> None:
    assert set(program_wrappers.wrappers_for_scripts(place.root / "opt/thing", "thing")) == {
        "train.sh",
        "download_it.py",
        "run_it.py",
        "runner",
    }


def test_a_script_by_every_way_people_call_it(place: Place) -> None:
    link = place.root / "link"
    link.symlink_to(place.bin / "train.sh")
    relative = os.path.relpath(place.bin / "train.sh", place.root / "opt")
    ways: list[tuple[list[str], Path]] = [
        (["bash", "train.sh"], Path("/")),
        (["train.sh"], Path("/")),
        (["bash", str(place.bin / "train.sh")], Path("/")),
        ([f"./{relative}"], place.root / "opt"),
        (["bash", relative], place.root / "opt"),
        (["bash", "train.sh"], place.bin),
        ([str(link)], Path("/")),
    ]
    for argv, cwd in ways:
        ran = place.run(*argv, "a b", "c", cwd=cwd, HOME=str(place.tmp), RC="5")
        assert ran.rc == 5, (argv, ran)
        assert ran.arguments[:-1] == [
            str(
                place.root
                / "opt/rosetta/bin/../../thing/thing"
                / program_wrappers.SCRIPTS
                / "train.sh"
            ),
            "a b",
            "c",
        ], argv
        assert ran.env["PATH"].split(":")[0] == str(place.bin)


def test_a_script_finds_our_python_even_behind_the_systems(place: Place) -> None:
    ran = place.run(
        "bash", str(place.bin / "train.sh"), PATH=f"/usr/bin:/bin:{place.bin}", HOME=str(place.tmp)
    )
    assert ran.env["PATH"] == f"{place.bin}:/usr/bin:/bin:{place.bin}"


def test_a_door_becomes_what_it_opens(place: Place) -> None:
    """The process that was started is the script itself: signals and the exit status need no one in between."""
    with subprocess.Popen(
        [str(place.bin / "train.sh")],
        env={"PATH": "/usr/bin:/bin", "HOME": str(place.tmp)},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        out = running.communicate()[0]
    assert [line for line in out.splitlines() if line.startswith("argument ")][
        -1
    ] == f"argument {running.pid}"


@pytest.mark.parametrize("value", ["1", "true", "yes", "True"])
def test_te_is_refused_where_there_is_none(place: Place, value: str) -> None:
    ran = place.run("bash", "train.sh", HOME=str(place.tmp), ENABLE_TE=value)
    assert (ran.rc, ran.arguments) == (2, [])
    assert ran.err == "rosetta: no TE here\n"


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_needs_no_te(place: Place, option: str) -> None:
    ran = place.run("bash", "train.sh", "small", option, HOME=str(place.tmp), ENABLE_TE="1")
    assert (ran.rc, ran.arguments[1:3]) == (0, ["small", option])


@pytest.mark.parametrize(
    "value", ["", " 0 ", *value_parsing.FALSE_WORDS, *map(str.upper, value_parsing.FALSE_WORDS)]
)
def test_te_that_is_not_asked_for_is_no_matter(place: Place, value: str) -> None:
    assert place.run("bash", "train.sh", HOME=str(place.tmp), ENABLE_TE=value).rc == 0


def test_a_python_script_is_read_by_both(place: Place) -> None:
    (place.root / "opt/rosetta/env/bin/python").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    )
    link = place.root / "link.py"
    link.symlink_to(place.bin / "download_it.py")
    for argv in (
        ["download_it.py"],
        [str(link)],
        [sys.executable, str(place.bin / "download_it.py")],
    ):
        done = subprocess.run(
            [*argv, "x"],
            env={"PATH": f"{place.bin}:/usr/bin:/bin", "HOME": "/tmp"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (7, "loading __main__ x\n"), (argv, done)


def test_a_home_that_works_is_left_alone(place: Place) -> None:
    home = place.owned(place.root / "home")
    ran = place.run("python", "x", HOME=str(home), USER="me")
    assert ran.arguments == ["x"]
    assert ran.env["HOME"] == str(home)
    assert "ROSETTA_HOME" not in ran.env
    assert "LOGNAME" not in ran.env
    assert list(place.tmp.iterdir()) == []
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("home", [None, "", "/", "/nonexistent"])
def test_without_a_home_there_is_one_that_is_ours_alone(place: Place, home: str | None) -> None:
    given = None if home is None else {"HOME": home}
    ran = place.run("python", "x", more=given)
    made = Path(ran.env["HOME"])
    assert made == Path(ran.env["ROSETTA_HOME"]) == place.tmp / f"rosetta-{small_environment.USER}"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert made.stat().st_uid == small_environment.USER
    assert place.run("rosetta", more=given).env["HOME"] == str(made), "the same one the next time"
    assert len(list(place.tmp.iterdir())) == 1


def test_a_home_that_may_be_read_alone_stays_home(place: Place) -> None:
    home = place.root / "home"
    home.mkdir(mode=0o555)
    if os.geteuid() != 0:
        home.chmod(0o555)
    ran = place.run("python", "x", HOME=str(home))
    ours = place.tmp / f"rosetta-{small_environment.USER}"
    assert ran.env["HOME"] == str(home), "its credentials are still found"
    assert ran.env["ROSETTA_HOME"] == str(ours)
    assert ran.env["XDG_CACHE_HOME"] == f"{ours}/cache"
    assert ran.env["MPLCONFIGDIR"] == f"{ours}/matplotlib"


def test_what_the_user_chose_is_taken(place: Place) -> None:
    chosen = place.owned(place.root / "chosen")
    ran = place.run("python", "x", ROSETTA_HOME=str(chosen))
    assert (ran.env["HOME"], ran.env["ROSETTA_HOME"]) == (str(chosen), str(chosen))
    assert list(place.tmp.iterdir()) == []


def test_nobody_can_lay_a_trap(place: Place) -> None:
    name = place.tmp / f"rosetta-{small_environment.USER}"
    target = place.owned(place.root / "target")
    name.symlink_to(target)
    ran = place.run("python", "x")
    assert Path(ran.env["HOME"]).parent == place.tmp
    assert Path(ran.env["HOME"]) != name
    assert list(target.iterdir()) == []
    name.unlink()
    place.owned(name)
    place.tmp.chmod(0o777)  # without the sticky bit another could exchange it
    ran = place.run("python", "x")
    assert Path(ran.env["HOME"]) != name


@pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT CHECKED: only root can make another user's folder"
)
def test_another_users_folder_is_not_entered(place: Place) -> None:
    name = place.tmp / f"rosetta-{small_environment.USER}"
    name.mkdir()
    name.chmod(0o777)
    home = Path(place.run("python", "x").env["HOME"])
    assert home != name
    assert home.parent == place.tmp
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_where_tmp_cannot_be_written_another_place_is_found(place: Place) -> None:
    ran = place.run("python", "x", TMPDIR=str(place.root / "missing"))
    home = Path(ran.env["HOME"])
    try:
        assert home.parent in (Path("/var/tmp"), Path("/dev/shm"))
        assert ran.env["TMPDIR"] == str(home)
    finally:
        if home.name.startswith("rosetta-"):
            shutil.rmtree(home)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="NOT CHECKED: needs a user without a name, which only root can become"
)
def test_a_user_without_a_name_gets_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_environment, "USER", 64321)
    ran = place.run("python", "x")
    assert (ran.env["USER"], ran.env["LOGNAME"]) == ("uid64321", "uid64321")


def test_pip_into_an_environment_that_can_be_written(place: Place) -> None:
    place.site.chmod(0o777)
    ran = place.run("pip", "install", "mine", HOME=str(place.owned(place.root / "home")))
    assert ran.arguments == ["-m", "pip", "install", "mine"]
    assert ran.env["PIP_CONSTRAINT"] == f"{place.bin}/../constraints.txt"
    assert "PIP_PREFIX" not in ran.env


def test_pip_on_top_of_one_that_cannot(place: Place) -> None:
    home = place.owned(place.root / "home")
    ran = place.run("pip", "install", "mine", HOME=str(home))
    top = home / ".rosetta/packages/0123456789abcdef"
    assert ran.env["PIP_PREFIX"] == str(top)
    assert str(top) in ran.err
    assert "PYTHONPATH" not in place.run("python", "x", HOME=str(home)).env
    site = top / "lib/python3.13/site-packages"
    place.owned(site)
    ran = place.run("python", "x", HOME=str(home), PYTHONPATH="/mine")
    assert ran.env["PYTHONPATH"] == f"/mine:{site}"
    (place.root / "opt/rosetta/constraints.txt").write_text("# packages fedcba9876543210\n")
    assert "PYTHONPATH" not in place.run("python", "x", HOME=str(home)).env, (
        "another release does not see it"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["install", "-t", "/x", "mine"],
        ["install", "--prefix=/x", "mine"],
        ["install", "--user", "mine"],
        ["list"],
        [],
    ],
)
def test_pip_does_what_it_is_told(place: Place, words: list[str]) -> None:
    ran = place.run(
        "pip", *words, HOME=str(place.owned(place.root / "home")), PIP_CONSTRAINT="/own.txt"
    )
    assert "PIP_PREFIX" not in ran.env
    assert ran.env["PIP_CONSTRAINT"] == "/own.txt"
    assert ran.err == ""


@pytest.mark.parametrize("name", sorted(program_wrappers.TEXTS))
def test_shellcheck_finds_nothing(name: str, tmp_path: Path) -> None:
    program = shutil.which(
        "shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if program is None:
        pytest.skip("NOT CHECKED: shellcheck is not installed")
    if name == "module":
        pytest.skip("is Python from its fourth line on")
    text = (
        program_wrappers.TEXTS[name].format(name="x", path="x/y")
        if name == "script"
        else program_wrappers.TEXTS[name]
    )
    (tmp_path / "door").write_text(text)
    done = subprocess.run(
        [program, str(tmp_path / "door")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
