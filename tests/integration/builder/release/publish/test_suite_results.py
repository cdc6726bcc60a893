"""A suite verifies an image only if it tested each feature of this image, on a GPU."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builder.release.publish import suite_results
from builder.release.publish.suite_results import ImageFacts
from rosetta.selftest import feature_checks
from tests.support import errors

if TYPE_CHECKING:
    from pathlib import Path

INDEX, PLATFORM = "sha256:" + "1" * 64, "sha256:" + "2" * 64
GPU_IMAGE = ImageFacts(INDEX, frozenset({PLATFORM}), "cuda13", has_transformer_engine=True)
PLAIN_IMAGE = ImageFacts(INDEX, frozenset(), "cuda12", has_transformer_engine=False)
CPU_IMAGE = ImageFacts(INDEX, frozenset(), "cpu", has_transformer_engine=False)
PASSED = {"outcome": "passed", "platform": "cuda"}
ON_CPU = {"outcome": "passed", "platform": "cpu"}
ABSENT = {"outcome": "not run", "lacks": "environment", "reason": "left out"}
ONE_GPU = {"outcome": "not run", "lacks": "machine", "reason": "one GPU"}
IMPORTS_ONLY = {"outcome": "not run", "lacks": "option", "reason": "--imports-only"}


def _write(folder: Path, digest: str, **checks: dict[str, Any]) -> Path:
    file = folder / "result.json"
    listed = [{"name": name, **check} for name, check in checks.items()]
    file.write_text(json.dumps({"ok": True, "result": {"digest": digest, "checks": listed}}))
    return file


def test_the_names_are_those_of_the_selftest() -> None:
    assert suite_results.CHECKS == feature_checks.NAMES
    assert suite_results.TRANSFORMER_ENGINE == feature_checks.TE


@pytest.mark.parametrize("digest", [INDEX, PLATFORM])
def test_a_suite_that_checked_everything(tmp_path: Path, digest: str) -> None:
    file = _write(tmp_path, digest, fp8=PASSED, te=PASSED, collective=PASSED)
    statement = suite_results.read_suite_result("gpu", file, GPU_IMAGE)
    assert statement["result"] == "PASSED"
    assert statement["passedTests"] == ["gpu", "fp8", "te", "collective"]
    assert "warnedTests" not in statement


def test_what_the_image_does_not_have_need_not_be_checked(tmp_path: Path) -> None:
    file = _write(tmp_path, INDEX, fp8=ABSENT, te=ABSENT, collective=PASSED)
    statement = suite_results.read_suite_result("gpu", file, PLAIN_IMAGE)
    assert (statement["result"], statement["passedTests"]) == ("PASSED", ["gpu", "collective"])


def test_an_image_for_cpus_is_tested_on_the_cpu(tmp_path: Path) -> None:
    file = _write(tmp_path, INDEX, fp8=ON_CPU, te=ABSENT, collective=ON_CPU)
    assert suite_results.read_suite_result("cpu", file, CPU_IMAGE)["result"] == "PASSED"


@pytest.mark.parametrize(
    ("checks", "name"),
    [
        ({"te": PASSED, "collective": PASSED}, "fp8"),
        ({"fp8": PASSED, "collective": PASSED}, "te"),
        ({"fp8": PASSED, "te": PASSED}, "collective"),
        ({"fp8": ON_CPU, "te": PASSED, "collective": PASSED}, "fp8"),
        ({"fp8": PASSED, "te": ABSENT, "collective": PASSED}, "te"),
        ({"fp8": PASSED, "te": ONE_GPU, "collective": PASSED}, "te"),
        ({"fp8": PASSED, "te": PASSED, "collective": ONE_GPU}, "collective"),
        ({"fp8": IMPORTS_ONLY, "te": PASSED, "collective": PASSED}, "fp8"),
        ({"fp8": {"outcome": "failed"}, "te": PASSED, "collective": PASSED}, "fp8"),
    ],
)
def test_a_feature_of_the_image_without_a_good_result_is_refused(
    tmp_path: Path, checks: dict[str, dict[str, Any]], name: str
) -> None:
    file = _write(tmp_path, INDEX, **checks)
    with errors.expect_user_error(errors.MISSING, where=file, value=name, names=name):
        suite_results.read_suite_result("gpu", file, GPU_IMAGE)


@pytest.mark.parametrize("other", [{"outcome": "failed"}, ABSENT, ON_CPU, IMPORTS_ONLY])
def test_only_what_the_machine_lacks_may_be_left_out(tmp_path: Path, other: dict[str, Any]) -> None:
    file = _write(tmp_path, INDEX, fp8=PASSED, te=ONE_GPU, collective=ONE_GPU)
    gaps = ("te", "collective")
    statement = suite_results.read_suite_result("gpu", file, GPU_IMAGE, gaps)
    assert (statement["result"], statement["warnedTests"]) == ("WARNED", list(gaps))
    assert statement["passedTests"] == ["gpu", "fp8"]
    file = _write(tmp_path, INDEX, fp8=PASSED, te=other, collective=PASSED)
    with errors.expect_user_error(errors.MISSING, value="te"):
        suite_results.read_suite_result("gpu", file, GPU_IMAGE, gaps)


@pytest.mark.parametrize("checks", [None, {}, ["fp8"], [[]], "x"])
def test_results_of_another_form_are_refused(tmp_path: Path, checks: Any) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"ok": True, "digest": INDEX, "checks": checks}))
    with errors.expect_user_error(errors.MISSING, value="fp8"):
        suite_results.read_suite_result("gpu", file, GPU_IMAGE)


def test_the_image_is_described_by_its_provenance() -> None:
    parameters = {"accelerator": "cuda13", "transformer_engine": True}
    provenance = {"buildDefinition": {"externalParameters": parameters}}
    assert suite_results.describe_image(INDEX, [PLATFORM], provenance) == GPU_IMAGE
