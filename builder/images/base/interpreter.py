"""The Python of a base, on this machine: its own program and libraries, started by its own loader,
without a container and without root.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from builder.core import machine_architecture
from builder.core.cache import stage_key
from builder.images.base import root_file_system
from builder.images.oci import layer
from builder.packages import python_interpreter
from rosetta.core.errors import UNSUPPORTED, UserError

if TYPE_CHECKING:
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.base.base_image import Base
    from builder.packages.python_interpreter import Interpreter

_LIBRARY = r"(usr/)?lib(32|64|x32|/[\w-]+-linux-gnu)?/[^/]+\.so[\d.]*"
_WRAPPER = """#!/bin/sh
here=$(dirname -- "$(readlink -f -- "$0")")/root
exec "$here/{loader}" --library-path "{libraries}" "$here/{program}" "$@"
"""


def ensure_interpreter(cache: Cache, found: dict[str, Base] | Base) -> Interpreter:
    """Return the Python of the base of this machine's architecture: for compiling, `-S -I`, not for
    installing into.
    """
    bases = found if isinstance(found, dict) else {found.architecture: found}
    here = machine_architecture.detect_architecture()
    if here not in bases:
        raise UserError(
            f"the base's Python runs on {' and '.join(bases)}, not on this {here} machine",
            "--platform",
            f"add linux/{here} to --platform",
            kind=UNSUPPORTED,
            value=here,
        )
    base = bases[here]
    key = stage_key(
        "base-python",
        {
            "layers": [each.diff_id for each in base.layers],
            "python": base.python,
            "wrapper": _WRAPPER,
        },
    )
    made = cache.ensure_folder(
        "base", f"python-{key}", lambda folder: _unpack_interpreter(cache, base, folder)
    )
    return python_interpreter.Interpreter(
        made / "python", base.python, base.python_full, f"cpython-{base.python.replace('.', '')}"
    )


def _unpack_interpreter(cache: Cache, base: Base, folder: Path) -> None:
    wanted = re.compile(
        rf"usr/bin/python{re.escape(base.python)}|usr/lib/python{re.escape(base.python)}/(?!.*\.pyc$).*|{_LIBRARY}"
    )
    shown = root_file_system.merge_layers(
        [layer.blob_path(cache, each.digest) for each in base.layers],
        lambda entry: bool(wanted.fullmatch(entry.path)),
    )
    program = root_file_system.resolve_path(shown, f"usr/bin/python{base.python}")
    data = shown[program].data if program else None
    named = re.search(rb"/lib[\w/.-]*/ld-linux[\w.-]+\.so\.\d", data or b"")
    loader = root_file_system.resolve_path(shown, named[0].decode()) if named else ""
    if not loader:
        raise UserError(
            f"Python {base.python} of the base has no loader that could start it",
            base.name,
            "give another --base",
        )
    libraries = {path.rpartition("/")[0] for path in shown if re.fullmatch(_LIBRARY, path)}
    kept = {
        path: entry
        for path, entry in shown.items()
        if wanted.fullmatch(path) or (entry.kind == "link" and re.fullmatch(r"lib\w*", path))
    }
    root_file_system.unpack_files(kept, folder / "root")
    listed = ":".join(f"$here/{each}" for each in sorted(libraries))
    wrapper = folder / "python"
    wrapper.write_text(
        _WRAPPER.format(loader=loader, libraries=listed, program=program), encoding="ascii"
    )
    wrapper.chmod(0o755)
    full = python_interpreter.find([base.python], base.python, str(wrapper)).full
    if full != base.python_full:
        raise UserError(
            f"its Python says it is {full}, not {base.python_full}",
            base.name,
            "report it with the name of the base",
        )
