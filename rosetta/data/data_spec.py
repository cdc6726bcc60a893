"""The spec of a data source: what a user types for DATA, such as `text:/data/*.txt`.

A spec is KIND:VALUE, for example `hf:owner/name`. A mixture of sources is a JSON object of specs
and rates: `{"text:a.txt": 0.7, "jsonl:b.jsonl": 0.3}`. All programs that read data parse it here.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from rosetta.core import path_checks
from rosetta.core.errors import CONFLICT, DENIED, INVALID, MISSING, UNKNOWN, UserError
from rosetta.core.value_parsing import is_address
from rosetta.core.variables import choices
from rosetta.data import json_lines, remote_files

# The kinds of sources, and their help.
KINDS = {
    "synthetic": "random token ids, no file and no vocabulary",
    "text": "UTF-8 text files, one document per line: text:GLOB",
    "jsonl": "JSON objects, one per line: jsonl:GLOB",
    "csv": "tables with a header, strict: csv:GLOB",
    "tsv": "the same with tabs, and without quoting: tsv:GLOB",
    "parquet": "Parquet files: parquet:GLOB",
    "arrayrecord": "ArrayRecord files of tf.train.Example: arrayrecord:GLOB",
    "tfrecord": "TFRecord files of tf.train.Example: tfrecord:GLOB",
    "cache": "a token cache, written by `rosetta data cache`: cache:FOLDER",
    "megatron": "tokens that Megatron-LM wrote, PREFIX.bin and PREFIX.idx: megatron:PREFIX",
    "hf": "a Hugging Face data set, streamed: hf:OWNER/NAME[/CONFIG], or hf:FOLDER",
    "tfds": "a prepared TensorFlow Datasets folder under TFDS_DATA_DIR: "
    "tfds:NAME[/CONFIG][:VERSION]",
    "task": "a registered SeqIO task or mixture: task:NAME",
}
# The kinds whose values are names of files.
FILE_KINDS = ("text", "jsonl", "csv", "tsv", "parquet", "arrayrecord", "tfrecord")
TOKEN_KINDS = ("cache", "megatron")  # the kinds that have tokens instead of text
TEXT_KINDS = (*FILE_KINDS, "tfds", "hf")  # the kinds that have documents
RECORD_KINDS = (*TEXT_KINDS[1:], "cache")  # the kinds that have records of tasks
DEFAULT_FIELD = "text"  # where records have their text
# Where the records of text_to_text have their texts.
PAIR_FIELDS = ("inputs", "targets")
# Objectives by what they need. "Answer" objectives are Pax's: a causal language model continues a
# prompt, and no end token is added. "Pair" objectives read records with inputs and targets.
ANSWER_OBJECTIVES = ("lambada", "boolq")
CAUSAL_OBJECTIVES = ("lm", *ANSWER_OBJECTIVES)  # for models that only have a decoder
# Objectives of encoders: masked language modelling, and records with a label.
MASKED_OBJECTIVES, LABEL_OBJECTIVES = choices.MASKED_OBJECTIVES, choices.LABEL_TASKS
ENCODER_OBJECTIVES = (*MASKED_OBJECTIVES, *LABEL_OBJECTIVES)
PAIR_OBJECTIVES = ("mnli", "squad", "text_to_text", *LABEL_OBJECTIVES, *ANSWER_OBJECTIVES)
OBJECTIVES = ("span_corruption", "prefix_lm", "ul2", "lm", *MASKED_OBJECTIVES, *PAIR_OBJECTIVES)
# The modes of UL2's denoisers: regular, extreme and sequential. Its released models know the mode
# tokens by these texts, in the same order.
MODES = ("R", "X", "S")
MODE_TOKENS = "[NLU] [NLG] [S2S]"
_MIXTURE_EXAMPLE = '{"text:a.txt": 0.7, "jsonl:b.jsonl": 0.3}'


@dataclasses.dataclass(frozen=True)
class Spec:
    """The spec of one source of data.

    Attributes:
        kind: One of KINDS.
        value: The text after the colon.
        split: The text after `#`: the split of an hf or tfds set. "" for the split that the run
            asks for.
    """

    kind: str
    value: str = ""
    split: str = ""

    def __str__(self) -> str:
        """Return the spec as a user types it."""
        value = f":{self.value}" if self.value else ""
        split = f"#{self.split}" if self.split else ""
        return self.kind + value + split


def parse_spec(text: str) -> Spec:
    """Return the spec that a string stands for.

    Raises:
        UserError: The kind is unknown, or its value is missing.
    """
    kind, colon, value = text.strip().partition(":")
    if kind not in KINDS:
        raise UserError(
            f"{kind!r} is not a kind of data",
            f"DATA={text}",
            "write KIND:VALUE, such as text:/data/*.txt; the kinds are " + ", ".join(KINDS),
            kind=UNKNOWN,
            value=kind,
        )
    split = ""
    if kind in ("hf", "tfds"):
        value, _, split = value.partition("#")
    if kind == "synthetic":
        if colon:
            raise UserError(
                "synthetic data takes no value",
                f"DATA={text}",
                "write DATA=synthetic",
                kind=INVALID,
            )
    elif not value:
        raise UserError(
            "the colon or the value after it is missing", f"DATA={text}", KINDS[kind], kind=INVALID
        )
    return Spec(kind, value, split)


@dataclasses.dataclass(frozen=True)
class Part:
    """One source of a mixture.

    Attributes:
        spec: The source.
        rate: How often it is drawn, relative to the other sources.
    """

    spec: Spec
    rate: float = 1.0


def _refuse_repeated(names: list[str]) -> None:
    """Raise UserError if a source is named twice."""
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
    """Return the sources of a run's data.

    Args:
        data: A spec string, a mapping {spec: rate}, or such a mapping as JSON.

    Raises:
        UserError: A spec or a rate is not valid, or the sources cannot be mixed.
    """
    if isinstance(data, str) and data.lstrip().startswith("{"):
        try:
            data = json.loads(data, object_pairs_hook=_make_mapping)
        except json.JSONDecodeError as error:
            raise UserError(
                f"not a valid JSON object: {error}",
                f"DATA={data}",
                f"write {_MIXTURE_EXAMPLE}",
                kind=INVALID,
            ) from None
    if isinstance(data, str):
        return (Part(parse_spec(data)),)
    if not isinstance(data, Mapping) or not data:
        raise UserError(
            "a mixture needs at least one source",
            f"DATA={data}",
            f"write {_MIXTURE_EXAMPLE}",
            kind=INVALID,
        )
    parts = [Part(parse_spec(text), _check_rate(text, rate)) for text, rate in data.items()]
    _refuse_repeated([str(part.spec) for part in parts])
    if len(parts) > 1 and any(part.spec.kind in ("task", "synthetic") for part in parts):
        raise UserError(
            "SeqIO tasks and synthetic data cannot be part of a mixture",
            "DATA",
            "register a SeqIO mixture, or leave them out",
            kind=CONFLICT,
        )
    return tuple(parts)


def _check_rate(text: str, rate: Any) -> float:
    """Return the rate of a source. Raises UserError if it is not a positive number."""
    is_number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    if not is_number or not 0 < rate < float("inf"):
        raise UserError(
            f"{rate!r} is not a valid rate of {text!r}",
            "DATA",
            "give every source a number above 0",
            kind=INVALID,
            value=rate,
        )
    return float(rate)


def describe_data(data: str | Mapping[str, float]) -> str:
    """Return the data as one canonical line, which checkpoints store.

    Raises:
        UserError: See parse_parts.
    """
    parts = parse_parts(data)
    if len(parts) == 1:
        return str(parts[0].spec)
    return json.dumps({str(part.spec): part.rate for part in parts}, sort_keys=True)


def describe_without_queries(data: str) -> str:
    """Return the data as one line without the queries of web addresses.

    Checkpoints store this line: a query may have a signature, which is a secret and which changes
    from day to day. Sources that differ in their queries alone get a number.

    Args:
        data: A spec string, or a mapping {spec: rate} as JSON.

    Raises:
        UserError: See parse_parts.
    """
    parts = parse_parts(data)
    if len(parts) == 1:
        return describe_spec(parts[0].spec)
    rates: dict[str, float] = {}
    for number, part in enumerate(parts):
        name = describe_spec(part.spec)
        rates[f"{name} ({number})" if name in rates else name] = part.rate
    return json.dumps(rates)


def describe_spec(spec: Spec) -> str:
    """Return a spec as a user types it, without the queries of web addresses."""
    pieces: list[str] = []
    is_in_query = False
    for piece in spec.value.split(","):
        # A query may have commas, too.
        if is_in_query and not _begins_name(piece):
            continue
        shown = remote_files.describe_address(piece)
        is_in_query = shown != piece
        pieces.append(shown)
    return str(dataclasses.replace(spec, value=",".join(pieces)))


def _begins_name(piece: str) -> bool:
    """Return whether a piece of a list of files cannot continue the address before it."""
    return is_address(piece) or piece.startswith(("/", "~"))


def parse_pair_fields(field: str) -> tuple[str, str]:
    """Return the fields of the inputs and of the targets of pairs.

    Args:
        field: The name of the text's field. For pairs, two names that a comma separates, or
            DEFAULT_FIELD for PAIR_FIELDS.

    Raises:
        UserError: There are not two different names.
    """
    first, second = _split_field_names(
        field, (2,), "two fields", "name the fields of inputs and targets", "question,answer"
    )
    return first, second


def parse_label_fields(field: str) -> tuple[str, ...]:
    """Return the fields of one text, or of two texts, and of the label, in this order.

    Args:
        field: Two or three names with commas, or DEFAULT_FIELD for PAIR_FIELDS.

    Raises:
        UserError: There are not two or three different names.
    """
    return _split_field_names(
        field,
        (2, 3),
        "the fields of texts and of a label",
        "name one or two texts, and the label last",
        "premise,hypothesis,label",
    )


def _split_field_names(
    field: str, counts: tuple[int, ...], what: str, remedy: str, example: str
) -> tuple[str, ...]:
    """Return the names in a list of fields; PAIR_FIELDS for DEFAULT_FIELD.

    Args:
        field: The names, with commas.
        counts: How many there may be.
        what: What the fields are, for the error.
        remedy: What to do, for the error.
        example: A valid list, for the error.

    Raises:
        UserError: There are not so many different names.
    """
    if field == DEFAULT_FIELD:
        return PAIR_FIELDS
    names = tuple(name.strip() for name in field.split(","))
    if len(names) not in counts or not all(names) or len(set(names)) < len(names):
        raise UserError(
            f"{field!r} does not name {what}",
            json_lines.write_field_option(field),
            f"{remedy}, as in {json_lines.write_field_option(example)}",
            kind=INVALID,
            value=field,
        )
    return names


def _describe_unmatched(spec: Spec, pattern: str) -> UserError:
    """Return the error for a pattern of a spec that no file matches."""
    kind, colon, value = pattern.partition(":")
    if colon and kind == spec.kind:
        corrected = str(spec).replace(f",{kind}:", ",")
        return UserError(
            f"{kind}: is given twice",
            f"DATA={spec}",
            f"give it once, before the first of the patterns: {corrected}",
            kind=INVALID,
        )
    if colon and kind in KINDS:
        first = str(spec).partition(f",{pattern}")[0]
        return UserError(
            f"{spec.kind}: and {kind}: are two sources",
            f"DATA={spec}",
            "give a mixture: " + json.dumps({first: 0.5, f"{kind}:{value}": 0.5}),
            kind=INVALID,
        )
    if spec.kind == "megatron":
        return UserError(
            "there is no such .idx file",
            pattern,
            "name the prefix of the .bin and .idx files, as in megatron:my_text_document",
            kind=MISSING,
        )
    if os.path.isdir(os.path.expanduser(pattern)):
        return UserError(
            "the path is a folder",
            pattern,
            f"name the files in it: {spec.kind}:{pattern.rstrip('/')}/*",
            kind=INVALID,
        )
    return UserError(
        "no file matches",
        remote_files.describe_address(pattern),
        "check the path; inside a container, give the path of the mounted folder",
        kind=MISSING,
    )


def match_files(pattern: str) -> list[str]:
    """Return the files that a glob pattern matches.

    The name of an existing file may have brackets, and then it is not taken as a pattern.
    """
    path = os.path.expanduser(pattern)
    if os.path.isfile(path) and not set("*?") & set(path):
        return [path]
    return [match for match in glob.glob(path, recursive=True) if os.path.isfile(match)]


def _match_indexes(pattern: str) -> list[str]:
    """Return the .idx files of the prefixes that a pattern matches."""
    return match_files(f"{pattern.removesuffix('.idx').removesuffix('.bin')}.idx")


def _match_patterns(spec: Spec, match: Callable[[str], list[str]]) -> dict[str, str]:
    """Return the files that the patterns of a spec match.

    Files in object stores and on web servers are copied to this machine first.

    Args:
        spec: The spec. Its value has one or more patterns, separated by commas.
        match: A function that returns the files of this machine that a pattern matches.

    Returns:
        The name of each file, which is its address or its path, by its path on this machine.

    Raises:
        UserError: No file matches a pattern, or one cannot be copied.
    """
    names: dict[str, str] = {}
    pieces = spec.value.split(",")
    while pieces:
        # A file name may have commas, so the longest run of pieces that names files is taken.
        denied: UserError | None = None
        for count in range(_count_longest_run(pieces), 0, -1):
            pattern = ",".join(pieces[:count])
            try:
                matches = _match_pattern(spec, pattern, match)
            except UserError as error:
                # Some servers refuse a file that they do not have.
                if error.kind != DENIED or count == 1:
                    raise
                denied, matches = error, {}
            if matches:
                break
        else:
            raise denied or _describe_unmatched(spec, pieces[0])
        names.update(matches)
        del pieces[:count]
    return names


def _count_longest_run(pieces: list[str]) -> int:
    """Return how many pieces between commas may be one name, from the first piece on.

    An address begins a name of its own, and so does an absolute path after an address.
    """
    ends_run = _begins_name if is_address(pieces[0]) else is_address
    later = range(1, len(pieces))
    return next((number for number in later if ends_run(pieces[number])), len(pieces))


def _match_pattern(spec: Spec, pattern: str, match: Callable[[str], list[str]]) -> dict[str, str]:
    """Return the name of each file that a pattern matches by its path, see _match_patterns."""
    if not is_address(pattern):
        return {path: path for path in match(pattern)}
    where = f"DATA={describe_spec(spec)}"
    if spec.kind == "megatron":
        path_checks.check_is_local(pattern, where)
    return remote_files.fetch_files(pattern, where)


def find_files(spec: Spec) -> tuple[str, ...]:
    """Return the files of a spec of FILE_KINDS or of a megatron source, sorted by name.

    Files in object stores and on web servers are copied to this machine first.

    Args:
        spec: The spec. Its value has one or more patterns, separated by commas.

    Raises:
        UserError: No file matches a pattern, a file cannot be read or copied, or all files are
            empty.
    """
    if spec.kind == "megatron":
        return tuple(f"{prefix}{end}" for prefix in find_prefixes(spec) for end in (".bin", ".idx"))
    names = _match_patterns(spec, match_files)
    for path in names:
        if not os.access(path, os.R_OK):
            raise UserError("the file cannot be read", path, "check its permissions", kind=DENIED)
    if not any(os.path.getsize(path) for path in names):
        raise UserError(
            "the files are empty", spec.value, "name files with text in them", kind=MISSING
        )
    return tuple(sorted(names, key=lambda path: names[path]))


def find_prefixes(spec: Spec) -> tuple[str, ...]:
    """Return the prefixes of a megatron source, sorted: paths without .bin and .idx.

    Args:
        spec: The source. Its value has prefixes or patterns of them, separated by commas.

    Raises:
        UserError: There is no such .idx file, or its .bin file is missing.
    """
    indexes = _match_patterns(spec, _match_indexes)
    prefixes = [index.removesuffix(".idx") for index in indexes]
    for prefix in prefixes:
        if not os.path.isfile(f"{prefix}.bin"):
            raise UserError(
                "the file is missing, and its index is there",
                f"{prefix}.bin",
                "copy it beside the .idx file",
                kind=MISSING,
            )
    return tuple(sorted(prefixes))
