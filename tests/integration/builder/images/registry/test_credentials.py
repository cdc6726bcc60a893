"""Logins are used, asked for and told to nobody else."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.core import log, secrets
from builder.images.oci import reference
from builder.images.registry import credentials, download, image_push, transport
from rosetta.core.errors import UserError
from tests.support import errors, image_registry
from tests.support.image_registry import Fault, Memory, Served
from tests.support.registry_fixtures import pauses_, served_

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.core.cache import Cache

pytestmark = pytest.mark.registry

__all__ = ["pauses_", "served_"]  # fixtures


@pytest.fixture
def memory() -> Iterator[tuple[Memory, Served]]:
    kept = Memory()
    kept.user = "me:my-password"
    with image_registry.serve_answers(kept.answer, kept.lose) as found:
        yield kept, found


def _logged_in(folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


_AUTH = {"auth": base64.b64encode(b"me:my-password").decode()}


@pytest.mark.parametrize("bearer", [False, True], ids=["basic", "bearer"])
def test_a_login_is_used(
    cache: Cache,
    memory: tuple[Memory, Served],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bearer: bool,
) -> None:
    kept, served = memory
    kept.bearer = f"http://{served.host}/token" if bearer else ""
    with pytest.raises(UserError, match=r"login|denied"):
        image_push.push_image(
            cache, image_registry.make_image(cache), f"{served.host}/team/t5x:latest"
        )
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: _AUTH}})
    image_push.push_image(cache, image_registry.make_image(cache), f"{served.host}/team/t5x:latest")
    assert bearer == any(
        asked.get("scope") == ["repository:team/t5x:pull,push"] and asked.get("service") == ["kit"]
        for asked in kept.asked
    )


def test_a_token_for_everyone_and_one_for_a_login_of_before(
    cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, served = memory
    kept.bearer, kept.anonymous = f"http://{served.host}/token", True
    name = f"{served.host}/team/t5x:latest"
    index = image_registry.make_image(cache)
    image_push.push_image(cache, index, name)
    assert image_registry.pull_manifest(name).digest == index.digest
    assert [asked["scope"] for asked in kept.asked] == [
        ["repository:team/t5x:pull,push"],
        ["repository:team/t5x:pull"],
    ]  # asked for once a connection

    kept.anonymous, kept.identity = False, "identity-of-ours"
    with pytest.raises(UserError, match="no credentials"):
        image_registry.pull_manifest(name)
    _logged_in(
        tmp_path / "docker",
        monkeypatch,
        {"auths": {served.host: {"auth": "", "identitytoken": "identity-of-ours"}}},
    )
    assert image_registry.pull_manifest(name).digest == index.digest


def test_a_token_that_runs_out_is_asked_for_again(
    cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, served = memory
    kept.bearer = f"http://{served.host}/token"
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: _AUTH}})
    monkeypatch.setattr(transport, "THREADS", 1)
    served.faults.append(Fault("out", "PUT", "uploads", skip=1))
    index = image_registry.make_image(cache)
    image_push.push_image(cache, index, f"{served.host}/t5x:latest")
    assert served.faults[0].times == 0
    assert len(kept.asked) == 2
    assert ("t5x", "latest") in kept.manifests


def test_wrong_credentials_are_said_so_and_not_shown(
    cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, served = memory
    _logged_in(
        tmp_path / "docker",
        monkeypatch,
        {"auths": {served.host: {"username": "me", "password": "hunter2"}}},
    )
    with errors.expect_user_error(
        errors.DENIED, value=401, names="credentials kept", remedy=f"docker login {served.host}"
    ) as problem:
        image_push.push_image(cache, image_registry.make_image(cache), f"{served.host}/t5x:latest")
    assert "hunter2" not in str(problem.value) + repr(problem.value.__cause__) + repr(
        credentials.find_credentials(reference.parse_reference(f"{served.host}/t5x"))
    )


_ECHOES = {
    "the password": "my-password",
    "the login": "me:my-password",
    "its base64 form": base64.b64encode(b"me:my-password").decode(),
    "the header": "{header}",
    "only what follows the kind": "{secret}",
    "at the place where the text is cut": "x" * 140 + "{secret}",
    "with control characters": "\x1b[31m\r\n{secret}",
}


@pytest.mark.parametrize("bearer", [False, True], ids=["basic", "bearer"])
@pytest.mark.parametrize("status", [400, 403, 429])
@pytest.mark.parametrize("form", _ECHOES)
def test_what_a_registry_repeats_of_a_login_is_not_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: str,
    status: int,
    bearer: bool,
) -> None:
    kept = Memory()
    kept.user = "me:my-password"
    heard: list[str] = []

    def answer(
        method: str, target: str, headers: dict[str, str], body: bytes
    ) -> image_registry.Answer:
        told = headers.get("Authorization", "")
        if target.startswith("/token") or not told:
            return kept.answer(method, target, headers, body)
        heard.append(told)
        message = "refused: " + _ECHOES[form].format(header=told, secret=told.partition(" ")[2])
        return (
            status,
            {"Content-Type": "application/json", "Retry-After": "0"},
            json.dumps({"errors": [{"code": "DENIED", "message": message}]}).encode(),
        )

    secrets.remember([], {})
    with image_registry.serve_answers(answer, kept.lose) as served:
        kept.bearer = f"http://{served.host}/token" if bearer else ""
        _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: _AUTH}})
        with pytest.raises(UserError, match="refused: ") as problem:
            image_registry.pull_manifest(f"{served.host}/t5x:latest")
    secret = heard[0].partition(" ")[2]
    shown = ["my-password", secret, base64.b64encode(b"me:my-password").decode()]
    log.info(f"it was said: {shown}")
    texts = (str(problem.value), capsys.readouterr().err)
    assert [
        (text, word) for text in texts for word in shown if word in text or word[:8] in text
    ] == []
    assert not re.search(r"[^ -~…]", texts[0])


def test_podmans_file_and_the_narrowest_key(
    memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, served = memory
    file = tmp_path / "auth.json"
    other = {"auth": base64.b64encode(b"other:x").decode()}
    file.write_text(
        json.dumps({"auths": {served.host: other, f"{served.host}/team": _AUTH}}), encoding="utf-8"
    )
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(file))
    assert (
        credentials.find_credentials(reference.parse_reference(f"{served.host}/team/t5x")).user
        == "me"
    )
    assert (
        credentials.find_credentials(reference.parse_reference(f"{served.host}/another/t5x")).user
        == "other"
    )
    assert (
        credentials.find_credentials(reference.parse_reference("elsewhere.example/t5x"))
        == credentials.ANONYMOUS
    )


def test_a_credential_helper_is_asked(
    cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    both: list[dict[str, object]] = [
        {"credHelpers": {served.host: "kit"}},
        {"credsStore": "kit", "auths": {served.host: {}}},
    ]
    for settings in both:
        _logged_in(tmp_path / "docker", monkeypatch, settings)
        image_push.push_image(cache, image_registry.make_image(cache), f"{served.host}/t5x:latest")
        assert (
            credentials.find_credentials(reference.parse_reference("elsewhere.example/t5x"))
            == credentials.ANONYMOUS
        )
    program.write_text("#!/bin/sh\necho my-password; exit 3\n", encoding="ascii")
    with pytest.raises(UserError, match="status 3") as problem:
        credentials.find_credentials(reference.parse_reference(f"{served.host}/t5x"))
    assert "my-password" not in str(problem.value)
    _logged_in(tmp_path / "docker", monkeypatch, {"credsStore": "../x"})
    with errors.expect_user_error(
        errors.INVALID, where="config.json", remedy="docker-credential-X"
    ):
        credentials.find_credentials(reference.parse_reference(f"{served.host}/t5x"))


@pytest.mark.parametrize(
    "text", ["{", '{"auths": {"HOST": {"auth": "!"}}}', '{"auths": {"HOST": {"auth": "bWU="}}}']
)
def test_a_broken_file_of_logins_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "config.json").write_text(text.replace("HOST", "example.org"), encoding="utf-8")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with errors.expect_user_error(errors.INVALID, where="config.json", remedy="log in"):
        credentials.find_credentials(reference.parse_reference("example.org/t5x"))


def test_no_other_host_hears_who_we_are(
    cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, served = memory
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: _AUTH}})
    (tmp_path / "netrc").write_text(
        "machine 127.0.0.1 login me password my-password\n", encoding="ascii"
    )
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    index = image_registry.make_image(cache)
    image_push.push_image(cache, index, f"{served.host}/t5x:latest")

    def elsewhere(
        _method: str, target: str, _headers: dict[str, str], _body: bytes
    ) -> image_registry.Answer:
        return 200, {}, kept.blobs["t5x", target.removeprefix("/")]

    with image_registry.serve_answers(elsewhere, lambda _: None) as other:
        kept.redirect = f"http://{other.host}"
        wanted = index.images[0].layers[0]
        download.download_blob(f"{served.host}/t5x", wanted.digest, wanted.size, tmp_path / "blob")
        assert other.sent("GET") == [f"/{wanted.digest}"]
        assert [headers.get("Authorization") for headers in other.headers] == [None]
    assert any("Authorization" in headers for headers in served.headers)


def test_the_loopback_address_goes_past_every_proxy(
    cache: Cache, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with image_registry.closed_port() as port:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://user:secret@127.0.0.1:{port}")
        image_push.push_image(cache, image_registry.make_image(cache), f"{served.host}/t5x:latest")
        monkeypatch.setenv(reference.INSECURE_REGISTRIES, "registry.invalid")
        with errors.expect_user_error(
            errors.UNREACHABLE, where="registry.invalid", names="proxy"
        ) as problem:
            image_push.push_image(
                cache, image_registry.make_image(cache), "registry.invalid/t5x:latest"
            )
    assert "secret" not in str(problem.value)


def test_a_login_is_not_told_to_another_host_without_https(
    cache: Cache, memory: tuple[Memory, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, served = memory
    _logged_in(tmp_path / "docker", monkeypatch, {"auths": {served.host: _AUTH}})
    kept.bearer = "http://elsewhere.invalid/token"
    with errors.expect_user_error(errors.DENIED, where=served.host, value=None):
        image_push.push_image(cache, image_registry.make_image(cache), f"{served.host}/t5x:latest")


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that nobody trusts yet, and a server's context with it."""
    if not shutil.which("openssl"):
        pytest.skip("NOT CHECKED: openssl is not here to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=kit",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in (
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
    ):
        monkeypatch.delenv(variable, raising=False)
    return certificate, context


@pytest.mark.parametrize(
    "place",
    ["SSL_CERT_FILE", "SSL_CERT_FILE as a folder", "SSL_CERT_DIR", "two folders", "certs.d"],
)
def test_a_registry_with_tls_on_this_machine(
    cache: Cache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tls: tuple[Path, ssl.SSLContext],
    place: str,
) -> None:
    """It is spoken to as it speaks itself, and its CA counts wherever the machine names it."""
    certificate, context = tls
    kept = Memory()
    with image_registry.serve_answers(kept.answer, kept.lose, context) as served:
        name = f"{served.host}/t5x:latest"
        with errors.expect_user_error(errors.DENIED, where=served.host, remedy="SSL_CERT_FILE"):
            image_push.push_image(cache, image_registry.make_image(cache), name)
        folder = tmp_path / "config/containers/certs.d" / served.host
        folder.mkdir(parents=True)
        if place == "certs.d":
            shutil.copyfile(certificate, folder / "ca.crt")
        elif place == "SSL_CERT_FILE":
            monkeypatch.setenv(place, str(certificate))
        else:
            (tmp_path / "certificates").mkdir()
            shutil.copyfile(certificate, tmp_path / "certificates/ours.pem")
            both = f"{tmp_path / 'nowhere'}:{tmp_path / 'certificates'}"
            monkeypatch.setenv(
                place.split(maxsplit=1)[0] if place != "two folders" else "SSL_CERT_DIR",
                both if place == "two folders" else str(tmp_path / "certificates"),
            )
        image_push.push_image(cache, image_registry.make_image(cache), name)
        assert served.tag("t5x", "latest")


@pytest.mark.parametrize(
    "written",
    [
        "https://{}",
        "https://{}/",
        "http://{}",
        "HTTPS://{}/v2/",
        "{}/",
        "{}/v1/",
        "https://{}/team",
        "https://{}/team/t5x/",
    ],
)
def test_keys_of_logins_may_have_a_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    host = "reg.example:5000"
    _logged_in(
        tmp_path / "docker",
        monkeypatch,
        {"auths": {f"{host}/other": {}, written.format(host): _AUTH}},
    )
    assert credentials.find_credentials(reference.parse_reference(f"{host}/team/t5x")).user == "me"


@pytest.mark.parametrize("value", ["²", "٣", "1e400", "-5", "", "Mon, 99 Foo", "9" * 40])
def test_a_retry_after_that_is_not_a_number(value: str) -> None:
    pause = transport._parse_retry_after(value)
    assert pause is None or pause >= 0


@pytest.mark.parametrize("status", [405, 501])
def test_a_registry_without_head(cache: Cache, status: int) -> None:
    kept = Memory()

    def answer(
        method: str, target: str, headers: dict[str, str], body: bytes
    ) -> image_registry.Answer:
        return (status, {}, b"") if method == "HEAD" else kept.answer(method, target, headers, body)

    with image_registry.serve_answers(answer, kept.lose) as served:
        pushed = image_push.push_image(
            cache, image_registry.make_image(cache), f"{served.host}/t5x:latest"
        )
        assert image_registry.pull_manifest(f"{served.host}/t5x:latest").digest == pushed.digest


def test_a_body_that_drips_is_given_up(
    cache: Cache, memory: tuple[Memory, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow each byte is, a read does not wait for a whole piece, and too few bytes a second end it."""
    kept, served = memory
    kept.user = ""
    image_push.push_image(cache, image_registry.make_image(cache), f"{served.host}/t5x:latest")
    monkeypatch.setattr(transport, "_MINIMUM_RATE_AFTER", 0)
    monkeypatch.setattr(transport, "_MINIMUM_RATE", 1 << 60)
    monkeypatch.setattr(transport, "TRIES", 1)
    with errors.expect_user_error(errors.UNREACHABLE, names=(" 0 s", "1 times")):
        image_registry.pull_manifest(f"{served.host}/t5x:latest")


def test_the_machines_ca_bundle_counts(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: tuple[Path, ssl.SSLContext]
) -> None:
    certificate, context = tls
    for module in (reference, transport):
        monkeypatch.setattr(module, "is_loopback", lambda _: False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    kept = Memory()
    with image_registry.serve_answers(kept.answer, kept.lose, context) as served:
        name = f"{served.host}/t5x:latest"
        with errors.expect_user_error(errors.DENIED, where=served.host, remedy="SSL_CERT_FILE"):
            image_push.push_image(cache, image_registry.make_image(cache), name)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        image_push.push_image(cache, image_registry.make_image(cache), name)
        assert served.tag("t5x", "latest")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing.pem"))
        with errors.expect_user_error(errors.MISSING, where="nothing.pem", remedy="SSL_CERT_FILE"):
            image_registry.pull_manifest(name)


def test_https_is_left_for_nothing() -> None:
    with transport.Connection(reference.parse_reference("example.org/t5x:1"), "pull") as connection:
        assert (
            connection.resolve_location(
                "/v2/t5x/blobs/uploads/1", "https://example.org/v2/t5x/blobs/uploads/"
            )
            == "https://example.org/v2/t5x/blobs/uploads/1"
        )
        assert (
            connection.resolve_location("http://example.org/x", "https://example.org/v2/")
            == "https://example.org/x"
        )  # behind a proxy that takes the TLS off
        for bad, kind in (
            ("http://elsewhere.example/x", errors.DENIED),
            ("file:///etc/passwd", errors.INVALID),
        ):
            with errors.expect_user_error(kind, where="example.org/t5x:1"):
                connection.resolve_location(bad, "https://example.org/v2/")
