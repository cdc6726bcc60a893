"""The types of values that variables take."""

from __future__ import annotations


class ValueType:
    """A type of values: any text.

    Attributes:
      placeholder: The word for a value in help, as in NAME=FILE.
      description: What a value is, as help shows it: "a whole number, at least 1".
      choices: The valid values, or suggestions if other values are valid too; () for none.
      completes: What a shell completes: "file", "folder", or "" for only the choices.
    """

    placeholder: str = "TEXT"
    description: str = "a text"
    choices: tuple[str, ...] = ()
    completes: str = ""


class Text(ValueType):
    """Any text."""

    def __init__(self, description: str = "a text", placeholder: str = "TEXT") -> None:
        """Make the type.

        Args:
          description: What the text is: "a password".
          placeholder: See ValueType.
        """
        self.description = description
        self.placeholder = placeholder


class TruthValue(ValueType):
    """0 or 1; also true, yes, on, false, no, off."""

    placeholder = "0|1"
    description = "0 or 1"
    choices = ("0", "1")


class WholeNumber(ValueType):
    """A whole number in decimal digits."""

    placeholder = "N"

    def __init__(self, minimum: int = 1, maximum: int | None = None) -> None:
        """Make the type.

        Args:
          minimum: The smallest valid value.
          maximum: The largest valid value; None for the limit of value_parsing.
        """
        self.minimum = minimum
        self.maximum = maximum
        is_small = maximum is not None and maximum < 1_000_000
        limits = f"{minimum} to {maximum}" if is_small else f"at least {minimum}"
        self.description = f"a whole number, {limits}"


class Number(ValueType):
    """A number in decimal digits."""

    def __init__(
        self,
        placeholder: str = "X",
        *,
        above_zero: bool = False,
        zero_or_above_one: bool = False,
        maximum: float | None = None,
    ) -> None:
        """Make the type.

        Args:
          placeholder: See ValueType.
          above_zero: Whether 0 is not valid.
          zero_or_above_one: Whether numbers above 0 and up to 1 are not valid.
          maximum: The largest valid number; None for no limit.
        """
        self.placeholder = placeholder
        self.above_zero = above_zero
        self.zero_or_above_one = zero_or_above_one
        self.maximum = maximum
        self.description = "a number above 0" if above_zero else "a number, at least 0"
        if zero_or_above_one:
            self.description = "a number above 1, or 0"
        if maximum is not None:
            self.description += f", at most {maximum:g}"


class Choice(ValueType):
    """One of a fixed set of words."""

    def __init__(self, choices: tuple[str, ...], placeholder: str = "WORD") -> None:
        """Make the type. See ValueType for the arguments."""
        self.choices = choices
        self.placeholder = placeholder
        self.description = f"one of: {', '.join(choices)}"


class Name(ValueType):
    """The name of a model, an experiment or a preset. The user's own files may add names."""

    def __init__(
        self, description: str, placeholder: str, suggestions: tuple[str, ...] = ()
    ) -> None:
        """Make the type.

        Args:
          description: What has such a name: "a size of T5".
          placeholder: See ValueType.
          suggestions: Names that rosetta ships.
        """
        self.description = description
        self.placeholder = placeholder
        self.choices = suggestions


class NameList(ValueType):
    """Names, separated by commas."""

    def __init__(self, items: str, placeholder: str, choices: tuple[str, ...] = ()) -> None:
        """Make the type.

        Args:
          items: What has such names: "switches of a preset".
          placeholder: See ValueType.
          choices: The valid names; () for any.
        """
        valid = f": {', '.join(choices)}" if choices else ""
        self.description = f"{items}, separated by commas{valid}"
        self.placeholder = placeholder
        self.choices = choices


class File(ValueType):
    """A file."""

    placeholder = "FILE"
    description = "a file"
    completes = "file"


class Folder(ValueType):
    """A folder."""

    placeholder = "FOLDER"
    completes = "folder"

    def __init__(self, *, remote: bool = False) -> None:
        """Make the type.

        Args:
          remote: Whether an address such as gs://BUCKET/FOLDER is valid, too.
        """
        self.remote = remote
        self.description = "a folder, or gs://BUCKET/FOLDER" if remote else "a folder"


class Mount(ValueType):
    """A folder of a container.

    Attributes:
      pattern: A mount as a regular expression that Python and bash read alike.
    """

    placeholder = "HOST:CONTAINER"
    description = "two absolute paths"
    pattern = "/[^:,]*:/[^:,]*"


class MountList(Mount):
    """Folders of a container, as pyxis reads them: SOURCE[:TARGET[:FLAGS]], separated by commas."""

    placeholder = "HOST:CONTAINER,..."
    description = "pairs HOST:CONTAINER, separated by commas"
    pattern = "([./][^:,]*|tmpfs|umount)(:[./][^:,]*(:[^,]*)?)?"


class Vocabulary(ValueType):
    """A file of a vocabulary, a model of Hugging Face, or a vocabulary without a file."""

    placeholder = "FILE|hf:NAME|byte"
    description = (
        "a SentencePiece model, a tokenizer.json, hf:OWNER/NAME or a folder of that layout, or byte"
    )
    choices = ("byte",)
    completes = "file"


class DataSource(ValueType):
    """A source of data, see docs/reference/data-sources.md."""

    placeholder = "KIND:VALUE"
    description = "a data source: text:GLOB, jsonl:GLOB, tfds:NAME, synthetic, ..."


class Address(ValueType):
    """The address of a server."""

    placeholder = "URL"
    description = "an address such as https://HOST/PATH"


class StepRange(ValueType):
    """Steps A:B, from A to the step before B."""

    placeholder = "A:B"
    description = "A:B, the first step and the step after the last"


class MeshShape(ValueType):
    """A mesh: a whole number for each axis."""

    placeholder = "[D,F,T]"
    description = "[data,fsdp,tensor], whole numbers"


class FiddleWords(ValueType):
    """Arguments of Paxml's command line."""

    placeholder = "WORDS"
    description = "--fdl.NAME=VALUE, and other options of Paxml, separated by spaces"


class XlaFlags(ValueType):
    """Flags of XLA, separated by spaces as on a command line."""

    placeholder = "FLAGS"
    description = "flags of XLA, separated by spaces, or a file of flags"
