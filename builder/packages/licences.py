"""The licence texts of everything that is shipped: rosetta, the upstream sources, every installed
package, with an index of them.
"""

from __future__ import annotations

import email.parser
import email.policy
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.core.errors import DAMAGED, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
_TEXT = re.compile(
    r"(.*[-_.])?(licen[cs]es?|copying|notices?|copyright|eula|authors)([-_.].*)?", re.IGNORECASE
)
_NO_TEXT = re.compile(r"\.(py|pyc|pyi|so|json|h|hpp|js|css|html)$", re.IGNORECASE)
_CLASSIFIER = "License :: "
_LONG = 120  # a License field beyond that is a text, not a name


def write_licences(into: Path, site: Path, trees: Mapping[str, Path]) -> None:
    """Fill `into` with rosetta's licence, a folder per source and per package, index.json and
    index.txt.

    `site` is a site-packages folder, `trees` are the patched trees by source. The same content
    gives the same files.
    """
    into.mkdir()
    shutil.copyfile(ROOT / "LICENSE", into / "rosetta")
    rows = [{"name": "rosetta", "version": "", "licence": "Apache-2.0", "files": ["rosetta"]}]
    for name, tree in sorted(trees.items()):
        rows.append(
            {
                "name": name,
                "version": "",
                "licence": _find_tree_licence(tree),
                "files": _copy_texts(into, f"sources/{name}", _list_tree_texts(tree)),
            }
        )
    for info in sorted(site.glob("*.dist-info")):
        head = read_metadata(info)
        project, version = str(head["Name"]), str(head["Version"])
        files = _copy_texts(
            into,
            f"packages/{re.sub(r'[-_.]+', '-', project).lower()}",
            _list_package_texts(info.parent, info),
        )
        rows.append(
            {
                "name": project,
                "version": version,
                "licence": find_declared_licence(head),
                "files": files,
            }
        )
    (into / "index.json").write_text(
        json.dumps({"schema": 1, "licences": rows}, indent=1, ensure_ascii=True) + "\n",
        encoding="ascii",
    )
    (into / "index.txt").write_text("".join(_format_line(row) for row in rows), encoding="utf-8")


def read_metadata(info: Path) -> Any:
    """Return the head of a package's METADATA."""
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


def find_declared_licence(head: Any) -> str:
    """Return the licence that a package declares: its expression, its License field, or its
    classifiers; "" where it declares none.
    """
    expression = str(head["License-Expression"] or "").strip()
    field = str(head["License"] or "").strip()
    named = [
        line.removeprefix(_CLASSIFIER).rpartition(" :: ")[2]
        for line in head.get_all("Classifier", [])
        if line.startswith(_CLASSIFIER)
    ]
    short = (
        field if len(field) <= _LONG and "\n" not in field and field.upper() != "UNKNOWN" else ""
    )
    return (
        expression
        or short
        or ", ".join(sorted({name for name in named if name != "OSI Approved"}))
        or (field.splitlines()[0][:_LONG] if field else "")
    )


def _find_tree_licence(tree: Path) -> str:
    infos = sorted(tree.glob("*.dist-info"))  # of a source that was released as a wheel
    if infos:
        return find_declared_licence(read_metadata(infos[0]))
    return (
        "Apache-2.0"
        if any(
            "Apache License" in path.read_text(encoding="utf-8", errors="replace")[:2000]
            for path, _ in _list_tree_texts(tree)
        )
        else ""
    )


def _list_tree_texts(tree: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(
        (*tree.iterdir(), *tree.glob("*.dist-info/*"), *tree.glob("*.dist-info/licenses/**/*"))
    ):
        if path.is_file() and _TEXT.fullmatch(path.name) and not _NO_TEXT.search(path.name):
            yield path, path.relative_to(tree).as_posix()


def _list_package_texts(site: Path, info: Path) -> Iterator[tuple[Path, str]]:
    """Yield the texts that RECORD lists, with the name each gets: those of the project itself, and
    those of what it has taken in.
    """
    licences = f"{info.name}/licenses/"
    for line in sorted((info / "RECORD").read_text(encoding="utf-8").splitlines()):
        inside = line.rsplit(",", 2)[0].strip('"')
        name = inside.rpartition("/")[2]
        own = inside.startswith(licences) and not inside.endswith(".pyc")
        path = site / inside
        if (
            (own or (_TEXT.fullmatch(name) and not _NO_TEXT.search(name)))
            and ".." not in Path(inside).parts
            and path.is_file()
        ):
            yield path, inside.removeprefix(licences).removeprefix(f"{info.name}/")


def _copy_texts(into: Path, folder: str, found: Iterator[tuple[Path, str]]) -> list[str]:
    names: list[str] = []
    for path, inside in found:
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
    where = ", ".join(row["files"]) or "no text is shipped with it"
    return f"{head}: {row['licence'] or 'not declared'}: {where}\n"
