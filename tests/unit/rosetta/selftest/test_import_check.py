from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rosetta.selftest import import_check
from rosetta.selftest.child_process import Context, Stopped

ROOT = Path(__file__).resolve().parents[4]
FILES = {
    "__init__": "",
    "a_aborts": "import os; os.abort()",
    "b_exits": "import sys; sys.exit('not today')",
    "c_leaves": "import os; os._exit(3)",
    "d_raises": "raise RuntimeError('broken')",
    "e_poison": "import builtins; builtins.POISONED = True",
    "f_fine_alone": "import builtins\nif hasattr(builtins, 'POISONED'): raise RuntimeError('poisoned')",
    "g_good": "print('noise on stdout')",
    "h_good_test": "raise RuntimeError('a test is not shipped')",
    "i_known": "raise ImportError('as ever')",
    "j_stale": "",
}
KNOWN = {
    "crashpkg.i_known": "needs another planet",
    "crashpkg.j_stale": "was broken once",
    "crashpkg.z_gone": "was here once",
    "otherpkg.x": "not of this package",
}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path / "cache", lambda _: None)


@pytest.fixture
def crashpkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "path" / "crashpkg"
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder.parent), str(ROOT)]))
    return folder


def test_a_failed_import_does_not_hide_others(
    crashpkg: Path, context: Context, tmp_path: Path
) -> None:
    found = import_check.check_package(
        context, "crashpkg", KNOWN, framework="t5x", workdir=tmp_path
    )
    assert crashpkg.is_dir()
    assert found.modules == 10
    assert found.skipped == {"crashpkg.i_known": "needs another planet"}
    failed = {
        name.removeprefix("crashpkg."): error.splitlines()[0]
        for name, error in found.failed.items()
    }
    assert failed == {
        "a_aborts": "importing it ended Python: the process was killed by SIGABRT",
        "b_exits": "SystemExit: not today",
        "c_leaves": "importing it ended Python: the process ended with status 3",
        "d_raises": "RuntimeError: broken",
        "j_stale": "listed as not importable, but imports fine: remove the entry",
        "z_gone": "listed as not importable, but no longer shipped: remove the entry",
    }


def test_a_python_that_cannot_start_is_reported_once_for_all(
    crashpkg: Path, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", str(crashpkg.parent)
    )  # without rosetta the child has nothing to run
    outcome = import_check.import_modules(
        context, ["crashpkg.g_good", "crashpkg.e_poison"], tmp_path, "x"
    )
    assert list(outcome) == ["crashpkg.g_good", "crashpkg.e_poison"]
    assert all("before the first import" in str(error) for error in outcome.values())


@pytest.mark.usefixtures("crashpkg")
def test_a_stopped_selftest_starts_nothing_more(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        import_check.import_modules(
            Context(tmp_path, lambda _: None, stop), ["crashpkg.g_good"], tmp_path, "x"
        )
    assert not list(tmp_path.glob("x.results"))


def test_modules_for_another_framework_are_skipped(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def pretend(
        _context: Context, names: list[str], _workdir: Path, _label: str
    ) -> dict[str, str | None]:
        tried.extend(names)
        return dict.fromkeys(names)

    monkeypatch.setattr(import_check, "import_modules", pretend)
    found = import_check.check_package(context, "rosetta", {}, framework="pax", workdir=tmp_path)
    assert found.skipped["rosetta.t5x.dataset"] == "is for another framework"
    assert "rosetta.t5x.dataset" not in tried
    assert "rosetta.selftest.t5x" in tried
    assert found.modules == len(tried) + len(found.skipped)
