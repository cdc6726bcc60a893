"""Markers over a line's environments, and the wheel that each takes."""

from __future__ import annotations

import itertools

import pytest
from packaging.markers import Marker

from builder.packages import environment_markers
from builder.packages.environment_markers import Environment
from builder.packages.lock_file import marker_environment

GRID = environment_markers.list_environments(["3.11", "3.12", "3.13"], ["amd64", "arm64"])


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("", ""),
        (
            "python_full_version < '3.14' and ((platform_machine == 'aarch64' and sys_platform == 'linux') or (platform_machine == 'x86_64' and sys_platform == 'linux'))",
            "",
        ),
        (
            "sys_platform == 'linux' and platform_machine == 'x86_64'",
            'platform_machine == "x86_64"',
        ),
        ("python_full_version < '3.13' and os_name == 'posix'", 'python_version < "3.13"'),
        ("python_full_version == '3.13.*'", 'python_version >= "3.13"'),
        ("python_version == '3.12'", 'python_version == "3.12"'),
        (
            "python_version != '3.12' and platform_machine == 'aarch64'",
            '(python_version == "3.11" or python_version == "3.13") and platform_machine == "aarch64"',
        ),
        ("sys_platform == 'win32'", None),
        ("extra == 'gpu'", None),
        ("python_full_version >= '3.11.4'", "python_full_version >= '3.11.4'"),
        ("python_full_version != '3.11.5'", "python_full_version != '3.11.5'"),
        (
            "python_full_version > '3.12.5' and python_full_version < '3.12.8'",
            "python_full_version > '3.12.5' and python_full_version < '3.12.8'",
        ),
    ],
)
def test_simplest(long: str, short: str | None) -> None:
    assert environment_markers.simplify_marker(long, GRID) == short


def test_versions_are_compared_as_numbers() -> None:
    grid = environment_markers.list_environments(["3.11", "3.9", "3.10"], ["amd64"])
    assert [environment.python for environment in grid] == ["3.9", "3.10", "3.11"]
    for count in (1, 2):
        marker = environment_markers.build_marker(grid[:count], grid)
        assert marker == f"python_version < '{grid[count].python}'"


def test_a_written_marker_holds_where_it_was_chosen_and_nowhere_else() -> None:
    for size in range(1, len(GRID) + 1):
        for chosen in itertools.combinations(GRID, size):
            text = environment_markers.build_marker(chosen, GRID)
            assert (
                tuple(each for each in GRID if environment_markers.marker_applies(text, each))
                == chosen
            )


def test_bounds_hold_for_the_line_and_not_beyond() -> None:
    text = Marker(environment_markers.build_bounding_marker(GRID))
    assert all(
        text.evaluate(marker_environment(each.python, f"{each.python}.5", each.architecture))
        for each in GRID
    )
    inside = marker_environment("3.12", "3.12.1", "amd64")
    for change in (
        {"sys_platform": "win32"},
        {"platform_machine": "riscv64"},
        {"python_full_version": "3.14.0"},
        {"python_full_version": "3.10.9"},
    ):
        assert not text.evaluate({**inside, **change})


@pytest.mark.parametrize(
    ("names", "environment", "best"),
    [
        (
            ["x-1-cp311-cp311-manylinux2014_x86_64.whl", "x-1-py3-none-any.whl"],
            Environment("3.11", "amd64"),
            0,
        ),
        (
            ["x-1-cp311-cp311-manylinux2014_x86_64.whl", "x-1-py3-none-any.whl"],
            Environment("3.12", "amd64"),
            1,
        ),
        (
            [
                "x-1-cp311-cp311-manylinux_2_17_x86_64.whl",
                "x-1-cp311-cp311-manylinux_2_28_x86_64.whl",
            ],
            Environment("3.11", "amd64"),
            1,
        ),
        (
            ["x-1-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl"],
            Environment("3.11", "arm64"),
            0,
        ),
        (
            [
                "x-1-cp310-abi3-manylinux2014_aarch64.whl",
                "x-1-cp313-cp313t-manylinux2014_aarch64.whl",
            ],
            Environment("3.13", "arm64"),
            0,
        ),
        (["x-1-py3-none-any.whl", "x-1-2-py3-none-any.whl"], Environment("3.13", "arm64"), 1),
        (["x-1-cp311-cp311-manylinux_2_35_x86_64.whl"], Environment("3.11", "amd64"), None),
        (["x-1-cp311-cp311-musllinux_1_2_x86_64.whl"], Environment("3.11", "amd64"), None),
        (["x-1-cp311-cp311-manylinux2014_x86_64.whl"], Environment("3.11", "arm64"), None),
        (
            ["x-1-cp311-cp311-macosx_11_0_arm64.whl", "nonsense.whl"],
            Environment("3.11", "arm64"),
            None,
        ),
        ([], Environment("3.11", "arm64"), None),
    ],
)
def test_best_wheel(names: list[str], environment: Environment, best: int | None) -> None:
    assert environment_markers.choose_wheel(names, environment) == (
        None if best is None else names[best]
    )
