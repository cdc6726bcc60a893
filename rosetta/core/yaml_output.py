"""A document as YAML that every reader of YAML takes for the same."""

from __future__ import annotations

import re
from typing import Any

from rosetta.core.errors import MISSING, UserError

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./-]*[a-z0-9]")
_OTHER = re.compile(
    r"y|n|yes|no|on|off|true|false|null|inf|nan", re.IGNORECASE
)  # what some reader has for a truth value, a number or nothing


def format_yaml(found: dict[str, Any]) -> str:
    """Return a document as YAML in which each text is quoted that a reader might take for something
    else.

    Raises:
      UserError: PyYAML is not there.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise UserError(
            "it is written by PyYAML, which is not there",
            "YAML",
            "install it: pip install pyyaml",
            kind=MISSING,
        ) from None

    class Dumper(yaml.SafeDumper):
        pass

    def text(dumper: Any, value: str) -> Any:
        plain = _PLAIN.fullmatch(value) and not _OTHER.fullmatch(value)
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    return str(yaml.dump(found, Dumper=Dumper, sort_keys=False, width=2**31))
