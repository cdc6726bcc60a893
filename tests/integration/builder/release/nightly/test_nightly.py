"""What is refused before anything is done, and what the report says."""

from __future__ import annotations

import json

import pytest

from builder.core import machine_architecture
from builder.pipeline.step_plans import comparison, goldens
from builder.pipeline.step_plans.comparison import Comparison
from builder.pipeline.step_plans.figures import Move
from builder.pipeline.step_plans.goldens import Golden
from builder.release.status_page import reports
from tests.support import errors, plan_environment
from tests.support.nightly_checkout import PIN, Place, make_bump_answer


@pytest.mark.parametrize(
    ("argv", "kind", "where", "value"),
    [
        (("--only", "publish"), errors.MISSING, "--to", None),
        (("--to", "reg.example/ns"), errors.MISSING, "--key", None),
        (("--distribution", "third"), errors.UNKNOWN, "--distribution", "third"),
        (("--distribution", "first", "--accelerator", "cuda12"), errors.MISSING, "nightly", None),
        (("--date", "2026-02-30"), errors.INVALID, "--date", "2026-02-30"),
        (
            ("--to", "reg.example/ns:tag", "--key", "KEY"),
            errors.INVALID,
            "reg.example",
            "tag/first",
        ),
        (
            ("--to", "reg.example/ns", "--key", "/none/key.pem"),
            errors.MISSING,
            "/none/key.pem",
            None,
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    place: Place, argv: tuple[str, ...], kind: str, where: str, value: str | None
) -> None:
    with errors.expect_user_error(kind, where=where, value=value):
        place.run(*argv, date="")
    assert place.calls() == []


def test_the_report_has_all_of_it_and_the_status_page_takes_it(place: Place, key: str) -> None:
    stats = {
        "result": {
            "sources": {
                "one": {
                    "count": 2,
                    "added": 5,
                    "removed": 1,
                    "oldest_days": 7,
                    "behind": {"commits": 0, "days": 0},
                    "over_time": [],
                }
            }
        }
    }
    place.answer(("patches stats", stats))
    jax = {"version": "0.12.0.1", "released": "2026-10-21"}
    record = {"schema": 1, "lines": {"line": jax}}
    (place.root / "checkout/locks/jax.json").write_text(json.dumps(record))
    result = place.run("--to", "reg.example/ns", "--key", key, "--untrained", "arm64")
    found = place.report()
    assert result.data["report"] == found
    assert (found["ok"], found["date"], set(found["seconds"])) == (
        True,
        "2026-11-28",
        {"bump", "patches", "audit", "plans", "projects", "images", "training", "publish"},
    )
    assert [
        (one["distribution"], one["accelerator"], one["architecture"]) for one in found["images"]
    ] == [
        ("first", "cpu", "amd64"),
        ("first", "cpu", "arm64"),
        ("second", "cpu", "amd64"),
        ("second", "cuda13", "amd64"),
    ]
    first = found["images"][0]
    assert (
        first["size"],
        first["unpacked"],
        first["built"]["state"],
        first["trained"]["runs"][0]["losses"],
    ) == (10, 20, "ok", {"5": 5.0, "10": 4.0})
    assert found["sources"]["one"]["pin"] == "b" * 40
    assert found["sources"]["one"]["debt"] == {
        "count": 2,
        "added": 5,
        "removed": 1,
        "behind": {"commits": 0, "days": 0},
        "upstream_status": None,
        "oldest_days": 7,
    }
    assert found["sources"]["old"]["state"] == "release"
    assert found["lines"] == {
        "line": {"until": "2030-01-01", "support": "as long as the tests run", "jax": jax}
    }
    assert reports.parse_report(json.loads(json.dumps(found)), "here").published[0].green


def test_recorded_plans_are_compared_at_the_new_pins(place: Place) -> None:
    folder = place.root / "checkout" / goldens.FOLDER
    recorded = plan_environment.write_recorded(folder, "small", distribution="second")
    plan_environment.write_recorded(folder, "other", distribution="first")
    goldens.write_golden(folder, Golden("later", "second", "t5x", True, None, {}))
    assert place.run("--only", "bump").ok
    place.calls()
    moves = [Move("launches", 1000, 1024), Move("bytes", 1000, 1001)]
    moved = Comparison(recorded, comparison.MOVED, moves).as_json()
    place.answer(("test", {"status": 1, "result": {"plans": [moved]}}))
    assert not place.run("--only", "plans").ok
    assert place.report()["plans"] == [moved]
    table = (place.folder / "report.md").read_text()
    assert "| small | launches | 1,000 | 1,024 | +2.40% |" in table
    assert "| small | bytes" not in table
    place.answer(("test", {"result": {"plans": []}}))
    assert place.run("--only", "plans").ok
    command = "test --plans small --manifest night/tree/manifest.yaml"
    assert place.calls() == [command] * 2
    assert place.states()["plans-second"] == "ok"


def test_projects_are_checked_at_the_new_pins(place: Place) -> None:
    manifest = place.root / "checkout/manifest.yaml"
    source = (
        '  extra: {git: "https://example.invalid/extra.git", track: main, '
        f"commit: {PIN}, patches: patches/extra}}"
    )
    text = manifest.read_text().replace("lines:", f"{source}\nlines:")
    manifest.write_text(f"{text}projects:\n  extra: {{distribution: second}}\n")
    (place.root / "checkout/patches/extra").mkdir()
    (place.root / "checkout/patches/extra/series").write_text("")
    place.answer(("bump extra", {**make_bump_answer("extra")}))
    assert place.run("--only", "bump").ok
    assert "bump extra --manifest night/tree/manifest.yaml" in place.calls()
    row = {
        "name": "extra",
        "distribution": "second",
        "commit": "b" * 40,
        "python": "3.12",
        "modules": 4,
        "skipped": {"extra.tool": "needs a program"},
        "failed": {},
        "losses": {"1": 2570.7, "2": 2550.0, "3": 2448.7},
        "problems": [],
    }
    failing = {**row, "losses": {}, "problems": ["training ended with status 1\nTraceback"]}
    place.answer(("test", {"status": 1, "result": {"projects": [failing], "ok": False}}))
    only = ("--only", "projects", "--architecture", machine_architecture.detect_architecture())
    assert not place.run(*only).ok
    assert "training ended with status 1" in (place.folder / "report.md").read_text()
    place.answer(("test", {"result": {"projects": [row], "ok": True}}))
    assert place.run(*only).ok
    assert place.report()["projects"] == [row]
    assert (
        "| extra | bbbbbbbbbbbb | 3 of 4 | 2571, 2550, 2449 |"
        in (place.folder / "report.md").read_text()
    )
    assert place.calls() == ["test --projects extra --manifest night/tree/manifest.yaml"] * 2


def test_what_was_not_asked_for_is_told_apart_from_what_failed(place: Place) -> None:
    assert place.run("--distribution", "first", "--untrained", "arm64").ok
    found = place.report()
    assert [entry["state"] for entry in found["published"]] == ["not-asked"] * 3
    assert found["images"][2]["built"] == {"state": "not-asked", "seconds": None, "why": None}
    assert "second cpu" not in (place.folder / "report.md").read_text()
    assert "first cpu amd64" in (place.folder / "report.md").read_text()
    assert "green" in (place.folder / "report.md").read_text().splitlines()[0]


def test_the_locks_are_asked_about_once_a_night_and_no_answer_is_red(place: Place) -> None:
    locks = {"first-cpu.txt": {"packages": 2, "vulnerabilities": []}}
    answer = {"date": "2026-11-28", "service": "https://osv.example", "locks": locks}
    error = {"what": "could not be asked", "where": "https://osv.example", "do": "run again"}
    place.answer(("audit", {"status": 2, "error": error}))
    assert not place.run("--only", "bump", "--only", "audit").ok
    found = place.report()
    assert (found["audit"]["state"], found["audit"]["locks"]) == ("error", {})
    assert "could not be asked" in found["audit"]["why"]
    assert reports.parse_report(found, "here").audit.state == "error"
    place.answer(("audit", {"result": answer}))
    assert place.run("--only", "audit").ok
    place.calls()
    assert place.run("--only", "audit").ok
    assert place.calls() == []
    audit = reports.parse_report(place.report(), "here").audit
    assert (audit.state, audit.date, audit.locks["first-cpu.txt"].packages) == (
        "ok",
        "2026-11-28",
        2,
    )
    assert "| first-cpu.txt | 2 | 0 |" in (place.folder / "report.md").read_text()


def test_offline_nobody_is_asked(place: Place) -> None:
    assert place.run("--only", "bump", "--only", "audit", offline=True).ok
    assert place.report()["audit"]["state"] == "left-out"
    assert not any(call.startswith("audit") for call in place.calls())


def test_a_publication_is_written_for_the_steps_after_it(place: Place, key: str) -> None:
    file = place.root / "outputs"
    file.write_text("earlier=1\n")
    words = ("--to", "reg.example/ns", "--key", key, "--untrained", "arm64")
    place.run(*words, "--distribution", "first", "--step-outputs", str(file))
    assert file.read_text() == "earlier=1\nrepository=reg/ns/x\ndigest=sha256:9\n"
    place.answer(("publish ", {"status": 2, "error": {"what": "w", "where": "", "do": ""}}))
    file.write_text("")
    place.run(*words, "--distribution", "first", "--fresh", "--step-outputs", str(file))
    assert file.read_text() == ""


@pytest.mark.parametrize("more", [(), ("--to", "reg.example/ns")])
def test_outputs_are_for_one_publication(place: Place, key: str, more: tuple[str, ...]) -> None:
    words = (*more, "--key", key) if more else ()
    with errors.expect_user_error(errors.CONFLICT, where="--step-outputs"):
        place.run(*words, "--step-outputs", "outputs")
    assert place.calls() == []


def test_red_stands_first_with_what_to_do(place: Place) -> None:
    place.answer(
        (
            "build",
            {
                "status": 2,
                "error": {"what": "the disk is full", "where": "here", "do": "free some | space"},
            },
        )
    )
    result = place.run("--distribution", "first", "--untrained", "arm64")
    assert not result.ok
    lines = result.text.splitlines()
    assert lines[0] == "# Night of 2026-11-28: red"
    assert (
        lines[2] == "- **image-first-cpu-amd64** error: here: the disk is full; free some | space"
    )
