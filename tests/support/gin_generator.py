"""Gin files made at random, as people mix values, formats, scopes, imports and includes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

# Modules that stand in for the real ones, and `reexporting`, which a test has to provide.
_IMPORTS = (
    ("from t5x import utils", "utils"),
    ("from t5x import utils as u", "u"),
    ("import t5x.utils", "t5x.utils"),
    ("from rosetta.t5x import network", "network"),
    ("from rosetta.t5x import network as net", "net"),
    ("import rosetta.t5x.network", "rosetta.t5x.network"),
    ("from t5x.examples.t5 import network as upstream", "upstream"),
    ("from t5x.examples.decoder_only import network as causal", "causal"),
    ("import reexporting", "reexporting"),
    ("import reexporting as again", "again"),
)
_CLASSES = ("T5Config", "SaveCheckpointConfig", "TransformerConfig", "Renamed")
_PARAMETERS = ("period", "num_heads", "num_layers", "num_decoder_layers", "dtype")
_MACROS = ("A", "B", "LENGTHS", "train/A", "D_1", "include", "import", "REQUIRED")
_LITERALS = (
    "0", "1", "-1", "- 3", "1_000", "0x10", "1e-4", "-.5", "2.", "1j", "True", "False", "None",
    "'plain'", '"double"', "''", "'#'", '"a = b  # not a comment"', "'it\\'s'", "r'\\d'",
    "b'bytes'", "'\\n\\t\\x41\\u00e9'", "'a' 'b'", '\'a\' "b"',
    "'''three\nlines = 1\ninclude 'x'\n'''", "'ü %A @f()'", "()", "[]", "{}", "(1)", "(1,)",
    "(1, 2)", "[1,]", "{'inputs': 512, 'targets': 128}",
)  # fmt: skip
_BROKEN = (
    "A = abc", "A = '\\'", "A = 007", "A =", "= 3", "A = 1 2", "A = {1, 2}", "A = 1 + 2",
    "A B = 3", "A = [1", "A = 'x", "A = -'x'", "A: 3", "foo", "A = @f(1)", "A = %", "A . b = 3",
    "A = f'x'", "A = ...", "include A", "A = {[]: 1}", "A = -(1)", "A = %B + 1", "a//b = 1",
    "A = $x", "A == 1", "A = lambda: 1", "*A = 1", "A = --1", "A = +1", "A = (,)",
    "from a import b, c",
)  # fmt: skip


class Generator:
    """Files with one seed's choices."""

    def __init__(self, random: Random, folder: Path) -> None:
        self._random = random
        self._folder = folder
        self._count = 0
        self._named: list[str] = []

    def file(self, depth: int = 2) -> Path:
        """Write a file and those that it includes; return its path."""
        self._count += 1
        path = self._folder / f"file{self._count}.gin"
        lines = []
        modules = []
        if self._random.random() < 0.7:
            lines.append("from __gin__ import dynamic_registration")
            for statement, name in self._random.sample(_IMPORTS, self._random.randint(1, 5)):
                lines.append(statement)
                modules.append(name)
            if self._random.random() < 0.5:
                lines.append("import rosetta.t5x.names")
        elif depth:
            lines.append(f"include '{self.file(depth - 1)}'")
        for _ in range(self._random.randint(3, 14)):
            lines += self._statement(modules, depth)
        if self._random.random() < 0.05:
            lines.insert(self._random.randint(0, len(lines)), self._random.choice(_BROKEN))
        ending = self._random.choice(("\n", "\n", "\n", "\r\n"))
        text = "\n".join(lines) + self._random.choice(("", "\n", "\n\n"))
        path.write_bytes(text.replace("\n", ending).encode())
        return path

    def _statement(self, modules: list[str], depth: int) -> list[str]:
        kind = self._random.random() * (1 if modules or self._named else 0.5)
        if kind < 0.08 and depth:
            included = self.file(depth - 1)
            name = self._random.choice((str(included), included.name))
            if self._random.random() < 0.1:
                name = "nowhere.gin"
            quote = self._random.choice("'\"")
            return [f"include {quote}{name}{quote}{self._comment()}"]
        if kind < 0.18:
            return [
                self._random.choice(
                    ("", "  ", "\t", "# A = 5", "   # network.T5Config.num_heads = 'x'")
                )
            ]
        if kind < 0.5:
            return [self._binding(self._random.choice(_MACROS), modules)]
        scope = self._random.choice(("", "", "", "train/", "a/b/"))
        owner = f"{scope}{self._configurable(modules)}"
        if kind < 0.75:
            return [self._binding(f"{owner}.{self._random.choice(_PARAMETERS)}", modules)]
        indent = self._random.choice(("  ", "\t", "    ", " "))
        lines = [f"{owner}:{self._comment()}"]
        for _ in range(self._random.randint(1, 3)):
            lines.append(indent + self._binding(self._random.choice(_PARAMETERS), modules))
            if self._random.random() < 0.3:
                lines.append(
                    self._random.choice(
                        ("", "# dedented = 1", f"{indent}# x: 1", f"{indent}{indent}# y")
                    )
                )
        return lines

    def _configurable(self, modules: list[str]) -> str:
        """Return a class of an imported module, or the end of the name of one that was named."""
        if modules:
            if self._random.random() < 0.01:
                return "not_imported.T5Config"
            self._named.append(f"{self._random.choice(modules)}.{self._random.choice(_CLASSES)}")
            return self._named[-1]
        parts = self._random.choice(self._named).split(".")
        return ".".join(parts[self._random.randrange(len(parts)) :])

    def _binding(self, name: str, modules: list[str]) -> str:
        sign = self._random.choice((" = ", "=", "  =\t", " = \\\n  "))
        return f"{name}{sign}{self._value(modules, 2)}{self._comment()}"

    def _comment(self) -> str:
        return self._random.choice(
            ("", "", "", "  # why", "  # A = 'x'", "# it's # twice", "  # {", '\t#= "')
        )

    def _value(self, modules: list[str], depth: int) -> str:
        kind = self._random.random()
        if kind < 0.15:
            mark = self._random.choice(("%", "%", "%", "-%"))
            constant = f"t5x.utils.T5Config.{self._random.choice(_PARAMETERS)}"
            return mark + self._random.choice((*_MACROS, "gin.REQUIRED", "nowhere", constant))
        if kind < 0.25 and modules:
            scope = self._random.choice(("", "", "train/"))
            return f"@{scope}{self._configurable(modules)}{self._random.choice(('', '()', ' ( )'))}"
        if kind < 0.28:
            return f"@{self._random.choice(_MACROS)}/{'gin.macro' if modules else 'macro'}()"
        if kind < 0.5 and depth:
            gap = self._random.choice((" ", "\n", "\n    ", "  # a comment, with 'quotes'\n"))
            items = [self._value(modules, depth - 1) for _ in range(self._random.randint(0, 3))]
            opening, closing = self._random.choice(("()", "[]", "{}"))
            if opening == "{":
                items = [
                    f"{self._random.choice(('1', repr(str(index)), '%B'))}: {item}"
                    for index, item in enumerate(items)
                ]
            end = self._random.choice(("", ",")) if items else ""
            return f"{opening}{gap}{(',' + gap).join(items)}{end}{gap}{closing}"
        return self._random.choice(_LITERALS)
