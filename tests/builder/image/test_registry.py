"""Images go into a registry and come back: the same tests on the registry of a few lines and on a real one, whole and with every fault."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from builder.errors import FatalError
from builder.image import credentials, layer, layout, oci, pull, reference, registry, send, transport
from tests.builder.image import registrykit
from tests.builder.image.registrykit import Fault, Memory, Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.cache import Cache


@pytest.fixture(params=["memory", "docker-registry"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with registrykit.memory() if request.param == "memory" else registrykit.real(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none is made."""
    asked: list[float] = []
    monkeypatch.setattr(transport.Connection, "wait", lambda _, seconds: asked.append(seconds))
    return asked


def test_an_image_goes_there_and_comes_back(cache: Cache, served: Served, tmp_path: Path) -> None:
    index = registrykit.image(cache, architectures=("amd64", "arm64"))
    pushed = registry.push(cache, index, f"{served.host}/team/t5x:cuda13")
    assert (pushed.digest, pushed.moved, pushed.previous) == (index.digest, pushed.total, "")
    assert served.tag("team/t5x", "cuda13") == index.digest
    assert served.sent("PUT")[-1] == "/v2/team/t5x/manifests/cuda13"
    assert sum(path.count("blobs/uploads") for path in served.sent("POST")) == 7  # the base's layer is in both and goes once

    assert pull.pull(f"{served.host}/team/t5x:cuda13", tmp_path / "back", layers=True).digest == index.digest
    back = layout.read(tmp_path / "back")
    assert back.index.document == index.document
    assert [image.config for image in back.index.images] == [image.config for image in index.images]
    found = pull.pull_manifest(f"{served.host}/team/t5x@{index.digest}")
    assert (found.data, found.media_type) == (index.document, oci.INDEX)


def test_only_what_is_missing_moves(cache: Cache, served: Served) -> None:
    name = f"{served.host}/t5x:nightly"
    first = registrykit.image(cache, size=3_000_000)
    registry.push(cache, first, name)
    second = registrykit.image(cache, size=3_000_000, top="two")
    pushed = registry.push(cache, second, name)
    assert (served.tag("t5x", "nightly"), pushed.previous) == (second.digest, first.digest)
    assert pushed.moved == second.images[0].layers[-1].size + sum(map(len, (second.images[0].config, second.images[0].manifest, second.document)))
    assert f"of {pushed.total / 1e6:.1f} MB" in str(pushed)

    served.log.clear()
    registry.push(cache, second, name)
    assert not [path for path in served.sent("PUT") if "uploads" in path]
    assert served.sent("POST") == []


def test_blobs_of_a_repository_beside_are_mounted(cache: Cache, served: Served) -> None:
    index = registrykit.image(cache)
    registry.push(cache, index, f"{served.host}/base:1")
    served.log.clear()
    pushed = registry.push(cache, index, f"{served.host}/other:1", "base")
    assert pushed.mounted == sum(each.size for each in index.images[0].layers) + len(index.images[0].config)
    assert not [path for path in served.sent("PUT") if "uploads" in path]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("500", "PUT", "uploads", skip=1, times=99), Fault("500", "POST", skip=2, times=99), Fault("500", "PUT", "manifests/sha256", skip=1, times=99),
        Fault("cut", "PUT", "uploads", skip=1, times=99), Fault("corrupt", "PUT", "uploads", skip=1, times=99), Fault("lose", "PUT", "uploads", skip=3),
        Fault("html", "HEAD", "blobs", skip=1, times=99), Fault("html", "POST", times=99), Fault("html", "PUT", "manifests", times=99),
        Fault("429", "PUT", "uploads", retry_after="100000"), Fault("500", "GET", "manifests", times=99),
        Fault("corrupt", "GET", "manifests/sha256", times=99), Fault("corrupt", "GET", "blobs/sha256", times=99), Fault("401", "POST", times=99),
        Fault("503", "HEAD", "blobs", times=99), Fault("413", "PUT", "uploads", times=99), Fault("404", "PUT", "manifests/sha256"),
    ],
    ids=lambda fault: f"{fault.kind} to {fault.method} {fault.path}",
)  # fmt: skip
def test_a_failed_push_moves_no_tag_and_the_next_one_moves_the_rest(cache: Cache, served: Served, fault: Fault) -> None:
    name = f"{served.host}/team/t5x:latest"
    old = registrykit.image(cache, top="old")
    registry.push(cache, old, name)
    new = registrykit.image(cache, top="new", size=200_000, architectures=("amd64", "arm64"))
    served.faults.append(Fault(**vars(fault)))
    with pytest.raises(FatalError) as problem:
        registry.push(cache, new, name)
    assert served.tag("team/t5x", "latest") == old.digest
    assert "\n" not in str(problem.value)
    assert served.host in str(problem.value)
    assert "secret-state" not in str(problem.value)

    served.faults.clear()
    arrived = registry.push(cache, new, name)
    assert served.tag("team/t5x", "latest") == new.digest
    assert arrived.moved <= arrived.total
    if fault.method in ("GET", "PUT") and "manifests" in fault.path:
        assert arrived.moved == sum(len(image.manifest) for image in new.images) + len(new.document)  # the blobs had arrived


@pytest.mark.parametrize(
    "fault",
    [
        Fault("500", "PUT", "uploads", times=2), Fault("503", "POST", times=3), Fault("cut", "PUT", "uploads", times=2), Fault("corrupt", "PUT", "uploads"),
        Fault("500", "PUT", "manifests", times=3), Fault("truncate", "GET", "manifests"), Fault("cut", "HEAD", "blobs"), Fault("corrupt", "GET", "manifests/sha256"),
        Fault("cut", "GET", "manifests"), Fault("500", "PUT", "manifests/latest", times=2),
    ],
    ids=lambda fault: f"{fault.kind} to {fault.method} {fault.path}",
)  # fmt: skip
def test_what_passes_by_is_tried_again(cache: Cache, served: Served, fault: Fault, pauses: list[float]) -> None:
    served.faults.append(Fault(**vars(fault)))
    index = registrykit.image(cache)
    registry.push(cache, index, f"{served.host}/t5x:latest")
    assert served.tag("t5x", "latest") == index.digest
    assert served.faults[0].times == 0
    assert pauses


def test_a_blob_that_is_lost_after_all_was_accepted_is_noticed(cache: Cache, served: Served) -> None:
    name = f"{served.host}/t5x:latest"
    old, new = registrykit.image(cache, top="old"), registrykit.image(cache, top="new")
    registry.push(cache, old, name)
    lost = new.images[0].layers[-1].digest
    served.before = lambda method, _path: served.lose(lost[7:]) if method == "HEAD" and new.digest in str(served.sent("PUT")) else None
    with pytest.raises(FatalError, match="has lost it") as problem:
        registry.push(cache, new, name)
    assert lost[7:19] in str(problem.value)
    assert served.tag("t5x", "latest") == old.digest
    served.before = lambda _method, _path: None
    assert registry.push(cache, new, name).digest == served.tag("t5x", "latest") == new.digest
    assert served.sent("PUT")[-1].endswith("/latest")


_PUSHER = """
import sys
from pathlib import Path
from builder.cache import Cache
from builder.image import registry
from tests.builder.image import registrykit
cache = Cache(Path(sys.argv[1]))
registry.push(cache, registrykit.image(cache, top="new"), sys.argv[2])
"""


@pytest.mark.parametrize(("method", "path"), [("PUT", "uploads"), ("PUT", "manifests/sha256"), ("PUT", "manifests/latest")])
def test_a_killed_push_moves_no_tag(cache: Cache, served: Served, method: str, path: str) -> None:
    name = f"{served.host}/t5x:latest"
    old, new = registrykit.image(cache, top="old"), registrykit.image(cache, top="new")
    registry.push(cache, old, name)
    with subprocess.Popen([sys.executable, "-c", _PUSHER, str(cache.root), name], stderr=subprocess.DEVNULL) as started:

        def before(came: str, target: str) -> None:
            if came == method and path in target:
                started.kill()
                started.wait()

        served.before = before
        assert started.wait() == -signal.SIGKILL
    served.before = lambda _method, _path: None
    if path != "manifests/latest":  # the request that moves the tag was already under way
        assert served.tag("t5x", "latest") == old.digest
    registry.push(cache, new, name)
    assert served.tag("t5x", "latest") == new.digest


def test_retry_after_is_honoured(cache: Cache, served: Served, pauses: list[float]) -> None:
    served.faults.append(Fault("429", "PUT", "uploads", retry_after="17"))
    registry.push(cache, registrykit.image(cache), f"{served.host}/t5x:latest")
    assert pauses == [17.0]


def test_a_registry_that_does_not_take_large_bodies_gets_pieces(cache: Cache, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "CHUNK", 100_000)
    served.faults.append(Fault("413", "PUT", "uploads", larger=400_000, times=9))
    index = registrykit.image(cache, size=450_000)
    pushed = registry.push(cache, index, f"{served.host}/t5x:latest")
    assert pushed.moved == pushed.total
    assert served.tag("t5x", "latest") == index.digest
    assert [size for method, _, size, _ in served.log if method == "PATCH"][:4] == [100_000] * 4


def test_a_damaged_blob_of_ours_is_named(cache: Cache, served: Served) -> None:
    index = registrykit.image(cache)
    damaged = layer.blob(cache, index.images[0].layers[1].digest)
    data = bytearray(damaged.read_bytes())
    data[1000] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(data)
    with pytest.raises(FatalError, match="is damaged") as problem:
        registry.push(cache, index, f"{served.host}/t5x:latest")
    assert problem.value.where == str(damaged)
    assert served.tag("t5x", "latest") == ""


def test_a_blob_comes_whole_or_not_at_all(cache: Cache, served: Served, tmp_path: Path) -> None:
    index = registrykit.image(cache)
    name = f"{served.host}/t5x:latest"
    registry.push(cache, index, name)
    wanted = index.images[0].layers[1]
    served.faults += [Fault("truncate", "GET", "blobs"), Fault("corrupt", "GET", "blobs")]
    pull.fetch_blob(name, wanted.digest, wanted.size, tmp_path / "blob")
    assert (tmp_path / "blob").read_bytes() == layer.blob(cache, wanted.digest).read_bytes()
    served.faults += [Fault("corrupt", "GET", "blobs", times=99)]
    with pytest.raises(FatalError):
        pull.fetch_blob(name, wanted.digest, wanted.size, tmp_path / "bad")
    assert sorted(each.name for each in tmp_path.iterdir() if "b" in each.name[:5]) == ["blob"]


def test_two_pushes_at_once_end_right(cache: Cache, served: Served) -> None:
    first, second = registrykit.image(cache, top="a"), registrykit.image(cache, top="b")
    problems: list[BaseException] = []

    def one(index: oci.Index) -> None:
        try:
            registry.push(cache, index, f"{served.host}/t5x:{'a' if index is first else 'b'}")
        except BaseException as problem:  # noqa: BLE001 - it is looked at below
            problems.append(problem)

    threads = [threading.Thread(target=one, args=(index,)) for index in (first, second)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert problems == []
    assert (served.tag("t5x", "a"), served.tag("t5x", "b")) == (first.digest, second.digest)


def test_what_is_no_image_is_said_so(served: Served) -> None:
    with pytest.raises(FatalError, match="404"):
        pull.pull_manifest(f"{served.host}/nothing:here")
    served.faults.append(Fault("html", "GET", times=9))
    with pytest.raises(FatalError, match="web page"):
        pull.pull_manifest(f"{served.host}/nothing:here")


def test_nothing_listens(cache: Cache) -> None:
    with pytest.raises(FatalError, match="refuses the connection") as problem:
        registry.push(cache, registrykit.image(cache), f"127.0.0.1:{registrykit.free_port()}/t5x:latest")
    assert "\n" not in str(problem.value)


# Who we are


@pytest.fixture
def memory() -> Iterator[tuple[Memory, Served]]:
    kept = Memory()
    kept.user = "me:my-password"
    with registrykit.serving(kept.answer, kept.lose) as found:
        yield kept, found


def _logged_in(folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


_AUTH = {"auth": base64.b64encode(b"me:my-password").decode()}


@pytest.mark.parametrize("bearer", [False, True], ids=["basic", "bearer"])
def test_a_login_is_used(cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bearer: bool) -> None:
    kept, served = memory
    kept.bearer = f"http://{served.host}/token" if bearer else ""
    with pytest.raises(FatalError, match=r"login|denied"):
        registry.push(cache, registrykit.image(cache), f"{served.host}/team/t5x:latest")
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: _AUTH}})
    registry.push(cache, registrykit.image(cache), f"{served.host}/team/t5x:latest")
    assert bearer == any(asked.get("scope") == ["repository:team/t5x:pull,push"] and asked.get("service") == ["kit"] for asked in kept.asked)


def test_a_token_for_everyone_and_one_for_a_login_of_before(cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, served = memory
    kept.bearer, kept.anonymous = f"http://{served.host}/token", True
    name = f"{served.host}/team/t5x:latest"
    index = registrykit.image(cache)
    registry.push(cache, index, name)
    assert pull.pull_manifest(name).digest == index.digest
    assert [asked["scope"] for asked in kept.asked] == [["repository:team/t5x:pull,push"], ["repository:team/t5x:pull"]]  # asked for once a connection

    kept.anonymous, kept.identity = False, "identity-of-ours"
    with pytest.raises(FatalError, match="no credentials"):
        pull.pull_manifest(name)
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: {"auth": "", "identitytoken": "identity-of-ours"}}})
    assert pull.pull_manifest(name).digest == index.digest


def test_a_token_that_runs_out_is_asked_for_again(cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, served = memory
    kept.bearer = f"http://{served.host}/token"
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: _AUTH}})
    monkeypatch.setattr(transport, "THREADS", 1)
    served.faults.append(Fault("out", "PUT", "uploads", skip=1))
    index = registrykit.image(cache)
    registry.push(cache, index, f"{served.host}/t5x:latest")
    assert served.faults[0].times == 0
    assert len(kept.asked) == 2
    assert ("t5x", "latest") in kept.manifests


def test_wrong_credentials_are_said_so_and_not_shown(cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, served = memory
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: {"username": "me", "password": "hunter2"}}})
    with pytest.raises(FatalError, match="the credentials kept for it") as problem:
        registry.push(cache, registrykit.image(cache), f"{served.host}/t5x:latest")
    assert "hunter2" not in str(problem.value) + repr(problem.value.__cause__) + repr(credentials.find(reference.parse(f"{served.host}/t5x")))


def test_podmans_file_and_the_narrowest_key(memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, served = memory
    file = tmp_path / "auth.json"
    other = {"auth": base64.b64encode(b"other:x").decode()}
    file.write_text(json.dumps({"auths": {served.host: other, f"{served.host}/team": _AUTH}}), encoding="utf-8")
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    assert credentials.find(reference.parse(f"{served.host}/team/t5x")).user == "me"
    assert credentials.find(reference.parse(f"{served.host}/another/t5x")).user == "other"
    assert credentials.find(reference.parse("elsewhere.example/t5x")) == credentials.NOBODY


def test_a_credential_helper_is_asked(cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, served = memory
    tools = tmp_path / "tools"
    tools.mkdir()
    program = tools / "docker-credential-kit"
    program.write_text(
        f'#!/bin/sh\nread host\n[ "$1 $host" = "get {served.host}" ] || {{ echo "credentials not found in native keychain"; exit 1; }}\n'
        'echo \'{"ServerURL": "x", "Username": "me", "Secret": "my-password"}\'\n',
        encoding="ascii",
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    both: list[dict[str, object]] = [{"credHelpers": {served.host: "kit"}}, {"credsStore": "kit", "auths": {served.host: {}}}]
    for settings in both:
        _logged_in(tmp_path / "docker", monkeypatch, settings)
        registry.push(cache, registrykit.image(cache), f"{served.host}/t5x:latest")
        assert credentials.find(reference.parse("elsewhere.example/t5x")) == credentials.NOBODY
    program.write_text("#!/bin/sh\necho my-password; exit 3\n", encoding="ascii")
    with pytest.raises(FatalError, match="status 3") as problem:
        credentials.find(reference.parse(f"{served.host}/t5x"))
    assert "my-password" not in str(problem.value)
    _logged_in(tmp_path / "docker", monkeypatch, {"credsStore": "../x"})
    with pytest.raises(FatalError, match="names no credential helper"):
        credentials.find(reference.parse(f"{served.host}/t5x"))


@pytest.mark.parametrize("text", ["{", '{"auths": {"HOST": {"auth": "!"}}}', '{"auths": {"HOST": {"auth": "bWU="}}}'])
def test_a_broken_file_of_logins_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "config.json").write_text(text.replace("HOST", "example.org"), encoding="utf-8")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(FatalError, match="log in again"):
        credentials.find(reference.parse("example.org/t5x"))


def test_no_other_host_hears_who_we_are(cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, served = memory
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: _AUTH}})
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password my-password\n", encoding="ascii")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    index = registrykit.image(cache)
    registry.push(cache, index, f"{served.host}/t5x:latest")

    def elsewhere(_method: str, target: str, _headers: dict[str, str], _body: bytes) -> registrykit.Answer:
        return 200, {}, kept.blobs["t5x", target.removeprefix("/")]

    with registrykit.serving(elsewhere, lambda _: None) as other:
        kept.redirect = f"http://{other.host}"
        wanted = index.images[0].layers[0]
        pull.fetch_blob(f"{served.host}/t5x", wanted.digest, wanted.size, tmp_path / "blob")
        assert other.sent("GET") == [f"/{wanted.digest}"]
        assert [headers.get("Authorization") for headers in other.headers] == [None]
    assert any("Authorization" in headers for headers in served.headers)


def test_the_loopback_address_goes_past_every_proxy(cache: Cache, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://user:secret@127.0.0.1:{registrykit.free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    registry.push(cache, registrykit.image(cache), f"{served.host}/t5x:latest")
    monkeypatch.setenv(reference.INSECURE, "registry.invalid")
    with pytest.raises(FatalError, match="proxy cannot be reached") as problem:
        registry.push(cache, registrykit.image(cache), "registry.invalid/t5x:latest")
    assert "secret" not in str(problem.value)


def test_a_login_is_not_told_to_another_host_without_https(cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, served = memory
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: _AUTH}})
    kept.bearer = "http://elsewhere.invalid/token"
    with pytest.raises(FatalError, match="without https"):
        registry.push(cache, registrykit.image(cache), f"{served.host}/t5x:latest")


def test_the_machines_ca_bundle_counts(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("openssl"):
        pytest.skip("NOT CHECKED: openssl is not here to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=kit",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    for module in (reference, transport):
        monkeypatch.setattr(module, "is_loopback", lambda _: False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    kept = Memory()
    with registrykit.serving(kept.answer, kept.lose, context) as served:
        name = f"{served.host}/t5x:latest"
        for variable in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(variable, raising=False)
        with pytest.raises(FatalError, match="not trusted here"):
            registry.push(cache, registrykit.image(cache), name)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        registry.push(cache, registrykit.image(cache), name)
        assert served.tag("t5x", "latest")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing.pem"))
        with pytest.raises(FatalError, match="is not there"):
            pull.pull_manifest(name)


def test_https_is_left_for_nothing() -> None:
    with transport.Connection(reference.parse("example.org/t5x:1"), "pull") as connection:
        assert connection.absolute("/v2/t5x/blobs/uploads/1", "https://example.org/v2/t5x/blobs/uploads/") == "https://example.org/v2/t5x/blobs/uploads/1"
        assert connection.absolute("http://example.org/x", "https://example.org/v2/") == "https://example.org/x"  # behind a proxy that takes the TLS off
        for bad in ("http://elsewhere.example/x", "file:///etc/passwd"):
            with pytest.raises(FatalError, match="sends us to an address"):
                connection.absolute(bad, "https://example.org/v2/")


# Names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:5000/t5x:cuda13", ("http://127.0.0.1:5000", "t5x", "cuda13", "")),
        ("[::1]:5000/a/b:1", ("http://[::1]:5000", "a/b", "1", "")),
        ("localhost/a__b/c--d.e:X_1", ("http://localhost", "a__b/c--d.e", "X_1", "")),
        ("registry.example.org/team/t5x", ("https://registry.example.org", "team/t5x", "", "")),
        (f"registry.example.org:444/t5x:1@sha256:{'0' * 64}", ("https://registry.example.org:444", "t5x", "1", f"sha256:{'0' * 64}")),
        ("10.0.0.1:5000/t5x:1", ("https://10.0.0.1:5000", "t5x", "1", "")),
    ],
)
def test_names(text: str, expected: tuple[str, str, str, str]) -> None:
    found = reference.parse(text)
    assert (found.base, found.name, found.tag, found.digest) == expected
    assert str(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "t5x:latest", "team/t5x", "https://example.org/t5x", "example.org/T5X:1", "example.org/t5x:", "example.org/t5x:a b", "example.org/../t5x:1", "example.org//t5x", "",
        "example.org:99999/t5x", "example.org/t5x@sha256:12", "example.org/t5x:-x", "-example.org/t5x", f"example.org/t5x:{'x' * 129}", "example.org/t5x/:1", "ex_ample.org/t5x:1\n",
        "me:pass@example.org/t5x:1", "example.org/t5x:1\nX: y",
    ],
)  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(FatalError) as problem:
        reference.parse(text)
    assert "\n" not in str(problem.value)
    assert "pass@" not in str(problem.value)


def test_http_elsewhere_only_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reference.parse("lab:5000/t5x:1").base == "https://lab:5000"
    monkeypatch.setenv(reference.INSECURE, "other:5000, lab:5000")
    assert reference.parse("lab:5000/t5x:1").base == "http://lab:5000"
    assert reference.parse("lab:5001/t5x:1").base == "https://lab:5001"
    assert not reference.is_loopback("127.0.0.1.example.org")
