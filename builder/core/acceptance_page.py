"""docs/reference/acceptance.md, from the rows of `rosetta accept`."""

from __future__ import annotations

from builder.core import markdown_table
from rosetta.core import acceptance

PAGE = "docs/reference/acceptance.md"
_HEAD = """# Rows and results of rosetta accept

*Reference. Generated from rosetta/core/acceptance.py by `python build.py docs`: edit there.*

[Check a GPU](../how-to/check-a-gpu.md) says how to run the command. It measures the rows in this
order, which is that of their value. `--only` takes names of rows, and of groups:
"""
_ROWS = """
## Rows

"""
_CHECKS = """
## Checks and time limits

A row passes if every check of its cases passes and no case fails. A case is ended when its time is
up, and the others go on. With `--tiny`, all limits are {patience} times as long.

"""
_FILES = """
## The file of results

The folder (`--folder`, `{folder}`) has these files:

| file | what it has |
|---|---|
| `{result}` | the results, written after each row |
| `{autotune}` | what XLA's autotuning chose on this GPU |
| `{logs}/ROW/N.log` | the output of the processes of a row |

The keys of `{result}`:

"""


def render() -> str:
    """Return the text of the page."""
    groups = "".join(
        f"\n- `{name}`: {', '.join(f'`{row}`' for row in rows)}. They need only JAX; cases that "
        "need Flax are skipped without it."
        for name, rows in acceptance.GROUPS.items()
    )
    rows = markdown_table.render(
        ("row", "measures", "decides", "needs beside JAX"),
        [
            (f"`{row.name}`", row.measures, row.decides, ", ".join(row.packages) or "nothing")
            for row in acceptance.ROWS
        ],
    )
    checks = markdown_table.render(
        ("row", "checks", "seconds of a case", "of the row"),
        [
            (f"`{row.name}`", row.checks, str(row.case_seconds), str(row.seconds))
            for row in acceptance.ROWS
        ],
    )
    keys = markdown_table.render(
        ("key", "meaning"),
        [(f"`{key}`", meaning) for key, meaning in acceptance.RESULT_KEYS.items()],
    )
    files = _FILES.format(
        folder=acceptance.DEFAULT_FOLDER,
        result=acceptance.RESULT_FILE,
        autotune=acceptance.AUTOTUNE_FILE,
        logs=acceptance.LOG_FOLDER,
    )
    limits = _CHECKS.format(patience=acceptance.TINY_PATIENCE)
    return f"{_HEAD}{groups}\n{_ROWS}{rows}{limits}{checks}{files}{keys}"
