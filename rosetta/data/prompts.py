"""Records as prompts that a causal language model goes on with: LAMBADA (Paperno et al., ACL 2016)
and BoolQ (Clark et al., NAACL 2019).

The wording is that of paxml's GPU tasks (https://github.com/google/paxml, commit b397693,
paxml/contrib/gpu/scripts_gpu), whose published numbers rest on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

YES, NO = "yes", "no"
# How files of BoolQ write labels. These are words of data, and not of settings.
_LABEL_WORDS = {"true": 1, "1": 1, "false": 0, "0": 0, "-1": -1, "": None}
_QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'"})


def format_lambada(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return {"inputs", "targets", "idx"} of a LAMBADA record: the target is the last word, with a
    space before it. None for a single word.

    Takes a passage ("text"; curly quotes become straight ones), or what paxml's TFDS copy holds,
    which is parted already.
    """
    inputs, targets, passage = record.get("inputs"), record.get("targets"), record.get("text")
    if isinstance(inputs, str) and isinstance(targets, str):
        return {"inputs": inputs, "targets": targets, "idx": record.get("idx", 0)}
    if not isinstance(passage, str):
        raise ValueError("it lacks text")  # noqa: TRY004 (of the data, not of a caller)
    words = passage.translate(_QUOTES).rsplit(maxsplit=1)
    if len(words) < 2:
        return None
    return {"inputs": words[0].strip(), "targets": f" {words[1]}", "idx": record.get("idx", 0)}


def format_boolq(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return {"inputs", "targets", "idx"} of a BoolQ record, None where it has no label
    (SuperGLUE's test split).

    Takes SuperGLUE's field `label` (1, 0 or -1, or true and false) and the corpus's own `answer`,
    also as a table has them: as text.
    """
    passage, question = record.get("passage"), record.get("question")
    label = record.get("label", record.get("answer"))
    if isinstance(label, str):
        label = _LABEL_WORDS.get(label.lower(), label)
    if (
        not isinstance(passage, str)
        or not isinstance(question, str)
        or label not in (0, 1, -1, None)
    ):
        raise ValueError("it lacks passage, question, or a label or answer that is true or false")
    if label is None or label == -1:
        return None
    return {
        "inputs": f"{passage}\nquestion: {question}?\nanswer:",
        "targets": YES if label else NO,
        "idx": record.get("idx", 0),
    }
