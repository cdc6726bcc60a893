"""Collect the licence texts of rosetta, the upstream sources and every installed package."""

from __future__ import annotations

import email.parser
import email.policy
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from rosetta.core.errors import DAMAGED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
_TEXT = re.compile(
    r"(.*[-_.])?(licen[cs]es?|copying|notices?|copyright|eula|authors)([-_.].*)?", re.IGNORECASE
)
_NO_TEXT = re.compile(r"\.(py|pyc|pyi|so|json|h|hpp|js|css|html)$", re.IGNORECASE)
_CLASSIFIER = "License :: "
SPDX_RULES_VERSION = 1  # counts changes of `list_spdx_terms` and of what it gets
# The licences of the base's packages, whose texts are in /usr/share/doc.
BASE_LICENCES = "LicenseRef-base-packages"
# What packages declare instead of an identifier of SPDX. "BSD" alone names no licence.
_SPDX_IDENTIFIERS = {
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "mit license": "MIT",
    "bsd 3-clause": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "psfl": "PSF-2.0",
}
_OWN_LICENCE = "Apache-2.0"
_LONG = 120  # characters; a longer License field is a text, not a name


def write_licences(into: Path, site: Path, trees: Mapping[str, Path]) -> None:
    """Write the licence texts into a new folder, with index.json and index.txt.

    The same input gives the same files.

    Args:
        into: The folder.
        site: The site-packages folder of the installed packages.
        trees: The folders of the patched sources, by source.
    """
    into.mkdir()
    shutil.copyfile(ROOT / "LICENSE", into / "rosetta")
    rows = [{"name": "rosetta", "version": "", "licence": _OWN_LICENCE, "files": ["rosetta"]}]
    rows += [_add_tree(into, name, tree) for name, tree in sorted(trees.items())]
    rows += [_add_package(into, info) for info in sorted(site.glob("*.dist-info"))]
    index = json.dumps({"schema": 1, "licences": rows}, indent=1, ensure_ascii=True) + "\n"
    (into / "index.json").write_text(index, encoding="ascii")
    (into / "index.txt").write_text("".join(_format_line(row) for row in rows), encoding="utf-8")


def list_declared_licences(site: Path, trees: Mapping[str, Path]) -> list[str]:
    """Return the licences of rosetta, the patched sources and the installed packages, as declared.

    Args:
        site: The site-packages folder of the installed packages.
        trees: The folders of the patched sources, by source.
    """
    infos = sorted(site.glob("*.dist-info"))
    return [
        _OWN_LICENCE,
        *(_find_tree_licence(tree) for _, tree in sorted(trees.items())),
        *(find_declared_licence(read_metadata(info)) for info in infos),
    ]


def list_spdx_terms(declared: Iterable[str]) -> tuple[str, ...]:
    """Return the terms of an SPDX expression over some licences, each once.

    A licence that SPDX does not know is a LicenseRef of its name. The expression is the terms with
    AND between them (SPDX specification 2.3, annex D).

    Args:
        declared: The licences as their projects declare them, "" for none.
    """
    return tuple(sorted({term for text in declared for term in _list_terms(text)}))


def _list_terms(text: str) -> list[str]:
    identifier = _SPDX_IDENTIFIERS.get(text.lower(), text)
    try:
        expression = str(canonicalize_license_expression(identifier))
    except InvalidLicenseExpression:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "not-declared"
        return [f"LicenseRef-{name}"]
    if " OR " in expression:
        return [f"({expression})"]
    return expression.split(" AND ")


def _add_tree(into: Path, name: str, tree: Path) -> dict[str, Any]:
    """Copy the licence texts of a patched source; return its row of the index."""
    return {
        "name": name,
        "version": "",
        "licence": _find_tree_licence(tree),
        "files": _copy_texts(into, f"sources/{name}", _list_tree_texts(tree)),
    }


def _add_package(into: Path, info: Path) -> dict[str, Any]:
    """Copy the licence texts of an installed package; return its row of the index."""
    metadata = read_metadata(info)
    project = str(metadata["Name"])
    folder = f"packages/{re.sub(r'[-_.]+', '-', project).lower()}"
    return {
        "name": project,
        "version": str(metadata["Version"]),
        "licence": find_declared_licence(metadata),
        "files": _copy_texts(into, folder, _list_package_texts(info.parent, info)),
    }


def read_metadata(info: Path) -> Any:
    """Return the fields of the METADATA of an installed package."""
    try:
        text = (info / "METADATA").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            "an installed package has no METADATA",
            str(info),
            "delete that environment from the cache and run again",
            kind=DAMAGED,
        ) from error
    return email.parser.Parser(policy=email.policy.compat32).parsestr(text, headersonly=True)


def find_declared_licence(metadata: Any) -> str:
    """Return the licence that a package declares, or "".

    The licence expression comes first, then the field License, then the classifiers.
    """
    expression = str(metadata["License-Expression"] or "").strip()
    field = str(metadata["License"] or "").strip()
    field_is_name = len(field) <= _LONG and "\n" not in field and field.upper() != "UNKNOWN"
    return (
        expression
        or (field if field_is_name else "")
        or ", ".join(sorted(_classified_licences(metadata)))
        or (field.splitlines()[0][:_LONG] if field else "")
    )


def _classified_licences(metadata: Any) -> set[str]:
    """Return the names of the licences in the classifiers."""
    names = {
        classifier.rpartition(" :: ")[2]
        for classifier in metadata.get_all("Classifier", [])
        if classifier.startswith(_CLASSIFIER)
    }
    return names - {"OSI Approved"}


def _find_tree_licence(tree: Path) -> str:
    infos = sorted(tree.glob("*.dist-info"))
    if infos:  # the source was released as a wheel
        return find_declared_licence(read_metadata(infos[0]))
    for path, _ in _list_tree_texts(tree):
        if "Apache License" in path.read_text(encoding="utf-8", errors="replace")[:2000]:
            return "Apache-2.0"
    return ""


def _list_tree_texts(tree: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path and the relative name of each licence text of a patched source."""
    for path in sorted(
        (*tree.iterdir(), *tree.glob("*.dist-info/*"), *tree.glob("*.dist-info/licenses/**/*"))
    ):
        if path.is_file() and _TEXT.fullmatch(path.name) and not _NO_TEXT.search(path.name):
            yield path, path.relative_to(tree).as_posix()


def is_licence_text(path: str, info: str) -> bool:
    """Return whether a file of a package is a licence text, by its path.

    Args:
        path: The path as RECORD has it.
        info: The name of the package's .dist-info folder.
    """
    name = path.rpartition("/")[2]
    if path.startswith(f"{info}/licenses/"):
        return not path.endswith(".pyc")
    return bool(_TEXT.fullmatch(name) and not _NO_TEXT.search(name))


def _list_package_texts(site: Path, info: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path and the name of each licence text that RECORD lists.

    The texts are those of the project and of the code that it includes.
    """
    licences = f"{info.name}/licenses/"
    for line in sorted((info / "RECORD").read_text(encoding="utf-8").splitlines()):
        inside = line.rsplit(",", 2)[0].strip('"')
        path = site / inside
        if is_licence_text(inside, info.name) and ".." not in Path(inside).parts and path.is_file():
            yield path, inside.removeprefix(licences).removeprefix(f"{info.name}/")


def _copy_texts(into: Path, folder: str, texts: Iterator[tuple[Path, str]]) -> list[str]:
    names: list[str] = []
    for path, inside in texts:
        name = f"{folder}/{inside}"
        target = into / name
        if name in names:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o644)
        names.append(name)
    return names


def _format_line(row: Mapping[str, Any]) -> str:
    head = " ".join(part for part in (row["name"], row["version"]) if part)
    files = ", ".join(row["files"]) or "it has no licence text"
    return f"{head}: {row['licence'] or 'not declared'}: {files}\n"
