"""The workflows: their schema, what they may do, what is pinned, and that each job is a command that a person can run."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import cli
from builder.commands.registry import PROGRAM
from builder.core import manifest
from builder.release.nightly import stages
from builder.release.nightly.stages import ImageTarget

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
WORKFLOWS: dict[str, dict[Any, Any]] = {
    file.stem: yaml.safe_load(file.read_text()) for file in FILES
}
JOBS = [(name, key, job) for name, flow in WORKFLOWS.items() for key, job in flow["jobs"].items()]
# What a `run` may hold beside commands of build.py: what a runner needs first, and the page of a
# release on GitHub.
OTHERS = {
    "apt-get update -q && apt-get install -q -y --no-install-recommends git ca-certificates",
    'git config --global --add safe.directory "$GITHUB_WORKSPACE"',
    "sudo apt-get update -q && sudo apt-get install -q -y --no-install-recommends mmdebstrap",
    "bash .ci/run",
    'cosign sign --yes --recursive "$REPOSITORY@$DIGEST"',
    'gh release create "$TAG" --verify-tag --title "$TAG" --notes-file build/notes.md',
}
# Who may write what; every other job reads the repository at most.
WRITES = {
    ("nightly", "publish"): {"packages", "id-token", "attestations"},
    ("nightly", "page"): {"pages", "id-token"},
    ("verified", "promote"): {"packages"},
    ("release", "publish"): {"packages", "id-token", "attestations"},
    ("release", "page"): {"contents"},
}
RUNNER = {"GITHUB_OUTPUT": "/runner/outputs"}  # what the runner sets, beside the variables of a job
SECRETS = {("nightly", "publish"), ("verified", "promote"), ("release", "publish")}


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _commands(job: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Every command line of a job, with what its variables hold."""
    shared = job.get("env", {})
    return [
        (step["run"].strip(), {**shared, **step.get("env", {})})
        for step in job["steps"]
        if "run" in step
    ]


def _rows(job: dict[str, Any]) -> list[dict[str, str]]:
    matrix = job.get("strategy", {}).get("matrix", {})
    return (
        matrix.get("include")
        or [{key: value} for key, values in matrix.items() for value in values]
        or [{}]
    )


def _filled(text: str, row: dict[str, str]) -> str:
    """An expression as it would come out: of the matrix its value, of anything else something of the right form."""
    text = re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda found: row[found[1]], text)
    text = text.replace("${{ inputs.reference }}", f"ghcr.io/a/b@sha256:{'0' * 64}")
    text = text.replace("${{ inputs.accept_not_run }}", "collective")
    text = text.replace("${{ github.repository }}", "a/b")
    return re.sub(r"\$\{\{ [^}]+ \}\}", "https://example.com", text)


def _value(variables: dict[str, str], row: dict[str, str], found: re.Match[str]) -> str:
    return _filled(str(variables[found[1]]), row)


def test_there_are_the_four() -> None:
    assert sorted(WORKFLOWS) == ["nightly", "presubmit", "release", "verified"]


def test_the_schema_of_workflows_holds() -> None:
    done = subprocess.run(
        [
            _program("check-jsonschema"),
            "--builtin-schema",
            "vendor.github-workflows",
            *map(str, FILES),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_nothing() -> None:
    done = subprocess.run(
        [
            _program("zizmor"),
            "--offline",
            "--no-progress",
            "--no-config",
            str(ROOT / ".github"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "key", "job"), JOBS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_job_may_do_what_it_needs_and_no_more(name: str, key: str, job: dict[str, Any]) -> None:
    assert WORKFLOWS[name]["permissions"] == {}
    writes = {what for what, how in job["permissions"].items() if how != "read"}
    assert writes == WRITES.get((name, key), set())
    assert set(job["permissions"]) <= {"contents", "packages"} | writes
    assert ("secrets." in str(job)) == ((name, key) in SECRETS)
    if (name, key) in SECRETS:
        assert job["environment"] == "publish"  # whose rules decide which branches get the key
    assert job["timeout-minutes"] <= 240


@pytest.mark.parametrize(
    ("name", "key", "job"), JOBS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_action_is_pinned_by_commit_and_says_its_version(
    name: str, key: str, job: dict[str, Any]
) -> None:
    text = (ROOT / ".github/workflows" / f"{name}.yml").read_text()
    for step in job["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), key
            assert re.search(rf"{re.escape(step['uses'])} # v\d+\.\d+\.\d+\n", text), key
            if step["uses"].startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_one_action_has_one_pin() -> None:
    used = {step["uses"] for _, _, job in JOBS for step in job["steps"] if "uses" in step}
    assert len({each.partition("@")[0] for each in used}) == len(used)


@pytest.mark.parametrize(
    ("name", "key", "job"), JOBS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_run_is_one_command_of_ours_whose_arguments_it_takes(
    name: str, key: str, job: dict[str, Any]
) -> None:
    for command, variables in _commands(job):
        if command in OTHERS:
            continue
        assert "${{" not in command, "a value goes through a variable, never into the line"
        assert not re.search(r"[;|&<>`\n]|\$\(", command), "the YAML holds no logic"
        for row in _rows(job):
            known = {**RUNNER, **variables}
            said = re.sub(r"\$(\w+)", functools.partial(_value, known, row), command)
            program, script, *argv = shlex.split(said)
            assert (program, script) == ("python3", "build.py")
            verb = argv[0] if argv[0] in PROGRAM.names else "build"
            shared, own = cli.make_shared_parser().split_known(
                argv[1:] if verb == argv[0] else argv
            )
            cli.make_command_parser(verb).parse_args(own)
            assert not shared.mirror, (name, key)


def test_a_job_that_signs_with_its_identity_is_protected_and_has_cosign() -> None:
    signing = {
        (name, key): [step.get("uses", step.get("run", "")) for step in job["steps"]]
        for name, key, job in JOBS
        if any("cosign sign" in step.get("run", "") for step in job["steps"])
    }
    assert set(signing) == {("nightly", "publish"), ("release", "publish")}
    for (name, key), steps in signing.items():
        job = WORKFLOWS[name]["jobs"][key]
        assert job["environment"] == "publish"
        assert job["permissions"]["id-token"] == "write"
        order = [
            next(number for number, step in enumerate(steps) if part in step)
            for part in ("docker/login-action", "--key env:", "cosign-installer", "cosign sign")
        ]
        assert order == sorted(order)  # first the key signs, and the tags move


def test_the_documented_identity_is_that_of_the_workflows_that_sign() -> None:
    page = (ROOT / "docs/how-to/publish-images.md").read_text()
    (pattern,) = set(re.findall(r"--certificate-identity-regexp '([^']+)'", page))
    identity = "https://github.com/OWNER/rosetta/.github/workflows/{}@refs/heads/main"
    released = identity.replace("refs/heads/main", "refs/tags/v0.3.0")
    signing = {identity.format("nightly.yml"), released.format("release.yml")}
    for file in FILES:
        for name in (identity.format(file.name), released.format(file.name)):
            assert bool(re.search(pattern, name)) == (name in signing), name
    for other in (
        identity.format("nightly.yml").replace("OWNER", "OTHER"),
        identity.format("nightly.yml").replace("main", "mine"),
        identity.format("nightly.yml") + "-mine",
        "https://example.com/?" + identity.format("nightly.yml"),
    ):
        assert not re.search(pattern, other), other
    assert "--certificate-oidc-issuer https://token.actions.githubusercontent.com" in page


def test_a_pull_request_meets_pinned_sources_no_secret_and_no_cache() -> None:
    for name, flow in WORKFLOWS.items():
        triggers = flow[True]  # YAML's `on`
        assert "pull_request_target" not in triggers
        assert "workflow_run" not in triggers
        if "pull_request" in triggers:
            assert name == "presubmit"
            assert any(
                command == "bash .ci/run"
                for job in flow["jobs"].values()
                for command, _ in _commands(job)
            )
            assert "secrets" not in str(flow)
            assert not any(
                "bump" in command or "nightly" in command
                for job in flow["jobs"].values()
                for command, _ in _commands(job)
            )
    assert "actions/cache" not in "".join(file.read_text() for file in FILES)


@pytest.mark.parametrize("name", ["nightly", "release"])
def test_all_that_the_manifest_lists_is_built_and_published_each_on_its_own_kind_of_machine(
    name: str,
) -> None:
    shipped = manifest.load(ROOT / "manifest.yaml")
    listed = stages.list_images(shipped)
    rows = _rows(WORKFLOWS[name]["jobs"]["image"])
    assert {
        ImageTarget(row["distribution"], row["accelerator"], row["architecture"]) for row in rows
    } == set(listed)
    assert len(rows) == len(listed)
    assert {(row["architecture"], row["runner"]) for row in rows} == {
        ("amd64", "ubuntu-24.04"),
        ("arm64", "ubuntu-24.04-arm"),
    }
    titles = [
        f"{row['distribution']}-{row['accelerator']}"
        for row in _rows(WORKFLOWS[name]["jobs"]["publish"])
    ]
    assert titles == list(dict.fromkeys(image.title for image in listed))


def test_a_release_is_published_after_every_image_was_built_and_trained_in() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    needs = {key: job.get("needs") for key, job in jobs.items()}
    assert needs == {"notes": None, "image": "notes", "publish": "image", "page": "publish"}
    assert not any("if" in job for job in jobs.values()), "a job that failed stops what follows"
    verbs = [command.split()[2] for command, _ in _commands(jobs["image"]) if "build.py" in command]
    assert verbs == ["--distribution", "--distribution", "verify"]


def test_a_red_job_of_the_night_stops_no_other() -> None:
    for key, job in WORKFLOWS["nightly"]["jobs"].items():
        if "needs" in job:
            assert job["if"] == "${{ !cancelled() }}", key
        assert job.get("strategy", {"fail-fast": False})["fail-fast"] is False
