"""Tests assert facts of an error, not the sentence that a user reads: texts can be rewritten.

The numbers may only shrink. Where a test fails here, write

    with errors.expect_user_error(errors.MISSING, where="t5x.lock", remedy="build.py lock"):

with tests/support/errors.py, and give the `raise UserError(...)` that it reaches its `kind=` and
`value=`. Of other output assert names, numbers and paths, or the JSON result.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import errors, pinned_sentences

# Lower the number of a folder when its sentences become fewer; never raise it.
PINNED_SENTENCES = {
    "tests/integration/builder": 0,
    # Each folder between lines of its own, so that two changes do not meet.
    "tests/unit/builder": 0,
    # The tests of the package inside the image.
    "tests/integration/rosetta": 6,
    # Most of these tests.
    "tests/unit/rosetta": 53,
    # The tests on real upstreams.
    "tests/upstream": 1,
}
SLACK = 5  # so few less need no new number


@pytest.mark.parametrize("folder", PINNED_SENTENCES)
def test_assertions_do_not_pin_sentences(folder: str) -> None:
    pinned = pinned_sentences.find_pinned_sentences(pinned_sentences.ROOT / folder)
    recorded = PINNED_SENTENCES[folder]
    assert len(pinned) <= recorded, (
        f"{folder} pins {len(pinned)} sentences, recorded {recorded}: assert the facts of the error"
        f" instead, with tests/support/errors.py; {pinned_sentences.COMMAND} lists them"
    )
    assert recorded - len(pinned) <= SLACK, f"fewer sentences: record {len(pinned)} for {folder}"


def test_each_way_to_pin_a_sentence_is_found() -> None:
    text = '''
@pytest.mark.parametrize(("given", "complaint"), [("a", "is no such thing"), ("e", "x")])
def test_it(given, complaint, capsys):
    """A docstring of the test."""
    with pytest.raises(UserError, match="is not there yet") as caught:
        read(given)
    assert complaint in caught.value.what
    assert f"see {given}.py" in str(caught.value)
    said = capsys.readouterr().err
    assert said.startswith("could not read it")
    assert given == "not a message of ours"
    assert "t5x.lock" in caught.value.where
    assert error.what == "python build.py lock --base"
'''
    assert pinned_sentences.find_in(text) == [
        (2, "is no such thing"),
        (5, "is not there yet"),
        (10, "could not read it"),
    ]


def test_an_error_is_told_apart_by_its_facts() -> None:
    error = errors.UserError(
        "is not there", "a/t5x.lock", "run build.py lock", kind=errors.MISSING, value=3
    )
    with errors.expect_user_error(
        errors.MISSING, where="t5x.lock", value=3, remedy="build.py lock"
    ):
        raise error
    refuted: list[tuple[str, dict[str, Any]]] = [
        (errors.INVALID, {}),
        (errors.MISSING, {"value": 4}),
        (errors.MISSING, {"where": "pax.lock"}),
        (errors.MISSING, {"remedy": ("build.py lock", "--base")}),
        (errors.MISSING, {"names": "is not there"}),
    ]
    for kind, fields in refuted:
        with pytest.raises(AssertionError):
            errors.check_error(error, kind, **fields)
