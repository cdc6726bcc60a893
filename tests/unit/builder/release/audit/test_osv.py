"""OSV is asked in batches and pages, and an answer that is missing is never taken for "none"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from builder.release.audit.osv import OsvClient, Package, parse_service
from tests.support import errors, osv_service
from tests.support.osv_service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

JINJA = Package("jinja2", osv_service.JINJA)


@pytest.fixture(name="service")
def service_() -> Iterator[Service]:
    with osv_service.serve_osv() as service:
        yield service


@pytest.fixture(name="client")
def client_(service: Service) -> OsvClient:
    return OsvClient(service.address, pause=0)


def test_the_ids_of_each_package(service: Service, client: OsvClient) -> None:
    other = Package("numpy", "2.4.0")
    assert client.query_packages([other, JINJA]) == {other: [], JINJA: sorted(service.records)}
    assert [len(batch) for batch in service.batches] == [2]


@pytest.mark.parametrize("page", [1, 3, 9, 10])
def test_all_pages_of_a_query_are_read(service: Service, client: OsvClient, page: int) -> None:
    service.page = page
    service.ids["other", "1.0"] = ["GHSA-aaaa-aaaa-aaaa", "GHSA-bbbb-bbbb-bbbb"]
    none, other = Package("none", "1.0"), Package("other", "1.0")
    found = client.query_packages([none, JINJA, other])
    assert found == {
        none: [],
        JINJA: sorted(service.records),
        other: service.ids["other", "1.0"],
    }
    assert len(service.batches) == -(-10 // page)
    for batch in service.batches[1:]:  # only what has more pages is asked again
        assert all(query["page_token"] for query in batch)


def test_a_request_has_at_most_a_thousand_queries(service: Service, client: OsvClient) -> None:
    service.page = 4
    packages = [Package(f"package-{number}", "1.0") for number in range(2300)]
    found = client.query_packages([*packages, JINJA])
    assert [len(batch) for batch in service.batches] == [1000, 1000, 301, 1, 1]
    assert [package for package, ids in found.items() if ids] == [JINJA]
    assert found[JINJA] == sorted(service.records)


def test_a_passing_fault_is_tried_again(service: Service, client: OsvClient) -> None:
    service.faults = [503, 429]
    assert len(client.query_packages([JINJA])[JINJA]) == 10
    service.faults = [500]
    assert client.read_record("PYSEC-2021-66")["aliases"][0] == "CVE-2020-28493"


@pytest.mark.parametrize("faults", [[500, 502, 503], [400], [302]])
def test_a_service_that_refuses_is_unreachable(
    service: Service, client: OsvClient, faults: list[int]
) -> None:
    service.faults = list(faults)
    with errors.expect_user_error(errors.UNREACHABLE, where=service.address):
        client.query_packages([JINJA])
    assert service.faults == []


def test_a_service_that_is_not_there() -> None:
    with osv_service.serve_osv() as service:
        address = service.address
    with errors.expect_user_error(errors.UNREACHABLE, where=address):
        OsvClient(address, pause=0).query_packages([JINJA])


@pytest.mark.parametrize(
    "answer",
    [
        "<html>please log in</html>",
        [],
        {},
        {"results": None},
        {"results": []},
        {"results": [{}, {}]},
        {"results": [None]},
        {"results": [{"vulns": [{}]}]},
        {"results": [{"vulns": [{"id": "../../v1/query"}]}]},
        {"results": [{"vulns": [{"id": 3}]}]},
    ],
)
def test_an_answer_of_another_form_is_an_error(
    service: Service, client: OsvClient, answer: Any
) -> None:
    service.override = answer
    with errors.expect_user_error(errors.INVALID, where=service.address):
        client.query_packages([JINJA])


def test_pages_that_do_not_end_are_an_error(service: Service, client: OsvClient) -> None:
    service.override = {"results": [{"next_page_token": "again"}]}
    with errors.expect_user_error(errors.INVALID, where=service.address):
        client.query_packages([JINJA])


def test_a_record_that_is_another_one(service: Service, client: OsvClient) -> None:
    service.records["GHSA-aaaa-aaaa-aaaa"] = service.records["PYSEC-2021-66"]
    with errors.expect_user_error(errors.INVALID, where=service.address):
        client.read_record("GHSA-aaaa-aaaa-aaaa")


@pytest.mark.parametrize("address", ["http://api.osv.dev", "ftp://127.0.0.1", "api.osv.dev"])
def test_only_https_is_asked(address: str) -> None:
    with errors.expect_user_error(errors.INVALID, where="--service"):
        parse_service(address)
