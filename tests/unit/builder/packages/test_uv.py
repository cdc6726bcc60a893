"""What of the caller reaches uv, and what uv's failures become."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.packages import uv
from rosetta.core.errors import UserError
from tests.support import errors


def test_settings_that_would_change_the_result_are_shut_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "UV_OVERRIDE",
        "UV_EXCLUDE_NEWER",
        "UV_NO_BINARY",
        "UV_PRERELEASE",
        "UV_LINK_MODE",
        "UV_NO_VERIFY_HASHES",
        "VIRTUAL_ENV",
        "PYTHONPATH",
    ):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("UV_HTTP_TIMEOUT", "7")
    env = uv.make_environment()
    assert not {
        "UV_OVERRIDE",
        "UV_EXCLUDE_NEWER",
        "UV_NO_BINARY",
        "UV_PRERELEASE",
        "UV_NO_VERIFY_HASHES",
        "VIRTUAL_ENV",
        "PYTHONPATH",
    } & set(env)
    assert env["UV_LINK_MODE"] == "copy"
    assert env["UV_HTTP_TIMEOUT"] == "7"
    assert env["UV_NO_CONFIG"] == "1"
    assert "UV_OFFLINE" not in env
    assert uv.make_environment(offline=True)["UV_OFFLINE"] == "1"


def test_the_index_that_pip_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    assert uv.make_environment()["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    monkeypatch.setenv("UV_INDEX_URL", "https://uv.example/simple")
    assert "UV_DEFAULT_INDEX" not in uv.make_environment()


def test_a_failure_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        uv.run(
            "pip",
            "install",
            "--offline",
            "--no-index",
            "--target",
            str(tmp_path / "x"),
            "no-such-project==1.0",
            where="here",
        )
    assert "\n" not in str(caught.value)
    assert "no-such-project" in str(caught.value)


def test_lines_are_read_while_uv_runs(tmp_path: Path) -> None:
    lines: list[str] = []
    options = ("--offline", "--no-index", "--target", str(tmp_path / "x"))
    with pytest.raises(UserError):
        uv.run("pip", "install", *options, "no-such-project==1.0", read_line=lines.append)
    assert any("no-such-project" in line for line in lines)


@pytest.mark.parametrize(
    ("stderr", "offline", "kind", "fact"),
    [
        ("error: Hash mismatch for `x==1`\n  Expected:\n", False, errors.DAMAGED, ""),
        (
            "  × Failed to write\n  ╰─▶ No space left on device (os error 28)\n",
            False,
            errors.TOO_BIG,
            "",
        ),
        (
            "error: Failed to fetch\n  Caused by: dns error: failed to lookup\n",
            False,
            errors.UNREACHABLE,
            "",
        ),
        (
            "Network connectivity is disabled, but the requested data wasn't found in the cache for: `x`\n",
            True,
            errors.MISSING,
            "",
        ),
        ("", False, errors.FAILED, ""),
        (
            "error: No solution found\n  cause: x was not found\n\nhint: An index could not be queried (401 Unauthorized)\n",
            False,
            errors.DENIED,
            "index",
        ),
        (
            "error: Failed to fetch: `https://a/x.whl`\n  Caused by: HTTP status client error (403 Forbidden) for url (https://a/x.whl)\n",
            False,
            errors.DENIED,
            "",
        ),
        (
            "error: tunnel error: 407 Proxy Authentication Required\n",
            False,
            errors.DENIED,
            "proxy",
        ),
        (
            "error: x has no wheel\nhint: You require CPython 3.11\n",
            False,
            errors.FAILED,
            "hint: You require CPython 3.11",
        ),
        ("error: \x1b[31mred\u202e\n", False, errors.FAILED, r"\x1b[31mred\u202e"),
        (
            "  × No solution found\n  ╰─▶ Because the requested Python version is 3.9\n",
            False,
            errors.FAILED,
            "No solution found",
        ),
    ],
)
def test_explanations(stderr: str, offline: bool, kind: str, fact: str) -> None:
    what, do, found = uv.explain_failure(stderr, offline=offline)
    assert (found, bool(do)) == (kind, True)
    assert fact in what
