"""The command `rosetta data check`: say whether a run can use the data, and count it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from rosetta.commands import data_options
from rosetta.core import log
from rosetta.data import data_checks, data_spec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from rosetta.data.bad_records import BadRecordSummary
    from rosetta.data.data_spec import Spec

_PROGRESS_PERIOD = 0.2  # seconds between counts on a terminal


def add_options(action: argparse.ArgumentParser) -> None:
    """Add the options of `rosetta data check`."""
    action.add_argument(
        "--vocab-size", type=data_options.parse_count, help="the rows of the model's embedding"
    )
    action.add_argument(
        "--head", action="store_true", help="read only the first record of each source"
    )


def run(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Run `rosetta data check`."""
    from rosetta.data import bad_records, tfds

    data_checks.check_data(
        data=args.data,
        objective=args.objective,
        vocab=args.vocab,
        vocab_size=args.vocab_size,
        lengths={"inputs": args.inputs, "targets": args.targets},
        split=args.split,
        extra_ids=args.extra_ids,
        mean_noise_span_length=args.mean_span,
        from_variables=False,
    )
    sources = [part.spec for part in data_spec.parse_parts(args.data)]
    prepared_sets = {
        str(source): tfds.check(source, args.split) for source in sources if source.kind == "tfds"
    }
    lines = [
        f"{name}: {facts['files']} files, {facts['bytes']:,} bytes, {facts['examples']:,} examples"
        for name, facts in prepared_sets.items()
    ]
    data = data_spec.describe_data(args.data)
    if args.head:
        _check_first_records(sources, args)
        lines.append(f"{data}: usable for {args.objective}, judging by the first records")
        return {"ok": True, "data": data, "copies": prepared_sets}, "\n".join(lines)
    bad = bad_records.BadRecordSummary()
    counts = _count_sources(sources, args, bad)
    for name, count in counts.items():
        lines.append(f"{name}: {count['records']:,} records, {count['tokens']:,} tokens")
    lines += _describe_usability(data, args.objective, bad)
    result = {
        "ok": not bad.total or bad_records.read_policy() == "skip",
        "data": data,
        "copies": prepared_sets,
        "counts": counts,
        "bad": {"total": bad.total, "kinds": bad.kinds, "first": bad.lines},
    }
    return result, "\n".join(lines)


def _check_first_records(sources: list[Spec], args: argparse.Namespace) -> None:
    """Check the first record of each source that has records.

    Raises:
        UserError: A run cannot use the record.
    """
    from rosetta.data import task_records

    for source in sources:
        if source.kind not in data_options.KINDS_WITHOUT_TEXT:
            task_records.check_first_record(source, args.objective, args.field, args.split)


def _count_sources(
    sources: list[Spec], args: argparse.Namespace, bad: BadRecordSummary
) -> dict[str, dict[str, int]]:
    """Return source -> its records and tokens, for the sources that can be counted.

    Args:
        sources: The sources.
        args: The arguments of the command.
        bad: Collects the records that cannot be used.
    """
    from rosetta.data import reading_progress, source_counts

    vocabulary = data_options.load_vocabulary(args)
    counts = {}
    paths = [path for source in sources for path in source_counts.list_files(source, args.split)]
    with reading_progress.show_files(paths):
        for source in sources:
            count = source_counts.count_source(
                source,
                objective=args.objective,
                field=args.field,
                split=args.split,
                vocabulary=vocabulary,
                handle=bad,
                report=_make_progress_report(),
            )
            if count:
                counts[str(source)] = count
            log.show_count("")
    return counts


def _describe_usability(data: str, objective: str, bad: BadRecordSummary) -> list[str]:
    """Return lines about the bad records, and one that says whether a run can use the data."""
    from rosetta.data import bad_records

    if not bad.total:
        return [f"{data}: usable for {objective}"]
    if bad_records.read_policy() == "skip":
        verdict = (
            f"{data}: usable for {objective}; {bad.total:,} bad records are skipped "
            f"({bad_records.VARIABLE}=skip)"
        )
    else:
        shown = "" if len(bad.lines) == bad.total else f", of which {len(bad.lines)} are shown"
        verdict = (
            f"{data}: {bad.total:,} bad records{shown}; correct them, or set "
            f"{bad_records.VARIABLE}=skip for the run"
        )
    return [*bad.lines, verdict]


def _make_progress_report() -> Callable[[int, int], None]:
    """Return a function that shows the numbers of records and tokens on a terminal.

    The function shows them only if _PROGRESS_PERIOD has passed since it last did, and if no bar
    shows the progress: the length of a stream is not known.
    """
    from rosetta.data import reading_progress

    shown_at = time.monotonic()

    def report(records: int, tokens: int) -> None:
        nonlocal shown_at
        is_time = time.monotonic() - shown_at > _PROGRESS_PERIOD
        if is_time and not reading_progress.is_shown():
            shown_at = time.monotonic()
            log.show_count(f"{records:,} records, {tokens:,} tokens")

    return report
