"""The Python of a base, unpacked to run on this machine without a container and without root.

The base's own loader starts the program with the base's own libraries.
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
    from collections.abc import Mapping
    from pathlib import Path

    from builder.core.cache import Cache
    from builder.images.base.base_image import Base
    from builder.images.oci.tar_entry import Entry
    from builder.packages.python_interpreter import Interpreter

_LIBRARY = r"(usr/)?lib(32|64|x32|/[\w-]+-linux-gnu)?/[^/]+\.so[\d.]*"
_WRAPPER = """#!/bin/sh
here=$(dirname -- "$(readlink -f -- "$0")")/root
exec "$here/{loader}" --library-path "{libraries}" "$here/{program}" "$@"
"""


def ensure_interpreter(cache: Cache, bases: dict[str, Base] | Base) -> Interpreter:
    """Return the Python of the base that has this machine's architecture.

    It is for compiling with `-S -I`, not for installing packages into.

    Args:
        cache: The cache; the Python is unpacked there.
        bases: A base, or bases by architecture.

    Raises:
        UserError: No base has this machine's architecture, or its Python cannot be started.
    """
    if not isinstance(bases, dict):
        bases = {bases.architecture: bases}
    machine = machine_architecture.detect_architecture()
    if machine not in bases:
        raise UserError(
            f"the base's Python runs on {' and '.join(bases)}, not on this {machine} machine",
            "--platform",
            f"add linux/{machine} to --platform",
            kind=UNSUPPORTED,
            value=machine,
        )
    base = bases[machine]
    key = stage_key(
        "base-python",
        {
            "layers": [base_layer.diff_id for base_layer in base.layers],
            "python": base.python,
            "wrapper": _WRAPPER,
        },
    )
    folder = cache.ensure_folder(
        "base", f"python-{key}", lambda folder: _unpack_interpreter(cache, base, folder)
    )
    tag = f"cpython-{base.python.replace('.', '')}"
    return python_interpreter.Interpreter(folder / "python", base.python, base.python_full, tag)


def _unpack_interpreter(cache: Cache, base: Base, folder: Path) -> None:
    """Write the Python of a base, and a script that starts it, into a folder."""
    version = re.escape(base.python)
    wanted = re.compile(
        rf"usr/bin/python{version}|usr/lib/python{version}/(?!.*\.pyc$).*|{_LIBRARY}"
    )
    view = root_file_system.merge_layers(
        [layer.blob_path(cache, base_layer.digest) for base_layer in base.layers],
        lambda entry: bool(wanted.fullmatch(entry.path)),
    )
    program = root_file_system.resolve_path(view, f"usr/bin/python{base.python}")
    loader = _find_loader(view, program)
    if not loader:
        raise UserError(
            f"Python {base.python} of the base has no loader that could start it",
            base.name,
            "give another --base",
        )
    files = {
        path: entry
        for path, entry in view.items()
        if wanted.fullmatch(path) or (entry.kind == "link" and re.fullmatch(r"lib\w*", path))
    }
    root_file_system.unpack_files(files, folder / "root")
    library_folders = {path.rpartition("/")[0] for path in view if re.fullmatch(_LIBRARY, path)}
    libraries = ":".join(f"$here/{library_folder}" for library_folder in sorted(library_folders))
    wrapper = folder / "python"
    wrapper.write_text(
        _WRAPPER.format(loader=loader, libraries=libraries, program=program), encoding="ascii"
    )
    wrapper.chmod(0o755)
    full_version = python_interpreter.find_interpreter(
        [base.python], base.python, str(wrapper)
    ).full
    if full_version != base.python_full:
        raise UserError(
            f"its Python says it is {full_version}, not {base.python_full}",
            base.name,
            "report it with the name of the base",
        )


def _find_loader(view: Mapping[str, Entry], program: str) -> str:
    """Return the path of the loader that a program names; empty if there is none."""
    content = view[program].data if program else None
    match = re.search(rb"/lib[\w/.-]*/ld-linux[\w.-]+\.so\.\d", content or b"")
    return root_file_system.resolve_path(view, match[0].decode()) if match else ""
