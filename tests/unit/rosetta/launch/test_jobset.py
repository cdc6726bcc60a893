"""The JobSet against a schema of the fields that it uses, written after jobset.x-k8s.io/v1alpha2; where kubectl is at hand, read by it as well."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rosetta.core.run_description import Run
from rosetta.launch import jobset
from rosetta.launch.rendering import Options

jsonschema = pytest.importorskip("jsonschema", reason="NOT TESTED: needs the builder's environment")

SCHEMA = json.loads(Path(__file__).with_name("jobset.schema.json").read_text(encoding="utf-8"))
RUN = Run(
    "pax",
    ("rosetta", "pax", "train"),
    "Pile126M",
    nodes=2,
    env={"A": "$(B)", "WANDB_API_KEY": "x"},
    mounts=(("/a", "/b"), ("pvc:claim/sub/folder", "/c"), ("pvc:claim", "/d")),
)
OPTIONS = Options(image="pax", requeue=True, namespace="team", warning=300, secret="mine")  # noqa: S106 (a name)
ALL = [
    (RUN, OPTIONS),
    (RUN, Options(image="pax", run_id="0123456789abcdef")),
    (replace(RUN, nodes=1), OPTIONS),
    (replace(RUN, nodes=1, processes_per_node="node"), OPTIONS),
    (replace(RUN, env={"JAX_PLATFORMS": "cpu"}, mounts=()), OPTIONS),
]


@pytest.mark.parametrize(("run", "options"), ALL)
def test_schema(run: Run, options: Options) -> None:
    jsonschema.validate(yaml.safe_load(jobset.render_jobset(run, options).stdin), SCHEMA)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("completionMode", "indexed"),
        ("completions", "2"),
        ("completionz", 2),
        ("backoffLimit", None),
    ],
)
def test_the_schema_refuses_what_is_wrong(path: str, value: Any) -> None:
    document = jobset.make_jobset(RUN, OPTIONS)
    document["spec"]["replicatedJobs"][0]["template"]["spec"][path] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="NOT TESTED: there is no kubectl")
def test_kubectl_reads_its_job(tmp_path: Path) -> None:
    """It has the types of a Job, which knows what a pod is; a JobSet it takes for any object."""
    document = jobset.make_jobset(RUN, OPTIONS)
    spec = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    (tmp_path / "job.yaml").write_text(
        json.dumps(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}
        )
    )
    (tmp_path / "set.yaml").write_text(jobset.render_jobset(RUN, OPTIONS).stdin)
    read = _kubectl(
        "set", "image", "--local", "-f", str(tmp_path / "job.yaml"), "rosetta=other", "-o", "json"
    )
    container = read["spec"]["template"]["spec"]["containers"][0]
    assert container.pop("image") == "other"
    assert container.pop("resources") == {"limits": {"nvidia.com/gpu": "8"}}
    ours = spec["template"]["spec"]["containers"][0]
    assert {
        name: value for name, value in ours.items() if name not in ("image", "resources")
    } == container | {"ports": ours["ports"]}
    assert (
        read["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]
        == spec["podFailurePolicy"]["rules"][0]["onExitCodes"]
    )
    labelled = _kubectl("label", "--local", "-f", str(tmp_path / "set.yaml"), "a=b", "-o", "json")
    assert labelled["spec"] == document["spec"]


def _kubectl(*words: str) -> dict[str, Any]:
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_who_meets_whom() -> None:
    document = jobset.make_jobset(RUN, replace(OPTIONS, name="mine"))
    spec = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    # A pod is called JOBSET-JOB-INDEX-COMPLETION, and found in the subdomain.
    assert container["command"][:6] == [
        "rosetta",
        "spawn",
        "--nodes=2",
        "--per-node=8",
        "--coordinator=mine-node-0-0.mine:29400",
        "--",
    ]
    assert (
        document["spec"]["network"]["subdomain"],
        document["metadata"]["name"],
        spec["completions"],
        spec["parallelism"],
    ) == ("mine", "mine", 2, 2)


def test_secrets_and_mounts() -> None:
    pod = jobset.make_jobset(RUN, OPTIONS)["spec"]["replicatedJobs"][0]["template"]["spec"][
        "template"
    ]["spec"]
    assert {
        "name": "WANDB_API_KEY",
        "valueFrom": {"secretKeyRef": {"name": "mine", "key": "WANDB_API_KEY"}},
    } in pod["containers"][0]["env"]
    assert pod["volumes"][1:] == [
        {"name": "mount-0", "hostPath": {"path": "/a"}},
        *(
            {"name": f"mount-{index}", "persistentVolumeClaim": {"claimName": "claim"}}
            for index in (1, 2)
        ),
    ]
    assert pod["containers"][0]["volumeMounts"][2:] == [
        {"name": "mount-1", "mountPath": "/c", "subPath": "sub/folder"},
        {"name": "mount-2", "mountPath": "/d"},
    ]
    assert pod["terminationGracePeriodSeconds"] == 300
