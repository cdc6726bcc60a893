"""The reports of nights as the page needs them: read from folders and from the page of last night,
newest first.
"""

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
_LARGEST = 1 << 26
Day = Annotated[str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class State(_Model):
    """What became of a step; `why` where it is not ok."""

    state: str
    seconds: float | None = None
    why: str | None = None


class Training(State):
    """The training runs of one image, and what is wrong with them."""

    problems: list[str] = []
    runs: list[Run] = []


class Run(_Model):
    """A training; `losses` in nats per token, by step."""

    devices: int
    mesh: str = ""
    steps_per_second: float
    resumed_from: int | None
    losses: dict[str, float | None]


class Image(_Model):
    """An image of one architecture; sizes in bytes."""

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
        """The name of the distribution and its accelerator."""
        return f"{self.distribution}-{self.accelerator}"


class Published(State):
    """What went out of a distribution and accelerator; `green` where all before it was well too."""

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


class Debt(_Model):
    """The size and age of a source's patch series."""

    count: int | None = None
    added: int | None = None
    removed: int | None = None
    oldest_days: int | None = None
    behind: Behind | None = None


class Moment(_Model):
    """The patch debt of a source on one day."""

    date: Day
    count: int
    added: int | None = None
    removed: int | None = None
    behind: Behind | None = None


class Source(_Model):
    """A pin, where the bump left it, and the patches on it."""

    url: str | None = None
    wheel: str | None = None
    pin: str
    state: str
    tip: str | None = None
    commits: int | None = None
    problem: str | None = None
    patches: list[Patch] = []
    debt: Debt = Debt()
    over_time: list[Moment] = []


class Line(_Model):
    """The support level of a line, and the day on which it ends."""

    support: str | None = None
    until: Day | None = None


class Distribution(_Model):
    """The line of a distribution, and its sources."""

    line: str
    sources: list[str]


class Report(_Model):
    """One night."""

    schema_: Literal[1]
    date: Day
    ok: bool
    builder: str = ""
    commit: str | None = None
    seconds: dict[str, float] = {}
    sources: dict[str, Source]
    lines: dict[str, Line]
    distributions: dict[str, Distribution]
    images: list[Image]
    published: list[Published]


def of(data: Any, where: str) -> Report:
    """Check a report that was read from `where`; raise UserError if it is not valid."""
    try:
        return Report.model_validate({**data, "schema_": data["schema"]})
    except (ValidationError, TypeError, KeyError) as error:
        first = (
            error.errors(include_url=False)[0]
            if isinstance(error, ValidationError)
            else {"loc": ("schema",), "msg": "is missing"}
        )
        raise UserError(
            f"is no report of a night: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            where,
            "give a folder that build.py nightly made",
            kind=INVALID,
        ) from error


def of_folders(folders: Iterable[Path]) -> list[Any]:
    """Return the documents of all reports in these folders."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                "is no folder",
                str(folder),
                "give the folder `reports` of a night: build/nightly/reports",
                kind=MISSING,
            )
        for file in sorted(folder.glob("*.json")):
            try:
                found.append(json.loads(file.read_text(encoding="utf-8")))
            except (OSError, ValueError, RecursionError) as error:
                raise UserError(
                    "cannot be read as JSON",
                    str(file),
                    "take it out of the folder, or make it again: build.py nightly --only report",
                    kind=INVALID,
                ) from error
            of(found[-1], str(file))
    return found


def of_page(address: str) -> list[Any]:
    """Return the documents behind the page at `address`; none if there is no page yet (404)."""
    parts = urlsplit(address)
    if parts.scheme != "https" and not (
        parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
    ):
        raise UserError(
            "is no https:// address",
            f"--earlier {redact(address)}",
            "give the address of the page that was made last",
            kind=INVALID,
        )
    url = f"{address.rstrip('/')}/{FILE}"
    try:
        with requests.get(
            url, timeout=60, stream=True, verify=package_index.find_ca_bundle() or True
        ) as answer:
            if answer.status_code == 404:
                return []
            answer.raise_for_status()
            raw = b""
            for piece in answer.iter_content(1 << 20):
                raw += piece
                if len(raw) > _LARGEST:
                    break
            data = json.loads(raw) if len(raw) <= _LARGEST else None
    except (requests.RequestException, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot be read: {redact(str(error))[:300]}",
            redact(url),
            "see whether the page is there; without --earlier the page begins anew",
            kind=UNREACHABLE,
        ) from error
    if (
        not isinstance(data, dict)
        or data.get("schema") != 1
        or not isinstance(data.get("reports"), list)
    ):
        raise UserError(
            "is not what build.py status wrote",
            redact(url),
            "give the address of the page that was made last",
            kind=INVALID,
        )
    for each in data["reports"]:
        of(each, redact(url))
    return list(data["reports"])


def newest(documents: Iterable[Any], keep: int) -> list[Any]:
    """At most `keep` of them, newest first; of two of one day the one that comes later stands."""
    by_day = {each["date"]: each for each in documents}
    return [by_day[day] for day in sorted(by_day, reverse=True)[:keep]]
