"""The folder of a nightly run: what is kept, what begins anew, and what a killed step leaves."""

from __future__ import annotations

import json

import pytest

from builder.release.bump import working_copy
from tests.support import errors
from tests.support.nightly_checkout import Place

pytestmark = pytest.mark.slow


def test_another_day_begins_anew_and_keeps_the_reports(place: Place) -> None:
    place.run("--only", "bump")
    place.calls()
    place.run("--only", "bump", date="2026-11-29")
    assert len(place.calls()) == 2
    assert sorted(file.name for file in (place.folder / "reports").iterdir()) == [
        "2026-11-28.json",
        "2026-11-29.json",
    ]


def test_another_manifest_begins_anew(place: Place) -> None:
    place.run("--only", "bump")
    place.calls()
    (place.root / "checkout/locks/line/common.in").write_text("jax==2\n")
    place.run("--only", "bump")
    assert len(place.calls()) == 2
    assert (place.folder / "tree/locks/line/common.in").read_text() == "jax==2\n"


def test_fresh_begins_anew(place: Place) -> None:
    place.run("--only", "bump")
    place.calls()
    place.run("--only", "bump", "--fresh")
    assert len(place.calls()) == 2


def test_a_later_stage_needs_a_night(place: Place) -> None:
    with errors.expect_user_error(errors.MISSING, where=place.folder):
        place.run("--only", "images", date="")
    assert place.calls() == []


def test_a_later_stage_of_another_day_leaves_the_night_as_it_is(place: Place) -> None:
    place.run("--only", "bump")
    place.calls()
    with errors.expect_user_error(errors.MISSING, where=place.folder, value="2026-11-29"):
        place.run("--only", "images", date="2026-11-29")
    with errors.expect_user_error(errors.CONFLICT, where="--fresh", remedy="--only bump"):
        place.run("--only", "images", "--fresh", date="")
    assert place.calls() == []
    assert sorted(place.states()) == ["bump-one", "bump-two"]


def test_a_folder_of_others_is_left_alone(place: Place) -> None:
    place.folder.mkdir()
    (place.folder / "thesis.tex").write_text("years of work")
    with errors.expect_user_error(errors.EXISTS, where=place.folder, remedy="--folder"):
        place.run()
    assert [file.name for file in place.folder.iterdir()] == ["thesis.tex"]
    (place.folder / "thesis.tex").rename(place.root / "thesis.tex")
    place.folder.rmdir()
    (place.root / "thesis.tex").rename(place.folder)
    with errors.expect_user_error(errors.EXISTS, where=place.folder, remedy="--folder"):
        place.run()


def test_a_kill_while_a_night_begins_leaves_one_that_begins_anew(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run("--only", "bump")
    place.calls()
    with monkeypatch.context() as patch:
        patch.setattr(working_copy, "copy_manifest", _killed)
        with pytest.raises(KeyboardInterrupt):
            place.run("--only", "bump", "--fresh")
    (place.folder / ".tmp-1-night.json").write_text("")
    with errors.expect_user_error(errors.MISSING, where=place.folder):
        place.run("--only", "images", date="")
    assert place.run("--only", "bump").ok
    assert len(place.calls()) == 2


def test_a_kill_while_the_first_night_begins_does_not_make_its_folder_anothers(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(working_copy, "replace_folder", _killed)
        with pytest.raises(KeyboardInterrupt):
            place.run("--only", "bump")
    assert place.run("--only", "bump").ok


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_folder_that_an_artifact_brought_has_its_executable_files_again(place: Place) -> None:
    """Those of an overlay go into the image as they are."""
    script, plain = (place.root / "checkout/patches/one" / name for name in ("run.sh", "plain.sh"))
    for file in (script, plain):
        file.write_text("true")
    script.chmod(0o755)
    plain.chmod(0o644)
    assert place.run("--only", "bump", "--only", "patches", "--distribution", "first").ok
    place.calls()
    brought = place.folder / "tree/patches/one"
    (brought / "run.sh").chmod(0o644)
    assert place.run("--only", "patches", "--distribution", "first", date="").ok
    assert place.calls() == []
    assert [bool((brought / name).stat().st_mode & 0o100) for name in ("run.sh", "plain.sh")] == [
        True,
        False,
    ]


@pytest.mark.parametrize("damage", ["", "{", '{"schema": 2}', '{"schema": 1, "name": "x"}'])
def test_a_record_that_cannot_be_read_is_none(place: Place, damage: str) -> None:
    place.run("--only", "bump", "--only", "patches", "--distribution", "first")
    place.calls()
    (place.folder / "steps/patches-first.json").write_text(damage)
    place.run("--only", "patches", "--distribution", "first", date="")
    assert [call for call in place.calls() if "check" in call] == [
        "patches check one --manifest night/tree/manifest.yaml"
    ]


def test_a_kill_between_a_bump_and_its_lock_is_taken_up_there(place: Place) -> None:
    place.run("--only", "bump", "--distribution", "first")
    place.calls()
    record = place.folder / "steps/bump-one.json"
    data = json.loads(record.read_text())
    data["result"]["locks"]["lines"] = ["line"]
    record.write_text(json.dumps(data))
    (place.folder / "before-one").mkdir()  # what is there until a source is done
    place.run("--only", "bump", "--distribution", "first")
    assert place.calls() == ["lock line --manifest night/tree/manifest.yaml"]
    assert not (place.folder / "before-one").exists()


def test_what_a_step_says_is_kept_and_no_report_is_an_error(place: Place) -> None:
    place.answer(("patches check", {"raw": "no JSON", "status": 3}))
    assert not place.run("--only", "bump", "--only", "patches", "--distribution", "first").ok
    assert place.states()["patches-first"] == "error"
    assert (place.folder / "steps/patches-first.log").read_text() == "words of patches\n"


def test_an_interrupted_step_ends_the_night_and_leaves_no_record(place: Place) -> None:
    place.answer(("patches check", {"status": 130}))
    with pytest.raises(KeyboardInterrupt):
        place.run("--distribution", "first")
    assert sorted(place.states()) == ["bump-one"]
