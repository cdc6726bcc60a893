"""What of an environment is a secret, and how it is hidden in what another process gets."""

from __future__ import annotations

import pytest

from rosetta.core import secrets

AROUND = {"WANDB_API_KEY": "k3y k3y", "A_TOKEN": "t0ken", "SHORT_KEY": "ab", "PLAIN": "plain"}


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET", "DB_PASSWORD", "TOKEN", "hf_token", "api-key"],
)
def test_a_variable_is_secret_by_its_name(name: str) -> None:
    assert secrets.is_secret(name)


@pytest.mark.parametrize("name", ["KEYS", "TOKENIZER", "MONKEY", "TOKEN_FILE", "PATH"])
def test_other_variables_are_not_secret(name: str) -> None:
    assert not secrets.is_secret(name, "/a/b@c")


def test_a_variable_is_secret_by_credentials_in_an_address() -> None:
    assert secrets.is_secret("DATA", "s3://me:pw@host/x")
    assert not secrets.is_secret("DATA", "s3://host/x@y")


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
def test_a_mask_hides_words(word: str, shown: str) -> None:
    assert secrets.Mask(AROUND).mask_text(word) == shown


def test_a_mask_hides_documents_and_variables() -> None:
    assert secrets.Mask(AROUND).mask_variables(AROUND) == {
        "WANDB_API_KEY": "...",
        "A_TOKEN": "...",
        "SHORT_KEY": "...",
        "PLAIN": "plain",
    }
    assert secrets.Mask(AROUND).mask_document({"a": ["t0ken", 1, None, {"b": "t0ken"}]}) == {
        "a": ["...", 1, None, {"b": "..."}]
    }
