"""Documents one after another, in a fixed order: for caching, for training a vocabulary, and streamed Hugging Face sets."""

from __future__ import annotations

import bz2
import contextlib
import io
import lzma
import os
import zlib
from typing import TYPE_CHECKING, Any

from rosetta.data import checks, tfds, tfrecord, windows
from rosetta.data import spec as specs
from rosetta.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rosetta.data.spec import Spec


def _zstandard() -> Any:
    import zstandard  # noqa: PLC0415 (few need it)

    return zstandard.ZstdDecompressor().decompressobj()


_FRAMES: dict[str, Callable[[], Any]] = {".gz": lambda: zlib.decompressobj(wbits=31), ".zst": _zstandard, ".bz2": bz2.BZ2Decompressor, ".xz": lzma.LZMADecompressor}


class _Frames(io.RawIOBase):
    """The content of a compressed file, one frame after another.

    EOFError where the file ends within a frame, which the libraries' own readers take for its end, some of them, as they do a
    damaged one after a whole one.
    """

    def __init__(self, path: str, begin: Callable[[], Any]) -> None:
        self.begin = begin
        self.frame: Any = None  # the one being read
        self.packed = self.left = b""  # what of the file is read and not decompressed, what of the content is not handed out
        self.file = open(path, "rb")  # noqa: SIM115 (closed by close)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self.left:
            self.packed = self.packed or self.file.read(1 << 16)
            if not self.packed:
                if self.frame:
                    raise EOFError("it ends within a frame")
                return 0
            if not self.frame:
                self.packed = self.packed.lstrip(b"\0")  # padding, which some put after a frame
                if not self.packed:
                    continue
                self.frame = self.begin()
            self.left, self.packed = self.frame.decompress(self.packed), b""
            if self.frame.eof:
                self.packed, self.frame = self.frame.unused_data, None
        count = min(len(self.left), len(into))
        into[:count], self.left = self.left[:count], self.left[count:]
        return count

    def close(self) -> None:
        self.file.close()
        super().close()


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.BufferedReader[Any]]:
    """Open a file for reading; what windows.COMPRESSED names is decompressed on the way. UserError where it is damaged."""
    begin = next((begin for ending, begin in _FRAMES.items() if path.endswith(ending)), None)
    damaged: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
    if path.endswith(".zst"):
        import zstandard  # noqa: PLC0415

        damaged = (*damaged, zstandard.ZstdError)
    with io.BufferedReader(_Frames(path, begin), 1 << 20) if begin else open(path, "rb") as file:
        try:
            yield file
        except damaged as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file system's; bz2's own have no number
            raise UserError(f"the file is damaged: {error}", path, "copy it again") from None


def documents(spec: Spec, field: str, split: str = "train") -> Iterator[str]:
    """Yield a source's documents, empty ones left out."""
    if spec.kind == "hf":
        yield from (text for text in (field_of(record, field, spec) for record in hugging_face(spec, split)) if text.strip())
        return
    if spec.kind in ("tfrecord", "tfds"):
        paths = tfds.shards(spec, split) if spec.kind == "tfds" else specs.files(spec)
        for path in paths:
            records = tfrecord.Records([path])
            yield from (text for text in (tfrecord.text(records[number], field, path) for number in range(len(records))) if text.strip())
        return
    if spec.kind not in ("text", "jsonl"):
        raise UserError(f"{spec.kind} is no text to read through", str(spec), "use text, jsonl, tfrecord, tfds or hf")
    for path in specs.files(spec):
        with opened(path) as file:
            if spec.kind == "text":
                windows.text_begins(file.peek(windows.HEAD)[: windows.HEAD], path)
            for line in file:
                if line.strip():
                    text = line.decode(errors="replace").rstrip("\r\n") if spec.kind == "text" else windows.text_of(line, field, path)
                    if text.strip():
                        yield text


def field_of(record: Any, field: str, spec: Spec) -> str:
    """Return a record's text; UserError says which fields there are."""
    text = record.get(field)
    if not isinstance(text, str):
        raise UserError(f"a record has no text under {field!r} (it has: {', '.join(sorted(record))})", str(spec), tfrecord.FIELD)
    return text


def open_hugging_face(spec: Spec, split: str) -> Any:
    """Return the streamed data set; its token is HF_TOKEN's or the login's, and is never printed.

    Raises:
      UserError: the datasets package, the set, the split or the permission is missing.
    """
    checks.certificates()
    try:
        import datasets  # type: ignore[import-not-found]  # noqa: PLC0415 (not part of every environment)
    except ImportError:
        raise UserError("the datasets package is not in this environment", str(spec), "pip install datasets, or name local files (text:, jsonl:)") from None
    path, config = spec.value, None
    if not path.startswith(("/", ".")):
        words = path.split("/")
        if len(words) > 3:
            raise UserError("a data set's name has at most three parts", str(spec), specs.KINDS["hf"])
        path, config = "/".join(words[:2]), words[2] if len(words) == 3 else None
    elif not os.path.exists(path):
        raise UserError("there is no such folder", path, "check the path: inside a container it is the mounted one")
    token = os.environ.get("HF_TOKEN") or None
    try:
        return datasets.load_dataset(path, config, split=spec.split or split, streaming=True, token=token)
    except Exception as error:  # noqa: BLE001 (dozens of kinds, from four libraries)
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        if token:
            what = what.replace(token, "***")
        raise UserError(f"the data set cannot be opened: {what[:200]}", str(spec), "check its name, config and split; a private one needs HF_TOKEN") from None


def hugging_face(spec: Spec, split: str) -> Iterator[Any]:
    """Yield the records of a Hugging Face set, in its own order."""
    yield from open_hugging_face(spec, split)
