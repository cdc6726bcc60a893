from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.images import image_settings
from builder.packages import build_record, known_issues
from builder.upstream.checkout import Publisher

RECORD: dict[str, Any] = {
    "schema": 1,
    "distribution": "t5x",
    "line": "current",
    "accelerator": "cuda13",
    "architecture": "amd64",
    "python": "3.13",
    "builder": "0.1.0",
    "sources": {
        "t5x": {
            "url": "https://github.com/google-research/t5x.git",
            "commit": "c" * 40,
            "patched_commit": "d" * 40,
            "patches": [{}, {}],
            "date": 1776799480,
        },
    },
    "base": {"name": "debian:trixie-slim", "digest": "sha256:" + "1" * 64},
    "transformer_engine": None,
    "transformer_engine_reason": "no wheel of it for arm64",
}
PAX = {
    **RECORD,
    "distribution": "pax",
    "sources": {
        "praxis": {**RECORD["sources"]["t5x"], "date": 1776799490},
        "paxml": {**RECORD["sources"]["t5x"], "patched_commit": "e" * 40},
    },
}
ORIGIN = image_settings.Origin(
    Publisher("https://host.example/team/rosetta", "a" * 40), ("Apache-2.0", "MIT")
)
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8"}


@pytest.mark.parametrize(
    ("base", "path"),
    [
        (
            [],
            "/opt/rosetta/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/rosetta/env/bin",
        ),
        (
            ["A=b", "PATH=/usr/local/cuda/bin:/usr/bin", "LD_LIBRARY_PATH=/x", "NCCL_VERSION=2"],
            "/opt/rosetta/bin:/usr/local/cuda/bin:/usr/bin:/opt/rosetta/env/bin",
        ),
        (
            ["PATH=/opt/rosetta/bin:/usr/bin:/opt/rosetta/env/bin"],
            "/opt/rosetta/bin:/usr/bin:/opt/rosetta/env/bin",
        ),
    ],
)
def test_the_environment_is_five_settings(base: list[str], path: str) -> None:
    found = dict(line.split("=", 1) for line in image_settings.make_env(base))
    assert found == {
        "PATH": path,
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "PYTHONNOUSERSITE": "1",
        "PIP_CONSTRAINT": "/opt/rosetta/constraints.txt",
    }


def test_labels() -> None:
    found = image_settings.make_labels(RECORD, ORIGIN)
    prefix = "org.opencontainers.image."
    names = (
        "title",
        "description",
        "version",
        "revision",
        "created",
        "source",
        "url",
        "documentation",
        "vendor",
        "licenses",
        "base.name",
        "base.digest",
    )
    ours = (
        "source.t5x",
        "source.t5x.patched",
        "distribution",
        "accelerator",
        "line",
        "lock.sha256",
        "te.version",
    )
    assert set(found) == {
        *(prefix + name for name in names),
        *(f"io.rosetta.{name}" for name in ours),
    }
    assert found[prefix + "source"] == "https://host.example/team/rosetta"
    assert found[prefix + "revision"] == "a" * 40
    assert found[prefix + "vendor"] == "team"
    assert found[prefix + "documentation"].startswith(f"{found[prefix + 'url']}/tree/{'a' * 40}/")
    assert found[prefix + "created"] == "2026-04-21T19:24:40Z"
    assert found[prefix + "licenses"] == "Apache-2.0 AND MIT"
    address = "git+https://github.com/google-research/t5x.git"
    assert found["io.rosetta.source.t5x"] == f"{address}@{'c' * 40}"
    assert found["io.rosetta.source.t5x.patched"] == "d" * 40
    assert found["io.rosetta.te.version"] == "none: no wheel of it for arm64"
    assert (
        image_settings.make_labels(
            {**RECORD, "transformer_engine": {"version": "2.20.2", "wheel_sha256": "f" * 64}},
            ORIGIN,
        )["io.rosetta.te.version"]
        == "2.20.2"
    )


def test_an_image_of_no_commit_has_no_label_of_a_commit() -> None:
    labels = image_settings.make_labels(RECORD, image_settings.Origin())
    assert "org.opencontainers.image.revision" not in labels
    assert "org.opencontainers.image.source" not in labels
    assert all(labels.values())


def test_the_lock_of_the_label_is_the_one_inside() -> None:
    import hashlib

    inside = hashlib.sha256(build_record.lock_text(RECORD).encode()).hexdigest()
    assert image_settings.make_labels(RECORD, ORIGIN)["io.rosetta.lock.sha256"] == inside
    assert (
        image_settings.make_labels({**RECORD, "line": "other"}, ORIGIN)["io.rosetta.lock.sha256"]
        != inside
    )


def test_annotations_are_the_same_for_every_architecture() -> None:
    other = {
        **RECORD,
        "architecture": "arm64",
        "base": {**RECORD["base"], "digest": "sha256:" + "2" * 64},
    }
    assert image_settings.make_annotations(RECORD, ORIGIN) == image_settings.make_annotations(
        other, ORIGIN
    )
    assert (
        image_settings.make_annotations(PAX, ORIGIN)["io.rosetta.source.paxml.patched"] == "e" * 40
    )
    assert (
        image_settings.make_annotations(PAX, ORIGIN)["org.opencontainers.image.created"]
        == "2026-04-21T19:24:50Z"
    ), "the newest source's"


@pytest.mark.parametrize(
    ("record", "place"),
    [(RECORD, "t5x_home"), (PAX, "opt/paxml"), ({**PAX, "distribution": "pax-1.4"}, "opt/paxml")],
)
def test_settings_and_entries(record: dict[str, Any], place: str) -> None:
    settings = image_settings.make_settings(record, ORIGIN)
    assert settings["WorkingDir"] == f"/{place}"
    assert settings["Cmd"] == ["bash"]
    found = {each.path: each for each in image_settings.list_entries(record, VERSIONS, [])}
    assert found[settings["Entrypoint"][0].removeprefix("/")].mode == 0o755
    assert found[f"{place}/datasets"].mode == 0o1777
    assert (found["t5x_home"].mode if place == "t5x_home" else 0o1777) == 0o1777
    links = {path for path in found if path.startswith("t5x_home/") and found[path].kind == "link"}
    expected = {"t5x", "run_t5_pretraining.py", "run_t5_finetuning.py", "run_bert_pretraining.py"}
    assert links == ({f"t5x_home/{name}" for name in expected} if place == "t5x_home" else set())
    assert "opt/paxml" not in found, "the patched source is not for everyone to write"


def test_the_banner_says_what_is_in_it() -> None:
    issues = known_issues.select_issues(known_issues.load_issues(), RECORD, VERSIONS)
    text = image_settings.format_banner(RECORD, VERSIONS, issues)
    command = (
        "  rosetta run t5x-tiny TRAIN_STEPS=100 ENC_SL=64 DEC_SL=32 MODEL_DIR=/tmp/tiny "
        "DATA=text:/opt/rosetta/LICENSES/rosetta"
    )
    assert command in text.splitlines()
    assert "\n  JAX_PLATFORMS=cpu rosetta pax train " in image_settings.format_banner(
        {**RECORD, "distribution": "pax-1.4", "accelerator": "cpu"}, VERSIONS, []
    )
    for word in (
        "t5x",
        "cuda13",
        "jax 0.10.2",
        "c" * 12 + " + 2 patches",
        "none: no wheel of it for arm64",
        "/dev/shm",
        "NVIDIA/JAX-Toolbox#183",
    ):
        assert word in text
    assert text.isascii()
    # A line break inside the command would get into what people copy.
    assert max(len(line) for line in text.splitlines() if line != command) <= 100


@pytest.fixture
def entrypoint(tmp_path: Path) -> Path:
    (tmp_path / "banner.txt").write_text("THE BANNER\n")
    path = tmp_path / "entrypoint"
    path.write_text(
        image_settings.ENTRYPOINT_TEXT.replace(f"/{image_settings.HOME}/", f"{tmp_path}/")
    )
    path.chmod(0o755)
    return path


def on_a_terminal(argv: list[str], typed: bytes = b"exit 3\n") -> tuple[int, str]:
    """Run it as a person would; its exit status and all that the terminal showed."""
    terminal, own = pty.openpty()
    with subprocess.Popen(
        argv, stdin=own, stdout=own, stderr=own, start_new_session=True
    ) as running:
        os.close(own)
        os.write(terminal, typed)
        shown = b""
        try:
            while piece := os.read(terminal, 4096):
                shown += piece
        except OSError:
            pass  # Linux: the other side is closed
    os.close(terminal)
    return running.returncode, shown.decode()


def test_a_person_sees_the_banner_once(entrypoint: Path) -> None:
    for words in (["sh"], ["/bin/sh"], ["bash"], ["bash", "-l"], []):
        status, shown = on_a_terminal([str(entrypoint), *words])
        assert status == 3
        assert shown.count("THE BANNER") == 1, words


@pytest.mark.parametrize(
    "words", [["sh", "-c", "exit 3"], ["bash", "script"], ["bash", "-l", "-c", "exit 3"]]
)
def test_a_command_sees_none_even_on_a_terminal(
    entrypoint: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (entrypoint.parent / "script").write_text("exit 3\n")
    monkeypatch.chdir(entrypoint.parent)
    status, shown = on_a_terminal([str(entrypoint), *words], b"")
    assert (status, "BANNER" in shown) == (3, False)


def test_without_a_banner_the_shell_starts_all_the_same(entrypoint: Path) -> None:
    (entrypoint.parent / "banner.txt").unlink()
    status, shown = on_a_terminal([str(entrypoint), "sh"])
    assert status == 3
    assert "banner" not in shown


@pytest.mark.parametrize("words", [["sh", "-c", "cat; echo out; echo err >&2; exit 9"], ["bash"]])
def test_in_a_pipe_nothing_is_added(entrypoint: Path, words: list[str]) -> None:
    given = "in\n" if len(words) > 1 else "cat /dev/null; echo in; echo out; echo err >&2; exit 9\n"
    done = subprocess.run(
        [str(entrypoint), *words], input=given, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (9, "in\nout\n", "err\n")


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"HOME": "/", "TMPDIR": "/nonexistent", "PATH": "/nonexistent"},
        {"HOME": "/proc", "PATH": "/usr/bin:/bin"},
    ],
)
def test_the_command_runs_whatever_the_environment_is(
    entrypoint: Path, env: dict[str, str]
) -> None:
    given = {"ROSETTA_HOME": str(entrypoint.parent), **env}
    done = subprocess.run(
        [str(entrypoint), "/bin/sh", "-c", 'echo "$1"; exit 4', "x", "a  b*"],
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, "a  b*\n")


def test_a_missing_command_is_127(entrypoint: Path) -> None:
    done = subprocess.run(
        [str(entrypoint), "no-such-command"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "no-such-command" in done.stderr


def test_the_command_is_the_process_itself(entrypoint: Path) -> None:
    with subprocess.Popen(
        [str(entrypoint), "sh", "-c", "trap 'exit 5' TERM; echo $$; while :; do sleep 0.05; done"],
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        assert int(running.stdout.readline()) == running.pid
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 5


@pytest.mark.parametrize(
    ("path", "after"),
    [
        ("/usr/bin:/bin", "/opt/rosetta/bin:/usr/bin:/bin:/opt/rosetta/env/bin"),
        (
            "/mine:/opt/rosetta/bin:/bin:/opt/rosetta/env/bin",
            "/mine:/opt/rosetta/bin:/bin:/opt/rosetta/env/bin",
        ),
    ],
)
def test_a_login_shell_finds_our_python_too(path: str, after: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'{image_settings.PROFILE_TEXT}echo "$PATH"'],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{after}\n"
    assert "etc/profile.d/rosetta.sh" in {
        each.path for each in image_settings.list_entries(RECORD, VERSIONS, [])
    }


def test_uv_is_held_to_the_locked_versions_too(entrypoint: Path) -> None:
    done = subprocess.run(
        [str(entrypoint), "sh", "-c", "echo $UV_CONSTRAINT"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{entrypoint.parent}/constraints.txt\n"


def test_shellcheck_finds_nothing(entrypoint: Path) -> None:
    program = shutil.which(
        "shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if program is None:
        pytest.skip("NOT CHECKED: shellcheck is not installed")
    done = subprocess.run([program, str(entrypoint)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
