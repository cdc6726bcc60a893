"""What users write arrives as they wrote it, wherever a run is started; and what is secret is printed nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rosetta.core import run_description
from rosetta.core.run_description import Run
from tests.support import errors, fake_launchers

pytestmark = pytest.mark.slow

HOSTILE = (
    "two words",
    "  around  ",
    "quo\"te's",
    "'",
    "$(touch pwned)",
    "`touch pwned`",
    "; touch pwned",
    "| touch pwned",
    "new\nline\n",
    "tab\tand\rreturn",
    "-rf",
    "--",
    "--env=A",
    "",
    "ümläut ☃ 🎉",
    "$HOME ${HOME} $$ $ $(NAME_0) $$(NAME_0) $(nothing",
    "%s %d {} {{x}} !! * ? ~ [a] #",
    "a=b,c:d;e&f>g<h",
    "back\\slash \\n \\",
    "on",
    "1e5",
    "0x1f",
    "null",
    "2026-11-28",
    "- a: b",
    "@file",
    "x" * 300,
)
SECRETS = {
    "WANDB_API_KEY": "s3cr3t $(touch pwned) \"'\n",
    "HF_TOKEN": "hf_s3cr3t",
    "MY_PASSWORD": "pa55word",
    "DATA": "s3://me:cr3d3nt1al@host/data",
}
SECRET_PARTS = ("s3cr3t", "pa55word", "cr3d3nt1al")
WHERE = {
    "local": ("run", "--on=local"),
    "local, two processes": ("run", "--on=local", "--processes=gpu"),
    "docker": ("run", "--on=docker", "--image=an/image:1"),
    "slurm": ("submit", "--on=slurm"),
    "pyxis": ("submit", "--on=pyxis", "--image=an/image:1"),
    "apptainer": ("submit", "--on=apptainer", "--image=an/image:1"),
    "jobset": ("submit", "--on=jobset", "--image=an/image:1"),
}


@pytest.fixture
def place(tmp_path: Path) -> fake_launchers.Place:
    (tmp_path / "secrets.json").write_text(json.dumps(SECRETS))
    return fake_launchers.make_launchers(tmp_path)


def document(
    place: fake_launchers.Place, *, gpus: int = 1, mounts: tuple[tuple[str, str], ...] = ()
) -> str:
    env = {**{f"NAME_{number}": value for number, value in enumerate(HOSTILE)}, **SECRETS}
    flags = {"xla_dump_to": "/a b/$(touch pwned)", "xla_gpu_enable_triton_gemm": False}
    run = Run(
        "pax",
        (*place.entry, *HOSTILE),
        "Pile126M",
        nodes=1,
        gpus_per_node=gpus,
        processes_per_node="node",
        xla_flags=flags,
        env=env,
        mounts=mounts,
    )
    assert run_description.parse_run(json.loads(json.dumps(run.as_json()))) == run
    return json.dumps(run.as_json())


@pytest.mark.parametrize("where", WHERE)
def test_values_arrive_and_secrets_do_not_show(place: fake_launchers.Place, where: str) -> None:
    gpus = 2 if "two" in where else 1
    done = place.rosetta(*WHERE[where], "--description=-", stdin=document(place, gpus=gpus))
    assert done.returncode == 0, done.stderr
    assert place.record["argv"] == list(HOSTILE)
    env = place.record["env"]
    assert {name: env.get(name) for name in SECRETS} == SECRETS
    assert [env[f"NAME_{number}"] for number in range(len(HOSTILE))] == list(HOSTILE)
    assert (
        env["XLA_FLAGS"] == "--xla_dump_to='/a b/$(touch pwned)' --xla_gpu_enable_triton_gemm=false"
    )
    assert not list(place.folder.rglob("pwned"))
    words = [
        word
        for program in place.folder.glob("bin/*.argv")
        for word in json.loads(program.read_text())
    ]
    for part in SECRET_PARTS:
        assert part not in done.stdout + done.stderr
        assert not [word for word in words if part in word]


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("where", WHERE)
def test_a_dry_run_shows_no_secret_and_starts_nothing(
    place: fake_launchers.Place, where: str, more: tuple[str, ...]
) -> None:
    done = place.rosetta(
        *WHERE[where], "--description=-", "--dry-run", *more, stdin=document(place)
    )
    assert done.returncode == 0, done.stderr
    assert "NAME_4" in done.stdout
    assert "touch pwned" in done.stdout
    for part in SECRET_PARTS:
        assert part not in done.stdout + done.stderr
    assert not (place.folder / "record.json").exists()
    assert not list(place.folder.glob("bin/*.argv"))


@pytest.mark.parametrize("where", ["docker", "jobset"])
@pytest.mark.parametrize(
    "mount",
    ["/with space", "/quo\"te's", "/comma,target=x", "/$(touch pwned)", "/new\nline", "/ümläut"],
)
def test_mounts(place: fake_launchers.Place, where: str, mount: str) -> None:
    done = place.rosetta(
        *WHERE[where], "--description=-", stdin=document(place, mounts=((mount, f"/in{mount}"),))
    )
    assert done.returncode == 0, done.stderr
    assert place.record["argv"] == list(HOSTILE)


@pytest.mark.parametrize("where", ["pyxis", "apptainer"])
@pytest.mark.parametrize(
    "mount", [("/comma,/etc:/etc", "/in"), ("/a", "/b:ro"), ("relative", "/b")]
)
def test_mounts_that_a_list_cannot_hold_are_refused(
    place: fake_launchers.Place, where: str, mount: tuple[str, str]
) -> None:
    words = (*WHERE[where], "--description=-", "--json")
    done = place.rosetta(*words, stdin=document(place, mounts=(mount,)))
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == errors.UNSUPPORTED
    assert error["value"] in mount
    assert not list(place.folder.glob("bin/*.argv"))


@pytest.mark.parametrize(
    "option",
    [
        "--job-name=a $(touch pwned)",
        "--partition=-x",
        "--account=new\nline",
        "--sbatch=--comment=a 'b' \"c\" `touch pwned`",
    ],
)
def test_options_of_a_job(place: fake_launchers.Place, option: str) -> None:
    assert (
        place.rosetta(*WHERE["slurm"], option, "--description=-", stdin=document(place)).returncode
        == 0
    )
    assert option.removeprefix("--sbatch=") in place.argv("sbatch")
    assert not list(place.folder.rglob("pwned"))


def test_what_no_environment_can_hold(place: fake_launchers.Place) -> None:
    for change, what in (
        ({"env": {"A B": "x"}}, "'A B' is not a valid variable name"),
        ({"env": {"A": "\0"}}, "A: the value has a zero byte"),
        ({"entry": ["a\0"]}, "entry: an argument has a zero byte"),
    ):
        done = place.rosetta(
            *WHERE["docker"],
            "--description=-",
            stdin=json.dumps({**json.loads(document(place)), **change}),
        )
        assert done.returncode == 2
        assert what in done.stderr
