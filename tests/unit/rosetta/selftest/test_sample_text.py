from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from rosetta.selftest.sample_text import generate_sentences, write_text

if TYPE_CHECKING:
    from pathlib import Path


def test_the_text_is_the_same_everywhere(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", lines=64)
    data = (tmp_path / "a.txt").read_bytes()
    # Fixed here, so that a change of the text or of Python's generator does not go unseen.
    assert (
        hashlib.sha256(data).hexdigest()
        == "56825984c11ac258626663e42b735a49d7d360269a18c6c816c30fabe3c594b1"
    )
    assert data.count(b"\n") == 64
    assert data.isascii()


def test_another_seed_gives_another_text() -> None:
    assert list(generate_sentences(20, 1)) == list(generate_sentences(20, 1))
    assert list(generate_sentences(20, 1)) != list(generate_sentences(20, 2))


def test_no_temporary_file_is_left(tmp_path: Path) -> None:
    write_text(tmp_path / "sub" / "a.txt", lines=2)
    write_text(tmp_path / "sub" / "a.txt", lines=3)
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["a.txt"]
