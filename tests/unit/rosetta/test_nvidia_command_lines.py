"""Run the command lines of NVIDIA's pages on T5X and Pax, as nvidia_command_lines.toml lists them.

Stand-ins for docker, sbatch and srun run what they are given as those would, one process of each step; nvidia-smi shows eight H100.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import corpora
from tests.support.t5x_scripts import OVERLAY, ROOT

pytestmark = pytest.mark.slow

COMMANDS = Path(__file__).with_name("nvidia_command_lines.toml")
# What a container has at these places lies in folders of the test.
INSIDE = "\ndef seen(text):\n    return text.replace('/opt/paxml', os.environ['OPT']).replace('/t5x_home', os.environ['T5X_HOME'])\n"
DOCKER = f"""#!{sys.executable}
import os, sys
{INSIDE}
words, env, folder = sys.argv[2:], dict(os.environ), "/t5x_home"
while words[0].startswith("-"):
    option = words.pop(0)
    if option in ("-e", "-v", "-w"):
        value = words.pop(0)
        name, _, text = value.partition("=")
        env.update({{name: seen(text)}} if option == "-e" else {{}})
        folder = value if option == "-w" else folder
assert words.pop(0) == os.environ["CONTAINER"]
if len(words) == 1:  # a shell
    print(folder)
    sys.exit()
os.chdir(seen(folder))
os.execvpe(words[0], words + (["--dry-run"] if words[-1].endswith(".sh") else []), env)
"""
SBATCH = f"""#!{sys.executable}
import os, re, shutil, sys
words, env = sys.argv[1:], dict(os.environ, SLURM_JOB_ID="42", SLURM_JOB_NAME="job")
while words[0].startswith("-"):
    option = words.pop(0)
    value = option[2:] or words.pop(0)
    assert option[:2] in ("-N", "-A", "-p", "-J", "-t"), option
    if option[:2] == "-N":
        env["SLURM_JOB_NUM_NODES"] = value
spool = os.path.join(os.environ["SPOOL"], "slurm_script")  # as Slurm does: beside none of its neighbours
shutil.copy(words[0], spool)
os.execve("/bin/bash", ["bash", spool, *words[1:]], env)
"""
SRUN = f"""#!{sys.executable}
import os, sys
{INSIDE}
words, env = sys.argv[1:], dict(os.environ, SLURM_PROCID="0", SLURM_LOCALID="0")
container = False
while words[0].startswith("-"):
    name, _, value = words.pop(0).partition("=")
    container = container or name == "--container-image"
    if name in ("--ntasks", "--ntasks-per-node"):
        env["SLURM_" + name[2:].upper().replace("-", "_")] = value
if container:
    mine = ("OPT", "T5X_HOME", "PATH")
    env = {{name: value if name in mine else seen(value) for name, value in env.items()}}
    os.chdir(os.environ["T5X_HOME"])
os.execvpe(words[0], [*words, "--dry-run"], env)
"""
# A disk on which everything fits, whatever this machine's has.
DISK = "import os\nos.statvfs = lambda path: os.statvfs_result((4096, 4096, 2**40, 2**40, 2**40, 2**40, 2**40, 2**40, 0, 255))\n"
FILLED = {
    "<DATASET_PATH>": "/d",
    "<WORKSPACE_PATH>": "/w",
    "<VOCAB_PATH>": "/v",
    "<CONTAINER>": "image",
    "<PATH_TO_WORKSPACE>": "$OPT/workspace",
    "<PATH_TO_THE_PILE>": "$OPT/datasets",
    "<PATH_TO_SENTENCEPIECE_MODEL>": "$OPT/vocab",
    "<LOG_DIR_LOCAL>": "logs",
    "<OUTPUT_DIR_LOCAL>": "out",
    "<ENABLE_FP8>": "0",
    "<ACCOUNT>": "mine",
    "<PARTITION>": "gpu",
    "<JOBNAME>": "name",
    "<PATH_TO_BOOLQ>": "$OPT/datasets",
    "<PATH_TO_LLAMA_TOKENIZER>": "$OPT/vocab",
    "<EVAL_ONLY>": "1",
    "<USE_LORA>": "0",
    "<PATH_TO_PRETRAINED_CHECKPOINT>": "$OPT/restore",
    "<DIR_TO_STORE_NEW_CHECKPOINTS_AND_LOGS>": "logs",
    "<LLaMA_CONFIG>": "LLaMA13B",
    "<ENABLE_TE>": "0",
    "<NUM_NODES>": "2",
    "<CONFIG_NAME>": "Pile5B",
    "<PRECISION>": "bfloat16",
    "<GPUS_PER_NODE>": "8",
    "<OUTPUT_DIR>": "out",
    "<LOG_DIR>": "logs",
}


# Evaluation data is read before a run starts.
_SQUAD: dict[str, list[bytes]] = {
    name: [b"a"] for name in ("id", "context", "question", "answers/text")
}
RECORDS = {
    "glue/mnli": corpora.encode_example(premise=[b"a"], hypothesis=[b"b"], label=[1], idx=[0]),
    "squad/v1.1": corpora.encode_example(answers_start=[0], **_SQUAD),
}


class Command(NamedTuple):
    """A command line, and what it is expected to do. nvidia_command_lines.toml explains each."""

    framework: str
    typed: str
    status: int
    shows: tuple[str, ...]


def _read_commands() -> list[Command]:
    entries = tomllib.loads(COMMANDS.read_text())["command"]
    return [
        Command(entry["framework"], entry["typed"], entry["status"], tuple(entry["shows"]))
        for entry in entries
    ]


@pytest.fixture(name="place")
def place_(tmp_path: Path) -> Path:
    home, opt = tmp_path / "t5x_home", tmp_path / "opt"
    shutil.copytree(OVERLAY / "t5x", home / "t5x", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(
        ROOT / "overlay" / "paxml" / "paxml",
        opt / "paxml",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for path in ("t5x/train.py", "t5x/__init__.py"):
        (home / path).touch()
    (opt / "paxml" / "__init__.py").touch()
    for root in (home, opt):
        for name, version in (
            ("the_pile", "1.0.0"),
            ("glue/mnli", "2.0.0"),
            ("squad/v1.1", "3.0.0"),
            ("lambada", "1.0.0"),
            ("boolq", "1.0.0"),
        ):
            splits = ("train", "validation", "validation_matched", "validation_mismatched", "test")
            record = RECORDS.get(name, corpora.encode_example(text=[b"x"]))
            corpora.write_tfds_folder(
                root / "datasets", name, {split: [[record] * 8] for split in splits}, version
            )
    (home / "workspace" / "small" / "checkpoint_1000").mkdir(parents=True)
    for name in ("trained", "restore"):
        (opt / name / "checkpoints" / "checkpoint_00001000").mkdir(parents=True)
    (opt / "vocab").write_bytes(b"model")
    (opt / "empty").mkdir()
    (tmp_path / "sitecustomize.py").write_text(DISK)
    (tmp_path / "bin").mkdir()
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "scripts").symlink_to(ROOT / "scripts")
    cards = "#!/bin/sh\nprintf 'NVIDIA H100 80GB HBM3, 9.0\\n%.0s' 1 2 3 4 5 6 7 8\n"
    programs = {"docker": DOCKER, "sbatch": SBATCH, "srun": SRUN, "nvidia-smi": cards}
    for name in ("python", "python3"):
        programs[name] = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    for script in [*home.rglob("scripts_gpu/*.sh"), *opt.rglob("scripts_gpu/*.sh")]:
        programs[script.name] = f'#!/bin/bash\nexec bash {script} "$@"\n'
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    _read_commands(),
    ids=lambda command: f"{command.framework}: {command.typed[:60]}",
)
def test_command_line(place: Path, command: Command) -> None:
    assert command.shows, "the list has to say what to look for"
    t5x, in_job = command.framework == "t5x", "sbatch " in command.typed
    if "download_the_pile" in command.typed:
        shutil.rmtree(place / "t5x_home" / "datasets" / "the_pile")
    text = command.typed
    for name, value in FILLED.items():
        text = text.replace(name, value)
    text = text.replace("/opt/paxml", "$OPT") if not in_job and "docker" not in text else text
    if re.search(r"(?m)^(?!docker|.*sbatch).*\.sh\b", text) and "docker" not in text and not in_job:
        text = (
            text.replace("  false\n", "  false --dry-run\n")
            if "  false\n" in text
            else f"{text} --dry-run"
        )
    env = {
        "PATH": f"{place}/bin:{os.environ['PATH']}",
        "HOME": str(place),
        "OPT": str(place / "opt"),
        "T5X_HOME": str(place / "t5x_home"),
        "SPOOL": str(place),
        "PYTHONPATH": f"{ROOT}:{place}:{place}/{'t5x_home' if t5x else 'opt'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cuda,cpu",
        "ROSETTA_DOCTOR": "0",
        "DATASET_PATH": "/d",
    }
    if t5x or "docker" in text:
        env |= {"CONTAINER": "image"}
    if t5x:
        env |= {"VOCAB": "byte", "TFDS_DATA_DIR": str(place / "t5x_home" / "datasets")}
        env |= {"BASE_TFDS_DATA_DIR": "/d"} if in_job else {}
    cwd = place / ("clone" if in_job else "t5x_home" if t5x else "opt")
    result = subprocess.run(
        ["bash", "-c", text],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    output = (
        (result.stdout + result.stderr)
        .replace(str(place / "opt"), "/opt/paxml")
        .replace(str(place / "t5x_home"), "/t5x_home")
        .replace('\\"', '"')
    )
    assert result.returncode == command.status, output
    for words in command.shows:
        assert words in output
    if command.status == 2:
        assert len(result.stderr.splitlines()) <= 1 + in_job, "one line"
    assert "Traceback" not in output


def test_every_script_is_run() -> None:
    """Each script and .sub file that people know is on the list."""
    text = " ".join(command.typed for command in _read_commands())
    called_by_others = {
        "run_base_config_multinode",
        "multiprocess_pretrain_pile",
        "multiprocess_ft_frompile",
    }
    for path in [
        *(ROOT / "scripts").glob("*.sub"),
        *ROOT.glob("overlay/*/*/contrib/gpu/scripts_gpu/*node*.sh"),
        *ROOT.glob("overlay/*/*/contrib/gpu/scripts_gpu/download_the_pile.py"),
    ]:
        assert path.stem in called_by_others or path.stem in text, path
