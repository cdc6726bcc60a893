from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rosetta.core.run_description import Run
from rosetta.launch import placement_checks
from rosetta.presets import preset_files, schema
from tests.support import documentation_commands, errors, fake_launchers
from tests.support.documentation_blocks import DRY_RUN, ROOT, read_page

pytestmark = pytest.mark.slow

T5X = Run(
    "t5x",
    ("rosetta", "t5x", "pretrain"),
    "small",
    mounts=(("/data/runs", "/shared"), ("pvc:texts", "/texts/")),
)
PAX = replace(T5X, framework="pax", entry=("rosetta", "pax", "train"))
ALL = ("docker", "pyxis", "apptainer", "jobset")
PAGES = [
    "docs/reference/launch.md",
    *(f"docs/how-to/{path.name}" for path in (ROOT / "docs/how-to").glob("run-*.md")),
]
ON = {
    "docker": ("run", "--on=docker", "--image=i"),
    "slurm": ("submit", "--on=slurm"),
    "jobset": ("submit", "--on=jobset", "--image=i"),
}


@pytest.fixture
def place(tmp_path: Path) -> fake_launchers.Place:
    return fake_launchers.make_launchers(tmp_path)


@pytest.mark.parametrize("run", [T5X, PAX])
@pytest.mark.parametrize(
    "folder", ["/shared", "/shared/a/b", "/shared/../shared/a", "/texts/x", "gs://bucket/a"]
)
def test_a_folder_that_stays(run: Run, folder: str) -> None:
    for on in ALL:
        assert (
            placement_checks.check_folders(
                replace(run, env={placement_checks.OUTPUT_VARIABLES[run.framework]: folder}), on
            )
            == ()
        )


@pytest.mark.parametrize(
    ("run", "env", "where", "remedy"),
    [
        (
            T5X,
            {"MODEL_DIR": "/sharedx/a"},
            "MODEL_DIR=/sharedx/a",
            "--mount OUTSIDE:/sharedx/a",
        ),
        (T5X, {"MODEL_DIR": "/shared/../a"}, "MODEL_DIR=/shared/../a", "--mount OUTSIDE:/"),
        (
            T5X,
            {"MODEL_DIR": "shared/a"},
            "MODEL_DIR=shared/a",
            ("MODEL_DIR=/FOLDER", "--mount OUTSIDE:/FOLDER"),
        ),
        (T5X, {}, "MODEL_DIR", ("MODEL_DIR=/FOLDER", "--mount OUTSIDE:/FOLDER")),
        (T5X, {"T5X_WORKSPACE_DIR": "/a"}, "MODEL_DIR=/a", "--mount OUTSIDE:/a"),
        (PAX, {"MODEL_DIR": "/shared"}, "LOG_DIR", "LOG_DIR=/FOLDER"),
        (PAX, {"LOG_DIR": "/a"}, "LOG_DIR=/a", "--mount OUTSIDE:/a"),
    ],
)
def test_a_folder_that_goes_with_its_container(
    run: Run, env: dict[str, str], where: str, remedy: str | tuple[str, ...]
) -> None:
    run = replace(run, env=env)
    for on in ("docker", "jobset"):
        with errors.expect_user_error(errors.CONFLICT, remedy=remedy) as error:
            placement_checks.check_folders(run, on)
        assert error.value.where == where
    for on in ("pyxis", "apptainer"):  # sites mount things themselves
        (line,) = placement_checks.check_folders(run, on)
        assert line.startswith(f"{where}: ")
        assert error.value.do in line
        assert "unless the site mounts it" in line
    for on in ("local", "slurm"):
        assert placement_checks.check_folders(run, on) == ()


def test_a_workspace_that_stays_is_enough() -> None:
    assert (
        placement_checks.check_folders(replace(T5X, env={"T5X_WORKSPACE_DIR": "/shared"}), "docker")
        == ()
    )


def test_of_another_entry_nothing_is_known() -> None:
    assert placement_checks.check_folders(replace(T5X, entry=("sh", "-c", "true")), "docker") == ()


@pytest.mark.parametrize(
    ("env", "missing"),
    [
        (
            {
                "DATA": "text:/texts/*.txt,/a/*.txt",
                "EVAL_DATA": "jsonl:b.jsonl",
                "VOCAB": "/v/sp.model",
            },
            "/a/*.txt (DATA), b.jsonl (EVAL_DATA), /v/sp.model (VOCAB)",
        ),
        (
            {"DATA": '{"text:/texts/a": 0.5, "cache:/c": 0.5}', "VOCAB_PATH": "/texts/v"},
            "/c (DATA)",
        ),
        (
            {
                "DATA": "tfds:c4/en",
                "TFDS_DATA_DIR": "/t",
                "VOCAB": "gs://b/v",
                "INITIAL_CHECKPOINT_PATH": "/i",
                "CHECKPOINT_RESTORE_PATH": "gs://b/c",
            },
            "/t (TFDS_DATA_DIR), /i (INITIAL_CHECKPOINT_PATH)",
        ),
        ({"DATA": "hf:owner/name", "VOCAB": "byte", "TFDS_DATA_DIR": "gs://b/t"}, ""),
        ({"DATA": "synthetic", "VOCAB": "ids:100"}, ""),
    ],
)
def test_what_it_reads_and_no_mount_brings(env: dict[str, str], missing: str) -> None:
    run = replace(T5X, env={"MODEL_DIR": "/shared/a", **env})
    wanted = (
        (
            f"{missing}: no mount covers this: the run reads what the image has at this path; give --mount OUTSIDE:INSIDE",
        )
        if missing
        else ()
    )
    for on in ALL:
        assert placement_checks.check_folders(run, on) == wanted
    assert placement_checks.check_folders(run, "slurm") == ()


@pytest.mark.parametrize("where", ON)
def test_the_cpu_of_the_environment_stays_here_where_a_card_is_named(
    place: fake_launchers.Place, where: str
) -> None:
    words = (*ON[where], "gpt-126m", "LOG_DIR=gs://b/l", "--nodes=1", "--dry-run", "--json")
    asks = ("--gpus=8", "--gres=gpu:8", "nvidia.com/gpu")
    done = place.rosetta(*words, "--accelerator=h100", JAX_PLATFORMS="cpu")
    (line,) = done.stderr.splitlines()
    assert line.startswith("rosetta: JAX_PLATFORMS=cpu of the environment")
    assert any(each in done.stdout for each in asks)
    assert '"cpu"' not in done.stdout
    if where == "slurm":  # which hands the rest of the environment on
        assert json.loads(done.stdout)["result"]["env"]["JAX_PLATFORMS"] == ""
    done = place.rosetta(*words, JAX_PLATFORMS="cpu")
    assert (
        done.stderr
        == "rosetta: JAX_PLATFORMS=cpu of the environment applies to the run too: the run is ON THE CPU and requests no GPU; for a GPU, give --accelerator GPU or unset JAX_PLATFORMS\n"
    )
    assert not any(each in done.stdout for each in asks)
    done = place.rosetta(*words, "JAX_PLATFORMS=cpu")
    assert (done.returncode, done.stderr) == (0, ""), "a word is meant"


def test_lines_hold_no_secret(place: fake_launchers.Place) -> None:
    done = place.rosetta(
        "submit",
        "--on=pyxis",
        "--image=i",
        "--accelerator=h100",
        "gpt-126m",
        "LOG_DIR=/runs/hunter2-hunter2",
        "--dry-run",
        HF_TOKEN="hunter2-hunter2",  # noqa: S106 (none)
    )
    assert "LOG_DIR=/runs/...: " in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_here_the_cpu_is_no_news(place: fake_launchers.Place) -> None:
    assert place.rosetta("run", "t5x-tiny", "--dry-run", JAX_PLATFORMS="cpu").stderr == ""


def test_a_job_for_which_nobody_named_a_card(place: fake_launchers.Place) -> None:
    words = (*ON["slurm"], "t5x-large", "--dry-run")
    (said,) = place.rosetta(*words).stderr.splitlines()
    assert said.startswith(
        "rosetta: no GPU model is named, so the run lacks the settings that presets have for a GPU model (env.CUDA_DEVICE_MAX_CONNECTIONS, "
    )
    assert "precision" in said
    assert place.rosetta(*words, "--accelerator=h100").stderr == ""
    (place.folder / "site.yaml").write_text("accelerator: h100\n")
    assert place.rosetta(*words, ROSETTA_SITE=str(place.folder / "site.yaml")).stderr == ""


def test_docker_is_not_started_with_what_would_be_lost(place: fake_launchers.Place) -> None:
    done = place.rosetta(*ON["docker"], "t5x-tiny", "MODEL_DIR=/m", "--mount=/d:/e")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("rosetta: MODEL_DIR=/m: ")
    assert "--mount OUTSIDE:/m" in line
    assert not (place.folder / "bin" / "docker.argv").exists()


def test_the_examples_of_the_pages_lack_nothing(place: fake_launchers.Place) -> None:
    commands = [
        command
        for page in PAGES
        for block in read_page(page)
        if block.language == "bash" and block.check.how == DRY_RUN
        for command in documentation_commands.split_commands(block.text)
        if command.words[:2] in (["rosetta", "run"], ["rosetta", "submit"])
    ]
    assert len(commands) > 10
    for command in commands:
        on_cpu = "JAX_PLATFORMS" in command.variables
        variables = {} if on_cpu else command.variables
        words = [*command.words[1:], *(["--accelerator=h100"] if on_cpu else []), "--dry-run"]
        done = place.rosetta(*words, **variables)
        line = " ".join(command.words)
        assert (done.returncode, done.stderr) == (0, ""), line
        assert "synthetic" in line or ("DATA=" in line and "VOCAB" in line), line


def test_a_page_says_which_presets_bring_nodes() -> None:
    one = {
        name
        for name in preset_files.load_presets()
        if name not in schema.FRAMEWORKS
        and not any(
            layer.values["nodes"].value > 1
            for layer in preset_files.load_preset_chain(name)
            if "nodes" in layer.values
        )
    }
    assert one == {"t5x-tiny", "t5x-small"}
    page = (ROOT / "docs/how-to/run-on-one-machine.md").read_text(encoding="utf-8")
    assert "All presets but `t5x-tiny` and `t5x-small` bring the nodes" in page
