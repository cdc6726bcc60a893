from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rosetta.core import log
from rosetta.data import batch_hashes, data_spec, pipeline, remote_files, task_records
from tests.support import corpora, data_sources, errors, file_server, required_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

PAIRS = b"inputs,targets\nred,rouge\nblue,bleu\n"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("ROSETTA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(remote_files, "TIMEOUT_SECONDS", 2)
    log.forget_shown()
    forget_copies()
    yield
    forget_copies()


def forget_copies() -> None:
    """Let this process ask the server again, as a new process does."""
    for function in (
        remote_files._fetch_from_web,
        remote_files._list_addresses,
        remote_files._copy_with_fsspec,
    ):
        function.cache_clear()


@pytest.fixture
def server() -> Iterator[file_server.FileServer]:
    with file_server.serve_files() as running:
        yield running


def find_files(data: str) -> list[bytes]:
    paths = data_spec.find_files(data_spec.parse_spec(data))
    return [Path(path).read_bytes() for path in paths]


def test_a_file_is_copied_once_and_read_like_one_of_this_machine(
    server: file_server.FileServer,
) -> None:
    server.files["/sets/pairs.csv"] = PAIRS
    data = f"csv:{server.address}/sets/pairs.csv"
    for _ in range(2):
        examples = task_records.read_examples(data_spec.parse_spec(data), "text_to_text", "train")
        assert [example["targets"] for example in examples] == ["rouge", "bleu"]
    assert len(server.requests) == 1
    (path,) = data_spec.find_files(data_spec.parse_spec(data))
    assert os.path.basename(path) == "pairs.csv"
    made = os.stat(path).st_mtime_ns
    forget_copies()
    assert data_spec.find_files(data_spec.parse_spec(data)) == (path,)
    assert os.stat(path).st_mtime_ns == made


def test_a_file_that_changed_is_copied_again_and_the_earlier_copy_stays(
    server: file_server.FileServer,
) -> None:
    server.files["/a.txt"] = b"one\n"
    data = f"text:{server.address}/a.txt"
    (before,) = data_spec.find_files(data_spec.parse_spec(data))
    server.files["/a.txt"] = b"two\n"
    assert find_files(data) == [b"one\n"]  # one process reads one version
    forget_copies()
    assert find_files(data) == [b"two\n"]
    assert Path(before).read_bytes() == b"one\n"


def test_a_run_that_resumes_notices_a_file_that_changed(server: file_server.FileServer) -> None:
    texts = corpora.make_documents(100)
    server.files["/a.txt"] = "".join(f"{text}\n" for text in texts).encode()
    recipe = corpora.make_recipe(f"text:{server.address}/a.txt")
    state = json.loads(json.dumps(pipeline.Batches(recipe, 4).make_state(2)))
    forget_copies()
    assert pipeline.Batches(recipe, 4).resume(state, 2) is None
    server.files["/a.txt"] = server.files["/a.txt"].replace(b"w00001", b"w00009")
    forget_copies()
    with errors.expect_user_error(errors.DIFFERS, names="a.txt"):
        pipeline.Batches(recipe, 4).resume(state, 2)


def test_a_moved_file_is_the_same_data(server: file_server.FileServer, tmp_path: Path) -> None:
    texts = corpora.make_documents(100)
    local = corpora.write_text_files(tmp_path / "t", texts, files=2)
    addresses = []
    for name in ("1.txt", "0.txt"):
        server.files[f"/far/{name}"] = (tmp_path / "t" / name).read_bytes()
        addresses.append(f"{server.address}/far/{name}?signature=secret{name}")
    batches = [
        pipeline.Batches(corpora.make_recipe(data), 4)
        for data in (local, f"text:{','.join(addresses)}")
    ]
    hashes = [batch_hashes.hash_batch(each.make_batch(3)) for each in batches]
    assert hashes[0] == hashes[1]


def sign(data: str, signature: str) -> str:
    """Return data whose addresses of .txt files have a signature."""
    return data.replace(".txt", f".txt?signature={signature},part")


def serve_mixture(server: file_server.FileServer) -> str:
    """Serve two files of text, and return the mixture of them."""
    texts = corpora.make_documents(100)
    for number in range(2):
        lines = "".join(f"{text}\n" for text in texts[number::2])
        server.files[f"/{number}.txt"] = lines.encode()
    return json.dumps({f"text:{server.address}/{number}.txt": number + 1 for number in range(2)})


@pytest.mark.parametrize("is_mixture", [False, True])
def test_signatures_are_not_stored_and_may_change(
    server: file_server.FileServer, is_mixture: bool
) -> None:
    data = serve_mixture(server)
    if not is_mixture:
        data = next(iter(json.loads(data)))
    first, second = (
        pipeline.Batches(corpora.make_recipe(sign(data, signature)), 4)
        for signature in ("secret1", "secret2")
    )
    state = json.loads(json.dumps(first.make_state(3)))
    assert "secret" not in json.dumps(state)
    assert "/0.txt" in state["data"]
    assert second.resume(state, 3) is None
    assert second.fingerprint() == pipeline.Batches(corpora.make_recipe(data), 4).fingerprint()


def test_a_mixture_resumes_from_a_state_that_has_signatures(
    server: file_server.FileServer,
) -> None:
    data = serve_mixture(server)
    first = pipeline.Batches(corpora.make_recipe(sign(data, "secret1")), 4)
    state = json.loads(json.dumps(first.make_state(3)))
    # What earlier versions stored.
    state["data"] = sign(data, "secret1")
    state["fingerprint"] = first._make_fingerprint(state["data"])
    assert state["fingerprint"] != first.fingerprint()
    for signature in ("secret1", "secret2"):
        batches = pipeline.Batches(corpora.make_recipe(sign(data, signature)), 4)
        assert batches.resume(state, 3) is None
    server.files["/2.txt"] = server.files["/1.txt"]
    other = pipeline.Batches(corpora.make_recipe(sign(data, "secret1").replace("/1.", "/2.")), 4)
    with errors.expect_user_error(errors.DIFFERS) as raised:
        other.resume(state, 3)
    assert "secret" not in raised.value.what + raised.value.where


def test_sources_that_differ_in_their_queries_are_two(server: file_server.FileServer) -> None:
    serve_mixture(server)
    data = json.dumps({f"text:{server.address}/0.txt?part={number}": 1 for number in range(2)})
    batches = pipeline.Batches(corpora.make_recipe(data), 4)
    assert batches.resume(json.loads(json.dumps(batches.make_state(3))), 3) is None
    state = batches.make_state(3)
    with errors.expect_user_error(errors.DIFFERS):
        pipeline.Batches(corpora.make_recipe(serve_mixture(server)), 4).resume(state, 3)


def test_a_file_without_a_version_is_copied_again(server: file_server.FileServer) -> None:
    server.unversioned = True
    data = f"text:{server.address}/a.txt"
    paths: list[str] = []
    for content in (b"one\n", b"one\n", b"two\n"):
        server.files["/a.txt"] = content
        forget_copies()
        assert find_files(data) == [content]
        paths += data_spec.find_files(data_spec.parse_spec(data))
    assert paths[0] == paths[1]
    assert Path(paths[0]).read_bytes() == b"one\n"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/\u00fc b.txt", "\u00fc b.txt"),
        ("/a%00.txt", "data"),
        ("/a/%2F..", "data"),
        ("/..", "data"),
        (f"/{'a' * 246}.jsonl.gz", f"{'a' * 191}.jsonl.gz"),
    ],
)
def test_odd_names_are_copied(server: file_server.FileServer, path: str, name: str) -> None:
    server.files[urllib.parse.quote(path, safe="/%")] = b"words\n"
    (copy,) = data_spec.find_files(data_spec.parse_spec(f"text:{server.address}{path}"))
    assert os.path.basename(copy) == name
    assert Path(copy).read_bytes() == b"words\n"


@pytest.mark.parametrize(
    "address", ["https://[bad/x", "https:///x", "http://h\u00fc/a.txt", "http://h:port/a"]
)
def test_an_address_that_is_not_valid_is_refused(address: str) -> None:
    with errors.expect_user_error(errors.INVALID, where="DATA=", value=address):
        find_files(f"text:{address}")


def test_the_name_of_an_object_is_not_that_of_an_address() -> None:
    assert remote_files._find_name("s3://bucket/p#1%20.jsonl.gz") == "p#1%20.jsonl.gz"


def test_paths_and_addresses_are_mixed(server: file_server.FileServer, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"here\n")
    for path in ("/a.txt", "/c,d.txt"):
        server.files[path] = b"there\n"
    # Object stores refuse a file that they do not have.
    server.statuses["/c,d.txt,e.txt"] = server.statuses["/none.txt,c.txt"] = 403
    data = f"text:{server.address}/a.txt?token=1,{tmp_path}/b.txt,{server.address}/c,d.txt"
    assert sorted(find_files(data)) == [b"here\n", b"there\n", b"there\n"]
    assert not any("b.txt" in request for request in server.requests)
    with errors.expect_user_error(errors.MISSING, where="e.txt"):
        find_files(f"text:{server.address}/c,d.txt,e.txt")
    with errors.expect_user_error(errors.DENIED):
        find_files(f"text:{server.address}/none.txt,c.txt")


def test_the_last_copy_is_used_while_the_server_does_not_answer(
    server: file_server.FileServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/a.txt"] = b"one\n"
    data = f"text:{server.address}/a.txt?token=secret"
    find_files(data)
    forget_copies()
    server.statuses["/a.txt"] = 503
    assert find_files(data) == [b"one\n"]
    shown = capsys.readouterr().err
    assert "503" in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, errors.DENIED),
        (403, errors.DENIED),
        (404, errors.MISSING),
        (410, errors.MISSING),
        (429, errors.UNREACHABLE),
        (500, errors.UNREACHABLE),
    ],
)
def test_an_answer_without_the_file_is_one_line(
    server: file_server.FileServer, status: int, kind: str
) -> None:
    server.statuses["/a.txt"] = status
    with errors.expect_user_error(kind) as raised:
        find_files(f"text:{server.address}/a.txt?token=secret")
    assert "secret" not in raised.value.what + raised.value.do


def test_a_server_that_is_not_there_is_one_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with errors.expect_user_error(errors.UNREACHABLE, where="DATA=", remedy="HTTPS_PROXY"):
        find_files(f"text:http://127.0.0.1:{port}/a.txt")


def test_a_copy_that_breaks_off_is_tried_again(server: file_server.FileServer) -> None:
    server.files["/a.txt"] = b"word " * 1000
    server.cut, server.cut_count = 100, 2
    assert find_files(f"text:{server.address}/a.txt") == [b"word " * 1000]
    server.files["/b.txt"] = b"word " * 1000
    server.cut_count = 100
    with errors.expect_user_error(errors.UNREACHABLE):
        find_files(f"text:{server.address}/b.txt")


def test_a_disk_without_room_is_one_line(
    server: file_server.FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["/a.txt"] = b"words\n"
    full: Any = lambda _: type("Usage", (), {"free": 3})  # noqa: E731 (a fixed answer)
    monkeypatch.setattr(remote_files.shutil, "disk_usage", full)  # type: ignore[attr-defined]
    with errors.expect_user_error(errors.TOO_BIG, remedy="ROSETTA_HOME"):
        find_files(f"text:{server.address}/a.txt")


def test_processes_that_start_together_copy_once(
    server: file_server.FileServer, tmp_path: Path
) -> None:
    server.files["/a.txt"] = b"word\n" * 200_000
    program = (
        "import sys\nfrom rosetta.data import data_spec\n"
        "print(*data_spec.find_files(data_spec.parse_spec(sys.argv[1])))\n"
    )
    data = f"text:{server.address}/a.txt"
    processes = [
        subprocess.Popen([sys.executable, "-c", program, data], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    outputs = {process.communicate()[0] for process in processes}
    assert len(outputs) == 1
    assert len(list((tmp_path / "home" / "downloads").glob("*/*/a.txt"))) == 1


@pytest.mark.parametrize(
    ("address", "package"), [("gs://bucket/a.txt", "gcsfs"), ("s3://bucket/a.txt", "s3fs")]
)
def test_a_missing_package_is_named(
    address: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoPackage:
        """What fsspec is without the package of a scheme."""

        @staticmethod
        def filesystem(protocol: str) -> None:
            raise ImportError(protocol)

    monkeypatch.setitem(sys.modules, "fsspec", NoPackage())
    with errors.expect_user_error(
        errors.MISSING, where=f"DATA=text:{address}", value=package, remedy=package
    ):
        find_files(f"text:{address}")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with errors.expect_user_error(errors.MISSING, value="fsspec", remedy="fsspec"):
        find_files(f"text:{address}")


def test_a_scheme_that_needs_more_than_an_address_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OneScheme:
        """An fsspec with one scheme, which takes a host."""

        @staticmethod
        def filesystem(_protocol: str) -> None:
            raise TypeError("missing 1 required positional argument: 'host'")

        @staticmethod
        def available_protocols() -> list[str]:
            return ["ftp"]

    monkeypatch.setitem(sys.modules, "fsspec", OneScheme())
    with errors.expect_user_error(errors.UNSUPPORTED, value="ftp://", names="host"):
        find_files("text:ftp://host/a.txt")


def test_files_of_an_object_store_are_matched_and_copied(tmp_path: Path) -> None:
    fsspec = required_modules.need_modules("fsspec")
    store = fsspec.filesystem("memory")
    for number in range(3):
        store.pipe(f"/bucket/sets/{number}.csv", f"inputs,targets\na{number},b\n".encode())
    store.pipe("/bucket/sets/odd [1], name.csv", b"inputs,targets\nodd,b\n")
    store.pipe("/bucket/other.txt", b"words\n")
    assert len(find_files("csv:memory://bucket/sets/[0-9].csv")) == 3
    data = "csv:memory://bucket/sets/odd [1], name.csv,memory://bucket/sets/2.csv"
    examples = task_records.read_examples(data_spec.parse_spec(data), "text_to_text", "train")
    assert [example["inputs"] for example in examples] == ["a2", "odd"]
    with errors.expect_user_error(errors.MISSING, where="memory://bucket/none"):
        find_files("csv:memory://bucket/none*.csv")
    store.pipe("/bucket/sets/0.csv", b"inputs,targets\nnew,b\n")
    forget_copies()
    assert b"new" in find_files("csv:memory://bucket/sets/0.csv")[0]
    texts = data_sources.make_text_records(100)
    data_sources.write_csv(tmp_path / "t.csv", texts)
    store.pipe("/bucket/t.csv", (tmp_path / "t.csv").read_bytes())
    hashes = [
        batch_hashes.hash_batch(pipeline.Batches(corpora.make_recipe(data), 4).make_batch(1))
        for data in (f"csv:{tmp_path}/t.csv", "csv:memory://bucket/t.csv")
    ]
    assert hashes[0] == hashes[1]


def test_a_scheme_that_nobody_knows_is_refused() -> None:
    required_modules.need_modules("fsspec")
    with errors.expect_user_error(errors.UNKNOWN, value="nowhere://"):
        find_files("text:nowhere://bucket/a.txt")


def test_the_last_copy_is_used_while_an_object_store_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fsspec = required_modules.need_modules("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe("/bucket/a.txt", b"one\n")

    def fail(*_: object, **__: object) -> None:
        raise OSError("the connection was refused")

    assert find_files("text:memory://bucket/a.txt") == [b"one\n"]
    forget_copies()
    monkeypatch.setattr(type(store), "info", fail)
    assert find_files("text:memory://bucket/a.txt") == [b"one\n"]
    assert "memory://bucket/a.txt" in capsys.readouterr().err
    with errors.expect_user_error(errors.UNREACHABLE, where="DATA=text:memory://bucket/b.txt"):
        find_files("text:memory://bucket/b.txt")
