"""A web server on loopback with files that a test can change while it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclasses.dataclass
class FileServer:
    """A running server.

    Attributes:
      address: Its address, without a slash at the end.
      files: Path, with the slash at its beginning -> content.
      etags: Path -> the version that the server says; default: one that follows from the content.
      unversioned: Whether answers lack ETag, Last-Modified and Content-Length.
      statuses: Path -> a status to answer with instead of the file.
      cut: The bytes at the end of each file that are promised and do not come.
      cut_count: How many answers are cut.
      requests: The paths that were asked for, with their queries.
    """

    address: str = ""
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    etags: dict[str, str] = dataclasses.field(default_factory=dict)
    unversioned: bool = False
    statuses: dict[str, int] = dataclasses.field(default_factory=dict)
    cut: int = 0
    cut_count: int = 0
    requests: list[str] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def serve_files() -> Iterator[FileServer]:
    """Yield a server, and end it when the block ends."""
    server = FileServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(self.path)
            path = self.path.partition("?")[0]
            body = server.files.get(path, b"")
            status = server.statuses.get(path, 200 if path in server.files else 404)
            self.send_response(status)
            if not server.unversioned:
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", server.etags.get(path, f'"{hash(body)}"'))
            self.end_headers()
            if server.cut_count > 0:
                server.cut_count -= 1
                body = body[: -server.cut]
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.address = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()
