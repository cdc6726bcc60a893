"""Render a run as a Kubernetes JobSet (jobset.x-k8s.io/v1alpha2).

It is an indexed job with one pod for each node. All processes meet at the first pod.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rosetta.core import exit_status, run_description
from rosetta.core.errors import INVALID, UNSUPPORTED, UserError
from rosetta.core.secrets import is_secret
from rosetta.launch import docker, rendering
from rosetta.launch.rendering import Options, Rendering

if TYPE_CHECKING:
    from rosetta.core.run_description import Run

PORT = 29400
_JOB_NAME, _CONTAINER_NAME = "node", "rosetta"
_LABEL = re.compile(
    r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?"
)  # the names of pods, which begin with it, have 63 characters at most
_CLAIM = re.compile(r"pvc:([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)(/[^:]*)?")
_MAX_RESTARTS = 10


def render_jobset(run: Run, options: Options) -> Rendering:
    """Return kubectl's command, and the JobSet that it reads.

    The values of secret variables come from the Kubernetes secret that the options name. The key of
    each is the name of the variable.

    Raises:
      UserError: there is no image, or a name or a mount is not valid in Kubernetes.
    """
    kubectl = [
        "kubectl",
        "create",
        *([f"--namespace={options.namespace}"] if options.namespace else []),
        "--filename=-",
    ]
    return Rendering(
        kubectl, document=make_jobset(run, options), hidden=rendering.make_variables(run)
    )


def make_jobset(run: Run, options: Options) -> dict[str, Any]:
    """Return the JobSet as a document.

    Raises:
      UserError: see render_jobset.
    """
    name = rendering.choose_job_name(run, options)
    if not _LABEL.fullmatch(name):
        raise UserError(
            "not a valid name in Kubernetes",
            f"--job-name={name}",
            "give up to 40 small letters, digits and dashes, the first of them a letter",
            kind=INVALID,
            value=name,
        )
    job: dict[str, Any] = {
        "parallelism": run.nodes,
        "completions": run.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
    }
    spec: dict[str, Any] = {"network": {"enableDNSHostnames": True, "subdomain": name}}
    if options.requeue:
        # A run that ended early resumes without limit. One that failed resumes _MAX_RESTARTS times.
        job["podFailurePolicy"] = {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": _CONTAINER_NAME,
                        "operator": "In",
                        "values": [exit_status.ENDED_EARLY],
                    },
                }
            ]
        }
        spec["failurePolicy"] = {
            "maxRestarts": _MAX_RESTARTS,
            "rules": [
                {
                    "name": "early",
                    "action": "RestartJobSetAndIgnoreMaxRestarts",
                    "onJobFailureReasons": ["PodFailurePolicy"],
                }
            ],
        }
    spec["replicatedJobs"] = [
        {
            "name": _JOB_NAME,
            "replicas": 1,
            "template": {"spec": {**job, "template": {"spec": _make_pod(run, options, name)}}},
        }
    ]
    space = {"namespace": options.namespace} if options.namespace else {}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, **space},
        "spec": spec,
    }


def _make_pod(run: Run, options: Options, name: str) -> dict[str, Any]:
    """Return the pod of a node; `name` is that of the JobSet."""
    mounts, volumes = (
        [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 (the default of 64 MiB kills NCCL)
        [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    )
    for index, (outside, inside) in enumerate(run.mounts):
        mount, volume = _make_mount(f"mount-{index}", outside, inside)
        mounts.append(mount)
        volumes.append(volume)
    command = docker.make_node_command(run)
    if run.nodes > 1:  # Kubernetes sets the number of the pod in JOB_COMPLETION_INDEX.
        command = [
            "rosetta",
            "spawn",
            f"--nodes={run.nodes}",
            f"--per-node={rendering.count_processes_per_node(run)}",
            f"--coordinator={name}-{_JOB_NAME}-0-0.{name}:{PORT}",
            "--",
            *run.entry,
        ]
    gpus = (
        {}
        if run_description.runs_on_cpu(run)
        else {"resources": {"limits": {"nvidia.com/gpu": run.gpus_per_node}}}
    )
    container = {
        "name": _CONTAINER_NAME,
        "image": rendering.format_image(options, "jobset"),
        "command": [_escape_dollars(word) for word in command],
        "env": [
            _make_variable(key, value, options)
            for key, value in rendering.make_variables(run).items()
        ],
        **gpus,
        "ports": [{"containerPort": PORT}],
        "volumeMounts": mounts,
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": options.warning,
        "containers": [container],
        "volumes": volumes,
    }


def _make_variable(name: str, value: str, options: Options) -> dict[str, Any]:
    """Return a variable of the container; the value of a secret is not written."""
    if is_secret(name, value):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": options.secret, "key": name}}}
    return {"name": name, "value": _escape_dollars(value)}


def _make_mount(name: str, outside: str, inside: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the mount and the volume of a node's folder, or of pvc:CLAIM[/FOLDER]."""
    claim = _CLAIM.fullmatch(outside)
    if not inside.startswith("/") or ":" in inside or not (claim or outside.startswith("/")):
        raise UserError(
            "Kubernetes cannot mount this",
            f"mount {outside}:{inside}",
            "write /OUTSIDE:/INSIDE or pvc:CLAIM[/FOLDER]:/INSIDE, without a colon in it",
            kind=UNSUPPORTED,
            value=outside,
        )
    mount = {"name": name, "mountPath": inside}
    if not claim:
        return mount, {"name": name, "hostPath": {"path": outside}}
    folder = (claim[3] or "").strip("/")
    return {**mount, **({"subPath": folder} if folder else {})}, {
        "name": name,
        "persistentVolumeClaim": {"claimName": claim[1]},
    }


def _escape_dollars(text: str) -> str:
    """Escape a text for Kubernetes, which replaces $(NAME) by the value of a variable."""
    return text.replace("$", "$$")
