"""Registries on the loopback address, and the ways in which one fails.

`memory()` is a registry of a few lines, so that the tests run everywhere: it keeps all in memory, knows no deletion, no listing, no referrers and
no upload that is taken up again after a cut, and believes any Content-Type. `real()` is the registry of Debian's package docker-registry; both are
reached through the same small proxy, which does the faults.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.parse
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.images.oci import oci_documents, reference
from builder.images.oci.layer import write_layer
from builder.images.oci.tar_entry import make_file
from builder.images.registry import download
from builder.images.registry.transport import Connection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from builder.core.cache import Cache
    from builder.images.oci.oci_documents import Index

Answer = tuple[int, dict[str, str], bytes]


def pull_manifest(name: str) -> download.Document:
    """Return the manifest or index that HOST/NAME:TAG or HOST/NAME@DIGEST names."""
    wanted = reference.parse_reference(name)
    with Connection(wanted, "pull") as connection:
        return download.read_document(connection, wanted.selector)


def make_image(
    cache: Cache,
    *,
    top: str = "one",
    size: int = 300_000,
    architectures: tuple[str, ...] = ("amd64",),
    seed: str = "",
) -> Index:
    """A small image: a layer that all architectures share, one of `size` bytes for each, and one with the text `top`; another `seed`, other layers."""
    images = []
    for architecture in architectures:
        noise = b"".join(
            hashlib.sha256(f"{seed}{architecture}{n}".encode()).digest() for n in range(size // 32)
        )
        layers = [
            write_layer(
                cache,
                hashlib.sha256(f"{key}{data!r}".encode()).hexdigest(),
                name,
                "gzip",
                lambda key=key, data=data: [make_file(key, data)],  # type: ignore[misc]
            )
            for name, key, data in (
                ("base", "base.txt", f"base{seed}".encode()),
                ("python", "big", noise),
                ("rosetta", f"top-{architecture}", top.encode()),
            )
        ]
        images.append(
            oci_documents.make_image(
                architecture, layers, "2026-01-01T00:00:00Z", {"Cmd": ["true"]}, {}
            )
        )
    return oci_documents.make_index(images, {})


@dataclass
class Fault:
    """What to do to the requests that `method` and `path` (a regular expression) name: the first `times` after the first `skip` of them."""

    kind: str  # a status, or "cut" (the connection), "lose" (what was sent), "corrupt" or "truncate" (what is sent or given), "html", "out" (the token), "other digest"
    method: str
    path: str = "."
    skip: int = 0
    times: int = 1
    retry_after: str = "0"
    larger: int = 0  # only bodies of at least so many bytes


@dataclass
class Served:
    """A registry behind the proxy."""

    host: str
    answer: Callable[[str, str, dict[str, str], bytes], Answer]
    lose: Callable[[str], None]
    faults: list[Fault] = field(default_factory=list)
    log: list[tuple[str, str, int, int]] = field(
        default_factory=list
    )  # method, path, bytes of the body, status
    headers: list[dict[str, str]] = field(default_factory=list)
    before: Callable[[str, str], None] = lambda _method, _path: None
    lock: Any = field(default_factory=threading.Lock)

    def fault(self, method: str, path: str, length: int) -> Fault | None:
        with self.lock:
            for each in self.faults:
                if (
                    each.method == method
                    and re.search(each.path, path)
                    and each.times > 0
                    and length >= each.larger
                ):
                    if each.skip > 0:
                        each.skip -= 1
                        continue
                    each.times -= 1
                    return each
        return None

    def sent(self, method: str) -> list[str]:
        """The paths of all requests of this kind that came."""
        return [path for each, path, _, _ in self.log if each == method]

    def tag(self, name: str, tag: str) -> str:
        """The digest that a tag points to, asked of the registry itself; empty where there is none."""
        status, headers, _ = self.answer(
            "HEAD", f"/v2/{name}/manifests/{tag}", {"Accept": oci_documents.INDEX}, b""
        )
        return headers.get("Docker-Content-Digest", "") if status == 200 else ""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.1"  # to who tries TLS first, as engines do, it says "HTTP/1.1 400", as registries do: by that they know what to try next
    disable_nagle_algorithm = True
    served: Served

    def answer(self) -> None:
        served = self.served
        length = int(self.headers.get("Content-Length") or 0)
        served.before(self.command, self.path)
        fault = served.fault(self.command, self.path, length)
        if fault and fault.kind == "cut" and length:
            self.rfile.read(length // 2)
            self._cut()
            return
        body = (
            self._chunks()
            if self.headers.get("Transfer-Encoding", "") == "chunked"
            else self.rfile.read(length)
        )
        given = {
            key: ", ".join(self.headers.get_all(key, [])) for key in self.headers
        }  # podman says Accept several times
        with served.lock:
            served.headers.append(given)
        if fault and fault.kind == "corrupt" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        status, headers, data = self._made(fault, given, body)
        with served.lock:
            served.log.append((self.command, self.path, length, status))
        if (
            fault
            and fault.kind == "lose"
            and (found := re.search(r"sha256(?::|%3A)([0-9a-f]{64})", self.path))
        ):
            served.lose(found.group(1))
        if fault and fault.kind == "cut":
            self._cut()
            return
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if not any(key.lower() == "content-length" for key in headers):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault and fault.kind == "truncate":
            data = data[: len(data) // 2]
            self.close_connection = True
        if self.command != "HEAD":
            self.wfile.write(data)

    def _chunks(self) -> bytes:
        body = b""
        while length := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _made(self, fault: Fault | None, given: dict[str, str], body: bytes) -> Answer:
        if fault and fault.kind == "html":
            return 200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>please log in</html>"
        if fault and fault.kind in ("500", "503", "413", "401", "404"):
            return (
                int(fault.kind),
                {"Content-Type": "application/json"},
                b'{"errors": [{"code": "BROKEN", "message": "a\\nfault of ours"}]}',
            )
        if fault and fault.kind == "other digest":
            return 400, {}, b'{"errors": [{"code": "DIGEST_INVALID", "message": "did not match"}]}'
        if fault and fault.kind == "429":
            return 429, {"Retry-After": fault.retry_after}, b""
        if fault and fault.kind == "out":
            given = {**given, "Authorization": "Bearer a-token-that-ran-out"}
        status, headers, data = self.served.answer(self.command, self.path, given, body)
        if fault and fault.kind == "corrupt" and not body and data:
            data = data[:-1] + bytes([data[-1] ^ 1])
        return status, headers, data

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        """A cut connection is what we wanted."""


@contextmanager
def serve_answers(
    answer: Callable[[str, str, dict[str, str], bytes], Answer],
    lose: Callable[[str], None],
    tls: ssl.SSLContext | None = None,
) -> Iterator[Served]:
    """A proxy in front of what `answer` does."""
    handler = type(
        "Handler",
        (_Handler,),
        {
            f"do_{method}": _Handler.answer
            for method in ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE")
        },
    )
    server = _Server(("127.0.0.1", 0), handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    handler.served = served = Served(f"127.0.0.1:{server.server_address[1]}", answer, lose)  # type: ignore[attr-defined]
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Memory:
    """The registry of a few lines. `user` makes it ask for a login, by Basic or (`bearer`) by tokens that it gives out itself."""

    def __init__(self) -> None:
        self.anonymous = False  # a token for everyone
        self.identity = ""  # what a login left, to be exchanged for tokens
        self.blobs: dict[tuple[str, str], bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.uploads: dict[str, bytes] = {}
        self.user = ""
        self.bearer = ""  # the realm's address
        self.asked: list[dict[str, list[str]]] = []
        self.redirect = ""  # where blobs are to be had
        self.deletes = False  # it lets manifests be removed
        self._count = 0
        self._lock = threading.Lock()

    def lose(self, digest: str) -> None:
        self.blobs = {
            key: value for key, value in self.blobs.items() if key[1] != f"sha256:{digest}"
        }

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        with self._lock:
            path, _, query = target.partition("?")
            asked = urllib.parse.parse_qs(query)
            if path == "/token":
                return self._token(
                    headers, asked, urllib.parse.parse_qs(body.decode()) if method == "POST" else {}
                )
            if self.user and (refused := self._refused(headers)):
                return refused
            if path == "/v2/":
                return 200, {"Docker-Distribution-Api-Version": "registry/2.0"}, b"{}"
            found = re.fullmatch(r"/v2/(.+)/(blobs/uploads|blobs|manifests)/([^/]*)", path)
            if not found:
                return 404, {}, b""
            name, kind, last = found.groups()
            return {
                "blobs": self._blob,
                "manifests": self._manifest,
                "blobs/uploads": self._upload,
            }[kind](method, name, last, headers, asked, body)

    def _refused(self, headers: dict[str, str]) -> Answer | None:
        basic = "Basic " + base64.b64encode(self.user.encode()).decode()
        if headers.get("Authorization") == ("Bearer token-of-ours" if self.bearer else basic):
            return None
        challenge = (
            f'Bearer realm="{self.bearer}",service="kit",scope="repository:x:pull"'
            if self.bearer
            else 'Basic realm="kit"'
        )
        return (
            401,
            {"WWW-Authenticate": challenge},
            b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}',
        )

    def _token(
        self, headers: dict[str, str], asked: dict[str, list[str]], form: dict[str, list[str]]
    ) -> Answer:
        self.asked.append(asked or form)
        if form:
            known = (
                self.identity
                and form["refresh_token"] == [self.identity]
                and form["grant_type"] == ["refresh_token"]
            )
            return (200, {}, b'{"access_token": "token-of-ours"}') if known else (401, {}, b"")
        if (
            not self.anonymous
            and headers.get("Authorization")
            != "Basic " + base64.b64encode(self.user.encode()).decode()
        ):
            return 401, {}, b""
        return (
            200,
            {"Content-Type": "application/json"},
            b'{"token": "token-of-ours", "expires_in": 60}',
        )

    def _blob(
        self,
        method: str,
        name: str,
        digest: str,
        _headers: dict[str, str],
        _asked: dict[str, list[str]],
        _body: bytes,
    ) -> Answer:
        data = self.blobs.get((name, digest))
        if data is None:
            return 404, {}, b""
        if self.redirect and method == "GET":
            return 307, {"Location": f"{self.redirect}/{digest}"}, b""
        return (
            200,
            {
                "Content-Type": "application/octet-stream",
                "Docker-Content-Digest": digest,
                "Content-Length": str(len(data)),
            },
            data,
        )

    def _upload(
        self,
        method: str,
        name: str,
        which: str,
        headers: dict[str, str],
        asked: dict[str, list[str]],
        body: bytes,
    ) -> Answer:
        if method == "POST":
            source = (asked.get("from", [""])[0], asked.get("mount", [""])[0])
            if source in self.blobs:
                self.blobs[name, source[1]] = self.blobs[source]
                return (
                    201,
                    {
                        "Location": f"/v2/{name}/blobs/{source[1]}",
                        "Docker-Content-Digest": source[1],
                    },
                    b"",
                )
            self._count += 1
            self.uploads[str(self._count)] = b""
            return (
                202,
                {"Location": f"/v2/{name}/blobs/uploads/{self._count}?state=secret-state"},
                b"",
            )
        if which not in self.uploads:
            return 404, {}, b""
        if method == "PATCH":
            if headers.get("Content-Range", "").partition("-")[0] not in (
                "",
                str(len(self.uploads[which])),
            ):
                return 416, {}, b""
            self.uploads[which] += body
            return 202, {"Location": f"/v2/{name}/blobs/uploads/{which}?state=secret-state"}, b""
        data, digest = self.uploads.pop(which) + body, asked["digest"][0]
        if oci_documents.compute_digest(data) != digest:
            return (
                400,
                {},
                b'{"errors": [{"code": "DIGEST_INVALID", "message": "provided digest did not match uploaded content"}]}',
            )
        self.blobs[name, digest] = data
        return 201, {"Docker-Content-Digest": digest}, b""

    def _manifest(
        self,
        method: str,
        name: str,
        which: str,
        headers: dict[str, str],
        _asked: dict[str, list[str]],
        body: bytes,
    ) -> Answer:
        if method == "PUT":
            document = json.loads(body)
            held = {
                digest
                for repository, digest in {**self.blobs, **self.manifests}
                if repository == name
            }
            named = [
                each["digest"]
                for each in [
                    *document.get("layers", []),
                    *document.get("manifests", []),
                    *filter(None, [document.get("config")]),
                ]
            ]
            if not held.issuperset(named) or (
                ":" in which and which != oci_documents.compute_digest(body)
            ):
                return (
                    404,
                    {"Content-Type": "application/json"},
                    b'{"errors": [{"code": "MANIFEST_BLOB_UNKNOWN", "message": "blob unknown to registry"}]}',
                )
            kept = (headers.get("Content-Type", ""), body)
            self.manifests[name, which] = self.manifests[
                name, oci_documents.compute_digest(body)
            ] = kept
            return 201, {"Docker-Content-Digest": oci_documents.compute_digest(body)}, b""
        if (name, which) not in self.manifests:
            return (
                404,
                {"Content-Type": "application/json"},
                b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}',
            )
        kind, data = self.manifests[name, which]
        if method == "DELETE" and self.deletes:
            self.manifests = {
                key: value
                for key, value in self.manifests.items()
                if key[0] != name or value[1] != data
            }
            return 202, {}, b""
        if method == "DELETE":
            return (
                405,
                {"Content-Type": "application/json"},
                b'{"errors": [{"code": "UNSUPPORTED", "message": "the operation is unsupported"}]}',
            )
        return (
            200,
            {
                "Content-Type": kind,
                "Docker-Content-Digest": oci_documents.compute_digest(data),
                "Content-Length": str(len(data)),
            },
            data,
        )


@contextmanager
def serve_memory_registry() -> Iterator[Served]:
    kept = Memory()
    with serve_answers(kept.answer, kept.lose) as served:
        yield served


def find_registry_program() -> str:
    """The program docker-registry; skips the test where there is none."""
    found = shutil.which("docker-registry") or os.environ.get("ROSETTA_TEST_REGISTRY", "")
    if not found:
        pytest.skip(
            "NOT CHECKED: there is no docker-registry on PATH (Debian's package docker-registry), nor does ROSETTA_TEST_REGISTRY name one"
        )
    return found


@contextmanager
def serve_docker_registry(folder: Path) -> Iterator[Served]:
    """Debian's registry with its files in `folder`. It listens on a socket with a name, which nobody can take before it does, as a port can be."""
    program = find_registry_program()
    with tempfile.TemporaryDirectory() as short:  # such a name may have a hundred letters
        yield from _run_registry(program, folder, Path(short, "socket"))


def _run_registry(program: str, folder: Path, place: Path) -> Iterator[Served]:
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {
            "filesystem": {"rootdirectory": str(folder / "data")},
            "delete": {"enabled": True},
        },
        "http": {"net": "unix", "addr": str(place)},
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="ascii")
    with open(folder / "log", "wb") as out:
        process = subprocess.Popen(
            [program, "serve", str(folder / "config.json")],
            stdout=out,
            stderr=out,
            env={**os.environ, "OTEL_TRACES_EXPORTER": "none"},
        )
    try:
        _wait_for_answer(place, process, folder / "log")

        def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
            connection = http.client.HTTPConnection("localhost")
            connection.sock = _connect_socket(place)
            try:
                kept = {
                    key: value
                    for key, value in headers.items()
                    if key.lower() not in ("connection", "content-length", "transfer-encoding")
                }
                connection.request(
                    method, target, body or None, {**kept, "Content-Length": str(len(body))}
                )
                got = connection.getresponse()
                return (
                    got.status,
                    {
                        key: value
                        for key, value in got.getheaders()
                        if key.lower() not in ("connection", "transfer-encoding", "date")
                    },
                    got.read(),
                )
            finally:
                connection.close()

        def lose(digest: str) -> None:
            for where, folders, _ in os.walk(
                folder / "data"
            ):  # passes over what other uploads delete meanwhile, where rglob raises
                if digest in folders:
                    shutil.rmtree(Path(where, digest))

        with serve_answers(answer, lose) as served:
            yield served
    finally:
        process.terminate()
        process.wait()


@contextmanager
def closed_port() -> Iterator[int]:
    """A port where nobody listens, and nobody can meanwhile: it is held."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def _connect_socket(place: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(60)
        made.connect(str(place))
    except BaseException:
        made.close()
        raise
    return made


def _wait_for_answer(place: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it answers or has ended: how long that takes is the machine's affair."""
    while process.poll() is None:
        with contextlib.suppress(OSError), _connect_socket(place):
            return
        time.sleep(0.05)
    raise RuntimeError(f"docker-registry did not start: {log.read_text(encoding='utf-8')}")
