"""The command `rosetta doctor`: check this machine for problems before a run."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from rosetta.core import log, option_types

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rosetta.doctor.finding import Finding
    from rosetta.doctor.machine import Machine


def add_parsers(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to a parser's subcommands."""
    entry = commands.add_parser("doctor", parents=[common])
    entry.add_argument(
        "--quick",
        action="store_true",
        help="skip the checks that run a command, ask a name server or write a file",
    )
    entry.add_argument(
        "--hosts",
        metavar="LIST",
        help="nodes whose names must resolve, as in n[1-4],m1 (default: those of the Slurm job)",
    )
    entry.add_argument(
        "--nccl",
        action="store_true",
        help=(
            "measure the bandwidth between GPUs and between nodes instead; start the command with "
            "srun if the job has several nodes"
        ),
    )
    entry.add_argument(
        "--mib",
        type=option_types.parse_count,
        default=64,
        help="with --nccl: the MiB that a GPU sends at a time (default: 64)",
    )
    entry.add_argument(
        "--folder",
        action="append",
        default=[],
        metavar="DIR",
        help="also check this folder, which the run writes (may be repeated)",
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta doctor`; return its result and the text to print."""
    from rosetta import doctor
    from rosetta.core.errors import CONFLICT, UserError
    from rosetta.doctor import machine, slurm_job
    from rosetta.doctor.finding import BLOCKER

    if args.nccl:
        return _measure_bandwidth(args)
    if args.hosts is not None and args.quick:
        raise UserError(
            "--quick does not resolve host names",
            "doctor --hosts",
            "leave one of the options out",
            kind=CONFLICT,
        )
    hosts = slurm_job.parse_hosts(args.hosts, "--hosts") if args.hosts is not None else []
    inspected = machine.inspect_machine(os.environ, quick=args.quick)
    findings = doctor.examine_machine(inspected, hosts=hosts, folders=args.folder)
    about = _describe_machine(inspected)
    result = {
        "ok": not any(finding.level == BLOCKER for finding in findings),
        "quick": args.quick,
        "machine": about,
        "findings": [finding.as_json() for finding in findings],
    }
    return result, format_table(about, findings)


def _measure_bandwidth(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta doctor --nccl`.

    If several processes measure, the first reports, and the others end here.
    """
    from rosetta.bench import bandwidth
    from rosetta.core.errors import CONFLICT, UserError
    from rosetta.doctor import bandwidth_findings

    if args.quick or args.hosts is not None or args.folder:
        raise UserError(
            "--nccl only measures bandwidths",
            "doctor --nccl",
            "leave --quick, --hosts and --folder out",
            kind=CONFLICT,
        )
    with _redirect_stdout():
        bandwidth.join_processes(os.environ)
        import jax

        is_first_process = jax.process_index() == 0
        measured = bandwidth.measure_all_devices(
            bandwidth.list_process_hosts(),
            args.mib << 20,
            log.info if is_first_process else lambda _: None,
        )
    if not is_first_process:
        raise SystemExit(0)
    findings = list(bandwidth_findings.find_slow_links(measured))
    result = {
        "ok": True,
        "bandwidth": bandwidth_findings.encode_result(measured),
        "findings": [finding.as_json() for finding in findings],
    }
    lines = [bandwidth_findings.format_table(measured), *_format_findings(findings)]
    return result, "\n".join(lines)


@contextlib.contextmanager
def _redirect_stdout() -> Iterator[None]:
    """Send what libraries print to stdout (NCCL_DEBUG=INFO, Gloo) to stderr."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


def _describe_machine(inspected: Machine) -> dict[str, Any]:
    """Return the facts about the machine that --json and the first line show."""
    from rosetta.doctor.finding import make_printable

    packages = ("jax", "jaxlib", "transformer-engine-jax")
    return {
        "driver": inspected.driver or None,
        "cards": [make_printable(detected.name) for detected in inspected.gpus],
        "container": inspected.container or None,
        "distribution": inspected.record.get("distribution"),
        "cuda": inspected.cuda,
        **{package: inspected.find_version(package) for package in packages},
    }


def format_table(about: dict[str, Any], findings: list[Finding]) -> str:
    """Return the facts about the machine, the findings and their number as text.

    Args:
      about: The facts, by name.
      findings: The findings, in the order in which they are shown.
    """
    from rosetta.doctor.finding import LEVELS

    gpu_names = about["cards"]
    facts = {**about, "cards": f"{len(gpu_names)} x {gpu_names[0]}" if gpu_names else None}
    known_facts = [f"{name} {value}" for name, value in facts.items() if value is not None]
    counts = []
    for level in LEVELS:
        count = sum(finding.level == level for finding in findings)
        if count:
            counts.append(f"{count} {level}" if count == 1 else f"{count} {level}s")
    lines = [
        ", ".join(known_facts) or "no driver, no JAX, no container",
        *_format_findings(findings),
        ", ".join(counts) or "nothing found",
    ]
    return "\n".join(lines)


def _format_findings(findings: list[Finding]) -> list[str]:
    """Return two lines for each finding: what is wrong, and what to do."""
    texts = []
    for finding in findings:
        reference = f" ({finding.see})" if finding.see else ""
        problem = f"{finding.level:<7}  {finding.where}: {finding.what}"
        texts.append(f"{problem}\n         -> {finding.do}{reference}")
    return texts


RUN = {"doctor": run}
