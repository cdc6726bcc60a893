"""The index client against a real server on the loopback address, right and wrong in every way we know."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.core import package_index
from rosetta.core.errors import UserError
from tests.support import errors
from tests.support.package_index import Index, serve_index

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "thing-1.0-py3-none-any.whl"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serve_index() as made:
        for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "http_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", made.url)
        yield made


@pytest.fixture
def digest(server: Index, tmp_path: Path) -> str:
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thing.py", "x = 1\n" * 5000)
    return server.add("thing", path)


def _nothing_kept(folder: Path) -> bool:
    return not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("html", [False, True])
def test_fetches_by_hash_and_keeps_it(
    server: Index, digest: str, tmp_path: Path, html: bool
) -> None:
    server.html = html
    got = package_index.fetch_file("thing", "1.0", digest, tmp_path / "wheels")
    assert got.name == NAME
    asked = len(server.requests)
    assert (
        package_index.fetch_file("thing", "1.0", digest, tmp_path / "wheels", offline=True) == got
    )
    assert len(server.requests) == asked, "a file in the cache needs no request"


def test_a_damaged_file_in_the_cache_is_fetched_again(digest: str, tmp_path: Path) -> None:
    got = package_index.fetch_file("thing", "1.0", digest, tmp_path)
    whole = got.read_bytes()
    got.write_bytes(whole[:100])
    with errors.expect_user_error(errors.MISSING, value="thing==1.0", remedy="--offline"):
        package_index.fetch_file("thing", "1.0", digest, tmp_path, offline=True)
    assert package_index.fetch_file("thing", "1.0", digest, tmp_path).read_bytes() == whole


@pytest.mark.parametrize(
    ("fault", "kind", "fact"),
    [
        ("html instead", errors.DAMAGED, "HTML"),
        ("wrong bytes", errors.DAMAGED, "thing-1.0-py3-none-any.whl"),
        ("truncated", errors.UNREACHABLE, "more expected"),
        ("500", errors.UNREACHABLE, "500"),
        ("login page", errors.INVALID, "login page"),
    ],
)
def test_faults_are_one_clear_error_and_a_rerun_converges(
    server: Index, digest: str, tmp_path: Path, fault: str, kind: str, fact: str
) -> None:
    server.fault = fault
    into = tmp_path / "wheels"
    with errors.expect_user_error(kind, names=fact) as caught:
        package_index.fetch_file("thing", "1.0", digest, into)
    assert "\n" not in str(caught.value)
    assert _nothing_kept(into)
    server.fault = ""
    assert package_index.fetch_file("thing", "1.0", digest, into).is_file()


def test_a_broken_transfer_is_tried_again(server: Index, digest: str, tmp_path: Path) -> None:
    server.fault = "truncated once"
    assert package_index.fetch_file("thing", "1.0", digest, tmp_path).is_file()


@pytest.mark.usefixtures("digest")
def test_unknown_project_and_hash(tmp_path: Path) -> None:
    with errors.expect_user_error(errors.FAILED, value=404, where="/simple/nothing/"):
        package_index.fetch_file("nothing", "1.0", "1" * 64, tmp_path)
    with errors.expect_user_error(
        errors.MISSING, where="/simple/thing/", names=("thing", "000000000000")
    ):
        package_index.fetch_file("thing", "1.0", "0" * 64, tmp_path)


def test_of_several_hashes_the_part_decides(server: Index, tmp_path: Path) -> None:
    hashes = set()
    for name in (
        "thing-1.0-py3-none-manylinux_x86_64.whl",
        "thing-1.0-py3-none-manylinux_aarch64.whl",
    ):
        (tmp_path / name).write_bytes(name.encode())
        hashes.add(server.add("thing", tmp_path / name))
    for part in ("_aarch64", "_x86_64"):
        assert (
            part
            in package_index.fetch_file(
                "thing", "1.0", frozenset(hashes), tmp_path / "wheels", part=part
            ).name
        )


def test_a_hostile_file_name_is_refused(server: Index, tmp_path: Path) -> None:
    evil = tmp_path / "x"
    evil.write_bytes(b"data")
    digest = server.add("thing", evil)
    server.files["thing"] = {"..%2f..%2fevil.whl": b"data"}
    with errors.expect_user_error(errors.INVALID, value="../../evil.whl"):
        package_index.fetch_file("thing", "1.0", digest, tmp_path / "wheels")
    assert not list(tmp_path.rglob("evil*"))


def test_unreachable_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with errors.expect_user_error(errors.UNREACHABLE):
        package_index.fetch_file("thing", "1.0", "0" * 64, tmp_path)


def test_credentials_are_sent_and_never_shown(
    server: Index, digest: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url.replace("//", "//user:hunter2@"))
    package_index.fetch_file("thing", "1.0", digest, tmp_path)
    assert server.requests
    with pytest.raises(UserError) as caught:
        package_index.fetch_file("nothing", "1.0", "0" * 64, tmp_path)
    assert "hunter2" not in str(caught.value)
    assert server.user.startswith("Basic ")


def test_settings_of_pip_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "UV_DEFAULT_INDEX",
        "UV_INDEX_URL",
        "PIP_INDEX_URL",
        "SSL_CERT_FILE",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
    ):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://index.example/simple\ncert = /ca.pem\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    assert package_index.find_index_url() == "https://index.example/simple"
    assert package_index.find_ca_bundle() == "/ca.pem"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "corp=https://uv.example/simple")
    assert package_index.find_index_url() == "https://uv.example/simple"


def test_the_day_of_an_upload_is_that_of_the_first_of_the_files(
    server: Index, digest: str, tmp_path: Path
) -> None:
    other = tmp_path / "thing-1.0-cp313-cp313-linux_x86_64.whl"
    other.write_bytes(b"a later file")
    hashes = frozenset({digest, server.add("thing", other)})
    assert package_index.find_upload_day("thing", hashes) is None
    server.upload_times = {NAME: "2026-10-21T23:59:05.013431Z", other.name: "2026-10-22T01:00:00Z"}
    assert package_index.find_upload_day("thing", hashes) == "2026-10-21"
    assert package_index.find_upload_day("thing", frozenset({"0" * 64})) is None
    server.html = True
    assert package_index.find_upload_day("thing", hashes) is None
