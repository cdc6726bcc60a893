"""What can be known to be wrong with a run's data before anything is loaded, compiled or
written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rosetta.core import path_checks
from rosetta.core.errors import INVALID, UserError

if TYPE_CHECKING:
    from collections.abc import Mapping


def name_source_variable(error: UserError, name: str) -> UserError:
    """Return an error about a source of data, with the variable that names the source.

    Args:
      error: its place is a path, or DATA=SPEC whichever variable it came from.
      name: DATA or EVAL_DATA.
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


def check_lengths(values: Mapping[str, int]) -> None:
    """Raise UserError where a feature length is no positive number."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 2:
            raise UserError(
                f"the length of {name} is {value!r}",
                "TASK_FEATURE_LENGTHS",
                "give numbers of at least 2",
                kind=INVALID,
                value=value,
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
    first: str = "",
    from_variables: bool = True,
) -> None:
    """Raise UserError for anything about the data that a run would stumble over later; reads no
    more than file names and heads.

    Args:
      data: a spec string or {spec: rate}.
      split: of hf and tfds sets in `data` that name none.
      eval_data: the same for evaluation, whose split is "validation"; None for none.
      objective: one of data_spec.OBJECTIVES.
      vocab: "byte", "ids:N" or a SentencePiece model.
      vocab_size: the model's number of embeddings, None where it is not known yet.
      lengths: "inputs" (unless the objective is lm) and "targets", in tokens.
      extra_ids: as in vocabularies.load_vocabulary.
      mean_noise_span_length: span corruption's.
      noise_density: span corruption's.
      first: where JSON lines have their text: the first record of text and JSON lines is read, too;
        "": it is not.
      from_variables: whether DATA and EVAL_DATA name the sources. Errors about a source then name
        the variable.
    """
    from rosetta.data import data_spec, objectives, pipeline, task_records, vocabularies

    path_checks.check_certificates()
    check_lengths(lengths)
    chosen = vocabularies.load_vocabulary(
        vocab, extra_ids, causal=objective in data_spec.CAUSAL_OBJECTIVES
    )
    if vocab_size is not None:
        vocabularies.check_model_size(chosen, vocab_size)
    rule = objectives.make_objective(
        objective,
        lengths,
        mean_noise_span_length=mean_noise_span_length,
        noise_density=noise_density,
    )
    for name, each, read in (("DATA", data, split), ("EVAL_DATA", eval_data, "validation")):
        for part in data_spec.parse_parts(each) if each is not None else ():
            try:
                pipeline.check_source(part.spec, rule, chosen, read)
            except UserError as error:
                raise name_source_variable(error, name) if from_variables else error from None
            if first and part.spec.kind in ("text", "jsonl"):
                task_records.check_first_record(part.spec, objective, first, read)
