from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from builder.release.status_page import page, reports
from tests.support import nightly_report


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
