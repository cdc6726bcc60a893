"""What uv printed where it found no solution, and what that becomes."""

from __future__ import annotations

import pytest

from builder.packages.resolution_failure import explain_no_solution

HEAD = "error: No solution found when resolving dependencies\n  cause: Because "


@pytest.mark.parametrize(
    ("cause", "what"),
    [
        (
            "foo{x == 'y'} was not found in the package registry",
            "the package index has no package 'foo': ",
        ),
        (
            "there are no versions of foo{x == 'y'} and you require foo",
            "the package index has no package 'foo': ",
        ),
        (
            "there are no versions of foo>1 and you require foo>1",
            "the package index has no version 'foo>1': ",
        ),
        (
            "there is no version of foo[a,b]==1.0 and",
            "the package index has no version 'foo[a,b]==1.0': ",
        ),
        ("a==1 needs b>2 and b<2", "the requirements contradict each other: Because a==1"),
        (
            "a has no usable wheels\n\nhint: Wheels are required for `a` because x",
            "a has no usable wheel, only an sdist: ",
        ),
        ("x\n\nhint: returned a 403 Forbidden error", "the package index refuses the credentials"),
        ("x" * 5000, "the requirements contradict each other: Because xxx"),
    ],
)
def test_the_reason_comes_first(cause: str, what: str) -> None:
    explained = explain_no_solution(HEAD + cause)
    assert explained
    assert explained[0].startswith(what)
    assert len(explained[0]) < 800


def test_hints_are_kept() -> None:
    explained = explain_no_solution(
        HEAD + "x\n\nhint: Pre-releases are available for\n  `x`\n\nhint: second\n"
    )
    assert explained
    assert explained[0].endswith(
        "Because x hint: Pre-releases are available for | `x` | hint: second"
    )


def test_what_is_no_search_in_vain() -> None:
    assert explain_no_solution("error: dns error") is None
