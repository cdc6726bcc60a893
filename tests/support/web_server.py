"""A web server on loopback with a few answers."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def serve_answers(answers: Mapping[str, tuple[int, str]], *, missing: int = 0) -> Iterator[str]:
    """Yields its address; a path that is not among `answers` is 404. `missing` bytes of each are promised and do not come."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers.get(self.path, (404, ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode()) + missing))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
