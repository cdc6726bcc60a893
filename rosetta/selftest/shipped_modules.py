"""Which modules a package ships, and which of them cannot be imported for a reason we know."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from rosetta.core.errors import INVALID, MISSING, UserError

KNOWN_FAILURES = Path(__file__).parent / "imports"


def list_modules(package: str) -> list[str]:
    """Return the dotted names of all modules of a top-level package, sorted, without importing any.

    Left out by rule: tests (`*_test.py`) and `setup.py`, which are no modules anyone imports.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"there is no package {package}",
            "selftest",
            "run the selftest inside a baked environment",
            kind=MISSING,
            value=package,
        )
    names = set()
    for root in spec.submodule_search_locations:
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(f for f in folders if f.isidentifier() and f != "__pycache__")
            prefix = ".".join((package, *Path(folder).relative_to(root).parts))
            for file in files:
                stem, extension = os.path.splitext(file)
                if (
                    extension != ".py"
                    or stem.endswith("_test")
                    or stem == "setup"
                    or not stem.isidentifier()
                ):
                    continue
                names.add(prefix if stem == "__init__" else f"{prefix}.{stem}")
    return sorted(names)


def read_known_failures(framework: str, distribution: str | None = None) -> dict[str, str]:
    """Return module -> why it cannot be imported, of the distribution's own list where there is
    one, else the framework's.
    """
    import yaml

    names = [distribution, framework] if distribution else [framework]
    path = next(
        (p for p in (KNOWN_FAILURES / f"{name}.yaml" for name in names) if p.is_file()), None
    )
    if path is None:
        return {}
    listed = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    if not isinstance(listed, dict) or not all(
        isinstance(k, str) and isinstance(v, str) and v for k, v in listed.items()
    ):
        raise UserError(
            "must map each module to the reason why it cannot be imported",
            str(path),
            "repair the file",
            kind=INVALID,
        )
    return listed
