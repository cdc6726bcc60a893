"""Files get their names by rosetta.core.atomic_files; what renames by itself is listed here."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Module -> the functions that rename. A comment in each says why it does not call replace_file.
RENAMING = {
    "builder/packages/builder_environment.py": {"_replace_environment"},
    "builder/core/cache.py": {"ensure_folder"},
    "builder/images/image_environment.py": {"_move_file"},
    "builder/images/oci/layer.py": {"_write_blob"},
    "builder/packages/debian_lock.py": {"_fetch_files"},
    "builder/packages/environment_assembly.py": {"_replace_part", "assemble_parts", "replace_path"},
    "builder/packages/transformer_engine/object_files.py": {"_finish_compiler"},
    "builder/release/bump/working_copy.py": {"replace_folder"},
    "builder/upstream/git_index.py": {"apply"},
    "rosetta/convert/output_folder.py": {"_move_into_place"},
    "rosetta/convert/t5x_checkpoint.py": {"close"},
    "rosetta/core/atomic_files.py": {"replace_file"},
    "rosetta/data/remote_files.py": {"_copy_without_version"},
    "rosetta/data/text_stores.py": {"_make_store"},
    "rosetta/selftest/training.py": {"_hide_event_files", "train_and_resume"},
}
# The file in which a fault of the builder is reported has to be new, and stays where it is.
UNNAMED_FILES = {"builder/cli.py": {"_write_report"}}


def is_rename(call: ast.Call) -> bool:
    """Return whether a call renames a file: os.replace and the like, Path.replace or Path.rename.

    A str.replace has two arguments, a date's or a data class's has keywords.
    """
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    if owner in ("os", "shutil"):
        return call.func.attr in ("replace", "rename", "renames", "move")
    return call.func.attr in ("replace", "rename") and len(call.args) == 1 and not call.keywords


def makes_unnamed_file(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return name in ("NamedTemporaryFile", "mkstemp")


def functions_with(
    tree: ast.AST, wanted: Callable[[ast.Call], bool], inside: str = ""
) -> Iterator[str]:
    """Yield the innermost function around each call that `wanted` selects."""
    for node in ast.iter_child_nodes(tree):
        name = node.name if isinstance(node, ast.FunctionDef) else inside
        if isinstance(node, ast.Call) and wanted(node):
            yield name
        yield from functions_with(node, wanted, name)


def callers(wanted: Callable[[ast.Call], bool]) -> dict[str, set[str]]:
    found = {}
    for package in ("builder", "rosetta"):
        for path in (ROOT / package).rglob("*.py"):
            if names := set(functions_with(ast.parse(path.read_text("utf-8")), wanted)):
                found[path.relative_to(ROOT).as_posix()] = names
    return found


def test_only_listed_functions_rename() -> None:
    assert callers(is_rename) == RENAMING


def test_only_listed_functions_make_files_without_a_name_of_their_own() -> None:
    assert callers(makes_unnamed_file) == UNNAMED_FILES


def test_what_counts_as_a_rename() -> None:
    def found(text: str) -> bool:
        return bool(list(functions_with(ast.parse(text), is_rename)))

    assert all(map(found, ("os.replace(a, b)", "a.rename(b)", "a.replace(b)", "shutil.move(a, b)")))
    assert not any(map(found, ("a.replace('x', 'y')", "a.replace(hour=1)", "replace(a, b=1)")))
