"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd, in a mount namespace whose /etc/hosts alone knows n1 and n2."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NODES = ("n1", "n2")
_NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "unshare", "nsenter")
_CONF = """\
ClusterName=rosetta
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={home}/munge.socket
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
SlurmdTimeout=10
KillWait=5
ReturnToService=2
MinJobAge=3600
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=8000
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=8000
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=INFINITE
"""


def explain_missing() -> str:
    """Return why no Slurm can be started here, "" if one can."""
    missing = [name for name in _NEEDED if not _find_program(name)]
    if missing:
        return f"NOT TESTED: no {', '.join(missing)} here; install them: apt-get install --no-install-recommends slurm-wlm munge util-linux"
    return (
        "" if os.getuid() == 0 else "NOT TESTED: a Slurm of the tests' own is started by root only"
    )


def _find_program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


@dataclass
class Slurm:
    """A running one.

    Attributes:
      home: its folder: logs, state, configuration.
      holder: the process whose mount namespace all of it is in.
      daemons: by name: munged, slurmctld, n1, n2.
    """

    home: Path
    holder: subprocess.Popen[bytes]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.home / "slurm.conf"

    def within(self, *argv: str | Path, cwd: Path | None = None) -> list[str]:
        """Return the command that runs in its namespace, in this folder."""
        return [
            "nsenter",
            f"--target={self.holder.pid}",
            "--mount",
            "env",
            f"--chdir={cwd or self.home}",
            *map(str, argv),
        ]

    def run(
        self, *argv: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a client of it, or anything else there, with these variables and no others of Slurm's."""
        known = (
            dict(env)
            if env is not None
            else {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        )
        return subprocess.run(
            self.within(*argv, cwd=cwd),
            env={**known, "SLURM_CONF": str(self.conf)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def said(self, *argv: str) -> str:
        done = self.run(*argv)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout.strip()

    def start(self, name: str) -> None:
        """Start a daemon; it is there once it answers, see ready."""
        argv = {
            "munged": [
                "munged",
                "--foreground",
                "--force",
                f"--key-file={self.home}/munge.key",
                f"--socket={self.home}/munge.socket",
                f"--pid-file={self.home}/munged.pid",
                f"--log-file={self.home}/munged.log",
                f"--seed-file={self.home}/munged.seed",
            ],
            "slurmctld": ["slurmctld", "-D", "-f", str(self.conf)],
        }.get(name, ["slurmd", "-D", "-f", str(self.conf), "-N", name])
        found = _find_program(argv[0])
        assert found
        with (self.home / f"{name}.said").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                self.within(found, *argv[1:]),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def ready(self, seconds: float = 60) -> None:
        """Wait until both nodes take jobs."""
        wait_until(
            lambda: (
                self.run("sinfo", "--noheader", "--Node", "--format=%N %t").stdout.split()
                == ["n1", "idle", "n2", "idle"]
            ),
            seconds,
            self.logs,
        )

    def submit(self, *argv: str | Path, cwd: Path, env: Mapping[str, str]) -> str:
        """Submit; return the job's number. Its output is in cwd/slurm-NUMBER.out."""
        done = self.run("sbatch", "--parsable", *argv, cwd=cwd, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def job(self, number: str) -> dict[str, str]:
        """Return what `scontrol show job` says of it, by name."""
        return dict(
            re.findall(r"(\S+?)=(\S*)", self.said("scontrol", "--oneliner", "show", "job", number))
        )

    def state(self, number: str) -> str:
        return self.job(number)["JobState"]

    def ended(self, number: str, seconds: float = 300) -> dict[str, str]:
        """Return what is said of it once it has ended for good."""
        wait_until(
            lambda: (
                self.state(number)
                not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"}
            ),
            seconds,
            lambda: f"{self.job(number)}\n{self.logs()}",
        )
        return self.job(number)

    def hurry(self, number: str) -> None:
        """Start a requeued job as soon as nothing of its first start runs: Slurm lets it wait for two minutes, until no credential of that is valid.

        An srun that was killed leaves a process that ends its step by number, and the second start's has the same.
        """
        wait_until(
            lambda: self.state(number) == "PENDING", 120, lambda: str(self.job(number))
        )  # where it would stay for those two minutes
        wait_until(
            lambda: not any(env["SLURM_JOB_ID"] == number for _, env in self.processes()),
            180,
            self.logs,
        )
        self.ready()
        time.sleep(
            10
        )  # given a node in the second in which it came back, Slurm 22.05 forgets that it has given it, and the job waits for ever
        self.run("scontrol", "update", f"JobId={number}", "StartTime=now")

    def lose(self, node: str) -> None:
        """Lose a node: its slurmd, what slurmd started for steps, and the processes of the steps end, all at once and by force."""
        of_node = [pid for pid, env in self.processes() if env.get("SLURMD_NODENAME") == node]
        parents = {
            parent
            for pid in of_node
            for parent in _list_ancestors(pid)
            if "slurmstepd" in _read_command_line(parent)
        }
        self.daemons[node].kill()
        for pid in {*parents, *of_node}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.daemons[node].wait()

    def processes(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield what runs as a part of a job of this Slurm: number and environment."""
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                pairs = (
                    word.partition("=")
                    for word in (folder / "environ")
                    .read_bytes()
                    .decode(errors="replace")
                    .split("\0")
                )
                env = {name: value for name, _, value in pairs}
                if env.get("SLURM_CONF") == str(self.conf) and "SLURM_JOB_ID" in env:
                    yield int(folder.name), env

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}"
            for path in sorted(self.home.glob("*.log"))
        )

    def stop(self) -> None:
        """End all of it, jobs included."""
        with suppress(subprocess.SubprocessError):
            self.run(
                "scancel",
                "--signal=KILL",
                "--full",
                *self.run("squeue", "--noheader", "--format=%i").stdout.split(),
            )
        for pid, _ in list(self.processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.holder.kill()
        self.holder.wait()
        shutil.rmtree(self.home, ignore_errors=True)


def start_cluster() -> Slurm:
    """Start one.

    Raises:
      pytest.skip.Exception: there is none here; it says what to install.
    """
    if reason := explain_missing():
        pytest.skip(reason)
    home = Path(tempfile.mkdtemp(prefix="slurm"))  # a short path: a socket's may have 107 bytes
    (home / "munge.key").write_bytes(os.urandom(128))
    (home / "munge.key").chmod(0o400)
    (home / "hosts").write_text(f"127.0.0.1 localhost {' '.join(NODES)} {socket.gethostname()}\n")
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (home / name).mkdir()
    (home / "slurm.conf").write_text(
        _CONF.format(home=home, ports=_find_free_ports(1 + len(NODES)))
    )
    argv = [
        "unshare",
        "--mount",
        "--propagation=private",
        "sh",
        "-c",
        'mount --bind "$0" /etc/hosts && echo there && exec sleep infinity',
        str(home / "hosts"),
    ]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert holder.stdout
    with holder.stdout as said:
        line = said.readline().decode().strip()
    if line != "there":
        holder.wait()
        shutil.rmtree(home)
        pytest.skip(f"NOT TESTED: no mount namespace here: {line}")
    made = Slurm(home, holder)
    try:
        made.start("munged")
        wait_until((home / "munge.socket").exists, 20, made.logs)
        for name in ("slurmctld", *NODES):
            made.start(name)
        made.ready()
    except BaseException:
        made.stop()
        raise
    return made


def wait_until(true: object, seconds: float, why: object) -> None:
    """Wait for something that has to become true; fail with what why() says."""
    assert callable(true)
    assert callable(why)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, why()
        time.sleep(0.2)


def _find_free_ports(count: int) -> list[int]:
    """Free ones: held all at once, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return found


def _read_command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _list_ancestors(pid: int) -> list[int]:
    found = list[int]()
    with suppress(OSError, ValueError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(pid)
    return found
