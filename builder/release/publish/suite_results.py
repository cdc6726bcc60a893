"""Read the result of a test suite, and decide whether it verifies an image.

`latest-verified` says that an image works on GPUs. So the result must be of exactly this image, and
each feature that the image has must have passed its check on a GPU.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import DIFFERS, FAILED, INVALID, MISSING, UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

# The checks of `rosetta selftest`, in the order of its result.
TRANSFORMER_ENGINE = "te"
CHECKS = ("fp8", TRANSFORMER_ENGINE, "collective")
_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/ -]{0,99}")
_MAX_RESULT_SIZE = 1 << 24  # bytes
_TEST_AGAIN = "test it again: `build.py verify registry:HOST/NAME@sha256:DIGEST --gpu --write FILE`"


@dataclass(frozen=True)
class ImageFacts:
    """What the signed statements say about an image.

    Attributes:
        digest: The digest of the index.
        platforms: The digests of the index's images, in which the suite may have run.
        accelerator: The accelerator, such as "cuda13" or "cpu".
        has_transformer_engine: Whether the image has Transformer Engine.
    """

    digest: str
    platforms: frozenset[str]
    accelerator: str
    has_transformer_engine: bool


def describe_image(
    digest: str, platforms: Collection[str], provenance: Mapping[str, Any]
) -> ImageFacts:
    """Return what is known of an image that was published.

    Args:
        digest: The digest of the index.
        platforms: The digests of the index's images.
        provenance: The predicate of the signed provenance of the index.
    """
    parameters = provenance["buildDefinition"]["externalParameters"]
    return ImageFacts(
        digest,
        frozenset(platforms),
        str(parameters["accelerator"]),
        bool(parameters["transformer_engine"]),
    )


def read_suite_result(
    suite: str, file: Path, image: ImageFacts, accepted_gaps: Collection[str] = ()
) -> dict[str, Any]:
    """Return the statement that a suite has passed, as a predicate of in-toto's test result v0.1.

    Args:
        suite: The name of the suite.
        file: The JSON document of the suite.
        image: The image that is promoted.
        accepted_gaps: The checks that may be left out because the machine of the suite could not
            run them.

    Raises:
        UserError: the suite has not passed, does not say which image it tested, tested another
            image, or did not check a feature that the image has.
    """
    if not _SUITE.fullmatch(suite):
        raise UserError(
            f"{suite[:60]!r} is not a valid name of a suite",
            "--suite",
            "use letters, digits, and . _ / - or spaces between them",
        )
    content, document = _read_document(file)
    if document["ok"] is not True:
        raise UserError(
            f"{suite} has not passed",
            str(file),
            "the tag was not moved",
            kind=FAILED,
            value=suite,
        )
    result = document.get("result")
    parts = (document, result) if isinstance(result, dict) else (document,)
    _check_tested_digest(parts, file, image)
    passed, gaps = _sort_checks(parts, file, image, accepted_gaps)
    predicate = {
        "result": "WARNED" if gaps else "PASSED",
        "configuration": [
            {"name": suite, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
        ],
        "passedTests": [suite, *passed],
    }
    return predicate | ({"warnedTests": gaps} if gaps else {})


def _read_document(file: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes and the JSON object of a suite's document; the object has a key `ok`."""
    try:
        with open(file, "rb") as stream:
            content = stream.read(_MAX_RESULT_SIZE)
        document = json.loads(content)
        _ = document["ok"]
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", str(file), "give the suite's JSON document"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            "is not a test result: JSON with a field `ok` is expected",
            str(file),
            "give what `build.py verify --write` wrote",
            kind=INVALID,
        ) from error
    return content, document


def _check_tested_digest(
    parts: Collection[Mapping[str, Any]], file: Path, image: ImageFacts
) -> None:
    """Check that a result says which image it is of, and that this is the promoted image.

    Args:
        parts: The JSON document of the suite, and its member `result`.
        file: The file of the document, for errors.
        image: The image that is promoted.
    """
    digests = [str(part["digest"]) for part in parts if "digest" in part]
    if not digests:
        raise UserError(
            "does not name the digest of the image that was tested",
            str(file),
            _TEST_AGAIN,
            kind=MISSING,
            value="digest",
        )
    for digest in digests:
        if digest not in {image.digest, *image.platforms}:
            raise UserError(
                f"is the result of {digest[:80]!r}, not of {image.digest[:19]}…",
                str(file),
                "promote the digest that was tested",
                kind=DIFFERS,
                value=digest[:80],
            )


def _sort_checks(
    parts: Collection[Mapping[str, Any]],
    file: Path,
    image: ImageFacts,
    accepted_gaps: Collection[str],
) -> tuple[list[str], list[str]]:
    """Check the result of each feature that an image has.

    Args:
        parts: The JSON document of the suite, and its member `result`.
        file: The file of the document, for errors.
        image: The image that is promoted.
        accepted_gaps: The checks that may be left out for the sake of the machine.

    Returns:
        The checks that passed, and those that were left out.
    """
    checks: dict[str, Mapping[str, Any]] = {}
    for part in parts:
        listed = part.get("checks")
        for check in listed if isinstance(listed, list) else []:
            if isinstance(check, dict):
                checks[str(check.get("name"))] = check
    passed, gaps = [], []
    for name in CHECKS:
        check = checks.get(name, {})
        if check.get("outcome") == "passed" and _ran_on_accelerator(check, image):
            passed.append(name)
        elif check.get("lacks") == "machine" and name in accepted_gaps:
            gaps.append(name)
        elif not _is_absent(name, check, image):
            raise _make_gap_error(name, check, file)
    return passed, gaps


def _ran_on_accelerator(check: Mapping[str, Any], image: ImageFacts) -> bool:
    """Return whether a check ran on what the image is for."""
    return image.accelerator == "cpu" or check.get("platform") == "cuda"


def _is_absent(name: str, check: Mapping[str, Any], image: ImageFacts) -> bool:
    """Return whether a check was not run because the image does not have the feature."""
    if name == TRANSFORMER_ENGINE and image.has_transformer_engine:
        return False  # whatever the result says: the signed provenance lists it
    return check.get("outcome") == "not run" and check.get("lacks") == "environment"


def _make_gap_error(name: str, check: Mapping[str, Any], file: Path) -> UserError:
    """Return the error for a feature of the image that did not pass its check."""
    if not check:
        what = f"has no result of the check {name}"
    elif check.get("outcome") == "passed":
        what = f"the check {name} passed on {check.get('platform')}, not on a GPU"
    else:
        what = f"the check {name}: {check.get('outcome')}: {check.get('reason')}"
    remedy = _TEST_AGAIN
    if check.get("lacks") == "machine":
        remedy = (
            f"test the image on a machine that can run it, or promote it without this check: "
            f"--accept-not-run {name}"
        )
    return UserError(what, str(file), remedy, kind=MISSING, value=name)
