"""Write a document as YAML that every reader of YAML reads alike.

The launchers print jobs for Kubernetes with this module.
"""

from __future__ import annotations

import re
from typing import Any

from rosetta.core.errors import MISSING, UserError

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./-]*[a-z0-9]")
# Words that some reader takes for a truth value, a number or null.
_AMBIGUOUS = re.compile(r"y|n|yes|no|on|off|true|false|null|inf|nan", re.IGNORECASE)


def format_yaml(document: dict[str, Any]) -> str:
    """Return a document as YAML, with quotes around each text that a reader might misread.

    Raises:
      UserError: PyYAML is not installed.
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise UserError(
            "PyYAML writes this format and is not installed",
            "YAML",
            "install it: pip install pyyaml",
            kind=MISSING,
        ) from None

    class Dumper(yaml.SafeDumper):
        pass

    def represent_text(dumper: Any, text: str) -> Any:
        is_plain = _PLAIN.fullmatch(text) and not _AMBIGUOUS.fullmatch(text)
        style = None if is_plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, represent_text)
    return str(yaml.dump(document, Dumper=Dumper, sort_keys=False, width=2**31))
