"""What a night does and in which order, what holds back what, and that nothing goes out untested."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.release.bump import working_copy
from tests.support.nightly_checkout import (
    PIN,
    TIP,
    Place,
    make_build_answer,
    make_bump_answer,
    make_pin_edit,
)

pytestmark = pytest.mark.slow

NO = {"status": 2, "error": {"what": "the disk is full", "where": "here", "do": "free some space"}}


def _publish(place: Place, key: str, *more: str) -> bool:
    return place.run("--to", "reg.example/ns", "--key", key, "--untrained", "arm64", *more).ok


def test_a_whole_night_in_its_order(place: Place, key: str) -> None:
    assert _publish(
        place, key, "--distribution", "first", "--builder-id", "https://ci.example/nightly"
    )
    tree = "--manifest night/tree/manifest.yaml"
    assert place.calls() == [
        f"bump one {tree}",
        f"patches check one {tree}",
        f"patches stats one {tree}",
        "patches stats one --manifest checkout/manifest.yaml",
        f"audit {tree}",
        f"build --distribution first --accelerator cpu --platform linux/amd64 --output oci:night/images/first-cpu-amd64 --locked {tree}",
        f"build --distribution first --accelerator cpu --platform linux/arm64 --output oci:night/images/first-cpu-arm64 --locked {tree}",
        f"build --distribution first --accelerator cpu --platform linux/amd64 --output image:localhost/rosetta-nightly:first-cpu --compression gzip --locked {tree}",
        "verify image:localhost/rosetta-nightly:first-cpu",
        f"publish oci:night/images/first-cpu-amd64 oci:night/images/first-cpu-arm64 --to reg.example/ns/first --key key.pem --date 2026-11-28 {tree} --builder-id https://ci.example/nightly",
        "verify-published reg.example/ns/first@sha256:9 --key night/signed-by.pub",
    ]
    assert (place.folder / "signed-by.pub").read_text().startswith("-----BEGIN PUBLIC KEY-----")


def test_the_checkout_stays_as_it_is_and_the_copy_moves(place: Place) -> None:
    before = (place.root / "checkout/manifest.yaml").read_text()
    assert place.run("--only", "bump").ok
    assert (place.root / "checkout/manifest.yaml").read_text() == before
    assert (place.folder / "tree/manifest.yaml").read_text().count(TIP) == 2


def test_a_second_run_does_nothing_again(place: Place, key: str) -> None:
    assert _publish(place, key)
    place.calls()
    assert _publish(place, key)
    assert place.calls() == []


def test_one_red_distribution_holds_back_nobody_else(place: Place, key: str) -> None:
    place.answer(("build --distribution first --accelerator cpu --platform linux/arm64", NO))
    assert not _publish(place, key)
    states = place.states()
    assert (
        states["image-first-cpu-amd64"],
        states["image-first-cpu-arm64"],
        states["publish-first-cpu"],
    ) == ("ok", "error", "blocked")
    assert (states["publish-second-cpu"], states["publish-second-cuda13"]) == ("ok", "ok")
    assert not any(call.startswith("publish") and "first" in call for call in place.calls())
    place.answer()
    assert _publish(place, key)
    assert [call.split()[0] for call in place.calls()] == ["build", "publish", "verify-published"]


@pytest.mark.parametrize(
    "step", ["patches check one", "verify image:localhost/rosetta-nightly:first-cpu"]
)
def test_nothing_goes_out_that_has_not_passed(place: Place, key: str, step: str) -> None:
    place.answer(
        (
            step,
            {
                "status": 1,
                "result": {"ok": False, "runs": [], "problems": ["the loss did not fall"]},
            },
        )
    )
    assert not _publish(place, key)
    assert place.states()["publish-first-cpu"] == "blocked"
    assert place.states()["publish-second-cpu"] == "ok"
    assert not any(call.startswith("publish") and "first" in call for call in place.calls())


def test_an_architecture_that_cannot_train_here_goes_out_only_if_that_is_said(
    place: Place, key: str
) -> None:
    argv = ("--to", "reg.example/ns", "--key", key, "--distribution", "first")
    assert not place.run(*argv).ok
    assert place.states()["publish-first-cpu"] == "blocked"
    assert (
        "linux/arm64: no model was trained in it (this machine is amd64"
        in place.report()["published"][0]["why"]
    )
    assert place.run(*argv, "--untrained", "arm64").ok
    assert place.report()["images"][1]["trained"]["state"] == "left-out"


def test_a_training_that_failed_is_not_excused_by_untrained(place: Place, key: str) -> None:
    place.answer(
        ("verify image", {"status": 1, "result": {"ok": False, "runs": [], "problems": ["no"]}})
    )
    assert not _publish(place, key, "--untrained", "amd64")
    assert place.states()["publish-first-cpu"] == "blocked"


def test_a_training_of_another_image_does_not_count(place: Place, key: str) -> None:
    assert place.run(
        "--only",
        "bump",
        "--only",
        "patches",
        "--only",
        "images",
        "--only",
        "training",
        "--distribution",
        "second",
    ).ok
    place.answer(("build", make_build_answer("sha256:2")))
    (place.root / "checkout/rosetta").mkdir()
    (place.root / "checkout/rosetta/new.py").write_text("x = 1\n")
    assert place.run("--only", "images", "--distribution", "second", date="").ok
    assert not place.run(
        "--only",
        "publish",
        "--distribution",
        "second",
        "--to",
        "reg.example/ns",
        "--key",
        key,
        date="",
    ).ok
    assert place.states()["publish-second-cpu"] == "blocked"


def test_machines_that_each_did_a_part_are_joined(place: Place, key: str) -> None:
    """As the workflow does: the folder goes from one to the next, and no date is given again."""
    assert place.run("--only", "bump", "--only", "patches").ok
    for distribution in ("first", "second"):
        ran = place.run(
            "--only",
            "images",
            "--only",
            "training",
            "--distribution",
            distribution,
            "--architecture",
            "amd64",
            date="",
        )
        assert ran.ok
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platform.machine", lambda: "aarch64")
        assert place.run(
            "--only",
            "images",
            "--only",
            "training",
            "--distribution",
            "first",
            "--architecture",
            "arm64",
            date="",
        ).ok
    assert place.run("--only", "publish", "--to", "reg.example/ns", "--key", key, date="").ok
    assert place.run("--only", "report", date="").ok
    assert place.report()["ok"] is True
    assert all(entry["green"] for entry in place.report()["published"])


def test_what_is_new_is_told_where_there_was_a_night_before(place: Place, key: str) -> None:
    result = {
        "digest": "sha256:9",
        "repository": "r",
        "tags": [],
        "previous": {"latest-cpu": "sha256:8"},
    }
    place.answer(
        ("publish", {"result": result}),
        ("changelog", {"result": {"sources": {"one": {"from": PIN, "to": TIP}}}}),
    )
    assert _publish(place, key, "--distribution", "first")
    assert (
        place.calls()[-1]
        == "changelog reg.example/ns/first@sha256:8 reg.example/ns/first@sha256:9 --key night/signed-by.pub"
    )
    assert place.report()["published"][0]["changes"] == {"one": {"from": PIN, "to": TIP}}


def test_what_was_sent_and_does_not_verify_is_red(place: Place, key: str) -> None:
    place.answer(("verify-published", {"status": 1, "result": {}}))
    assert not _publish(place, key, "--distribution", "first")
    entry = place.report()["published"][0]
    assert (entry["state"], entry["green"]) == ("failed", False)


def test_a_pin_that_waits_is_told_and_turns_nothing_red(place: Place) -> None:
    held = make_bump_answer("one")["result"]
    held["summary"]["one"] = "part-way"
    place.answer(("bump one", {"status": 1, "result": held, "edit": make_pin_edit("one")}))
    assert place.run("--distribution", "first", "--untrained", "arm64").ok
    assert place.states()["bump-one"] == "held"
    assert place.report()["sources"]["one"]["state"] == "part-way"
    assert "**one** part-way" in (place.folder / "report.md").read_text()


def test_a_pin_goes_back_whose_packages_cannot_be_locked(place: Place) -> None:
    place.answer(
        (
            "bump one",
            {
                **make_bump_answer("one", locks={"lines": ["line"], "problem": ""}),
                "edit": make_pin_edit("one"),
            },
        ),
        ("lock", NO),
    )
    assert not place.run("--only", "bump").ok
    text = (place.folder / "tree/manifest.yaml").read_text()
    assert (text.count(PIN), text.count(TIP)) == (1, 1)
    assert "could not be locked" in place.report()["sources"]["one"]["problem"]
    assert place.report()["sources"]["two"]["state"] == "moved"
    assert list(place.folder.glob("before-*")) == []


def _killed(action: Callable[..., None], *, after: int) -> Callable[..., None]:
    """Does it so many times; then the program is ended."""
    left = iter(range(after))

    def call(*arguments: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        action(*arguments)

    return call


@pytest.mark.parametrize("killed", [False, True])
def test_a_pin_that_went_back_moves_in_the_next_run_if_its_packages_can_be_locked_then(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, killed: bool
) -> None:
    """Also after a kill just before it went back."""
    bump = (
        "bump one",
        {
            **make_bump_answer("one", locks={"lines": ["line"], "problem": ""}),
            "edit": make_pin_edit("one"),
        },
    )
    place.answer(bump, ("lock", NO))
    with (
        monkeypatch.context() as patch,
        pytest.raises(KeyboardInterrupt) if killed else contextlib.nullcontext(),
    ):
        if killed:
            patch.setattr(
                working_copy, "replace_folder", _killed(working_copy.replace_folder, after=2)
            )  # the night begins, and what is now is kept
        assert not place.run("--only", "bump", "--distribution", "first").ok
    assert place.states() == {"bump-one": "held", "lock-one": "error"}
    place.calls()
    place.answer(bump)
    assert place.run("--only", "bump", "--distribution", "first").ok
    assert [call.split()[0] for call in place.calls()] == ["bump", "lock"]
    assert place.states() == {"bump-one": "ok", "lock-one": "ok"}
    assert (place.folder / "tree/manifest.yaml").read_text().count(TIP) == 1


def test_new_requirements_are_locked_at_once(place: Place) -> None:
    place.answer(
        (
            "bump one",
            {
                **make_bump_answer("one", locks={"lines": ["line"], "problem": ""}),
                "edit": make_pin_edit("one"),
            },
        )
    )
    assert place.run("--only", "bump", "--distribution", "first").ok
    assert place.calls() == [
        "bump one --manifest night/tree/manifest.yaml",
        "lock line --manifest night/tree/manifest.yaml",
    ]


def test_a_line_takes_the_newest_releases_that_it_asks_for(place: Place) -> None:
    """If they cannot be locked, the images are built all the same, and the night is red."""
    manifest = place.root / "checkout/manifest.yaml"
    text = manifest.read_text()
    manifest.write_text(text.replace("common.in,", "common.in, newest: [jax, jaxlib],"))
    upgrade = "lock line --upgrade jax --upgrade jaxlib"
    place.answer((upgrade, NO))
    chosen = ("--distribution", "second", "--accelerator", "cpu")
    assert not place.run(*chosen).ok
    assert place.calls()[:2] == [
        "bump two --manifest night/tree/manifest.yaml",
        f"{upgrade} --manifest night/tree/manifest.yaml",
    ]
    assert place.states()["upgrade-line"] == "error"
    assert place.states()["training-second-cpu-amd64"] == "ok"
    assert "**upgrade-line** error" in (place.folder / "report.md").read_text()
    place.answer()
    assert place.run(*chosen).ok
    assert upgrade in place.calls()[0]


def test_a_bump_that_ends_in_an_error_leaves_no_half_behind_and_is_tried_again(
    place: Place,
) -> None:
    place.answer(("bump one", {**NO, "edit": make_pin_edit("one")}))
    assert not place.run("--only", "bump").ok
    assert (place.folder / "tree/manifest.yaml").read_text().count(TIP) == 1
    place.answer()
    assert place.run("--only", "bump").ok
    assert (place.folder / "tree/manifest.yaml").read_text().count(TIP) == 2
