"""pip check, and whether the overrides say why."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from builder.core import manifest
from builder.packages import dependency_check, uv
from builder.packages.dependency_check import Finding
from builder.packages.lock_file import marker_environment
from tests.support import errors
from tests.support.package_archives import format_metadata, write_wheel

if TYPE_CHECKING:
    from pathlib import Path

HERE = marker_environment("3.11", "3.11.2", "amd64")
MANIFEST = f"""version: 1
sources: {{t: {{wheel: t==1, sha256: "{"a" * 64}", patches: patches/t}}}}
lines: {{l: {{python: "3.11", pythons: ["3.11"], common: l.in}}, other: {{python: "3.11", pythons: ["3.11"], common: o.in}}}}
distributions: {{t: {{line: l, sources: [t], accelerators: [cpu], architectures: [amd64]}}}}
overrides:
"""


def _site(folder: Path, *packages: tuple[str, str, tuple[str, ...]]) -> Path:
    for name, version, requires in packages:
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(format_metadata(name, version, requires))
    return folder


def _manifest(folder: Path, *overrides: str) -> manifest.Manifest:
    (folder / "manifest.yaml").write_text(
        MANIFEST
        + "".join(f"  - {text}\n" for text in overrides or ['{drop: unused, why: "a good reason"}'])
    )
    return manifest.load(folder / "manifest.yaml")


def test_findings(tmp_path: Path) -> None:
    site = _site(
        tmp_path,
        (
            "A_b",
            "1.0",
            (
                "c>=2",
                "D.d",
                "a-b",
                "missing[x]>=1 ; python_version >= '3'",
                "other ; sys_platform == 'win32'",
                "extra ; extra == 'x'",
            ),
        ),
        ("c", "1.5", ()),
        ("d-d", "3rc1", ("c<2",)),
    )
    assert dependency_check.find_unmet_requirements(site, HERE) == [
        Finding("a-b", "c>=2", "1.5"),
        Finding("a-b", "missing[x]>=1", ""),
    ]


def test_for_another_python_and_machine(tmp_path: Path) -> None:
    site = _site(
        tmp_path, ("a", "1", ("b ; python_version >= '3.13'", "c ; platform_machine == 'aarch64'"))
    )
    assert dependency_check.find_unmet_requirements(site, HERE) == []
    assert [
        finding.project
        for finding in dependency_check.find_unmet_requirements(
            site, marker_environment("3.13", "3.13.0", "arm64")
        )
    ] == ["b", "c"]


def test_finds_what_uv_finds(tmp_path: Path) -> None:
    made = [
        write_wheel(tmp_path, "a", "1", "b>=2", "gone<3", "c"),
        write_wheel(tmp_path, "b", "1.5"),
        write_wheel(tmp_path, "c", "1"),
    ]
    python = tmp_path / "env/bin/python"
    uv.run("venv", "--quiet", "--no-project", "--python", sys.executable, str(tmp_path / "env"))
    uv.run(
        "pip",
        "install",
        "--quiet",
        "--python",
        str(python),
        "--no-deps",
        "--no-index",
        "--offline",
        *map(str, made),
    )
    done = uv.run("pip", "check", "--python", str(python), check=False)
    assert done.returncode == 1
    (site,) = (tmp_path / "env").glob("lib/python3.*/site-packages")
    version = subprocess.run(
        [python, "-c", "import platform; print(platform.python_version())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    ours = dependency_check.find_unmet_requirements(
        site, marker_environment(version.rpartition(".")[0], version, "amd64")
    )
    assert sorted(re.findall(r"`([a-z]+)` requires `([^`]+)`", done.stderr)) == [
        (each.package, each.requirement) for each in ours
    ]
    assert len(ours) == 2

    bare = _manifest(tmp_path)
    with errors.expect_user_error(errors.CONFLICT, where="line l", names=("b>=2", "1.5", "1 more")):
        dependency_check.require_explained(python, bare, "l")
    explained = _manifest(
        tmp_path,
        '{pin: "b==1.5", why: "the tests want it old"}',
        '{drop: gone, lines: [l], why: "nobody imports it here"}',
    )
    assert set(dependency_check.require_explained(python, explained, "l").values()) == {
        "the tests want it old",
        "nobody imports it here",
    }
    with errors.expect_user_error(errors.CONFLICT, where="line other", names=("a", "gone<3")):
        dependency_check.require_explained(python, explained, "other")


@pytest.mark.parametrize(
    ("override", "finding", "explained"),
    [
        ("{drop: x, why: 'a good reason'}", Finding("a", "x", ""), True),
        ("{drop: x, why: 'a good reason'}", Finding("a", "x>=2", "1"), False),
        (
            "{drop: x, unless: \"python_version < '3.12'\", why: 'a good reason'}",
            Finding("a", "X", ""),
            True,
        ),
        ("{pin: x==1, why: 'a good reason'}", Finding("a", "x>=2", "1"), True),
        ("{pin: x==1, why: 'a good reason'}", Finding("a", "x>=2", ""), False),
        ("{pin: x==1, why: 'a good reason'}", Finding("a", "x>=2", "1.5"), False),
        ("{drop: y, why: 'a good reason'}", Finding("a", "x", ""), False),
    ],
)
def test_what_an_override_explains(
    tmp_path: Path, override: str, finding: Finding, explained: bool
) -> None:
    reasons, rest = dependency_check.match_overrides([finding], _manifest(tmp_path, override), "l")
    assert (list(reasons), rest) == (([finding], []) if explained else ([], [finding]))


def test_half_an_environment(tmp_path: Path) -> None:
    with errors.expect_user_error(errors.DAMAGED, where=tmp_path):
        dependency_check.require_explained(tmp_path / "bin/python", _manifest(tmp_path), "l")
