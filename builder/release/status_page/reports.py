"""Read the reports of nightly runs, from folders and from an earlier status page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import requests
from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from builder.core import package_index
from builder.core.secrets import redact
from rosetta.core.errors import INVALID, MISSING, UNREACHABLE, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FILE = "reports.json"
_MAX_SIZE = 1 << 26  # bytes of the reports of an earlier page
Day = Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class State(_Model):
    """The state of a step, and why it is not ok."""

    state: str
    seconds: float | None = None
    why: str | None = None


class Training(State):
    """The training runs of one image, and what is wrong with them."""

    problems: list[str] = []
    runs: list[Run] = []


class Run(_Model):
    """A training run. `losses` has the loss of each step, in nats per token."""

    devices: int
    mesh: str = ""
    steps_per_second: float
    resumed_from: int | None
    losses: dict[str, float | None]


class Image(_Model):
    """An image of one architecture. Sizes are in bytes."""

    distribution: str
    accelerator: str
    architecture: str
    size: int | None = None
    unpacked: int | None = None
    digest: str | None = None
    built: State
    trained: Training

    @property
    def title(self) -> str:
        """The distribution and the accelerator."""
        return f"{self.distribution}-{self.accelerator}"


class Publication(State):
    """What was published of a distribution and accelerator.

    `green` tells whether its patches, builds and trainings succeeded as well.
    """

    title: str
    green: bool
    repository: str | None = None
    digest: str | None = None
    tags: list[str] = []


class Culprit(_Model):
    """The upstream commit that broke a patch."""

    commit: str
    author: str
    date: str
    subject: str


class Patch(_Model):
    """The outcome of one patch on the new pin."""

    name: str
    outcome: str
    detail: str = ""
    culprit: Culprit | None = None


class Behind(_Model):
    """The distance of a pin from the tip of its branch."""

    commits: int
    days: int


class PatchDebt(_Model):
    """The size and age of a source's patch series."""

    count: int | None = None
    added: int | None = None
    removed: int | None = None
    oldest_days: int | None = None
    behind: Behind | None = None


class PastState(_Model):
    """The patches of a source on one day."""

    date: Day
    count: int
    added: int | None = None
    removed: int | None = None
    behind: Behind | None = None


class Source(_Model):
    """A source: its pin, what the bump did, and its patches."""

    url: str | None = None
    wheel: str | None = None
    pin: str
    state: str
    tip: str | None = None
    commits: int | None = None
    problem: str | None = None
    patches: list[Patch] = []
    debt: PatchDebt = PatchDebt()
    over_time: list[PastState] = []


class JaxRelease(_Model):
    """A release of JAX, and the day on which the package index got it, if that is known."""

    version: str
    released: Day | None = None


class Line(_Model):
    """The support level of a line, the day on which it ends, and the JAX of the line."""

    support: str | None = None
    until: Day | None = None
    jax: JaxRelease | None = None


class Distribution(_Model):
    """The line of a distribution, and its sources."""

    line: str
    sources: list[str]


class Vulnerability(_Model):
    """A known vulnerability of a locked package, and the versions that fix it."""

    package: str
    version: str
    id: str
    aliases: list[str] = []
    summary: str = ""
    fixed: list[str] = []


class LockAudit(_Model):
    """The number of packages of a lock, and their known vulnerabilities."""

    packages: int
    vulnerabilities: list[Vulnerability]


class Audit(State):
    """What OSV listed about the locks on one day; no locks if OSV did not answer."""

    date: Day | None = None
    locks: dict[str, LockAudit] = {}


class Report(_Model):
    """The report of one nightly run."""

    schema_: Literal[1]
    date: Day
    ok: bool
    builder: str = ""
    commit: str | None = None
    seconds: dict[str, float] = {}
    sources: dict[str, Source]
    lines: dict[str, Line]
    distributions: dict[str, Distribution]
    audit: Audit = Audit(state="not-asked")
    images: list[Image]
    published: list[Publication]

    def list_titles(self, line: str) -> list[str]:
        """Return the titles of the images of a line."""
        titles = [
            image.title
            for image in self.images
            if image.distribution in self.distributions
            and self.distributions[image.distribution].line == line
        ]
        return list(dict.fromkeys(titles))


def parse_report(data: Any, where: str) -> Report:
    """Return a report.

    Args:
        data: The report as JSON.
        where: The file or the address of the report, for errors.

    Raises:
        UserError: it is not a valid report.
    """
    try:
        return Report.model_validate({**data, "schema_": data["schema"]})
    except (ValidationError, TypeError, KeyError) as error:
        field, problem = "schema", "is missing"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            field, problem = ".".join(map(str, first["loc"])), first["msg"]
        raise UserError(
            f"not a valid report of a nightly run: {field}: {problem}",
            where,
            "give a folder that build.py nightly made",
            kind=INVALID,
        ) from error


def read_folders(folders: Iterable[Path]) -> list[Any]:
    """Return all reports in some folders, as JSON.

    Raises:
        UserError: a folder does not exist, or a report is not valid.
    """
    documents = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                "is not a folder",
                str(folder),
                "give the folder `reports` of a nightly run: build/nightly/reports",
                kind=MISSING,
            )
        documents += [_read_file(file) for file in sorted(folder.glob("*.json"))]
    return documents


def _read_file(file: Path) -> Any:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            "cannot be read as JSON",
            str(file),
            "move it out of the folder, or make it again: build.py nightly --only report",
            kind=INVALID,
        ) from error
    parse_report(document, str(file))
    return document


def read_earlier_page(address: str) -> list[Any]:
    """Return the reports of an earlier status page, as JSON.

    The list is empty if there is no such page (status 404).

    Raises:
        UserError: the page cannot be read, or is not a status page.
    """
    url = f"{_check_address(address).rstrip('/')}/{FILE}"
    try:
        document = _download_json(url)
    except (requests.RequestException, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot be read: {redact(str(error))[:300]}",
            redact(url),
            "check that the page exists; without --earlier, the page starts without a history",
            kind=UNREACHABLE,
        ) from error
    reports = document.get("reports") if isinstance(document, dict) else None
    if not isinstance(reports, list) or document.get("schema") != 1:
        raise UserError(
            "is not what build.py status wrote",
            redact(url),
            "give the address of the page that was made last",
            kind=INVALID,
        )
    for report in reports:
        parse_report(report, redact(url))
    return reports


def _check_address(address: str) -> str:
    """Return an address that may be read: by https, or on this machine."""
    parts = urlsplit(address)
    is_local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not is_local:
        raise UserError(
            "is not an https:// address",
            f"--earlier {redact(address)}",
            "give the address of the page that was made last",
            kind=INVALID,
        )
    return address


def _download_json(url: str) -> Any:
    """Return a JSON document; one without reports if there is none, and None if it is too big."""
    certificates = package_index.find_ca_bundle() or True
    with requests.get(url, timeout=60, stream=True, verify=certificates) as response:
        if response.status_code == 404:
            return {"schema": 1, "reports": []}
        response.raise_for_status()
        content = b""
        for piece in response.iter_content(1 << 20):
            content += piece
            if len(content) > _MAX_SIZE:
                return None
        return json.loads(content)


def sort_newest_first(documents: Iterable[Any]) -> list[Any]:
    """Return the reports, newest first. Of two reports of one day, the later one is used."""
    by_date = {document["date"]: document for document in documents}
    return [by_date[date] for date in sorted(by_date, reverse=True)]
