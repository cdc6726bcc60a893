"""Documents one after another, in a fixed order: for caching, for training a vocabulary, and
streamed Hugging Face sets.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import io
import lzma
import os
import zlib
from typing import TYPE_CHECKING, Any

from rosetta.core import path_checks
from rosetta.core.errors import DAMAGED, FAILED, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.data import bad_records, data_spec, json_lines, tables, text_corpora, tfds, tfrecord
from rosetta.data.bad_records import RecordFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rosetta.data.bad_records import BadRecordError
    from rosetta.data.data_spec import Spec

    Handler = Callable[[BadRecordError], None]


def _make_zstd_decompressor() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj()


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(wbits=31),
    ".zst": _make_zstd_decompressor,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lzma.LZMADecompressor,
}


class _DecompressedFile(io.RawIOBase):
    """The content of a compressed file, one frame after another.

    EOFError where the file ends within a frame, which the libraries' own readers take for its end,
    some of them, as they do a damaged one after a whole one.
    """

    def __init__(self, path: str, begin: Callable[[], Any]) -> None:
        self.begin = begin
        self.frame: Any = None  # the one being read
        self.packed = self.left = (
            # What of the file is read and not decompressed, what of the content is not handed out.
            b""
        )
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
def open_decompressed(path: str) -> Iterator[io.BufferedReader[Any]]:
    """Open a file for reading; what windows.COMPRESSED names is decompressed on the way.

    UserError where it is damaged.
    """
    begin = next((begin for ending, begin in _DECOMPRESSORS.items() if path.endswith(ending)), None)
    damaged: tuple[type[Exception], ...] = (EOFError, OSError, zlib.error, lzma.LZMAError)
    if path.endswith(".zst"):
        import zstandard

        damaged = (*damaged, zstandard.ZstdError)
    with (
        io.BufferedReader(_DecompressedFile(path, begin), 1 << 20)
        if begin
        else open(path, "rb") as file
    ):
        try:
            yield file
        except damaged as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file system's; bz2's own have no number
            raise UserError(
                f"the file is damaged: {error}", path, "copy it again", kind=DAMAGED
            ) from None


def read_documents(
    spec: Spec, field: str, split: str = "train", handle: Handler = bad_records.stop_or_skip
) -> Iterator[str]:
    """Yield a source's documents, empty ones left out.

    Args:
      spec: the source.
      field: where records have their text.
      split: of sets that have splits.
      handle: is given each record that cannot be used.
    """
    for path, place, read in _list_records(spec, field, split):
        try:
            text = read()
        except RecordFault as fault:
            handle(fault.locate(path, place))
            continue
        if text.strip():
            yield text


def _list_records(
    spec: Spec, field: str, split: str
) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Yield (file, place in it, what reads the text there) for each record of a source."""
    if spec.kind == "hf":
        for number, record in enumerate(read_hugging_face(spec, split), 1):
            yield (
                str(spec),
                f"record {number:,}",
                functools.partial(get_record_text, record, field, spec),
            )
    elif spec.kind in ("tfrecord", "tfds"):
        for path in (
            tfds.find_shards(spec, split) if spec.kind == "tfds" else data_spec.find_files(spec)
        ):
            records = tfrecord.Records([path])
            for number in range(len(records)):
                yield (
                    *records.find_place(number),
                    functools.partial(tfrecord.parse_text, records[number], field, path),
                )
    elif spec.kind in ("text", "jsonl"):
        for path in data_spec.find_files(spec):
            with open_decompressed(path) as file:
                if spec.kind == "text":
                    text_corpora.check_text_head(
                        file.peek(text_corpora.HEAD_BYTES)[: text_corpora.HEAD_BYTES], path
                    )
                for number, line in enumerate(file, 1):
                    if not line.strip():
                        continue
                    if spec.kind == "text":
                        yield path, f"line {number:,}", functools.partial(_decode_line, line, path)
                    else:
                        yield (
                            path,
                            f"line {number:,}",
                            functools.partial(json_lines.parse_text, line, field, path),
                        )
    else:
        raise UserError(
            f"{spec.kind} is no text to read through",
            str(spec),
            "use text, jsonl, tfrecord, tfds or hf",
            kind=UNSUPPORTED,
            value=spec.kind,
        )


def _decode_line(line: bytes, path: str) -> str:
    return bad_records.decode_text(line, path).rstrip("\r\n")


def get_record_text(record: Any, field: str, spec: Spec) -> str:
    """Return the text of a Hugging Face set's record.

    Raises:
      RecordFault: there is none.
    """
    return bad_records.replace_surrogates(json_lines.get_text(record, field), str(spec))


def open_hugging_face(spec: Spec, split: str) -> Any:
    """Return the streamed data set; its token is HF_TOKEN's or the login's, and is never printed.

    Raises:
      UserError: the datasets package, the set, the split or the permission is missing.
    """
    path_checks.check_certificates()
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(
            "the datasets package is not in this environment",
            str(spec),
            "pip install datasets, or name local files (text:, jsonl:)",
            kind=MISSING,
            value="datasets",
        ) from None
    path, config = spec.value, None
    if not path.startswith(("/", ".")):
        words = path.split("/")
        if len(words) > 3:
            raise UserError(
                "a data set's name has at most three parts",
                str(spec),
                data_spec.KINDS["hf"],
                kind=INVALID,
            )
        path, config = "/".join(words[:2]), words[2] if len(words) == 3 else None
    elif not os.path.exists(path):
        raise UserError(
            "there is no such folder",
            path,
            "check the path: inside a container it is the mounted one",
            kind=MISSING,
            value=path,
        )
    token = os.environ.get("HF_TOKEN") or None
    try:
        options = (
            tables.choose_read_options(datasets.load_dataset_builder(path, config, token=token))
            if os.path.isdir(path)
            else {}
        )
        return datasets.load_dataset(
            path, config, split=spec.split or split, streaming=True, token=token, **options
        )
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 (dozens of kinds, from four libraries)
        raise _describe_read_failure(
            error, spec, "opened", "check its name, config and split; a private one needs HF_TOKEN"
        ) from None


def _describe_read_failure(error: Exception, spec: Spec, verb: str, do: str) -> UserError:
    lines = str(error).strip().splitlines()
    what = lines[0] if lines else type(error).__name__
    token = os.environ.get("HF_TOKEN")
    if token:
        what = what.replace(token, "***")
    return UserError(f"the data set cannot be {verb}: {what[:200]}", str(spec), do, kind=FAILED)


def read_hugging_face(spec: Spec, split: str) -> Iterator[Any]:
    """Yield the records of a Hugging Face set, in its own order."""
    yield from read_opened_set(open_hugging_face(spec, split), spec)


def read_opened_set(data: Any, spec: Spec) -> Iterator[Any]:
    """Yield the records of an opened set.

    Raises:
      UserError: its files cannot be read, as the datasets package says.
    """
    records = iter(data)
    number = 0
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 (dozens of kinds, from four libraries)
            do = f"mend the file behind record {number:,}, which was the last whole one"
            raise _describe_read_failure(error, spec, "read on", do) from None
        number += 1
        yield record
