"""Documents one after another, in a fixed order: for caching, for training a vocabulary, and streamed Hugging Face sets."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
from typing import IO, TYPE_CHECKING, Any, cast

from rosetta.data import checks, tfds, tfrecord, windows
from rosetta.data import spec as specs
from rosetta.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rosetta.data.spec import Spec


@contextlib.contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file for reading; .gz and .zst are decompressed on the way. UserError where it is damaged."""
    with contextlib.ExitStack() as stack:
        if path.endswith(".gz"):
            file: IO[bytes] = cast("IO[bytes]", stack.enter_context(gzip.open(path, "rb")))
        elif path.endswith(".zst"):
            import zstandard  # noqa: PLC0415 (few need it)

            raw = stack.enter_context(open(path, "rb"))
            file = io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True), 1 << 20)
        else:
            file = stack.enter_context(open(path, "rb"))
        try:
            yield file
        except (EOFError, gzip.BadGzipFile) as error:
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
            for line in file:
                if line.strip():
                    text = line.decode(errors="replace").rstrip("\r\n") if spec.kind == "text" else windows.text_of(line, field, path)
                    if text.strip():
                        yield text


def field_of(record: Any, field: str, spec: Spec) -> str:
    """Return a record's text; UserError says which fields there are."""
    text = record.get(field)
    if not isinstance(text, str):
        raise UserError(f"a record has no text under {field!r} (it has: {', '.join(sorted(record))})", str(spec), "name the field with text_field")
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
