"""Serve a package index with PEP 503 HTML or PEP 691 JSON, also one with a chosen fault."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Index:
    """The files of an index, its fault, and the requests that it got."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.upload_times: dict[str, str] = {}  # by the name of the file
        self.html = False
        self.fault = ""
        self.user = ""
        self.requests: list[str] = []
        self.url = ""

    def add(self, project: str, path: Path) -> str:
        self.files.setdefault(project, {})[path.name] = path.read_bytes()
        return hashlib.sha256(path.read_bytes()).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests to an index. A subclass sets the index."""

    index: Index

    def do_GET(self) -> None:
        self.index.requests.append(self.path)
        self.index.user = self.headers.get("Authorization", "")
        if self.index.fault in ("401", "403"):
            self.send_error(int(self.index.fault))
            return
        _, kind, project, *name = self.path.split("/")
        if kind == "simple" and project in self.index.files:
            self._page(project)
        elif kind == "file" and name and name[0] in self.index.files.get(project, {}):
            self._file(self.index.files[project][name[0]])
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        # uv asks for the size first, to read a part of a wheel. Without it, uv reads the whole.
        self.send_error(405)

    def _page(self, project: str) -> None:
        if self.index.fault == "500":
            self.send_error(500)
            return
        if self.index.fault == "login page":
            self._send(
                b"<html>please log in</html>",
                "text/html" if self.index.html else "application/vnd.pypi.simple.v1+json",
            )
            return
        entries = {
            name: hashlib.sha256(data).hexdigest()
            for name, data in self.index.files[project].items()
        }
        if self.index.html:
            links = "".join(
                f'<a href="../../file/{project}/{name}#sha256={digest}">{name}</a>'
                for name, digest in entries.items()
            )
            self._send(f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html")
            return
        times = self.index.upload_times
        files = [
            {
                "filename": name,
                "url": f"/file/{project}/{name}",
                "hashes": {"sha256": digest},
                **({"upload-time": times[name]} if name in times else {}),
            }
            for name, digest in entries.items()
        ]
        self._send(
            json.dumps({"meta": {"api-version": "1.0"}, "name": project, "files": files}).encode(),
            "application/vnd.pypi.simple.v1+json",
        )

    def _file(self, data: bytes) -> None:
        if self.index.fault == "html instead":
            self._send(b"<html>blocked by policy</html>", "text/html")
        elif self.index.fault == "wrong bytes":
            self._send(data[:-1] + b"x", "application/octet-stream")
        elif self.index.fault in ("truncated", "truncated once"):
            if self.index.fault == "truncated once":
                self.index.fault = ""
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self._send(data, "application/octet-stream")

    def _send(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Be quiet."""


@contextmanager
def serve_index() -> Iterator[Index]:
    """Run an index on the loopback address."""
    index = Index()
    handler = type("Handler", (_Handler,), {"index": index})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
