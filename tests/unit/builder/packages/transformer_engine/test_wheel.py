"""The verb: what it says, what it takes, and what it refuses before anything is done."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder import cli
from builder.commands import wheel
from builder.core.cache import Cache
from tests.support import errors, te_project

if TYPE_CHECKING:
    from builder.core.command_context import Result
    from tests.support.te_project import Te

pytestmark = pytest.mark.slow

NAME = f"transformer_engine_jax-{te_project.VERSION}-cp313-cp313-linux_x86_64.whl"


def _run(te: Te, cache: Cache, *args: str) -> Result:
    arguments = cli.make_command_parser("wheel").parse_args(
        ["transformer-engine", "--accelerator", "cuda13", "--architecture", "amd64", *args]
    )
    return wheel.run(te.context(cache), arguments)


def test_it_is_made_and_put_where_it_was_asked_for(te: Te, cache: Cache, tmp_path: Path) -> None:
    result = _run(te, cache, "--output", str(tmp_path / "out"))
    file = tmp_path / "out" / NAME
    assert [path.name for path in file.parent.iterdir()] == [NAME]
    assert result.data["output"] == str(file)
    assert result.data["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (result.data["python"], result.data["imported"], result.data["bytes"]) == (
        "3.13",
        False,
        file.stat().st_size,
    )
    assert result.data["sha256"] in result.text
    assert "compiled in" in result.text


def test_one_made_elsewhere_is_used_until_it_is_dropped(
    te: Te, cache: Cache, tmp_path: Path
) -> None:
    elsewhere = te.with_headers(Cache(tmp_path / "elsewhere"))
    made = _run(te, elsewhere, "--output", str(tmp_path)).data
    taken = _run(te, cache, "--import", str(tmp_path / NAME), "--sha256", made["sha256"])
    assert taken.data["imported"]
    assert "imported" in taken.text
    assert Path(taken.data["path"]).is_relative_to(cache.root)
    assert _run(te, cache).data["imported"]
    assert _run(te, cache, "--drop-import").data == {"dropped": True}
    assert _run(te, cache, "--drop-import").data == {"dropped": False}
    assert not _run(te, cache).data["imported"]


@pytest.mark.parametrize(
    ("args", "kind", "where", "value"),
    [
        (("--import", "x.whl"), errors.INVALID, "--sha256", None),
        (("--import", "x.whl", "--sha256", "ABC"), errors.INVALID, "--sha256", None),
        (("--sha256", "0" * 64), errors.CONFLICT, "--sha256", None),
        (("--jobs", "-1"), errors.INVALID, "--jobs", "-1"),
        (("--line", "none"), errors.UNKNOWN, "--line", "none"),
        (("--line", "other"), errors.MISSING, "transformer-engine", "other"),
        (("--python", "3.9"), errors.UNSUPPORTED, "--python", "3.9"),
    ],
)
def test_what_it_refuses(
    te: Te, cache: Cache, args: tuple[str, ...], kind: str, where: str, value: object
) -> None:
    with errors.expect_user_error(kind, where=where, value=value):
        _run(te, cache, *args)
    assert te.index.requests == []


def test_a_manifest_without_it(te: Te, cache: Cache) -> None:
    file = te.root / "manifest.yaml"
    file.write_text(
        "".join(
            line
            for line in file.read_text().splitlines(keepends=True)
            if not line.startswith("transformer-engine")
        )
    )
    with errors.expect_user_error(errors.MISSING, where="manifest", names="transformer-engine"):
        _run(te, cache)
