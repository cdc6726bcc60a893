"""The whole build on a small distribution: real git, real uv, a real index on the loopback address. And everything that can go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import small_distribution
from tests.support.package_index import serve_index
from tests.support.small_distribution import ROOT, Chain, read_output

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    with serve_index() as index:
        yield small_distribution.make_distribution(tmp_path, index)


def _cut_off() -> tuple[str, ...]:
    for argv in (("unshare", "-n"), ("unshare", "-rn")):
        if not subprocess.run([*argv, "true"], capture_output=True, check=False).returncode:
            return argv
    pytest.skip("this machine does not let us cut off the network (unshare -n)")


def test_bakes_and_the_result_runs(chain: Chain) -> None:
    status, document, stderr = chain.run()
    assert status == 0, stderr
    assert document["ok"]
    assert document["result"]["changed"][0] == "opt/rosetta/env"
    assert chain.greeting() == "good morning"
    lock = json.loads((chain.output / "opt/rosetta/lock.json").read_text())
    assert lock["sources"]["thing"]["patches"][0]["outcome"] == "applied"
    assert (chain.output / "opt/rosetta/sources/thing/greet.patch").is_file()
    assert "helper==1.0" in (chain.output / "opt/rosetta/constraints.txt").read_text()
    # Beside the real place of the program, where bash-completion looks.
    share = (chain.output / "bin/rosetta").resolve().parents[1] / "share"
    assert (share / "bash-completion/completions/rosetta").is_file()
    assert (share / "zsh/site-functions/_rosetta").is_file()
    leaks = [
        name
        for name in read_output(chain.output)
        if not (chain.output / name).is_symlink()
        and str(chain.folder).encode() in (chain.output / name).read_bytes()
    ]
    assert leaks == [], "a path of the build ended in the environment"


def test_an_sdist_may_be_a_zip(tmp_path: Path) -> None:
    with serve_index() as index:
        chain = small_distribution.make_distribution(tmp_path, index, sdist="fromsource-1.0.zip")
        status, _, stderr = chain.run()
        assert status == 0, stderr
        assert chain.greeting() == "good morning"


def test_movable(chain: Chain) -> None:
    chain.run()
    moved = chain.folder / "elsewhere/moved"
    moved.parent.mkdir()
    shutil.rmtree(chain.cache)
    chain.output.rename(moved)
    done = subprocess.run(
        [str(moved / "bin/rosetta"), "info", "--json"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert json.loads(done.stdout)["result"]["distribution"] == "thing"
    done = subprocess.run(
        [str(moved / "bin/python"), "-c", "import thing; print(thing.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(moved / "opt/thing/thing/__init__.py")


def test_nothing_changed_needs_no_network(chain: Chain) -> None:
    chain.run()
    before = read_output(chain.output)
    status, document, stderr = chain.run("--no-mirror", before=_cut_off())
    assert status == 0, stderr
    assert document["result"]["changed"] == []
    assert read_output(chain.output) == before


def test_a_second_output_offline_without_network_or_mirror(chain: Chain) -> None:
    chain.run()
    second = chain.folder / "second"
    status, _, stderr = chain.run(
        "--offline", "--no-mirror", "--output", f"env:{second}", before=_cut_off()
    )
    assert status == 0, stderr
    assert read_output(second) == read_output(chain.output)


def test_one_patch_edited_touches_only_the_tree(chain: Chain) -> None:
    chain.run()
    chain.write_patch("good evening")
    _, document, _ = chain.run()
    assert document["result"]["changed"] == [
        "opt/thing",
        "opt/rosetta/bin",
        "opt/rosetta/LICENSES",
        "opt/rosetta/sources",
        "opt/rosetta/lock.json",
    ]
    assert chain.greeting() == "good evening"


def _inodes(*folders: Path) -> set[tuple[int, int]]:
    files = [
        path.lstat()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    return {(state.st_dev, state.st_ino) for state in files}


def _overwrite(folder: Path) -> int:
    """Edit every file below a folder in place, at equal size and time; returns how many."""
    files = [
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_size
    ]
    for path in files:
        state = path.stat()
        with open(path, "r+b") as file:
            file.write(b"#")
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    return len(files)


@pytest.mark.parametrize("lost", ["nothing", "the builder's cache"])
def test_an_edited_output_reaches_no_later_build(chain: Chain, lost: str) -> None:
    """Whichever file of it, installed, compiled, patched or ours, and also where the builder's cache was deleted in between."""
    chain.run()
    wanted = read_output(chain.output)
    assert not _inodes(chain.output) & _inodes(chain.cache, chain.folder / "uv"), (
        "a file in place is one of a cache"
    )
    assert _overwrite(chain.output) > 20
    if lost != "nothing":
        shutil.rmtree(chain.cache)
    second = chain.folder / "second"
    status, _, stderr = chain.run("--output", f"env:{second}")
    assert status == 0, stderr
    assert read_output(second) == wanted


def _edit_in_uvs_cache(chain: Chain, name: str) -> int:
    files = [path for path in (chain.folder / "uv").rglob(name) if path.is_file()]
    for path in files:
        path.write_text(path.read_text().replace("help", "harm"))
    return len(files)


def test_a_file_edited_in_uvs_cache_is_fetched_again(chain: Chain) -> None:
    """As after an edit in another environment that is hard links into it."""
    chain.run()
    wanted = read_output(chain.output)
    assert _edit_in_uvs_cache(chain, "helper.py")
    second = ("--output", f"env:{chain.folder / 'second'}")
    _refused(chain.run("--offline", *second), "helper.py of helper", "uv cache clean helper")
    assert not (chain.folder / "second").exists()
    status, _, stderr = chain.run(*second)
    assert status == 0, stderr
    assert "uv cache clean helper" in stderr
    assert read_output(chain.folder / "second") == wanted


@pytest.mark.parametrize("kind", ["trees", "pyc", "wheels"])
@pytest.mark.parametrize("damage", ["byte", "mode"])
def test_a_damaged_entry_of_the_cache_reaches_no_output(
    chain: Chain, kind: str, damage: str
) -> None:
    chain.run()
    wanted = read_output(chain.output)
    modes = {path: path.stat().st_mode for path in chain.output.rglob("*") if not path.is_symlink()}
    if damage == "byte":
        assert _overwrite(chain.cache / kind)
    else:
        for path in (chain.cache / kind).rglob("*"):
            path.chmod(0o700)
    second = chain.folder / "second"
    status, _, stderr = chain.run("--output", f"env:{second}")
    assert status == 0, stderr
    assert f"{kind}/" in stderr
    assert "makes it again" in stderr
    assert read_output(second) == wanted
    assert modes == {
        chain.output / path.relative_to(second): path.stat().st_mode
        for path in second.rglob("*")
        if not path.is_symlink()
    }


def test_dry_run_does_nothing(chain: Chain) -> None:
    status, document, _ = chain.run("--dry-run")
    assert status == 0
    assert [step["done"] for step in document["result"]["steps"]] == [False, False, False]
    assert not chain.output.exists()


def _refused(result: tuple[int, dict[str, dict[str, str]], str], *words: str) -> None:
    code, document, stderr = result
    assert code == 2, (code, stderr)
    said = " ".join(document["error"].values())
    for word in words:
        assert word in said, said
    assert "Traceback" not in stderr
    assert len([line for line in stderr.splitlines() if line.startswith("rosetta: ")]) == 1


def _converges(chain: Chain) -> None:
    status, _, stderr = chain.run()
    assert status == 0, stderr
    assert chain.greeting() == "good morning"


@pytest.mark.parametrize("fault", ["html instead", "wrong bytes", "truncated", "500", "login page"])
def test_a_bad_index_is_one_line_and_a_rerun_converges(chain: Chain, fault: str) -> None:
    chain.index.fault = fault
    _refused(chain.run())
    assert not chain.output.exists()
    chain.index.fault = ""
    _converges(chain)


def test_wrong_hash_in_the_lock(chain: Chain) -> None:
    lock = chain.folder / "locks/thing-cpu.txt"
    good = lock.read_text()
    digest = good.partition("helper==1.0")[2].partition("sha256:")[2][:64]
    lock.write_text(good.replace(digest, "0" * 64))
    _refused(chain.run(), "helper")
    assert not chain.output.exists()
    lock.write_text(good)
    _converges(chain)


def test_unreachable_index(chain: Chain) -> None:
    chain.extra["UV_DEFAULT_INDEX"] = "http://127.0.0.1:9/simple"
    _refused(chain.run(), "index")
    del chain.extra["UV_DEFAULT_INDEX"]
    _converges(chain)


def test_unreachable_source_names_the_ways_out(chain: Chain) -> None:
    _refused(chain.run("--no-mirror"), "thing", "--mirror")
    _refused(chain.run("--no-mirror", "--offline", before=_cut_off()), "thing", "--mirror")
    _converges(chain)


def test_offline_with_an_empty_package_cache(chain: Chain) -> None:
    _refused(chain.run("--offline"), "--offline")
    assert not chain.output.exists()


def test_a_patch_that_does_not_apply_leaves_the_output_alone(chain: Chain) -> None:
    chain.run()
    before = read_output(chain.output)
    patch = chain.folder / "patches/thing/greet.patch"
    patch.write_text(patch.read_text().replace('-GREETING = "hi"', '-GREETING = "hello"'))
    _refused(chain.run(), "greet")
    assert read_output(chain.output) == before
    assert chain.greeting() == "good morning"


def test_a_foreign_output_folder_is_refused(chain: Chain) -> None:
    chain.output.mkdir()
    (chain.output / "thesis.tex").write_text("mine")
    _refused(chain.run(), "not part of an environment")
    assert [path.name for path in chain.output.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--accelerator", "cuda12"), "cuda12"),
        (("--output", "env:"), "env:DIR"),
        (("--output", "floppy:x"), "env:DIR"),
        (("--python", "3.9"), "3.9"),
        (("--mirror", "/nowhere"), "/nowhere"),
    ],
)
def test_bad_requests(chain: Chain, more: tuple[str, ...], word: str) -> None:
    argv = [
        sys.executable,
        "-I",
        "-c",
        small_distribution._MAIN,
        str(ROOT),
        "--distribution",
        "thing",
        "--manifest",
        str(chain.folder / "manifest.yaml"),
        *more,
    ]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=chain.environment(), cwd=chain.folder
    )
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_two_builds_at_once(chain: Chain) -> None:
    argv = [sys.executable, "-I", "-c", small_distribution._MAIN, str(ROOT), *chain.argv()]
    with (
        subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=chain.environment(),
            text=True,
        ) as first,
        subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=chain.environment(),
            text=True,
        ) as second,
    ):
        documents = [json.loads(process.communicate()[0]) for process in (first, second)]
    assert [document["ok"] for document in documents] == [True, True]
    assert sorted(bool(document["result"]["changed"]) for document in documents) == [False, True]
    assert chain.greeting() == "good morning"


def test_a_full_disk_is_one_line_and_a_rerun_converges(chain: Chain) -> None:
    if os.geteuid():
        pytest.skip("a small file system needs root")
    small = chain.folder / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=60k", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    ).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        chain.extra["ROSETTA_CACHE"] = str(small)
        _refused(chain.run(), "o space left")
        assert not chain.output.exists()
        subprocess.run(["mount", "-o", "remount,size=200m", str(small)], check=True)
        _converges(chain)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_killed_at_any_stage_a_rerun_converges(chain: Chain) -> None:
    """SIGKILL at twelve points spread over the whole build; after each, one more run gives what an undisturbed build gives."""
    chain.extra["KILL_AT"] = "0"
    status, _, stderr = chain.run(program=small_distribution.KILLED)
    assert status == 0, stderr
    total, wanted = int(stderr.split()[-1]), read_output(chain.output)
    assert total > 12
    stages = set()
    for point in sorted({1 + total * part // 12 for part in range(12)}):
        for folder in (chain.output, chain.cache):
            shutil.rmtree(folder, ignore_errors=True)
        chain.extra["KILL_AT"] = str(point)
        argv = [sys.executable, "-I", "-c", small_distribution.KILLED, str(ROOT), *chain.argv()]
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            env=chain.environment(),
            cwd=chain.folder,
            start_new_session=True,
        )
        assert done.returncode == -signal.SIGKILL, (point, done.stderr)
        assert not (chain.output / "opt/rosetta/lock.json").exists()
        stages.add(tuple(sorted(path.name for path in chain.cache.iterdir())))
        status, _, stderr = chain.run()
        assert status == 0, (point, stderr)
        assert read_output(chain.output) == wanted, point
    assert len(stages) >= 3, "the kills all fell into one stage"


def test_interrupted_by_the_user(chain: Chain) -> None:
    chain.extra["KILL_AT"] = "8"
    program = small_distribution.KILLED.replace(
        "os.killpg(0, signal.SIGKILL)", "raise KeyboardInterrupt"
    )
    status, _, stderr = chain.run(program=program)
    assert status == 130
    assert "Traceback" not in stderr
    _converges(chain)


def test_modes_do_not_depend_on_the_umask(chain: Chain) -> None:
    modes = []
    for mask in ("022", "077"):
        for folder in (chain.output, chain.cache):
            shutil.rmtree(folder, ignore_errors=True)
        program = small_distribution._MAIN.replace(
            "import sys;", f"import os, sys; os.umask(0o{mask});"
        )
        assert chain.run(program=program)[0] == 0
        modes.append(
            {
                str(path.relative_to(chain.output)): path.lstat().st_mode
                for path in chain.output.rglob("*")
            }
        )
    assert modes[0] == modes[1]


def test_settings_of_uv_cannot_add_packages(chain: Chain) -> None:
    chain.extra |= {
        "UV_VENV_SEED": "1",
        "VIRTUAL_ENV_SEED": "1",
        "UV_LINK_MODE": "symlink",
        "UV_NO_BINARY": "1",
    }
    assert chain.run()[0] == 0
    names = {
        path.name.partition("-")[0]
        for path in chain.output.glob("opt/rosetta/env/lib/*/site-packages/*.dist-info")
    }
    assert names == {"helper", "fromsource"}
    assert {request.split("/")[2] for request in chain.index.requests} == {"helper", "fromsource"}


@pytest.mark.parametrize("module", ["thing", "rosetta"])
def test_a_package_that_would_hide_the_source_is_refused(chain: Chain, module: str) -> None:
    wheel = small_distribution._write_wheel(
        chain.folder / "evil-1.0-py3-none-any.whl", "evil", "1.0"
    )
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(f"{module}/__init__.py", "GREETING = 'stolen'\n")
    digest = chain.index.add("evil", wheel)
    with open(chain.folder / "locks/thing-cpu.txt", "a") as lock:
        lock.write(f"evil==1.0 --hash=sha256:{digest}\n")
    _refused(chain.run(), f"the module {module}")
    assert not chain.output.exists()


@pytest.mark.parametrize(
    "address",
    [
        "https://example.invalid/rosetta.git",
        "https://example.invalid/.git",
        "https://example.invalid/..",
    ],
)
def test_a_source_cannot_take_a_folder_that_is_not_free(chain: Chain, address: str) -> None:
    manifest = chain.folder / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("https://example.invalid/thing.git", address))
    _refused(chain.run(), "not free")


def test_an_output_inside_the_cache_is_refused(chain: Chain) -> None:
    _refused(chain.run("--output", f"env:{chain.cache}/envs/x"), "inside the builder's cache")


def test_a_mount_point_is_filled_in_place(chain: Chain) -> None:
    chain.output.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", str(chain.output)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("this machine does not let us mount")
    try:
        assert chain.run()[0] == 0
        assert chain.greeting() == "good morning"
        assert chain.run()[1]["result"]["changed"] == []
    finally:
        subprocess.run(["umount", str(chain.output)], check=True)


def test_python_settings_of_the_caller_do_not_reach_rosetta(chain: Chain) -> None:
    chain.run()
    (chain.folder / "rosetta.py").write_text("raise SystemExit('stolen')\n")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(chain.folder), "PYTHONHOME": "/nowhere"}
    done = subprocess.run(
        [str(chain.output / "bin/rosetta"), "info"],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        cwd=chain.folder,
    )
    assert (done.returncode, "thing" in done.stdout) == (0, True), done.stderr


def test_a_project_is_added_with_its_locked_packages(chain: Chain) -> None:
    small_distribution.add_project(chain, "addon", "more")
    status, document, stderr = chain.run("--with", "addon")
    assert status == 0, stderr
    assert [source["name"] for source in document["result"]["sources"]] == ["addon", "thing"]
    done = subprocess.run(
        [str(chain.output / "bin/python"), "-c", "import addon, more, thing; print(addon.NAME)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "addon\n"
    record = json.loads((chain.output / "opt/rosetta/lock.json").read_text())
    lock = (chain.folder / "locks/projects/addon.txt").read_bytes()
    assert record["projects"] == {"addon": hashlib.sha256(lock).hexdigest()}
    assert "more==1.0" in (chain.output / "opt/rosetta/constraints.txt").read_text()
    # Without the project, the environment is the distribution's again.
    status, document, stderr = chain.run()
    assert status == 0, stderr
    assert not (chain.output / "opt/addon").exists()
    assert "projects" not in json.loads((chain.output / "opt/rosetta/lock.json").read_text())


def test_a_missing_lock_of_a_project_is_refused_unless_it_requires_no_package(chain: Chain) -> None:
    small_distribution.add_project(chain, "addon", "more")
    (chain.folder / "locks/projects/addon.txt").unlink()
    record = chain.folder / "locks/declared.json"
    for requirements in (None, ["more"]):
        if requirements:
            record.write_text(json.dumps({"sources": {"addon": {"requirements": requirements}}}))
        status, document, _ = chain.run("--with", "addon")
        assert (status, document["error"]["kind"]) == (2, "missing")
        assert document["error"]["where"].endswith("locks/projects/addon.txt")
        assert not chain.output.exists()
    record.write_text(json.dumps({"sources": {"addon": {"requirements": []}}}))
    status, _, stderr = chain.run("--with", "addon")
    assert status == 0, stderr
    lock = json.loads((chain.output / "opt/rosetta/lock.json").read_text())
    assert lock["projects"] == {"addon": None}


def test_an_unknown_project_is_refused_and_nothing_is_written(chain: Chain) -> None:
    status, document, _ = chain.run("--with", "nothing")
    assert status == 2
    assert "nothing" in document["error"]["what"]
    assert not chain.output.exists()


def test_a_project_whose_commit_is_nowhere_names_the_ways_to_get_it(chain: Chain) -> None:
    small_distribution.add_project(chain, "addon", "more")
    status, document, _ = chain.run("--with", "addon", "--no-mirror", "--offline")
    assert status == 2
    assert "--mirror" in document["error"]["do"]
