"""Ask OSV which vulnerabilities are known of Python packages (google.github.io/osv.dev/api)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests

from builder.core import package_index
from builder.core.secrets import redact
from rosetta.core.errors import INVALID, UNREACHABLE, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SERVICE = "https://api.osv.dev"
ECOSYSTEM = "PyPI"
BATCH_SIZE = 1000  # queries in one request; the service refuses more
_MAX_BATCHES = 1000
_TRIES = 3
_PAUSE = 2.0  # seconds before another attempt
_TIMEOUT = 60  # seconds
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")


@dataclass(frozen=True, order=True)
class Package:
    """A package of a lock, with its normalised name."""

    name: str
    version: str


def parse_service(address: str) -> str:
    """Return the address of a service like OSV's: by https, or on this machine.

    Raises:
        UserError: it is another address.
    """
    parts = urlsplit(address)
    is_local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not is_local:
        raise UserError(
            "is not an https:// address",
            f"--service {redact(address)}",
            f"leave the option out ({SERVICE})",
            kind=INVALID,
        )
    return address.rstrip("/")


@dataclass
class OsvClient:
    """A connection to the service.

    Attributes:
        service: The address of the service.
        pause: The seconds before another attempt.
    """

    service: str = SERVICE
    pause: float = _PAUSE
    _session: requests.Session = field(default_factory=requests.Session)

    def query_packages(self, packages: Iterable[Package]) -> dict[Package, list[str]]:
        """Return the ids of the records about each package.

        The service answers at most BATCH_SIZE queries at a time, and splits a long answer to one
        query into pages.

        Raises:
            UserError: the service cannot be reached, or its answer is not valid.
        """
        found: dict[Package, list[str]] = {package: [] for package in packages}
        pending = [(package, "") for package in found]
        for _ in range(_MAX_BATCHES):
            if not pending:
                return found
            batch, pending = pending[:BATCH_SIZE], pending[BATCH_SIZE:]
            pending += self._query_batch(batch, found)
        raise self._invalid_answer("its pages do not end")

    def _query_batch(
        self, batch: list[tuple[Package, str]], found: dict[Package, list[str]]
    ) -> list[tuple[Package, str]]:
        """Add the ids of one answer to `found`.

        Args:
            batch: The packages, each with the token of the page to read, or "" for the first one.
            found: The ids that are known so far.

        Returns:
            The packages that have more pages, with their tokens.
        """
        queries = [_make_query(package, token) for package, token in batch]
        answer = self._request("POST", "v1/querybatch", {"queries": queries})
        more = []
        try:
            results = answer["results"]
            if len(results) != len(batch):
                raise self._invalid_answer(f"{len(results)} results for {len(batch)} queries")
            for (package, _), result in zip(batch, results, strict=True):
                found[package] += [_check_id(entry["id"]) for entry in result.get("vulns") or []]
                if token := result.get("next_page_token"):
                    more.append((package, str(token)))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise self._invalid_answer(f"an unexpected answer to querybatch ({error})") from error
        return more

    def read_record(self, record_id: str) -> dict[str, Any]:
        """Return a record in OSV's format (ossf.github.io/osv-schema).

        Raises:
            UserError: the service cannot be reached, or its answer is not valid.
        """
        record = self._request("GET", f"v1/vulns/{record_id}")
        if record.get("id") != record_id:
            raise self._invalid_answer(f"its record {record_id} has another id")
        return record

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the JSON object that the service answers; try again after a passing error."""
        problem = ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(self.pause)
            try:
                response = self._session.request(
                    method,
                    f"{self.service}/{path}",
                    json=body,
                    timeout=_TIMEOUT,
                    verify=package_index.find_ca_bundle() or True,
                    allow_redirects=False,
                )
                if response.status_code == 200:
                    return self._parse_answer(response)
            except requests.RequestException as error:
                problem = redact(str(error))[:300]
                continue
            problem = f"status {response.status_code} for {path}"
            if response.status_code < 500 and response.status_code != 429:
                break
        raise UserError(
            f"could not be asked for known vulnerabilities: {problem}",
            redact(self.service),
            "check the network and the proxy settings, and run again; until then, nothing is known",
            kind=UNREACHABLE,
        )

    def _parse_answer(self, response: requests.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._invalid_answer("an answer that is not a JSON object")
        return answer

    def _invalid_answer(self, problem: str) -> UserError:
        return UserError(
            f"the service sent {problem}",
            redact(self.service),
            "check the proxy settings, and run again; until then, nothing is known",
            kind=INVALID,
        )


def _make_query(package: Package, token: str) -> dict[str, Any]:
    query: dict[str, Any] = {
        "package": {"name": package.name, "ecosystem": ECOSYSTEM},
        "version": package.version,
    }
    return {**query, "page_token": token} if token else query


def _check_id(record_id: str) -> str:
    """Return the id of a record, which becomes a part of an address.

    Raises:
        ValueError, TypeError: it is not a valid id.
    """
    if not _ID.fullmatch(record_id):
        raise ValueError(record_id[:100])
    return record_id
