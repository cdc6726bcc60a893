"""Tasks of SeqIO that are found by name, and the user's code that registers them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import errors
from tests.support.required_modules import need_modules

CODE = """
import seqio

seqio.TaskRegistry.add(
    "{name}",
    source=seqio.FunctionDataSource(lambda split, shuffle_files=False, seed=None: None, ["train"]),
    preprocessors=[],
    output_features={{"targets": seqio.Feature(seqio.ByteVocabulary())}},
)
"""


@pytest.fixture(autouse=True)
def keep_modules() -> None:
    need_modules("seqio", "t5x")


def test_a_file_and_a_module_register_their_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rosetta.t5x import seqio_tasks

    for name in ("by_file", "by_module"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(CODE.format(name=f"sums_{name}"))
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(2):  # a second call does not register the task again
        assert (
            seqio_tasks.find_task("sums_by_file", f"{tmp_path}/by_file.py").name == "sums_by_file"
        )
        assert seqio_tasks.find_task("sums_by_module", "by_module").name == "sums_by_module"


def test_t5s_own_tasks_need_no_module() -> None:
    need_modules("t5")
    from rosetta.t5x import seqio_tasks

    assert seqio_tasks.find_task("glue_cola_v002").name == "glue_cola_v002"


@pytest.mark.parametrize(
    ("code", "module", "kind", "facts"),
    [
        ("", "empty.py", errors.UNKNOWN, {"value": "summs"}),
        (CODE.format(name="summx"), "other.py", errors.UNKNOWN, {"remedy": "summx"}),
        ("1 / 0", "wrong.py", errors.INVALID, {"names": "ZeroDivisionError"}),
        (None, "nowhere.py", errors.MISSING, {}),
        (None, "nowhere_at_all", errors.INVALID, {"names": "nowhere_at_all"}),
    ],
)
def test_what_cannot_be_found_is_one_line(
    tmp_path: Path, code: str | None, module: str, kind: str, facts: dict[str, Any]
) -> None:
    from rosetta.t5x import seqio_tasks

    if code is not None:
        (tmp_path / module).write_text(code)
    where = str(tmp_path / module) if module.endswith(".py") else module
    place = "DATA=task:summ" if kind == errors.UNKNOWN else f"TASK_MODULE={where}"
    with errors.expect_user_error(kind, where=place, **facts):
        seqio_tasks.find_task("summs", where)
