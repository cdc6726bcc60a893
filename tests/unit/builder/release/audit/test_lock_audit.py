"""Each lock has its packages, and each vulnerability once, with what fixes it."""

from __future__ import annotations

import contextlib
import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from builder import cli
from builder.release.audit import lock_audit
from builder.release.audit.osv import OsvClient, Package
from tests.support import osv_service

if TYPE_CHECKING:
    from pathlib import Path

HASH = f" \\\n    --hash=sha256:{'a' * 64}\n"
PINS = (
    f"jinja2=={osv_service.JINJA}",
    "numpy==2.4.0 ; python_version < '3.12'",
    "numpy==2.4.0 ; python_version >= '3.12'",
)
TEXT = "".join(pin + HASH for pin in PINS)


def _fixes(version: str, *events: dict[str, str]) -> list[str]:
    record = osv_service.make_record("GHSA-aaaa-aaaa-aaaa", "name", "1.0")
    record["affected"][0]["ranges"][1]["events"] = list(events)
    (entry,) = lock_audit.list_vulnerabilities(Package("name", version), [record])
    fixed: list[str] = entry["fixed"]
    return fixed


def test_each_lock_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(TEXT)
    (tmp_path / "two.txt").write_text(f"numpy==2.4.0{HASH}")
    with osv_service.serve_osv() as service:
        locks = lock_audit.audit_locks(
            OsvClient(service.address), [tmp_path / "one.txt", tmp_path / "two.txt"]
        )
        assert [len(batch) for batch in service.batches] == [2]
        assert sorted(service.read) == sorted(service.records)
    assert locks["two.txt"] == {"packages": 1, "vulnerabilities": []}
    assert locks["one.txt"]["packages"] == 2
    found = locks["one.txt"]["vulnerabilities"]
    assert [(entry["id"], entry["aliases"], entry["fixed"]) for entry in found] == [
        ("GHSA-462w-v97r-4m45", ["PYSEC-2019-217", "CVE-2019-10906"], ["2.10.1"]),
        ("GHSA-8r7q-cvjq-x353", ["PYSEC-2014-8", "CVE-2014-1402"], ["2.7.2"]),
        ("GHSA-fqh9-2qgg-h84h", ["PYSEC-2014-82", "CVE-2014-0012"], ["2.7.2"]),
        ("GHSA-g3rq-g295-4j3m", ["PYSEC-2021-66", "CVE-2020-28493"], ["2.11.3"]),
        ("GHSA-hj2j-77xm-mc5v", ["PYSEC-2019-220", "CVE-2016-10745"], ["2.8.1"]),
    ]
    assert {(entry["package"], entry["version"]) for entry in found} == {("jinja2", "2.4.1")}


def test_records_that_name_only_the_same_cve_are_one() -> None:
    first = osv_service.make_record("GHSA-aaaa-aaaa-aaaa", "name", "1.5", "CVE-2026-1")
    second = osv_service.make_record("PYSEC-2026-1", "name", "1.5", "CVE-2026-1", "CVE-2026-2")
    third = osv_service.make_record("GHSA-bbbb-bbbb-bbbb", "name", "1.6", "CVE-2026-2")
    other = osv_service.make_record("GHSA-cccc-cccc-cccc", "name", "1.6", "CVE-2026-3")
    found = lock_audit.list_vulnerabilities(Package("name", "1.0"), [first, third, other, second])
    assert [(entry["id"], entry["fixed"]) for entry in found] == [
        ("GHSA-aaaa-aaaa-aaaa", ["1.5", "1.6"]),
        ("GHSA-cccc-cccc-cccc", ["1.6"]),
    ]


def test_a_withdrawn_record_does_not_count() -> None:
    record = osv_service.make_record("GHSA-aaaa-aaaa-aaaa", "name", "1.5")
    withdrawn = {**record, "withdrawn": "2026-01-02T00:00:00Z"}
    assert lock_audit.list_vulnerabilities(Package("name", "1.0"), [withdrawn]) == []


@pytest.mark.parametrize(
    ("version", "fixed"),
    [("1.2", ["1.5"]), ("2.1", ["2.3"]), ("1.6", []), ("2.3", []), ("3.1", [])],
)
def test_the_fix_is_that_of_the_branch(version: str, fixed: list[str]) -> None:
    events = [
        {"introduced": "0"},
        {"fixed": "1.5"},
        {"introduced": "2.0"},
        {"fixed": "2.3"},
        {"introduced": "3.0"},
    ]
    assert _fixes(version, *events) == fixed
    assert _fixes(version, *reversed(events)) == fixed


def test_without_a_fix_none_is_named() -> None:
    assert _fixes("1.0", {"introduced": "0"}, {"last_affected": "1.2"}) == []
    assert _fixes("1.0", {"introduced": "0.5"}, {"fixed": "not-a-version"}) == []


def _audit(*words: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = cli.main(["audit", *words, "--json"])
    return status, json.loads(out.getvalue())


def test_the_command_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "one.txt"
    lock.write_text(TEXT)
    with osv_service.serve_osv() as service:
        status, document = _audit(str(lock), "--service", service.address)
        assert (status, document["ok"]) == (0, True)
        assert len(document["result"]["locks"]["one.txt"]["vulnerabilities"]) == 5
        assert cli.main(["audit", str(lock), "--service", service.address]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("one.txt: 5 ")
        assert lines[1].startswith("  jinja2 2.4.1: GHSA-462w-v97r-4m45, ")
        assert document["result"]["date"] in lines[-1]


def test_without_the_service_there_is_no_result(tmp_path: Path) -> None:
    lock = tmp_path / "one.txt"
    lock.write_text(TEXT)
    with osv_service.serve_osv() as service:
        service.faults = [400]
        status, document = _audit(str(lock), "--service", service.address)
        assert (status, document["result"]) == (2, None)
        assert document["error"]["where"] == service.address
        service.faults = [200, 404]  # the ids come, and a record does not
        service.override = {"results": [{"vulns": [{"id": "PYSEC-2021-66"}]}, {}]}
        status, document = _audit(str(lock), "--service", service.address)
        assert (status, document["result"]) == (2, None)
    status, document = _audit(str(lock), "--offline")
    assert (status, document["error"]["kind"]) == (2, "conflict")


def test_two_locks_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.txt").write_text(TEXT)
    status, document = _audit(str(tmp_path / "a/one.txt"), str(tmp_path / "b/one.txt"))
    assert (status, document["error"]["kind"]) == (2, "conflict")


def test_our_own_locks_are_all_asked_about() -> None:
    with osv_service.serve_osv() as service:
        status, document = _audit("--service", service.address)
    assert status == 0
    locks = document["result"]["locks"]
    assert {"t5x-cpu.txt", "t5x-cuda13.txt", "pax-cuda13.txt", "builder.txt", "mt3.txt"} <= set(
        locks
    )
    asked = {(query["package"]["name"], query["version"]) for query in service.batches[0]}
    assert "jax" in {name for name, _ in asked}
    assert all(lock["packages"] > 0 for lock in locks.values())
