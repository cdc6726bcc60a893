"""Names of images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.images.oci import reference
from rosetta.core.errors import UserError

if TYPE_CHECKING:
    pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:5000/t5x:cuda13", ("http://127.0.0.1:5000", "t5x", "cuda13", "")),
        ("[::1]:5000/a/b:1", ("http://[::1]:5000", "a/b", "1", "")),
        ("localhost/a__b/c--d.e:X_1", ("http://localhost", "a__b/c--d.e", "X_1", "")),
        ("registry.example.org/team/t5x", ("https://registry.example.org", "team/t5x", "", "")),
        (
            f"registry.example.org:444/t5x:1@sha256:{'0' * 64}",
            ("https://registry.example.org:444", "t5x", "1", f"sha256:{'0' * 64}"),
        ),
        ("10.0.0.1:5000/t5x:1", ("https://10.0.0.1:5000", "t5x", "1", "")),
    ],
)
def test_names(text: str, expected: tuple[str, str, str, str]) -> None:
    found = reference.parse_reference(text)
    assert (found.url, found.name, found.tag, found.digest) == expected
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "t5x:latest",
        "team/t5x",
        "https://example.org/t5x",
        "example.org/T5X:1",
        "example.org/t5x:",
        "example.org/t5x:a b",
        "example.org/../t5x:1",
        "example.org//t5x",
        "",
        "example.org:99999/t5x",
        "example.org/t5x@sha256:12",
        "example.org/t5x:-x",
        "-example.org/t5x",
        f"example.org/t5x:{'x' * 129}",
        "example.org/t5x/:1",
        "ex_ample.org/t5x:1\n",
        "me:pass@example.org/t5x:1",
        "example.org/t5x:1\nX: y",
    ],
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(UserError) as problem:
        reference.parse_reference(text)
    assert "\n" not in str(problem.value)
    assert "pass@" not in str(problem.value)


def test_http_elsewhere_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reference.parse_reference("lab:5000/t5x:1").url == "https://lab:5000"
    monkeypatch.setenv(reference.INSECURE_REGISTRIES, "other:5000, lab:5000")
    assert reference.parse_reference("lab:5000/t5x:1").url == "http://lab:5000"
    assert reference.parse_reference("lab:5001/t5x:1").url == "https://lab:5001"
    assert not reference.is_loopback("127.0.0.1.example.org")
