"""Render a run as a Kubernetes JobSet (jobset.x-k8s.io/v1alpha2).

The JobSet has one indexed job with one pod for each node. The coordinator that all processes
connect to runs in the first pod. See https://jobset.sigs.k8s.io/ for the format.
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

COORDINATOR_PORT = 29400  # on the first pod, for JAX's distributed service
_JOB_NAME, _CONTAINER_NAME = "node", "rosetta"
# Names of pods start with the name of the JobSet, and have at most 63 characters.
_VALID_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
# pvc:CLAIM or pvc:CLAIM/FOLDER.
_CLAIM = re.compile(r"pvc:([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)(/[^:]*)?")
_MAX_RESTARTS = 10  # of a set in which a pod failed or was lost


def render_jobset(run: Run, options: Options) -> Rendering:
    """Return the kubectl command that creates the JobSet, and the JobSet as its input.

    Values of secret variables are not in the JobSet: the pods take them from the Kubernetes secret
    that the options name. The keys of the Kubernetes secret are the names of the variables.

    Raises:
      UserError: there is no image, or a name or a mount is not valid in Kubernetes.
    """
    namespace = [f"--namespace={options.namespace}"] if options.namespace else []
    return Rendering(
        ["kubectl", "create", *namespace, "--filename=-"],
        document=make_jobset(run, options),
        hidden=rendering.make_variables(run),
    )


def make_jobset(run: Run, options: Options) -> dict[str, Any]:
    """Return the JobSet as a document.

    Its one job has a pod for each node. The pods find each other by their names, NAME-node-0-INDEX,
    in the subdomain NAME.

    Args:
      run: the run.
      options: the options for Kubernetes: image, name, requeue, warning, secret and namespace.

    Raises:
      UserError: see render_jobset.
    """
    name = rendering.choose_job_name(run, options)
    if not _VALID_NAME.fullmatch(name):
        raise UserError(
            "not a valid name in Kubernetes",
            f"--job-name={name}",
            "give up to 40 lower-case letters, digits and dashes; start with a letter, and do not "
            "end with a dash",
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
        job["podFailurePolicy"], spec["failurePolicy"] = _make_failure_policies()
    job["template"] = {"spec": _make_pod(run, options, name)}
    labels = {rendering.RUN_LABEL: options.run_id}
    if options.run_id:
        job["template"]["metadata"] = {"labels": labels}
    spec["replicatedJobs"] = [{"name": _JOB_NAME, "replicas": 1, "template": {"spec": job}}]
    metadata: dict[str, Any] = {"name": name}
    if options.namespace:
        metadata["namespace"] = options.namespace
    if options.run_id:
        metadata["labels"] = labels
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": spec,
    }


def _make_failure_policies() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the policy of the job and that of the JobSet, which restart a run that ended.

    If a pod exits with ENDED_EARLY, the job fails with the reason PodFailurePolicy. The JobSet
    restarts after that reason any number of times, and after any other at most _MAX_RESTARTS times.
    """
    job_policy = {
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
    jobset_policy = {
        "maxRestarts": _MAX_RESTARTS,
        "rules": [
            {
                "name": "early",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            }
        ],
    }
    return job_policy, jobset_policy


def _make_pod(run: Run, options: Options, jobset_name: str) -> dict[str, Any]:
    """Return the specification of the pod of each node."""
    # NCCL needs more shared memory than the default of 64 MiB.
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 (a mount, not a file)
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    for index, (outside, inside) in enumerate(run.mounts):
        mount, volume = _make_mount(f"mount-{index}", outside, inside)
        mounts.append(mount)
        volumes.append(volume)
    gpus: dict[str, Any] = {}
    if not run_description.runs_on_cpu(run):
        gpus["resources"] = {"limits": {"nvidia.com/gpu": run.gpus_per_node}}
    image = rendering.format_image(options, "jobset")
    variables = rendering.make_variables(run)
    container = {
        "name": _CONTAINER_NAME,
        "image": image,
        "command": [_escape_dollars(word) for word in _make_command(run, jobset_name)],
        "env": [_make_variable(name, value, options) for name, value in variables.items()],
        **gpus,
        "ports": [{"containerPort": COORDINATOR_PORT}],
        "volumeMounts": mounts,
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": options.warning,
        "containers": [container],
        "volumes": volumes,
    }


def _make_command(run: Run, jobset_name: str) -> list[str]:
    """Return the command that starts the processes of a node."""
    if run.nodes == 1:
        return docker.make_node_command(run)
    # `rosetta spawn` reads the number of the node from JOB_COMPLETION_INDEX, which Kubernetes sets.
    return [
        "rosetta",
        "spawn",
        f"--nodes={run.nodes}",
        f"--per-node={rendering.count_processes_per_node(run)}",
        f"--coordinator={jobset_name}-{_JOB_NAME}-0-0.{jobset_name}:{COORDINATOR_PORT}",
        "--",
        *run.entry,
    ]


def _make_variable(name: str, value: str, options: Options) -> dict[str, Any]:
    """Return a variable of the container; a secret is only referred to by its key."""
    if is_secret(name, value):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": options.secret, "key": name}}}
    return {"name": name, "value": _escape_dollars(value)}


def _make_mount(name: str, outside: str, inside: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the mount of the container and the volume of the pod for a folder.

    Args:
      name: the name of the volume.
      outside: a folder of the node, or pvc:CLAIM[/FOLDER].
      inside: the folder in the container.

    Raises:
      UserError: Kubernetes cannot mount the folder.
    """
    claim = _CLAIM.fullmatch(outside)
    if not inside.startswith("/") or ":" in inside or not (claim or outside.startswith("/")):
        raise UserError(
            "Kubernetes cannot mount this",
            f"mount {outside}:{inside}",
            "write /OUTSIDE:/INSIDE or pvc:CLAIM[/FOLDER]:/INSIDE; INSIDE cannot have a colon",
            kind=UNSUPPORTED,
            value=outside,
        )
    mount = {"name": name, "mountPath": inside}
    if not claim:
        return mount, {"name": name, "hostPath": {"path": outside}}
    folder = (claim[3] or "").strip("/")
    if folder:
        mount["subPath"] = folder
    return mount, {"name": name, "persistentVolumeClaim": {"claimName": claim[1]}}


def _escape_dollars(text: str) -> str:
    """Double each dollar sign: Kubernetes expands $(NAME), and reads $$ as one dollar sign."""
    return text.replace("$", "$$")
