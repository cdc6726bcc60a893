"""What a user types for data: `text:/data/*.txt`, `hf:owner/name`, `{"text:a": 0.7, "jsonl:b":
0.3}`.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
from collections.abc import Mapping
from typing import Any

from rosetta.core import path_checks
from rosetta.core.errors import CONFLICT, DENIED, INVALID, MISSING, UNKNOWN, UserError

KINDS = {
    "synthetic": "random token ids, no file and no vocabulary",
    "text": "UTF-8 text files, one document a line: text:GLOB",
    "jsonl": "JSON objects, one a line: jsonl:GLOB",
    "tfrecord": "TFRecord files of tf.train.Example: tfrecord:GLOB",
    "cache": "what `rosetta data cache` wrote: cache:FOLDER",
    "hf": "a Hugging Face data set, streamed: hf:OWNER/NAME[/CONFIG], or hf:FOLDER",
    "tfds": "a prepared TensorFlow Datasets folder under TFDS_DATA_DIR: "
    "tfds:NAME[/CONFIG][:VERSION]",
    "task": "a registered SeqIO task or mixture: task:NAME",
}
ANSWER_OBJECTIVES = (
    "lambada",
    "boolq",
)  # a prompt that a causal language model goes on with: Pax's
CAUSAL_OBJECTIVES = ("lm", *ANSWER_OBJECTIVES)  # what a decoder alone reads
PAIR_OBJECTIVES = ("mnli", "squad", "text_to_text", *ANSWER_OBJECTIVES)
OBJECTIVES = ("span_corruption", "prefix_lm", "lm", *PAIR_OBJECTIVES)


@dataclasses.dataclass(frozen=True)
class Spec:
    """One source of data.

    Attributes:
      kind: one of KINDS.
      value: what follows the colon.
      split: what follows `#`: a split's name in a hf or tfds set, "" for the one the run asks for.
    """

    kind: str
    value: str = ""
    split: str = ""

    def __str__(self) -> str:
        return (
            self.kind
            + (f":{self.value}" if self.value else "")
            + (f"#{self.split}" if self.split else "")
        )


def parse_spec(text: str) -> Spec:
    """Return the spec a string stands for; UserError says which kinds there are."""
    kind, colon, value = text.strip().partition(":")
    if kind not in KINDS:
        raise UserError(
            f"no kind of data is called {kind!r}",
            f"DATA={text}",
            "write KIND:VALUE with one of " + ", ".join(KINDS) + ", such as text:/data/*.txt",
            kind=UNKNOWN,
            value=kind,
        )
    split = ""
    if kind in ("hf", "tfds"):
        value, _, split = value.partition("#")
    if kind == "synthetic":
        if colon:
            raise UserError(
                "synthetic takes nothing after it",
                f"DATA={text}",
                "write DATA=synthetic",
                kind=INVALID,
            )
    elif not value:
        raise UserError(
            "the colon and what follows it are missing", f"DATA={text}", KINDS[kind], kind=INVALID
        )
    return Spec(kind, value, split)


@dataclasses.dataclass(frozen=True)
class Part:
    """One source of a mixture and how often it is drawn, relative to the others."""

    spec: Spec
    rate: float = 1.0


def _refuse_repeated(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"the source {name!r} is given twice",
                "DATA",
                "give it once, with the sum of its rates",
                kind=INVALID,
                value=name,
            )


def _make_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the mapping of a JSON object's pairs.

    JSON itself allows a key twice, and Python takes the last one.
    """
    _refuse_repeated([name for name, _ in pairs])
    return dict(pairs)


def parse_parts(data: str | Mapping[str, float]) -> tuple[Part, ...]:
    """Return the sources of a spec string, of a mapping {spec: rate}, or of such a mapping written
    as JSON.
    """
    if isinstance(data, str) and data.lstrip().startswith("{"):
        try:
            data = json.loads(data, object_pairs_hook=_make_mapping)
        except json.JSONDecodeError as error:
            raise UserError(
                f"no JSON object: {error}",
                f"DATA={data}",
                'write {"text:a.txt": 0.7, "jsonl:b.jsonl": 0.3}',
                kind=INVALID,
            ) from None
    if isinstance(data, str):
        return (Part(parse_spec(data)),)
    if not isinstance(data, Mapping) or not data:
        raise UserError(
            "a mixture needs at least one source",
            f"DATA={data}",
            'write {"text:a.txt": 0.7, "jsonl:b.jsonl": 0.3}',
            kind=INVALID,
        )
    found = []
    for name, rate in data.items():
        if (
            isinstance(rate, bool)
            or not isinstance(rate, (int, float))
            or not 0 < rate < float("inf")
        ):
            raise UserError(
                f"the rate of {name} is {rate!r}",
                "DATA",
                "give every source a number above 0",
                kind=INVALID,
                value=rate,
            )
        found.append(Part(parse_spec(name), float(rate)))
    _refuse_repeated([str(part.spec) for part in found])
    if len(found) > 1 and any(part.spec.kind in ("task", "synthetic") for part in found):
        raise UserError(
            "SeqIO tasks and synthetic data do not mix with others here",
            "DATA",
            "register a SeqIO mixture, or leave them out",
            kind=CONFLICT,
        )
    return tuple(found)


def describe_data(data: str | Mapping[str, float]) -> str:
    """Return the data in one canonical line, which a checkpoint keeps."""
    found = parse_parts(data)
    if len(found) == 1:
        return str(found[0].spec)
    return json.dumps({str(part.spec): part.rate for part in found}, sort_keys=True)


def _describe_unmatched(spec: Spec, pattern: str) -> UserError:
    """Return what is said of a pattern that no file matches."""
    kind, colon, rest = pattern.partition(":")
    if colon and kind == spec.kind:
        return UserError(
            f"{kind}: is given twice",
            f"DATA={spec}",
            f"give it once, before the first of the patterns: {spec}".replace(f",{kind}:", ","),
            kind=INVALID,
        )
    if colon and kind in KINDS:
        first = str(spec).partition(f",{pattern}")[0]
        return UserError(
            f"{spec.kind}: and {kind}: are two sources",
            f"DATA={spec}",
            "give a mixture: " + json.dumps({first: 0.5, f"{kind}:{rest}": 0.5}),
            kind=INVALID,
        )
    if os.path.isdir(os.path.expanduser(pattern)):
        return UserError(
            "it is a folder",
            pattern,
            f"name the files in it: {spec.kind}:{pattern.rstrip('/')}/*",
            kind=INVALID,
        )
    return UserError(
        "no file matches",
        pattern,
        "check the path: inside a container it is the mounted one",
        kind=MISSING,
    )


def match_files(pattern: str) -> list[str]:
    """Return the files that a pattern matches.

    A name of a file with brackets in it is that file's, not a pattern.
    """
    path = os.path.expanduser(pattern)
    if os.path.isfile(path) and not set("*?") & set(path):
        return [path]
    return [match for match in glob.glob(path, recursive=True) if os.path.isfile(match)]


def find_files(spec: Spec) -> tuple[str, ...]:
    """Return the files of a text, jsonl or tfrecord spec, sorted by name: several patterns are
    separated by commas.

    Raises:
      UserError: none matches, one cannot be read, or the path is in an object store.
    """
    found: set[str] = set()
    pieces = spec.value.split(",")
    while pieces:
        # A comma may be part of a name, so the longest run of pieces that names files is taken.
        for count in range(len(pieces), 0, -1):
            pattern = ",".join(pieces[:count])
            path_checks.check_is_local(pattern, f"DATA={spec}")
            matching = match_files(pattern)
            if matching:
                break
        else:
            raise _describe_unmatched(spec, pieces[0])
        found.update(matching)
        del pieces[:count]
    for path in found:
        if not os.access(path, os.R_OK):
            raise UserError("the file cannot be read", path, "check its permissions", kind=DENIED)
    if not any(os.path.getsize(path) for path in found):
        raise UserError(
            "the files are empty", spec.value, "name files with text in them", kind=MISSING
        )
    return tuple(sorted(found))
