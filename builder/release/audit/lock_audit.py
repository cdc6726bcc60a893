"""List the known vulnerabilities of the packages in locks.

OSV has records of several databases about one vulnerability. Records that name each other, or the
same CVE, are counted once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builder.packages import lock_file
from builder.release.audit.osv import ECOSYSTEM, Package

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from builder.release.audit.osv import OsvClient

    Record = Mapping[str, Any]

_FIRST_IDS = ("GHSA-", "PYSEC-", "CVE-")  # which id names a vulnerability with several


def audit_locks(client: OsvClient, locks: Iterable[Path]) -> dict[str, Any]:
    """Return the number of packages and the known vulnerabilities of each lock, by its file name.

    Raises:
        UserError: a lock cannot be read, or the service cannot be asked. There is no partial
            result.
    """
    packages_of = {lock.name: _read_packages(lock) for lock in locks}
    all_packages = sorted({package for packages in packages_of.values() for package in packages})
    record_ids = client.query_packages(all_packages)
    unique_ids = sorted({record_id for ids in record_ids.values() for record_id in ids})
    records = {record_id: client.read_record(record_id) for record_id in unique_ids}
    vulnerabilities = {
        package: list_vulnerabilities(package, [records[record_id] for record_id in ids])
        for package, ids in record_ids.items()
    }
    return {
        name: {
            "packages": len(packages),
            "vulnerabilities": [
                entry for package in packages for entry in vulnerabilities[package]
            ],
        }
        for name, packages in packages_of.items()
    }


def _read_packages(lock: Path) -> list[Package]:
    """Return the packages of a lock, each once, sorted by name."""
    return sorted({Package(pin.name, pin.version) for pin in lock_file.read_lock(lock)})


def list_vulnerabilities(package: Package, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the vulnerabilities of a package, sorted by id.

    Args:
        package: The package.
        records: OSV's records about this version of the package. Withdrawn ones do not count.
    """
    valid_records = [record for record in records if not record.get("withdrawn")]
    entries = []
    for group in _group_records(valid_records):
        ids = sorted({name for record in group for name in _list_names(record)}, key=_order_id)
        summaries = [str(record["summary"]) for record in group if record.get("summary")]
        fixed = {version for record in group for version in _find_fixes(record, package)}
        entries.append(
            {
                "package": package.name,
                "version": package.version,
                "id": ids[0],
                "aliases": ids[1:],
                "summary": summaries[0] if summaries else "",
                "fixed": [str(version) for version in sorted(fixed)],
            }
        )
    return sorted(entries, key=lambda entry: str(entry["id"]))


def _list_names(record: Record) -> list[str]:
    """Return the id of a record, and its other names."""
    return [str(record["id"]), *map(str, record.get("aliases") or [])]


def _order_id(name: str) -> tuple[int, str]:
    ranks = [rank for rank, start in enumerate(_FIRST_IDS) if name.startswith(start)]
    return (ranks or [len(_FIRST_IDS)])[0], name


def _group_records(records: Sequence[Record]) -> list[list[Record]]:
    """Put records about the same vulnerability together."""
    groups: list[tuple[set[str], list[Record]]] = []
    for record in records:
        names, members = set(_list_names(record)), [record]
        separate = []
        for other_names, other_members in groups:
            if names.isdisjoint(other_names):
                separate.append((other_names, other_members))
            else:
                names |= other_names
                members = [*other_members, *members]
        groups = [*separate, (names, members)]
    return [members for _, members in groups]


def _find_fixes(record: Record, package: Package) -> Iterator[Version]:
    """Yield the fixed version of each range that has the version of the package."""
    try:
        version = Version(package.version)
    except InvalidVersion:
        return
    for affected in record.get("affected") or []:
        about = affected.get("package") or {}
        is_same = canonicalize_name(str(about.get("name"))) == package.name
        if about.get("ecosystem") != ECOSYSTEM or not is_same:
            continue
        for version_range in affected.get("ranges") or []:
            if version_range.get("type") == "ECOSYSTEM":
                yield from _find_fix(version_range.get("events") or [], version)


def _find_fix(events: Sequence[Mapping[str, str]], version: Version) -> Iterator[Version]:
    """Yield the first fixed version after `version`, if the range has `version`."""
    introduced = [start for start in _read_versions(events, "introduced") if start <= version]
    if not introduced:
        return
    start = max(introduced)
    later = [fix for fix in _read_versions(events, "fixed") if fix > start]
    if later and min(later) > version:
        yield min(later)


def _read_versions(events: Sequence[Mapping[str, str]], kind: str) -> Iterator[Version]:
    for event in events:
        try:
            yield Version(str(event[kind]))
        except (KeyError, InvalidVersion):
            continue
