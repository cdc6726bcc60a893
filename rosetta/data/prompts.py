"""Format records as prompts that a causal language model continues.

The tasks are LAMBADA (Paperno et al., ACL 2016) and BoolQ (Clark et al., NAACL 2019). The wording
is that of paxml's GPU tasks (https://github.com/google/paxml, commit b397693,
paxml/contrib/gpu/scripts_gpu), on which its published numbers rest. `task_records` calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

YES, NO = "yes", "no"
# How the files of BoolQ write labels. These words are data, and not settings of a user.
_LABEL_WORDS = {"true": 1, "1": 1, "false": 0, "0": 0, "-1": -1, "": None}
_QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'"})


def format_lambada(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Format a LAMBADA record: the target is the last word, with a space before it.

    Args:
        record: A passage under "text", whose curly quotes become straight ones. Or "inputs" and
            "targets", as in paxml's TFDS copy.

    Returns:
        {"inputs", "targets", "idx"}; None if the passage is a single word.

    Raises:
        ValueError: The record has no such fields.
    """
    inputs, targets, passage = record.get("inputs"), record.get("targets"), record.get("text")
    if isinstance(inputs, str) and isinstance(targets, str):
        return {"inputs": inputs, "targets": targets, "idx": record.get("idx", 0)}
    if not isinstance(passage, str):
        raise ValueError("text is missing")  # noqa: TRY004 (a fault of the data, not of a caller)
    words = passage.translate(_QUOTES).rsplit(maxsplit=1)
    if len(words) < 2:
        return None
    return {"inputs": words[0].strip(), "targets": f" {words[1]}", "idx": record.get("idx", 0)}


def format_boolq(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Format a BoolQ record: the target is "yes" or "no".

    Args:
        record: "passage", "question" and a label: the field `label` of SuperGLUE (1, 0, -1, true or
            false), or `answer` of the original files. In tables, labels are text.

    Returns:
        {"inputs", "targets", "idx"}; None if the record has no label, as in SuperGLUE's test split.

    Raises:
        ValueError: The record has no such fields.
    """
    passage, question = record.get("passage"), record.get("question")
    label = record.get("label", record.get("answer"))
    if isinstance(label, str):
        label = _LABEL_WORDS.get(label.lower(), label)
    is_text = isinstance(passage, str) and isinstance(question, str)
    if not is_text or label not in (0, 1, -1, None):
        raise ValueError("passage, question, or a label or answer of true or false is missing")
    if label is None or label == -1:
        return None
    return {
        "inputs": f"{passage}\nquestion: {question}?\nanswer:",
        "targets": YES if label else NO,
        "idx": record.get("idx", 0),
    }
