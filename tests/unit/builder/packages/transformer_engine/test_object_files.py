"""Sources to objects, by the real g++."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.packages.transformer_engine import compiler, object_files
from tests.support import errors, te_project

ROOT = Path(__file__).parents[5]
# A file that takes a compiler some seconds: each level doubles the one below it.
SLOW = "template <int A, int B> struct T { static const long v = T<A - 1, B>::v + T<A - 1, B + (1 << A)>::v; };\ntemplate <int B> struct T<0, B> { static const long v = B; };\nlong f() { return T<14, 0>::v; }\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    te_project.need_compiler()
    for name in ("src", "kept", "scratch"):
        (tmp_path / name).mkdir()
    return tmp_path


def _compile(place: Path, at_once: int = 2) -> object_files.Effort:
    sources = sorted((place / "src").glob("*.cpp"))
    made, effort = object_files.compile_all(
        compiler.find_compiler("amd64"),
        sources,
        ["-O1"],
        place / "kept",
        place / "scratch",
        at_once=at_once,
    )
    assert [path.name for path in made] == [f"{each.name}.o" for each in sources]
    assert all(path.read_bytes()[:4] == b"\x7fELF" for path in made)
    return effort


def test_what_is_there_is_not_made_again(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in "abc":
        (place / f"src/{name}.cpp").write_text(f"int {name}() {{ return 1; }}\n")
    (place / "src/bad.cpp").write_text(
        "int f() { return g(); }  // much longer than the others, so that it comes first\n"
    )
    with errors.expect_user_error(errors.FAILED, where="bad.cpp", names="bad.cpp:1:"):
        _compile(place, at_once=4)
    (place / "src/bad.cpp").write_text("int f() { return 1; }\n")
    before = {path.name for path in (place / "kept").glob("*.o")}
    effort = _compile(place)
    assert {f"{name}.o" for name in effort.seconds} == {
        "a.cpp.o",
        "b.cpp.o",
        "c.cpp.o",
        "bad.cpp.o",
    } - before
    capfd.readouterr()
    assert _compile(place).seconds == {}
    assert "4 of 4 files" in capfd.readouterr().err


def test_the_longest_comes_first(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "src/a.cpp").write_text("int a;\n")
    (place / "src/z.cpp").write_text("int z;  // and longer\n")
    _compile(place, at_once=1)
    assert [line.split()[1] for line in capfd.readouterr().err.splitlines() if ".cpp:" in line] == [
        "z.cpp:",
        "a.cpp:",
    ]


def test_a_compiler_sees_nothing_of_the_caller(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "include").mkdir()
    (place / "include/found.h").touch()
    monkeypatch.setenv("CPATH", str(place / "include"))
    monkeypatch.setenv("A_TOKEN", "secret")
    (place / "src/a.cpp").write_text("#include <found.h>\n")
    with errors.expect_user_error(errors.FAILED, names="found.h"):
        _compile(place)
    assert object_files.compiler_environment(place).keys() == {
        "PATH",
        "LC_ALL",
        "SOURCE_DATE_EPOCH",
        "TMPDIR",
    }


def test_a_failure_stops_the_others(place: Path) -> None:
    (place / "src/slow.cpp").write_text(SLOW)
    (place / "src/bad.cpp").write_text("bad\n")
    with errors.expect_user_error(errors.FAILED, where="bad.cpp"):
        _compile(place)
    assert not list((place / "kept").iterdir())


def test_a_killed_run_goes_on(place: Path) -> None:
    (place / "src/a_first.cpp").write_text("int a; // " + "long " * 200 + "\n")
    (place / "src/slow.cpp").write_text(SLOW)
    code = (
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, sys.argv[1])\nfrom builder.packages.transformer_engine import compiler, object_files\nplace = Path(sys.argv[2])\n"
        "object_files.compile_all(compiler.find_compiler('amd64'), sorted((place / 'src').glob('*.cpp')), ['-O1'], place / 'kept', place / 'scratch', at_once=1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(ROOT), str(place)], stderr=subprocess.DEVNULL
    )
    for _ in range(600):
        if (place / "kept/a_first.cpp.o").is_file() or process.poll() is not None:
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (place / "kept/a_first.cpp.o").is_file()
    (place / "kept/.tmp-1-slow.cpp.o").write_text("half")
    assert set(_compile(place).seconds) == {"slow.cpp"}
    assert sorted(path.name for path in (place / "kept").glob("[!.]*.o")) == [
        "a_first.cpp.o",
        "slow.cpp.o",
    ]


def test_as_many_as_cores_and_memory_bear() -> None:
    assert 1 <= object_files.default_job_count() <= len(os.sched_getaffinity(0))
