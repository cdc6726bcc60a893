"""Dockerfile.base on a real Debian: docker, buildah and mmdebstrap make one layer, byte for byte; and the archive is reached through a proxy with a password.

Takes a minute or two where mmdebstrap, an engine and a Debian mirror are at hand.
"""

from __future__ import annotations

import base64
import select
import shutil
import socket
import threading
import urllib.parse
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.core import manifest
from builder.core.cache import Cache
from builder.images.base import debian_bootstrap
from builder.images.engines import dockerfile_step, layer_normalisation
from builder.packages import debian_lock
from rosetta.core.errors import UserError
from tests.support import container_engines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.images.oci.layer import Layer
    from builder.packages.debian_lock import BaseLock

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[5]
PASSWORD = "proxy-password-7fe1"  # noqa: S105 - of a proxy of this test


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cache, BaseLock, Layer, Layer]:
    """A cache, the locked packages of a base, and the layers that mmdebstrap makes of them."""
    if not shutil.which("mmdebstrap"):
        pytest.skip("NOT CHECKED: mmdebstrap is not here")
    cache = Cache(tmp_path_factory.mktemp("cache"))
    lock = debian_lock.load_lock(
        manifest.load(ROOT / "manifest.yaml"), "trixie", container_engines.HERE
    )
    try:
        debian_lock.fetch_packages(cache, lock)
    except UserError as error:
        pytest.skip(f"NOT CHECKED: the locked packages cannot be had here ({error})")
    return cache, lock, *debian_bootstrap.make_layers(cache, lock, ROOT, "gzip")


@pytest.mark.parametrize("name", ["docker", "buildah"])
def test_an_engine_makes_the_layer_that_mmdebstrap_makes(
    made: tuple[Cache, BaseLock, Layer, Layer], name: str
) -> None:
    cache, lock, lower, upper = made
    used = container_engines.need_engine(name, builds=True)
    with dockerfile_step.build_base(
        used, cache, ROOT, [lower], container_engines.HERE, debian_lock.fetch_packages(cache, lock)
    ) as exported:
        ours = layer_normalisation.make_os_layer(cache, f"os-{name}", "gzip", exported)
    assert ours.digest == upper.digest
    assert "usr/bin/python3" in container_engines.read_layer_content(cache, ours)


def _read_head(client: socket.socket) -> list[str]:
    """Return the lines of a request up to its body."""
    head = b""
    while b"\r\n\r\n" not in head and (data := client.recv(65536)):
        head += data
    return head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")


def _relay(client: socket.socket, server: socket.socket) -> None:
    """Pass on what each side sends, until one of them closes its connection."""
    while True:
        for sender in select.select([client, server], [], [], 60)[0]:
            data = sender.recv(65536)
            if not data:
                return
            (server if sender is client else client).sendall(data)


def _answer_request(client: socket.socket, credentials: str, urls: list[str]) -> None:
    """Answer one request to the proxy, and add its URL to a list if its password is right."""
    lines = _read_head(client)
    verb, _, rest = lines[0].partition(" ")
    url = rest.rpartition(" ")[0]
    if f"proxy-authorization: {credentials}".lower() not in map(str.lower, lines):
        client.sendall(
            b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=x\r\n"
            b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        return
    urls.append(url)
    parts = urllib.parse.urlsplit(url if verb != "CONNECT" else f"//{url}")
    address = (parts.hostname or "", parts.port or 80)
    with socket.create_connection(address, timeout=60) as server:
        if verb == "CONNECT":
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            own = ("proxy-", "connection:")
            headers = [line for line in lines[1:] if not line.lower().startswith(own)]
            request = [f"{verb} {parts.path} HTTP/1.1", *headers, "Connection: close", "", ""]
            server.sendall("\r\n".join(request).encode("latin-1"))
        _relay(client, server)


@contextmanager
def _proxy() -> Iterator[tuple[str, list[str]]]:
    """Run an HTTP proxy that wants a password; yield its address and the URLs that it served."""
    urls: list[str] = []
    credentials = "Basic " + base64.b64encode(f"user:{PASSWORD}".encode()).decode()
    server = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client, suppress(OSError):
            _answer_request(client, credentials, urls)

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://user:{PASSWORD}@127.0.0.1:{server.getsockname()[1]}", urls
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def test_an_archive_behind_a_proxy_with_a_password(
    made: tuple[Cache, BaseLock, Layer, Layer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache, _, lower, _ = made
    used = container_engines.need_engine(
        "buildah" if shutil.which("buildah") else "docker", builds=True
    )
    bundle = tmp_path / "ca.pem"
    system = Path("/etc/ssl/certs/ca-certificates.crt")
    bundle.write_bytes(b"# certificate-7fe1\n" + (system.read_bytes() if system.exists() else b""))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with _proxy() as (address, asked):
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, address)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with dockerfile_step.build_base(
            used, cache, ROOT, [lower], container_engines.HERE
        ) as exported:
            assert (
                container_engines.find_markers(
                    exported,
                    [
                        PASSWORD,
                        "certificate-7fe1",
                        base64.b64encode(f"user:{PASSWORD}".encode()).decode(),
                    ],
                )
                == []
            )
            found = container_engines.read_layer_content(
                cache, layer_normalisation.make_os_layer(cache, "proxied", "gzip", exported)
            )
    assert "usr/bin/python3" in found
    assert any("InRelease" in url or ":443" in url for url in asked)
    assert not any(path.startswith(("run/", "var/lib/apt/lists/", "var/log/")) for path in found)
