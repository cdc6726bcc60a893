"""A small Hugging Face Hub on loopback, with what huggingface_hub asks of the real one."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGE = 4096  # bytes from which a file is stored beside the repository, as with Git LFS
TOKEN = "hf_ofThisTestOnly1234567890"  # noqa: S105 (nobody's)


@dataclass
class Hub:
    """The models of a Hub, and what it is to do wrong.

    Attributes:
        models: OWNER/NAME -> file name -> content, of the branch main.
        private: The models that need TOKEN.
        status: The status of every answer; 0 for the right ones.
        broken: The number of downloads to cut off in the middle.
        damaged: Whether large files have another content than the Hub says.
        uploaded: The contents of large files that were uploaded, by their SHA-256.
        refused: The number of uploads of large files to refuse with status 400.
        altered: Whether commits change the files that they get.
        requests: The requests so far, "METHOD PATH Range".
        address: Its address.
    """

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    status: int = 0
    broken: int = 0
    damaged: bool = False
    uploaded: dict[str, bytes] = field(default_factory=dict)
    refused: int = 0
    altered: bool = False
    requests: list[str] = field(default_factory=list)
    address: str = ""

    def add_folder(self, repository: str, folder: Path) -> None:
        """Add the files of a folder as a model."""
        self.models[repository] = {
            path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()
        }

    def commit(self, repository: str) -> str:
        """Return the commit of main, which depends on the content."""
        files = sorted(self.models[repository].items())
        return hashlib.sha1(repr(files).encode(), usedforsecurity=False).hexdigest()

    def count(self, text: str) -> int:
        """Return the number of requests that have a text."""
        return sum(text in request for request in self.requests)


def _hash_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _describe_file(name: str, content: bytes) -> dict[str, object]:
    document: dict[str, object] = {
        "rfilename": name,
        "size": len(content),
        "blobId": _hash_blob(content),
    }
    if len(content) >= LARGE:
        digest = hashlib.sha256(content).hexdigest()
        document["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
    return document


def _describe_entry(name: str, content: bytes) -> dict[str, object]:
    """Return a file as the Hub's other listing, a tree, has it."""
    document = _describe_file(name, content)
    entry = {
        "type": "file",
        "path": name,
        "size": document["size"],
        "oid": document["blobId"],
    }
    if "lfs" in document:
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
    return entry


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        return hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        self.hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if self.hub.status:
            self._answer(self.hub.status, b"no")
        elif path.startswith("/cdn/"):
            self._send_large(path.rpartition("/")[2])
        elif match := re.fullmatch(r"/api/models/(.+?)(?:/(revision|tree)/(.+))?", path):
            if commit := self._find_commit(match[1], match[3]):
                self._send_listing(match[1], commit, as_tree=match[2] == "tree")
        elif match := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            if commit := self._find_commit(match[1], match[2]):
                self._send_file(match[1], commit, match[3])
        else:
            self._answer(404, b"")

    def do_POST(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.requests.append(f"POST {path}")
        if self.hub.status:
            self._answer(self.hub.status, b"no")
        elif path == "/api/validate-yaml":
            self._send_json({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(403, b"{}")
        elif path == "/api/repos/create":
            self._create_model(json.loads(body))
        elif match := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            self._choose_upload_modes(match[1], json.loads(body)["files"])
        elif match := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            self._offer_uploads(json.loads(body)["objects"])
        elif path.startswith("/verify/"):
            self._answer(200 if json.loads(body)["oid"] in self.hub.uploaded else 404, b"{}")
        elif match := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            self._commit(match[1], [json.loads(line) for line in body.splitlines()])
        else:
            self._answer(404, b"")

    def do_PUT(self) -> None:
        self.hub.requests.append(f"PUT {self.path}")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        digest = self.path.rpartition("/")[2]
        if self.hub.refused or hashlib.sha256(content).hexdigest() != digest:
            self.hub.refused -= 1
            self._answer(400, b"")
            return
        self.hub.uploaded[digest] = content
        self._answer(200, b"")

    def _create_model(self, document: dict[str, str]) -> None:
        name = f"{document.get('organization') or 'me'}/{document['name']}"
        is_new = name not in self.hub.models
        if is_new:
            self.hub.models[name] = {".gitattributes": b""}
            if document.get("visibility") == "private":
                self.hub.private.add(name)
        self._send_json({"url": f"{self.hub.address}/{name}"}, 200 if is_new else 409)

    def _choose_upload_modes(self, repository: str, files: list[dict[str, object]]) -> None:
        stored = self.hub.models[repository]
        modes = []
        for file in files:
            name, size = str(file["path"]), int(str(file["size"]))
            mode = {
                "path": name,
                "uploadMode": "lfs" if size >= LARGE else "regular",
                "shouldIgnore": False,
            }
            if name in stored:
                content = stored[name]
                large = hashlib.sha256(content).hexdigest()
                mode["oid"] = large if len(content) >= LARGE else _hash_blob(content)
            modes.append(mode)
        self._send_json({"files": modes})

    def _offer_uploads(self, objects: list[dict[str, object]]) -> None:
        answers = list[dict[str, object]]()
        for item in objects:
            answer: dict[str, object] = {**item, "authenticated": True}
            if item["oid"] not in self.hub.uploaded:
                answer["actions"] = {
                    action: {"href": f"{self.hub.address}/{folder}/{item['oid']}"}
                    for action, folder in (("upload", "lfs"), ("verify", "verify"))
                }
            answers.append(answer)
        self._send_json({"transfer": "basic", "objects": answers})

    def _commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        files = dict(self.hub.models[repository])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.uploaded[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        if self.hub.altered:
            files = {name: content[:-1] for name, content in files.items()}
        self.hub.models[repository] = files
        commit = self.hub.commit(repository)
        address = f"{self.hub.address}/{repository}/commit/{commit}"
        self._send_json({"commitUrl": address, "commitOid": commit})

    def _send_json(self, document: object, status: int = 200) -> None:
        self._answer(status, json.dumps(document).encode())

    def _find_commit(self, repository: str, revision: str | None) -> str | None:
        """Return the commit, or answer with an error as the Hub does."""
        authorization = self.headers.get("Authorization")
        refused = repository in self.hub.private and authorization != f"Bearer {TOKEN}"
        if repository not in self.hub.models or refused:
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound"})
            return None
        commit = self.hub.commit(repository)
        if revision not in (None, "main", commit):
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return None
        return commit

    def _send_listing(self, repository: str, commit: str, *, as_tree: bool) -> None:
        files = self.hub.models[repository]
        if as_tree:
            entries = [_describe_entry(*item) for item in sorted(files.items())]
            self._answer(200, json.dumps(entries).encode())
            return
        document = {
            "id": repository,
            "sha": commit,
            "siblings": [_describe_file(*item) for item in sorted(files.items())],
            "private": repository in self.hub.private,
        }
        self._answer(200, json.dumps(document).encode())

    def _send_file(self, repository: str, commit: str, name: str) -> None:
        content = self.hub.models[repository].get(name)
        headers = {"X-Repo-Commit": commit}
        if content is None:
            self._answer(404, b"", {**headers, "X-Error-Code": "EntryNotFound"})
            return
        headers["ETag"] = f'"{_hash_blob(content)}"'
        if len(content) < LARGE:
            self._answer(200, content, headers)
            return
        digest = hashlib.sha256(content).hexdigest()
        headers |= {
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
            # Another host, as the real one is: the library follows a redirect to the same host.
            "Location": f"{self.hub.address.replace('127.0.0.1', 'localhost')}/cdn/{digest}",
        }
        self._answer(302, b"", headers)

    def _send_large(self, digest: str) -> None:
        contents = [content for files in self.hub.models.values() for content in files.values()]
        content = next(c for c in contents if hashlib.sha256(c).hexdigest() == digest)
        if self.hub.damaged:
            content = bytes([content[0] ^ 1]) + content[1:]
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(start[1]) if start else 0
        headers = {"ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        body, sent = content[first:], None
        if self.command == "GET" and self.hub.broken:
            self.hub.broken -= 1
            sent = len(body) // 2
        self._answer(206 if start else 200, body, headers, sent=sent)

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        sent: int | None = None,
    ) -> None:
        """Answer; `sent` is the number of bytes after which the connection breaks."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent])
        if sent is not None:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Yield a Hub that answers on loopback until the block ends."""
    hub = Hub()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = hub  # type: ignore[attr-defined]
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
