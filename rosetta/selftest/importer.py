"""The child of selftest/imports: imports modules one after another and writes down what happened to
each.

Usage: python -m rosetta.selftest.importer MODULES RESULTS
MODULES holds a name a line; RESULTS gets a JSON object a line: `{"start": name}`, then `{"done":
name, "error": text or null}`. A start without its done is the module that took the interpreter
down.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def remove_absl_flags(package: str) -> None:
    """Take back the absl flags that the package's modules defined: programs name theirs alike, and
    nobody runs two in one process.
    """
    flags = sys.modules.get("absl.flags")
    if flags is not None:
        owner = flags.FLAGS.find_module_defining_flag
        flags.FLAGS.remove_flag_values(
            [flag for flag in list(flags.FLAGS) if owner(flag, "").partition(".")[0] == package]
        )


def main(modules: str, results: str) -> None:
    """Import each module that the file `modules` names and append the outcome to `results`."""
    with open(modules, encoding="utf-8") as lines:
        names = lines.read().split()
    with open(results, "a", encoding="utf-8") as out:
        for name in names:
            print(json.dumps({"start": name}), file=out, flush=True)
            error = None
            try:
                importlib.import_module(name)
            except KeyboardInterrupt:
                raise
            except BaseException as problem:  # noqa: BLE001 (SystemExit is one more way not to be importable)
                error = f"{type(problem).__name__}: {problem}"
            print(json.dumps({"done": name, "error": error}), file=out, flush=True)
            remove_absl_flags(name.partition(".")[0])
    # Half-imported modules may have left threads and exit handlers behind; nothing here needs them.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
