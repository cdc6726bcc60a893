"""Read the requirements that an upstream project declares, without running its code."""

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
    """The requirements of one source.

    Attributes:
        source: The name of the source.
        origin: The path of the file that states the requirements.
        requirements: The requirements, sorted and normalised, without projects that are sources
            themselves.
    """

    source: str
    origin: str
    requirements: tuple[str, ...]


def read_declared(
    source: str,
    paths: Collection[str],
    read: Callable[[str], bytes],
    source_projects: Collection[str],
) -> Declared:
    """Read the requirements of a source from the first of requirements.in, setup.py and a wheel's
    METADATA that it has.

    Args:
        source: The name of the source, for messages.
        paths: Every path of its tree.
        read: A function that returns the content of a path.
        source_projects: The normalised names of the projects that are sources themselves.

    Raises:
        UserError: The source has none of these files, or a requirement cannot be read or is by
            URL. The error has the source, the file and the line.
    """
    metadata = [path for path in paths if re.fullmatch(r"[^/]+\.dist-info/METADATA", path)]
    parsers: list[tuple[str, Callable[[str, str], Iterator[tuple[int, str]]]]] = [
        ("requirements.in", parse_requirements_file),
        ("setup.py", _parse_setup),
        *((path, _parse_metadata) for path in metadata[:1]),
    ]
    for origin, parse in parsers:
        if origin in paths:
            place = f"{source}: {origin}"
            text = _decode(read(origin), place)
            parsed = [
                parse_requirement(line, f"{place}:{number}", source)
                for number, line in parse(text, place)
            ]
            requirements = {
                str(requirement)
                for requirement in parsed
                if requirement and requirement.name not in source_projects
            }
            return Declared(source, origin, tuple(sorted(requirements)))
    raise UserError(
        "has no requirements.in, setup.py or METADATA to read requirements from",
        source,
        f"add a requirements.in by a patch in patches/{source}",
        kind=MISSING,
    )


def _decode(content: bytes, place: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            "is not UTF-8", place, "correct the file by a patch", kind=INVALID
        ) from error


def parse_requirement(text: str, where: str, source: str) -> Requirement | None:
    """Return a requirement with the normalised name of its project.

    Args:
        text: The requirement, as PEP 508 writes it.
        where: The file and line, for messages.
        source: The source that has the file; "" for a file of this repository.

    Returns:
        The requirement, or None for a requirement of an extra.

    Raises:
        UserError: The text is not a requirement, or it names a URL.
    """
    way = f"by a patch in patches/{source}" if source else "in that file"
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise UserError(
            f"{text!r} is not a requirement",
            where,
            f"correct it {way}",
            kind=INVALID,
            value=text,
        ) from error
    if requirement.url:
        raise UserError(
            f"{requirement.name} is required by URL, which cannot be locked",
            where,
            f"require a released version instead, {way}",
            kind=UNSUPPORTED,
            value=requirement.name,
        )
    # No other variable of a marker has "extra" in its name.
    if requirement.marker and "extra" in str(requirement.marker):
        return None
    requirement.name = canonicalize_name(requirement.name)
    return requirement


def parse_requirements_file(text: str, where: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each requirement of a requirements file.

    Raises:
        UserError: A line is an option.
    """
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if line.startswith("-"):
            option = line.split()[0]
            raise UserError(
                f"{option} is an option, not a requirement",
                f"{where}:{number}",
                "list the requirements themselves in this file",
                kind=UNSUPPORTED,
                value=option,
            )
        if line:
            yield number, line


def _parse_metadata(text: str, where: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each requirement of a wheel's METADATA."""
    numbers = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.startswith("Requires-Dist:")
    ]
    first_number = numbers[0] if numbers else 1
    message = email.message_from_string(text)
    if not message.get("Name"):
        raise UserError(
            "is not a wheel's METADATA",
            where,
            "check that the source is an unpacked wheel",
            kind=INVALID,
        )
    # The Requires-Dist lines follow each other.
    for index, value in enumerate(message.get_all("Requires-Dist") or []):
        yield first_number + index, str(value)


def _parse_setup(text: str, where: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each requirement in `install_requires` of `setup()`."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(
            f"is not Python ({error})", where, "correct the file by a patch", kind=INVALID
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
            "list the requirements in a requirements.in, by a patch",
            kind=UNSUPPORTED,
            value=len(calls),
        )
    for keyword in calls[0].keywords:
        if keyword.arg == "install_requires":
            yield from _evaluate_strings(keyword.value, constants, where)


def _called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return getattr(node.func, "id", "")


def _evaluate_strings(
    node: ast.expr, constants: Mapping[str, ast.expr], where: str
) -> Iterator[tuple[int, str]]:
    """Yield the line number and the text of each string of a list that the source spells out.

    Args:
        node: The expression: a list or tuple, a sum of such, or the name of a constant.
        constants: The expressions that the module assigns to names.
        where: The file, for messages.
    """
    if isinstance(node, ast.Name) and node.id in constants:
        name, node = node.id, constants[node.id]
        # A constant that is defined by itself must not be followed again.
        constants = {key: value for key, value in constants.items() if key != name}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _evaluate_strings(node.left, constants, where)
        yield from _evaluate_strings(node.right, constants, where)
    elif isinstance(node, ast.List | ast.Tuple):
        for item in node.elts:
            yield item.lineno, _evaluate_string(item, constants, where)
    else:
        raise _unreadable_error(node, where)


def _evaluate_string(node: ast.expr, constants: Mapping[str, ast.expr], where: str) -> str:
    """Return the value of an expression of string literals, string constants and f-strings."""
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
