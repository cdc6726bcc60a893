"""`rosetta convert ... --push` uploads a converted model to a small Hub with huggingface_hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import errors, required_modules
from tests.support.model_hub import LARGE, TOKEN, Hub, serve_hub

required_modules.need_modules("ml_dtypes", "tensorstore")
constants: Any = required_modules.need_modules("huggingface_hub.constants")

from rosetta import cli
from rosetta.data import model_hub, model_upload
from tests.support import llama_weights, t5_weights

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "me/ro-t5"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as served:
        monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        # As in a new process: the library reads the variable when it is imported.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-login"))
        for name in ("HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield served


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return the folder of a small T5 as a checkpoint of T5X."""
    config = t5_weights.make_config("t5_1_1")
    t5_weights.write_folder(tmp_path / "public", config, t5_weights.make_weights(config))
    assert cli.main(["convert", "t5", str(tmp_path / "public"), str(tmp_path / "t5x")]) == 0
    return tmp_path / "t5x"


def _push(source: Path, *words: str, name: str = NAME) -> int:
    out = source.parent / "out"
    return cli.main(["convert", "t5", str(source), str(out), "--push", f"hf:{name}", *words])


def _read_error(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the error that --json printed."""
    document: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    return document


def _read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _get_uploaded(hub: Hub, name: str = NAME) -> dict[str, bytes]:
    return {file: body for file, body in hub.models[name].items() if file != ".gitattributes"}


def test_a_private_model_gets_all_files(
    hub: Hub, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert _push(source, "--json") == 0
    files = _read_files(source.parent / "out")
    assert _get_uploaded(hub) == files
    assert NAME in hub.private
    assert len(files["model.safetensors"]) >= LARGE
    assert len(files["config.json"]) < LARGE
    assert list(hub.uploaded.values()).count(files["model.safetensors"]) == 1
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["pushed"]["commit"] == hub.commit(NAME)
    assert result["pushed"]["private"] is True
    assert not list(source.parent.glob(".rosetta-*"))
    # It can be read back, as a start of training does.
    folder = model_hub.fetch_model(f"hf:{NAME}", "TEST", model_hub.WEIGHTS)
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]


def test_a_public_model_on_request(hub: Hub, source: Path) -> None:
    assert _push(source, "--public") == 0
    assert NAME in hub.models
    assert NAME not in hub.private


def test_an_upload_that_failed_continues(
    hub: Hub, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refused = 1
    capsys.readouterr()
    assert _push(source, "--json") == 2
    assert _read_error(capsys)["kind"] == errors.UNREACHABLE
    assert _get_uploaded(hub) == {}
    out = source.parent / "out"
    written = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert _push(source) == 0
    assert _get_uploaded(hub) == _read_files(out)
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == written
    assert not list(source.parent.glob(".rosetta-*"))
    # The folder is now an old one, which is never overwritten.
    assert _push(source, "--json") == 2


def test_a_changed_folder_is_not_taken_for_the_result(
    hub: Hub, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refused = 1
    assert _push(source) == 2
    (source.parent / "out" / "config.json").write_text("{}")
    capsys.readouterr()
    assert _push(source, "--json") == 2
    assert _read_error(capsys)["kind"] == errors.EXISTS
    assert _get_uploaded(hub) == {}


def test_files_that_the_hub_has_are_not_sent_again(hub: Hub, source: Path, tmp_path: Path) -> None:
    assert _push(source) == 0
    uploads = hub.count("PUT")
    target = model_upload.Target(f"hf:{NAME}", "TEST", public=False)
    (tmp_path / "out" / "notes.txt").write_text("new")
    commits = hub.count("/commit/")
    target.upload(tmp_path / "out")
    assert hub.count("PUT") == uploads
    assert hub.models[NAME]["notes.txt"] == b"new"
    assert hub.count("/commit/") == commits + 1
    target.upload(tmp_path / "out")
    assert hub.count("/commit/") == commits + 1


def test_older_weights_are_removed(
    hub: Hub, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = {"model-00001-of-00002.safetensors", "model.safetensors.index.json"}
    hub.models[NAME] = {**dict.fromkeys(stale, b"old"), "notes.md": b"mine"}
    hub.private.add(NAME)
    assert _push(source) == 0
    assert _get_uploaded(hub) == {**_read_files(source.parent / "out"), "notes.md": b"mine"}
    text = capsys.readouterr().out
    assert all(name in text for name in stale)


def test_an_upload_that_differs_is_seen(
    hub: Hub, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.altered = True
    capsys.readouterr()
    assert _push(source, "--json") == 2
    assert _read_error(capsys)["kind"] == errors.DIFFERS


@pytest.mark.parametrize(
    ("variables", "words", "name", "kind"),
    [
        ({"HF_TOKEN": ""}, (), NAME, errors.MISSING),
        ({"HF_TOKEN": "hf_wrong"}, (), NAME, errors.DENIED),
        ({"HF_HUB_OFFLINE": "1"}, (), NAME, errors.CONFLICT),
        ({}, (), "gpt2", errors.INVALID),
        ({}, (), f"{NAME}@main", errors.INVALID),
        ({}, (), "me/a b", errors.INVALID),
        ({}, ("--to", "t5x"), NAME, errors.CONFLICT),
        ({}, (), "me/public", errors.CONFLICT),
        ({}, ("--public",), "me/private", errors.CONFLICT),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, (), NAME, errors.UNREACHABLE),
    ],
)
def test_what_cannot_be_uploaded_is_refused(
    variables: dict[str, str],
    words: tuple[str, ...],
    name: str,
    kind: str,
    hub: Hub,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub.models |= {"me/public": {}, "me/private": {}}
    hub.private.add("me/private")
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    capsys.readouterr()
    assert _push(source, *words, "--json", name=name) == 2
    output = capsys.readouterr()
    error = json.loads(output.out)["error"]
    assert error["kind"] == kind
    assert variables.get("HF_TOKEN") not in output.err.split()
    assert not hub.uploaded
    # Only the Hub knows that it does not accept the token. It says so after the conversion.
    assert (source.parent / "out").exists() == (variables == {"HF_TOKEN": "hf_wrong"})


def test_public_needs_push(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(source.parent / "out")
    capsys.readouterr()
    assert cli.main(["convert", "t5", str(source), out, "--public", "--json"]) == 2
    assert _read_error(capsys)["kind"] == errors.CONFLICT


def test_llama(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = llama_weights.MODELS["groups"]
    weights = llama_weights.make_weights(sizes)
    meta = llama_weights.write_meta_folder(tmp_path / "meta", sizes, weights)
    words = ["convert", "llama", str(meta), str(tmp_path / "out"), "--push", f"hf:{NAME}"]
    assert cli.main([*words, "--json"]) == 2  # --to is pax unless it is given
    assert _read_error(capsys)["kind"] == errors.CONFLICT
    assert cli.main([*words, "--to", "hf"]) == 0
    assert _get_uploaded(hub) == _read_files(tmp_path / "out")
