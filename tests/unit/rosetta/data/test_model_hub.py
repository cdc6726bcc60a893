"""Models of a small Hub are fetched once, compared, and named in errors."""

from __future__ import annotations

import concurrent.futures
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import errors, required_modules
from tests.support.model_hub import TOKEN, Hub, serve_hub

required_modules.need_modules("huggingface_hub")

from rosetta.data import model_hub

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "google/t5-tiny"
WEIGHTS = bytes(range(256)) * 8000  # 2 MB


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as served:
        served.models[NAME] = {
            "config.json": b'{"model_type": "t5"}',
            "spiece.model": b"pieces" * 2000,
            "tokenizer_config.json": b"{}",
            "model.safetensors": WEIGHTS,
            "pytorch_model.bin": b"\x80" + WEIGHTS,
            "tf_model.h5": WEIGHTS[1:],
        }
        monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield served


def _fetch(purpose: str = model_hub.WEIGHTS, name: str = f"hf:{NAME}") -> Path:
    return model_hub.fetch_model(name, f"MODEL={name}", purpose)


def _forget_age(home: Path) -> None:
    """Make the commit of a branch look as old as it may not be."""
    for record in home.glob("hub/*/commits/*"):
        os.utime(record, (0, 0))


def test_only_what_a_purpose_needs_is_downloaded(hub: Hub) -> None:
    folder = _fetch(model_hub.TOKENIZER)
    assert folder.name == hub.commit(NAME)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "spiece.model",
        "tokenizer_config.json",
    ]
    assert _fetch() == folder
    names = {path.name for path in folder.iterdir()}
    assert "model.safetensors" in names
    assert not names & {"pytorch_model.bin", "tf_model.h5"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_older_weights_are_taken_where_there_are_no_others(hub: Hub) -> None:
    del hub.models[NAME]["model.safetensors"]
    assert (_fetch() / "pytorch_model.bin").read_bytes() == b"\x80" + WEIGHTS
    hub.models[NAME] = {"config.json": b"{}", "tf_model.h5": WEIGHTS}
    with errors.expect_user_error(errors.UNSUPPORTED, where=NAME):
        _fetch(name=f"hf:{NAME}@{hub.commit(NAME)}")


def test_a_second_start_asks_nothing(hub: Hub) -> None:
    folder = _fetch()
    request_count = len(hub.requests)
    assert _fetch() == folder
    assert len(hub.requests) == request_count


def test_a_commit_is_read_from_the_cache_alone(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _fetch()
    request_count = len(hub.requests)
    _forget_age(tmp_path / "home")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert _fetch(name=f"hf:{NAME}@{folder.name}") == folder
    assert _fetch() == folder
    assert len(hub.requests) == request_count
    with errors.expect_user_error(errors.MISSING, where="other/model"):
        _fetch(name="hf:other/model")


def test_a_branch_that_moved_on_is_read_again(hub: Hub, tmp_path: Path) -> None:
    first = _fetch()
    hub.models[NAME]["config.json"] = b'{"model_type": "mt5"}'
    assert _fetch() == first  # the processes of a job read the same commit
    _forget_age(tmp_path / "home")
    second = _fetch()
    assert second.name == hub.commit(NAME) != first.name
    assert (second / "config.json").read_bytes() == b'{"model_type": "mt5"}'
    assert hub.count("GET /cdn/") == 2  # the weights and the pieces are the same files


def test_a_hub_that_does_not_answer_is_replaced_by_the_cache(
    hub: Hub, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = _fetch()
    _forget_age(tmp_path / "home")
    hub.status = 503
    assert _fetch() == folder
    assert folder.name[:12] in capfd.readouterr().err


def test_a_broken_download_is_resumed(hub: Hub) -> None:
    weights = WEIGHTS * 12  # more than the library holds in memory
    hub.models[NAME] = {"config.json": b"{}", "model.safetensors": weights}
    hub.broken = 1
    assert (_fetch() / "model.safetensors").read_bytes() == weights
    assert hub.count("bytes=") == 1


def test_a_damaged_file_is_removed_and_named(hub: Hub) -> None:
    hub.damaged = True
    with errors.expect_user_error(errors.DAMAGED, where=NAME):
        _fetch()
    hub.damaged = False
    assert (_fetch() / "model.safetensors").read_bytes() == WEIGHTS


def test_one_of_many_processes_downloads(hub: Hub) -> None:
    with concurrent.futures.ProcessPoolExecutor(4) as pool:
        folders = set(pool.map(_fetch, [model_hub.WEIGHTS] * 4))
    assert len(folders) == 1
    assert hub.count("/api/models/") <= 2  # one of ours, and one of snapshot_download
    assert hub.count("GET /cdn/") == 2


def test_a_private_model_needs_the_token(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hub.private.add(NAME)
    with errors.expect_user_error(errors.DENIED, where=NAME, remedy="HF_TOKEN"):
        _fetch()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert (_fetch() / "model.safetensors").exists()
    assert TOKEN not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, errors.DENIED),
        (403, errors.DENIED),
        (404, errors.MISSING),
        (429, errors.UNREACHABLE),
        (500, errors.UNREACHABLE),
    ],
)
def test_answers_of_the_hub_become_errors(hub: Hub, status: int, kind: str, tmp_path: Path) -> None:
    hub.status = status
    with errors.expect_user_error(kind, where=NAME):
        _fetch()
    assert not list(tmp_path.glob("home/hub/*/verified/*"))


@pytest.mark.usefixtures("hub")
def test_a_revision_that_is_missing_is_named() -> None:
    with errors.expect_user_error(errors.MISSING, where="@v9", names="v9"):
        _fetch(name=f"hf:{NAME}@v9")


def test_an_address_where_nobody_listens(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with errors.expect_user_error(errors.UNREACHABLE, where=NAME):
        _fetch()
    assert not hub.requests


@pytest.mark.parametrize("name", ["hf:", "hf:a/b/c", "hf:../x", "hf:a/b@", "hf:a b", "hf:-x/y"])
def test_names_that_are_not_valid(name: str) -> None:
    with errors.expect_user_error(errors.INVALID, where=name):
        model_hub.parse_name(name, f"VOCAB={name}")
