"""Checks of a run's data before the run loads, compiles or writes anything.

The preflight checks of T5X and Pax and `rosetta data check` call them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.core import path_checks
from rosetta.core.errors import CONFLICT, INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIN_LENGTH = 2


def name_source_variable(error: UserError, name: str) -> UserError:
    """Return an error about a source of data, with the variable that names the source.

    Args:
        error: The error. Its place is a path, or DATA=SPEC whichever variable has the spec.
        name: The variable: DATA or EVAL_DATA.
    """
    if type(error) is not UserError:
        return error
    variable = re.match(r"[A-Z][A-Z_]*(?==|$)", error.where)
    if variable is None:
        where = f"{name}: {error.where}"
    elif variable[0] == "DATA":
        where = name + error.where[len("DATA") :]
    else:
        return error
    return UserError(error.what, where, error.do, kind=error.kind, value=error.value)


def check_lengths(lengths: Mapping[str, int]) -> None:
    """Check that each feature length is a whole number of at least 2.

    Args:
        lengths: The length of each feature, in tokens.

    Raises:
        UserError: A length is not such a number.
    """
    for name, length in lengths.items():
        if not isinstance(length, int) or isinstance(length, bool) or length < _MIN_LENGTH:
            raise UserError(
                f"{length!r} is not a valid length of {name!r}",
                "TASK_FEATURE_LENGTHS",
                f"give a whole number of at least {_MIN_LENGTH}",
                kind=INVALID,
                value=length,
            )


def _check_prefix(prefix: str, objective: str, data: str | Mapping[str, float]) -> None:
    """Check that the inputs of a run are texts of records, which can have a prefix.

    Args:
        prefix: The prefix.
        objective: One of data_spec.OBJECTIVES.
        data: A spec string, or {spec: rate}.

    Raises:
        UserError: The inputs are made from running text, or are tokens.
    """
    from rosetta.data import data_spec

    where = f"INPUT_PREFIX={prefix}"
    if objective not in data_spec.PAIR_OBJECTIVES:
        raise UserError(
            f"{objective} makes its inputs from running text, and not from records",
            where,
            "leave it out; MODE_TOKENS of a gin file sets the mode tokens of ul2",
            kind=CONFLICT,
            value=objective,
        )
    for part in data_spec.parse_parts(data):
        if part.spec.kind == "cache":
            raise UserError(
                "a token cache has tokens, and a prefix cannot be put before them",
                where,
                f"name the records themselves, or make {part.spec} from records that have it",
                kind=CONFLICT,
                value=str(part.spec),
            )


def check_data(
    *,
    data: str | Mapping[str, float],
    objective: str,
    vocab: str,
    vocab_size: int | None,
    lengths: Mapping[str, int],
    split: str = "train",
    eval_data: str | Mapping[str, float] | None = None,
    extra_ids: int | None = None,
    mean_noise_span_length: float = 3.0,
    noise_density: float = 0.15,
    mode_tokens: str | None = None,
    input_prefix: str = "",
    text_field: str = "",
    from_variables: bool = True,
) -> None:
    """Check the data, the vocabulary and the objective of a run.

    Only the names and the beginnings of files are read.

    Args:
        data: A spec string, or {spec: rate}.
        objective: One of data_spec.OBJECTIVES.
        vocab: "byte", "ids:N" or a SentencePiece model.
        vocab_size: The number of rows of the model's embedding; None if it is not known yet.
        lengths: The lengths of "inputs" (not for the objective lm) and "targets", in tokens.
        split: The split of the hf and tfds sets in `data` that do not name one.
        eval_data: The data of evaluation, whose split is "validation"; None for none.
        extra_ids: See vocabularies.load_vocabulary.
        mean_noise_span_length: The mean length of masked spans, for span corruption.
        noise_density: The share of masked tokens, for span corruption.
        mode_tokens: The mode tokens of ul2, see objectives.split_mode_tokens. None for the usual.
        input_prefix: See data_recipe.Recipe.
        text_field: The field of JSON lines that has the text. If it is set, the first record of
            each source of files is read, too.
        from_variables: Whether DATA and EVAL_DATA name the sources. Errors about a source then name
            the variable.

    Raises:
        UserError: Something is missing or does not fit.
    """
    from rosetta.data import (
        data_spec,
        objectives,
        row_sources,
        task_records,
        vocabularies,
    )

    path_checks.check_certificates()
    is_labelled = objective in data_spec.LABEL_OBJECTIVES
    check_lengths({"inputs": lengths["inputs"]} if is_labelled else lengths)
    if input_prefix:
        _check_prefix(input_prefix, objective, data)
    vocabulary = vocabularies.load_vocabulary(
        vocab, extra_ids, causal=objective in data_spec.CAUSAL_OBJECTIVES
    )
    if vocab_size is not None:
        vocabularies.check_model_size(vocabulary, vocab_size)
    sized_objective = objectives.make_objective(
        objective,
        lengths,
        mean_noise_span_length=mean_noise_span_length,
        noise_density=noise_density,
        mode_tokens=data_spec.MODE_TOKENS if mode_tokens is None else mode_tokens,
        vocabulary=vocabulary,
    )

    def check_parts(variable: str, typed: str | Mapping[str, float], default_split: str) -> None:
        for part in data_spec.parse_parts(typed):
            try:
                row_sources.check_source(part.spec, sized_objective, vocabulary, default_split)
            except UserError as error:
                if from_variables:
                    raise name_source_variable(error, variable) from None
                raise
            if text_field and part.spec.kind in data_spec.FILE_KINDS:
                task_records.check_first_record(part.spec, objective, text_field, default_split)

    check_parts("DATA", data, split)
    if eval_data is not None:
        check_parts("EVAL_DATA", eval_data, "validation")
