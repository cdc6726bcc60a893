"""Stand-ins for docker, sbatch, srun, pyxis, apptainer and Kubernetes: they read their words as these do, and start what they are given, for real.

Each does to variables and arguments what makes a difference with the real one: docker passes on only what is named, pyxis lets the image win over what
is not named, apptainer evaluates unless it is told not to, Kubernetes puts variables in place of $(NAME).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
# Writes down what it was given, and in which environment.
DUMP = """
import json, os, sys
with open(sys.argv[1], "w") as out:
    json.dump({"argv": sys.argv[2:], "env": dict(os.environ)}, out)
"""
_HEAD = f"""#!{sys.executable}
import json, os, subprocess, sys
with open(os.path.join(os.path.dirname(__file__), os.path.basename(__file__) + ".argv"), "w") as out:
    json.dump(sys.argv, out)
def options(words, takes=()):
    # Options up to the first word that is none; every one that we write holds its value, but for `takes`, which have none.
    given = []
    while words and words[0].startswith("-"):
        word = words.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        assert equals or name in takes, word
        given.append((name, value))
    return given
"""
DOCKER = (
    _HEAD
    + """
import csv
assert sys.argv[1] == "run"
words = sys.argv[2:]
given = options(words, ("--rm", "--init"))
assert {name for name, _ in given} <= {"--rm", "--init", "--ipc", "--ulimit", "--user", "--name", "--label", "--gpus", "--mount", "--env"}, given
for name, value in given:
    if name == "--mount":
        (fields,) = csv.reader([value])
        assert [each.partition("=")[0] for each in fields] == ["type", "source", "target"], fields
inside = {"PATH": os.environ["PATH"], "XLA_FLAGS": "of the image"}
for name, value in given:
    if name == "--env":
        assert "=" not in value, "a value can be seen in the list of processes"
        inside[value] = os.environ[value]
image, *command = words
os.execvpe(command[0], command, inside)
"""
)
SBATCH = (
    _HEAD
    + """
words = sys.argv[1:]
options(words, ("--exclusive", "--requeue", "--no-requeue"))
sys.exit(subprocess.run(["bash", *words], env={**os.environ, "SLURM_JOB_ID": "42"}).returncode)
"""
)
SRUN = (
    _HEAD
    + """
words = sys.argv[1:]
given = dict(options(words))
inside = dict(os.environ)
if "--container-image" in given:  # the image's variables win over all that is not named
    image = {"XLA_FLAGS": "of the image", "NAME_0": "of the image"}
    inside.update({name: value for name, value in image.items() if name not in given["--container-env"].split(",")})
    missing = [name for name in inside if name.startswith("NAME_") and name not in given["--container-env"].split(",")]
    assert not missing, missing
os.execvpe(words[0], words, inside)
"""
)
APPTAINER = (
    _HEAD
    + """
assert sys.argv[1] == "exec"
words = sys.argv[2:]
given = options(words, ("--no-eval", "--nv"))
image, *command = words
inside = dict(os.environ)
for name in [each for each in inside if each.startswith("APPTAINERENV_")]:
    value = inside.pop(name)
    if ("--no-eval", "") not in given:
        value = subprocess.run(["sh", "-c", 'eval "printf %s \\\\"$1\\\\""', "sh", value], capture_output=True, text=True).stdout
    inside[name[len("APPTAINERENV_"):]] = value
os.execvpe(command[0], command, inside)
"""
)
KUBECTL = (
    _HEAD
    + f"""
sys.path.insert(0, {str(ROOT)!r})
from tests.support import fake_launchers
if sys.argv[1] != "create":
    sys.exit(fake_launchers.answer_about_jobset(sys.argv[1:], os.path.dirname(__file__)))
text = sys.stdin.read()
fake_launchers.keep_jobset(text, os.path.dirname(__file__))
fake_launchers.run_pod(text, os.environ["SECRETS"], os.environ["PATH"])
"""
)


def run_pod(text: str, secrets: str, path: str) -> None:
    """Become the first pod of a JobSet, as the kubelet starts it."""
    spec = yaml.safe_load(text)["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    known = json.loads(Path(secrets).read_text())
    inside = {"XLA_FLAGS": "of the image"}
    for each in container["env"]:
        assert all(
            isinstance(value, str) for value in each.values() if not isinstance(value, dict)
        ), each
        inside[each["name"]] = (
            expand_variables(each["value"], inside)
            if "value" in each
            else known[each["valueFrom"]["secretKeyRef"]["key"]]
        )
    command = [expand_variables(word, inside) for word in container["command"]]
    os.execvpe(command[0], command, {"PATH": path, **inside})  # noqa: S606


def keep_jobset(text: str, folder: str) -> None:
    """Keep the metadata of a JobSet and of its pods, for later answers about it."""
    document = yaml.safe_load(text)
    template = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    kept = {"metadata": document["metadata"], "pods": template.get("metadata")}
    Path(folder, "created.json").write_text(json.dumps(kept))


def answer_about_jobset(words: list[str], folder: str) -> int:
    """Answer `kubectl get|delete|logs` for the JobSet whose status a test wrote to jobset.json."""
    state = Path(folder, "jobset.json")
    if words[0] == "logs":
        print(*words)
        return 0
    created = json.loads(Path(folder, "created.json").read_text())
    labels = created["metadata"].get("labels", {})
    assert created["pods"] == {"labels": labels}
    if words[0] == "delete":
        selectors = [f"--selector={name}={value}" for name, value in labels.items()]
        if state.exists() and words[2] in selectors:
            state.unlink()
        return 0
    if not state.exists():
        name = words[2]
        print(
            f'Error from server (NotFound): jobsets.jobset.x-k8s.io "{name}" not found',
            file=sys.stderr,
        )
        return 1
    metadata = {**created["metadata"], "name": words[2]}
    print(json.dumps({"metadata": metadata, "status": json.loads(state.read_text())}))
    return 0


def expand_variables(text: str, variables: dict[str, str]) -> str:
    """A text as Kubernetes reads it: $(NAME) is a variable if there is one, $$ is a dollar, another dollar is itself."""
    found, at = "", 0
    while at < len(text):
        after = text[at + 1 : at + 2]
        end = text.find(")", at)
        if text[at] != "$" or not after:
            found, at = found + text[at], at + 1
        elif after == "$":
            found, at = found + "$", at + 2
        elif after == "(" and end > 0:
            found, at = found + variables.get(text[at + 2 : end], text[at : end + 1]), end + 1
        else:
            found, at = found + "$" + after, at + 2
    return found


@dataclass(frozen=True)
class Place:
    """A folder with the stand-ins first on PATH, and what a process in it was given."""

    folder: Path

    @property
    def entry(self) -> list[str]:
        return [
            sys.executable,
            "-S",
            str(self.folder / "dump.py"),
            str(self.folder / "record.json"),
        ]

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "record.json").read_text())
        return found

    def argv(self, program: str) -> list[str]:
        """The words that a stand-in was last given."""
        return [
            str(word) for word in json.loads((self.folder / "bin" / f"{program}.argv").read_text())
        ]

    def rosetta(
        self, *words: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-P", "-m", "rosetta.launch", *words]
        return subprocess.run(
            argv,
            cwd=self.folder,
            env=self.environment(**variables),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the usual variables with these on top."""
        return {
            "HOME": str(self.folder),
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "SECRETS": str(self.folder / "secrets.json"),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        }


def make_launchers(folder: Path) -> Place:
    """Set it up."""
    (folder / "bin").mkdir()
    (folder / "dump.py").write_text(DUMP)
    for name, text in {
        "docker": DOCKER,
        "sbatch": SBATCH,
        "srun": SRUN,
        "apptainer": APPTAINER,
        "kubectl": KUBECTL,
    }.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return Place(folder)
