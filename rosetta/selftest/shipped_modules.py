"""List the modules of a package, and those of them that are known not to be importable."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from rosetta.core.errors import INVALID, MISSING, UserError

# The folder of the lists of known failures, one for each framework or distribution.
KNOWN_FAILURES = Path(__file__).parent / "imports"


def list_modules(package: str) -> list[str]:
    """Return the dotted names of all modules of a top-level package, sorted.

    No module is imported. Tests (`*_test.py`) and `setup.py` are left out: nobody imports them.

    Raises:
        UserError: The package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"the package {package} is not installed",
            "selftest",
            "run the self-test in an environment that build.py made",
            kind=MISSING,
            value=package,
        )
    names = set()
    for root in spec.submodule_search_locations:
        for folder, subfolders, files in os.walk(root):
            subfolders[:] = sorted(
                name for name in subfolders if name.isidentifier() and name != "__pycache__"
            )
            prefix = ".".join((package, *Path(folder).relative_to(root).parts))
            for file in files:
                stem, extension = os.path.splitext(file)
                if extension != ".py" or not stem.isidentifier():
                    continue
                if stem.endswith("_test") or stem == "setup":
                    continue
                names.add(prefix if stem == "__init__" else f"{prefix}.{stem}")
    return sorted(names)


def read_known_failures(framework: str, distribution: str | None = None) -> dict[str, str]:
    """Return the modules that cannot be imported, each with the reason.

    Args:
        framework: The framework, whose list is used if the distribution has none.
        distribution: The distribution, if it is known.

    Raises:
        UserError: The list is not valid.
    """
    import yaml

    names = [distribution, framework] if distribution else [framework]
    paths = [KNOWN_FAILURES / f"{name}.yaml" for name in names]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return {}
    failures = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(failures, dict) or not all(
        isinstance(name, str) and isinstance(reason, str) and reason
        for name, reason in failures.items()
    ):
        raise UserError(
            "must map each module to the reason why it cannot be imported",
            str(path),
            "repair the file",
            kind=INVALID,
        )
    return failures
