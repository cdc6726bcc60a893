"""The program that the self-test's import check runs in a child process.

It imports modules one after another and writes down what happened to each.

Usage: python -m rosetta.selftest.importer MODULES RESULTS

The file MODULES has one name in each line. The program appends JSON objects to the file RESULTS,
one in each line: `{"start": name}`, then `{"done": name, "error": text or null}`. A start without a
done names the module that ended the interpreter.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def remove_absl_flags(package: str) -> None:
    """Remove the absl flags that a package's modules defined.

    Programs of a package define flags of the same names, which absl refuses in one process. Nobody
    but this check imports two of them in one process.
    """
    flags = sys.modules.get("absl.flags")
    if flags is None:
        return
    find_module = flags.FLAGS.find_module_defining_flag
    flags.FLAGS.remove_flag_values(
        [flag for flag in list(flags.FLAGS) if find_module(flag, "").partition(".")[0] == package]
    )


def main(modules: str, results: str) -> None:
    """Import modules, write down the outcome of each, and exit.

    Args:
        modules: The file with the names of the modules.
        results: The file for the outcomes.
    """
    with open(modules, encoding="utf-8") as file:
        names = file.read().split()
    with open(results, "a", encoding="utf-8") as output:
        for name in names:
            print(json.dumps({"start": name}), file=output, flush=True)
            message = None
            try:
                importlib.import_module(name)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 (a module may raise SystemExit, too)
                message = f"{type(error).__name__}: {error}"
            print(json.dumps({"done": name, "error": message}), file=output, flush=True)
            remove_absl_flags(name.partition(".")[0])
    # Modules that failed may have left threads and exit handlers. os._exit does not wait for them.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
