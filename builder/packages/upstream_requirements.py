"""What an upstream asks for, read from its files without running any of them."""

from __future__ import annotations

import ast
import email
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from rosetta.core.errors import INVALID, MISSING, UNSUPPORTED, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping


@dataclass(frozen=True)
class Declared:
    """The requirements of one source as its file `origin` states them, sorted and normalised; our
    own sources are left out.
    """

    source: str
    origin: str
    requirements: tuple[str, ...]


def read_declared(
    source: str, paths: Collection[str], read: Callable[[str], bytes], own: Collection[str]
) -> Declared:
    """Read requirements.in, else setup.py, else a wheel's METADATA, whichever of `paths` is there
    first.

    Args:
        source: its name, for messages.
        paths: every path of its tree.
        read: gives the content of one of them.
        own: normalised names of projects that are sources themselves.

    Raises:
        UserError: nothing declares anything, or a requirement cannot be read or is by URL; names
          source, file and line.
    """
    metadata = [path for path in paths if re.fullmatch(r"[^/]+\.dist-info/METADATA", path)]
    for origin, parse in (
        ("requirements.in", parse_requirements_file),
        ("setup.py", _parse_setup),
        *((path, _parse_metadata) for path in metadata[:1]),
    ):
        if origin not in paths:
            continue
        try:
            text = read(origin).decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                "is not UTF-8", f"{source}: {origin}", "see the upstream", kind=INVALID
            ) from error
        found = {
            parse_requirement(text_, f"{source}: {origin}:{line}", source)
            for line, text_ in parse(text, f"{source}: {origin}")
        }
        return Declared(
            source,
            origin,
            tuple(
                sorted(
                    str(each) for each in found if each and canonicalize_name(each.name) not in own
                )
            ),
        )
    raise UserError(
        "declares no requirements: no requirements.in, setup.py or METADATA",
        source,
        "see the upstream at its pin",
        kind=MISSING,
    )


def parse_requirement(text: str, where: str, source: str) -> Requirement | None:
    """One requirement with its project's name normalised; None for one of an extra that nobody
    asked for.
    """
    mend = f"by a patch in patches/{source}" if source else "there"
    try:
        found = Requirement(text)
    except InvalidRequirement as error:
        raise UserError(
            f"{text!r} is not a requirement", where, f"mend it {mend}", kind=INVALID, value=text
        ) from error
    if found.url:
        raise UserError(
            f"{found.name} is required by URL, which cannot be locked",
            where,
            f"name a release {mend}",
            kind=UNSUPPORTED,
            value=found.name,
        )
    if found.marker and "extra" in str(found.marker):
        return None
    found.name = canonicalize_name(found.name)
    return found


def parse_requirements_file(text: str, where: str) -> Iterator[tuple[int, str]]:
    """Line number and requirement of each line of a requirements file that holds nothing else."""
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if line.startswith("-"):
            raise UserError(
                f"{line.split()[0]} is an option, not a requirement",
                f"{where}:{number}",
                "write the requirements out",
                kind=UNSUPPORTED,
                value=line.split()[0],
            )
        if line:
            yield number, line


def _parse_metadata(text: str, where: str) -> Iterator[tuple[int, str]]:
    number = next(
        (
            number
            for number, line in enumerate(text.splitlines(), 1)
            if line.startswith("Requires-Dist:")
        ),
        1,
    )
    message = email.message_from_string(text)
    if not message.get("Name"):
        raise UserError("is not a wheel's METADATA", where, "see the wheel", kind=INVALID)
    for index, value in enumerate(message.get_all("Requires-Dist") or []):
        yield number + index, str(value)


def _parse_setup(text: str, where: str) -> Iterator[tuple[int, str]]:
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(
            f"is not Python ({error})", where, "see the upstream", kind=INVALID
        ) from error
    constants = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    calls = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and _called_name(node) == "setup"
    ]
    if len(calls) != 1:
        raise UserError(
            f"calls setup() {len(calls)} times",
            where,
            "its requirements cannot be read without running it",
            kind=UNSUPPORTED,
            value=len(calls),
        )
    for keyword in calls[0].keywords:
        if keyword.arg == "install_requires":
            yield from _evaluate_strings(keyword.value, constants, where)


def _called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _evaluate_strings(
    node: ast.expr, constants: Mapping[str, ast.expr], where: str
) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Name) and node.id in constants:
        name, node = node.id, constants[node.id]
        constants = {
            key: value for key, value in constants.items() if key != name
        }  # a name defined by itself must end here
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _evaluate_strings(node.left, constants, where)
        yield from _evaluate_strings(node.right, constants, where)
    elif isinstance(node, ast.List | ast.Tuple):
        for item in node.elts:
            yield item.lineno, _evaluate_string(item, constants, where)
    else:
        raise _unreadable_error(node, where)


def _evaluate_string(node: ast.expr, constants: Mapping[str, ast.expr], where: str) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if (
        isinstance(node, ast.Name)
        and isinstance(value := constants.get(node.id), ast.Constant)
        and isinstance(value.value, str)
    ):
        return value.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_evaluate_string(part, constants, where) for part in node.values)
    if isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None:
        return _evaluate_string(node.value, constants, where)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _evaluate_string(node.left, constants, where) + _evaluate_string(
            node.right, constants, where
        )
    raise _unreadable_error(node, where)


def _unreadable_error(node: ast.expr, where: str) -> UserError:
    return UserError(
        f"{ast.unparse(node)[:60]} cannot be read without running it",
        f"{where}:{node.lineno}",
        "list the requirements by a patch",
        kind=UNSUPPORTED,
        value=ast.unparse(node)[:60],
    )
