"""A small service with OSV's API on loopback: querybatch with pages and a limit, and records."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 1000  # of queries in one request, as api.osv.dev has it
JINJA = "2.4.1"  # the version in the example of OSV's documentation
# The ids that this example lists, with the names and the fixes of each record.
_JINJA_RECORDS = (
    ("GHSA-462w-v97r-4m45", "PYSEC-2019-217", "CVE-2019-10906", "2.10.1"),
    ("GHSA-8r7q-cvjq-x353", "PYSEC-2014-8", "CVE-2014-1402", "2.7.2"),
    ("GHSA-fqh9-2qgg-h84h", "PYSEC-2014-82", "CVE-2014-0012", "2.7.2"),
    ("GHSA-g3rq-g295-4j3m", "PYSEC-2021-66", "CVE-2020-28493", "2.11.3"),
    ("GHSA-hj2j-77xm-mc5v", "PYSEC-2019-220", "CVE-2016-10745", "2.8.1"),
)


def make_record(record_id: str, package: str, fixed: str, *aliases: str) -> dict[str, Any]:
    """Return a record in OSV's format about all versions of a package before `fixed`."""
    events = [{"introduced": "0"}, {"fixed": fixed}]
    return {
        "schema_version": "1.7.0",
        "id": record_id,
        "modified": "2023-03-10T05:23:41.874079Z",
        "aliases": list(aliases),
        "summary": f"what is wrong with {package}",
        "affected": [
            {
                "package": {"name": package, "ecosystem": "PyPI", "purl": f"pkg:pypi/{package}"},
                "ranges": [
                    {
                        "type": "GIT",
                        "repo": "https://example.com/x",
                        "events": [{"introduced": "0"}],
                    },
                    {"type": "ECOSYSTEM", "events": events},
                ],
                "versions": ["1.0"],
            }
        ],
    }


def make_jinja_records() -> dict[str, dict[str, Any]]:
    """Return the ten records about Jinja2 2.4.1, which are about five vulnerabilities."""
    records = {}
    for ghsa, pysec, cve, fixed in _JINJA_RECORDS:
        records[ghsa] = make_record(ghsa, "Jinja2", fixed, cve, pysec)
        records[pysec] = make_record(pysec, "jinja2", fixed, cve, ghsa)
    return records


@dataclass
class Service:
    """What the service knows, and what it was asked.

    `ids` has the ids of each package and version. `faults` are statuses that the next answers have
    in place of 200. `override` is what querybatch answers, in place of the truth.
    """

    address: str = ""
    records: dict[str, Any] = field(default_factory=make_jinja_records)
    ids: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    page: int = 1000
    faults: list[int] = field(default_factory=list)
    override: Any = None
    batches: list[list[dict[str, Any]]] = field(default_factory=list)
    read: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids.setdefault(("jinja2", JINJA), sorted(self.records))

    def answer_batch(self, queries: list[dict[str, Any]]) -> tuple[int, Any]:
        if len(queries) > LIMIT:
            return 400, {"code": 3, "message": "Too many queries."}
        self.batches.append(queries)
        if self.override is not None:
            return 200, self.override
        return 200, {"results": [self._answer(query) for query in queries]}

    def _answer(self, query: dict[str, Any]) -> dict[str, Any]:
        assert query["package"]["ecosystem"] == "PyPI"
        ids = self.ids.get((query["package"]["name"], query["version"]), [])
        start = int(query.get("page_token", "0"))
        page = ids[start : start + self.page]
        rows = [{"id": each, "modified": "2023-03-10T05:23:41.874079Z"} for each in page]
        answer: dict[str, Any] = {"vulns": rows} if rows else {}
        if start + self.page < len(ids):
            answer["next_page_token"] = str(start + self.page)
        return answer


@contextmanager
def serve_osv() -> Iterator[Service]:
    """Start the service, and yield what it knows."""
    service = Service()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/querybatch"
            self._send(service.answer_batch(body["queries"]))

        def do_GET(self) -> None:
            record_id = self.path.removeprefix("/v1/vulns/")
            service.read.append(record_id)
            record = service.records.get(record_id)
            missing = {"code": 5, "message": "Bug not found."}
            self._send((200, record) if record else (404, missing))

        def _send(self, answer: tuple[int, Any]) -> None:
            status, document = (service.faults.pop(0), {}) if service.faults else answer
            text = document if isinstance(document, str) else json.dumps(document)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    service.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
