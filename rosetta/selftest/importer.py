"""The program that the self-test's import check runs in a child process.

It imports modules one after another, and writes the outcome of each to a file.

Usage: python -m rosetta.selftest.importer MODULES RESULTS

The file MODULES has one name in each line. The program appends JSON objects to the file RESULTS,
one in each line: `{"start": name}`, then `{"done": name, "error": text or null}`. If the last line
is a `start`, the import of that module ended the interpreter.
"""

from __future__ import annotations

import importlib
import json
import os
import sys


def remove_absl_flags(package: str) -> None:
    """Remove the absl flags that a package's modules defined.

    Several programs of one package may define flags of the same name. absl refuses the second
    definition in one process. Only this check imports several programs in one process.
    """
    flags = sys.modules.get("absl.flags")
    if flags is None:
        return
    flags_of_package = []
    for flag in flags.FLAGS:
        module = flags.FLAGS.find_module_defining_flag(flag, "")
        if module.partition(".")[0] == package:
            flags_of_package.append(flag)
    flags.FLAGS.remove_flag_values(flags_of_package)


def main(modules_path: str, results_path: str) -> None:
    """Import modules, write the outcome of each, and exit.

    Args:
        modules_path: The file with the names of the modules.
        results_path: The file to which the outcomes are appended.
    """
    with open(modules_path, encoding="utf-8") as file:
        names = file.read().split()
    with open(results_path, "a", encoding="utf-8") as output:
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
    # Imported modules may have started threads and registered exit handlers. os._exit does not wait
    # for them, and does not flush either.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
