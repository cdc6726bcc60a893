"""`rosetta doctor`."""

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
    from rosetta.doctor import finding, machine, slurm_job

    if args.nccl:
        return _measure_bandwidth(args)
    if args.hosts is not None and args.quick:
        raise UserError(
            "--quick resolves no names", "doctor --hosts", "leave one of them out", kind=CONFLICT
        )
    hosts = slurm_job.parse_hosts(args.hosts, "--hosts") if args.hosts is not None else []
    seen = machine.inspect_machine(os.environ, quick=args.quick)
    found = doctor.examine_machine(seen, hosts=hosts, folders=args.folder)
    ok = all(each.level != finding.BLOCKER for each in found)
    about = _describe_machine(seen)
    return {
        "ok": ok,
        "quick": args.quick,
        "machine": about,
        "findings": [each.as_json() for each in found],
    }, format_table(about, found)


def _measure_bandwidth(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Measure; of several processes the first says what was found, the others end as it does."""
    from rosetta.bench import bandwidth
    from rosetta.core.errors import CONFLICT, UserError
    from rosetta.doctor import bandwidth_findings

    if args.quick or args.hosts is not None or args.folder:
        raise UserError(
            "--nccl measures, and looks at nothing else",
            "doctor --nccl",
            "leave --quick, --hosts and --folder out",
            kind=CONFLICT,
        )
    with _redirect_stdout():
        bandwidth.join_processes(os.environ)
        import jax

        first = jax.process_index() == 0
        measured = bandwidth.measure_all_devices(
            bandwidth.list_process_hosts(),
            args.mib << 20,
            log.info if first else lambda _: None,
        )
    if not first:
        raise SystemExit(0)
    found = list(bandwidth_findings.find_slow_links(measured))
    return {
        "ok": True,
        "bandwidth": bandwidth_findings.encode_result(measured),
        "findings": [each.as_json() for each in found],
    }, "\n".join([bandwidth_findings.format_table(measured), *_format_findings(found)])


@contextlib.contextmanager
def _redirect_stdout() -> Iterator[None]:
    """Send what libraries print to stdout (NCCL_DEBUG=INFO, Gloo) to stderr."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _describe_machine(seen: Machine) -> dict[str, Any]:
    """Describe the machine that the findings are about."""
    from rosetta.doctor.finding import make_printable

    return {
        "driver": seen.driver or None,
        "cards": [make_printable(each.name) for each in seen.gpus],
        "container": seen.container or None,
        "distribution": seen.record.get("distribution"),
        "cuda": seen.cuda,
        **{name: seen.find_version(name) for name in ("jax", "jaxlib", "transformer-engine-jax")},
    }


def format_table(about: dict[str, Any], found: list[Finding]) -> str:
    """Return the findings as lines for people, after what they are about."""
    from rosetta.doctor.finding import LEVELS

    cards = about["cards"]
    facts = {**about, "cards": f"{len(cards)} x {cards[0]}" if cards else None}
    lines = [
        ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        or "no driver, no JAX, no container"
    ]
    lines += _format_findings(found)
    counts = ", ".join(
        f"{number} {level}{'' if number == 1 else 's'}"
        for level in LEVELS
        if (number := sum(each.level == level for each in found))
    )
    return "\n".join([*lines, counts or "nothing found"])


def _format_findings(found: list[Finding]) -> list[str]:
    return [
        f"{each.level:<7}  {each.where}: {each.what}\n         -> {each.do}"
        + (f" ({each.see})" if each.see else "")
        for each in found
    ]


RUN = {"doctor": run}
