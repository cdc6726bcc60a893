from __future__ import annotations

import pytest

from rosetta.core.secret_variables import Mask, secret

AROUND = {"WANDB_API_KEY": "k3y k3y", "A_TOKEN": "t0ken", "SHORT_KEY": "ab", "PLAIN": "plain"}


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET", "DB_PASSWORD", "TOKEN", "hf_token", "api-key"],
)
def test_by_name(name: str) -> None:
    assert secret(name)


@pytest.mark.parametrize("name", ["KEYS", "TOKENIZER", "MONKEY", "TOKEN_FILE", "PATH"])
def test_others_are_none(name: str) -> None:
    assert not secret(name, "/a/b@c")


def test_by_credentials_in_an_address() -> None:
    assert secret("DATA", "s3://me:pw@host/x")
    assert not secret("DATA", "s3://host/x@y")


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("plain", "plain"),
        ("before k3y k3y after", "before ... after"),
        ("tab t0ken", "tab ..."),
        ("--api-key=other", "--api-key=..."),
        ("MY_PASSWORD=new\nline", "MY_PASSWORD=..."),
        ("--env=NAME", "--env=NAME"),
        ("http://me:pw@proxy:1/x and s3://a@b", "http://...@proxy:1/x and s3://...@b"),
        ("a@b", "a@b"),
    ],
)
def test_words(word: str, shown: str) -> None:
    assert Mask(AROUND).word(word) == shown


def test_documents_and_variables() -> None:
    assert Mask(AROUND).variables(AROUND) == {
        "WANDB_API_KEY": "...",
        "A_TOKEN": "...",
        "SHORT_KEY": "...",
        "PLAIN": "plain",
    }
    assert Mask(AROUND).document({"a": ["t0ken", 1, None, {"b": "t0ken"}]}) == {
        "a": ["...", 1, None, {"b": "..."}]
    }
