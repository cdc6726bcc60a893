from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from builder.release.status_page import page, reports
from tests.support import nightly_report


def _report_with_jax(
    day: str, version: str = "0.12.0.1", released: str | None = "2026-10-21", *, green: bool = True
) -> dict[str, Any]:
    """Return a report whose only line has this JAX."""
    report = nightly_report.make_report(day, green=green)
    report["lines"]["line"]["jax"] = {"version": version, "released": released}
    return report


def _content(*documents: dict[str, Any]) -> page.PageContent:
    return page.make_content([reports.parse_report(document, "here") for document in documents])


class _Seen(HTMLParser):
    """What a browser would fetch or run, and that all that is opened is closed."""

    void = {"meta", "br", "line", "polyline"}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag


def test_the_last_green_night_is_found_and_the_history_runs_from_old_to_new() -> None:
    found = _content(
        nightly_report.make_report("2026-11-28", green=False),
        nightly_report.make_report("2026-11-27"),
        nightly_report.make_report("2026-11-26", green=False),
    )
    (one,) = found.titles
    assert (one.verdict, one.last_green) == ("red", "2026-11-27")
    assert one.history == (("2026-11-26", "red"), ("2026-11-27", "green"), ("2026-11-28", "red"))
    assert one.badge == ("last green 2026-11-27", "red")


def test_what_was_not_asked_for_is_neither_red_nor_green() -> None:
    quiet = nightly_report.make_report("2026-11-28")
    quiet["published"][0].update(state="not-asked", green=False, digest=None)
    for image in quiet["images"]:
        image["built"]["state"] = image["trained"]["state"] = "not-asked"
    assert _content(quiet).untried_titles == ["thing-cpu"]
    (one,) = _content(quiet, nightly_report.make_report("2026-11-27")).titles
    assert (one.verdict, one.badge) == ("quiet", ("last green 2026-11-27", "grey"))


def test_built_but_not_published_tonight_is_not_green() -> None:
    only_built = nightly_report.make_report()
    only_built["published"][0].update(state="not-asked", green=False)
    assert _content(only_built).titles[0].verdict == "quiet"
    only_built["images"][1]["trained"]["state"] = "failed"
    assert _content(only_built).titles[0].verdict == "red"


def test_each_badge_tells_of_its_own() -> None:
    found = page.draw_badges(_content(nightly_report.make_report(green=False)))
    assert sorted(found) == ["thing-cpu-amd64.svg", "thing-cpu-arm64.svg", "thing-cpu.svg"]
    assert "thing-cpu amd64: red" in found["thing-cpu-amd64.svg"]
    assert "thing-cpu arm64: built, trained" in found["thing-cpu-arm64.svg"]
    left_out = nightly_report.make_report()
    left_out["images"][1]["trained"] = {"state": "left-out", "why": "this machine is amd64"}
    assert "built, not trained" in page.draw_badges(_content(left_out))["thing-cpu-arm64.svg"]


def test_the_page_has_all_of_it_and_fetches_nothing() -> None:
    text = page.render_page(
        _content(nightly_report.make_report(green=False), nightly_report.make_report("2026-11-27"))
    )
    seen = _Seen()
    seen.feed(text)
    assert seen.open == []
    assert not seen.tags & {"script", "link", "img", "iframe"}
    assert set(seen.addresses) == {f"https://github.com/a/up/commit/{'a' * 40}", "reports.json"}
    for word in (
        "last green 2026-11-27",
        "the disk is full; free some space",
        "2 MB, 3 MB unpacked",
        "12.5 steps/s",
        "until 2027-12-31",
        "fixes of what stops it",
        "+4 &minus;2",
        "oldest 9 days",
        "Not all is green",
    ):
        assert word in text, word
    assert "url(" not in text
    assert 'lang="en-GB"' in text
    assert "prefers-color-scheme: dark" in text
    assert len(re.findall(r"<h1", text)) == 1


def test_the_vulnerabilities_of_each_lock_and_the_day_of_the_query() -> None:
    entry = {
        "package": "jinja2",
        "version": "2.4.1",
        "id": "GHSA-462w-v97r-4m45",
        "aliases": ["CVE-2019-10906"],
        "summary": "a <b>sandbox</b> escape",
        "fixed": ["2.10.1"],
    }
    audit = {
        "state": "ok",
        "seconds": 1.0,
        "why": None,
        "date": "2026-11-28",
        "service": "https://api.osv.dev",
        "locks": {
            "t5x-cpu.txt": {"packages": 127, "vulnerabilities": [entry]},
            "build.txt": {"packages": 3, "vulnerabilities": []},
        },
    }
    text = page.render_page(_content(nightly_report.make_report(audit=audit)))
    part = text[text.index('id="vulnerabilities"') : text.index('id="support"')]
    seen = _Seen()
    seen.feed(text)
    assert seen.open == []
    assert "https://osv.dev/vulnerability/GHSA-462w-v97r-4m45" in seen.addresses
    assert "b" not in seen.tags
    for word in ("2026-11-28", "t5x-cpu.txt", ">1<", "CVE-2019-10906", "fixed in 2.10.1"):
        assert word in part, word
    assert part.count("none listed") == 1


@pytest.mark.parametrize(
    ("audit", "word"),
    [
        ({"state": "error", "why": "api.osv.dev could not be asked"}, "could not be asked"),
        ({"state": "left-out", "why": "OSV was not asked"}, "OSV was not asked"),
        ({"state": "ok", "why": None}, "missing"),
        ({"state": "not-asked", "why": None}, "nothing is known"),
        (None, "nothing is known"),
    ],
)
def test_an_answer_that_is_missing_is_not_none(audit: dict[str, Any] | None, word: str) -> None:
    report = nightly_report.make_report()
    if audit:
        report["audit"] = {**audit, "seconds": None, "date": None, "locks": {}}
    text = page.render_page(_content(report))
    part = text[text.index('id="vulnerabilities"') : text.index('id="support"')]
    assert word in part
    assert "none" not in part
    assert "<table" not in part


def test_a_pin_that_waits_stands_on_top_and_names_who_broke_it() -> None:
    held = nightly_report.make_report()
    culprit = {"commit": "b" * 40, "author": "T. Ester", "date": "2026-11-20", "subject": "rework"}
    held["sources"]["up"].update(
        state="part-way",
        patches=[{"name": "mine", "outcome": "conflict", "detail": "", "culprit": culprit}],
    )
    text = page.render_page(_content(held))
    assert text.index("up part way") < text.index("Distributions")
    assert f"https://github.com/a/up/commit/{'b' * 40}" in text
    assert "T. Ester, 2026-11-20: rework" in text


def test_what_upstream_writes_is_text_and_an_address_elsewhere_is_no_link() -> None:
    hostile = nightly_report.make_report()
    culprit = {
        "commit": "b" * 40,
        "author": "<script>alert(1)</script>",
        "date": "2026-11-20",
        "subject": '" onload="x',
    }
    hostile["sources"]["up"].update(
        url="javascript:alert(1)",
        patches=[{"name": "mine", "outcome": "conflict", "detail": "", "culprit": culprit}],
    )
    seen = _Seen()
    seen.feed(page.render_page(_content(hostile)))
    assert "script" not in seen.tags
    assert set(seen.addresses) == {"reports.json"}


def test_a_line_counts_the_days_from_the_release_of_its_jax_to_its_first_green_night() -> None:
    content = _content(
        _report_with_jax("2026-10-26", green=False),
        _report_with_jax("2026-10-25"),
        _report_with_jax("2026-10-24"),
        _report_with_jax("2026-10-22", green=False),
        _report_with_jax("2026-10-21", "0.11.2", "2026-09-01"),
    )
    (line,) = content.lines
    assert (line.first_green, line.days) == ("2026-10-24", 3)
    assert "2026-10-24, 3 days later" in page.render_page(content)


def test_a_line_that_was_never_green_counts_to_the_newest_night() -> None:
    """A green night with an earlier JAX, or before reports named one, does not count."""
    (line,) = _content(
        _report_with_jax("2026-10-23", green=False),
        _report_with_jax("2026-10-22", "0.11.2"),
        nightly_report.make_report("2026-10-21"),
    ).lines
    assert (line.first_green, line.days) == (None, 2)


def test_a_line_is_green_only_if_each_of_its_titles_is() -> None:
    report = _report_with_jax("2026-10-24")
    other = {**report["images"][0], "accelerator": "cuda13"}
    report["images"].append(other)
    report["published"].append(
        {**report["published"][0], "title": "thing-cuda13", "state": "not-asked", "green": False}
    )
    assert _content(report).lines[0].first_green is None
    report["published"][1].update(state="ok", green=True)
    assert _content(report).lines[0].first_green == "2026-10-24"


def test_no_days_are_counted_from_a_day_that_is_not_known() -> None:
    (line,) = _content(_report_with_jax("2026-10-24", released=None)).lines
    assert (line.first_green, line.days) == ("2026-10-24", None)
    assert _content(nightly_report.make_report()).lines[0].jax == "none"


def test_the_first_green_night_stays_when_older_nights_go() -> None:
    days = ("2026-10-27", "2026-10-26", "2026-10-25", "2026-10-24")
    nights = [reports.parse_report(_report_with_jax(day), "here") for day in days]
    assert [night.date for night in page.select_reports(nights, 2)] == [
        "2026-10-27",
        "2026-10-26",
        "2026-10-24",
    ]
