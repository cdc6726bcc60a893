"""Pre-tokenised data: flat token files with an index, mapped into memory when read.

A folder holds `tokens-NNNNN.bin` (uint16 where the vocabulary has at most 65,536 ids, else uint32,
little-endian), `ends-NNNNN.bin` (uint64: the token each document ends before, counted from the
file's start) and, written last, `meta.json`. Of pairs (MNLI, SQuAD) the documents are inputs and
targets in turn. A file appears under its name only when it is complete, and `progress.json` says
how many documents are in the complete ones, so that a stopped run goes on from there.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core import path_checks
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DAMAGED, DIFFERS, EXISTS, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.data import vocabularies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rosetta.data import Array

FORMAT = 2
SHARD_TOKENS = 1 << 26
TEXTS_PER_BATCH = 256


@dataclasses.dataclass(frozen=True)
class CacheRecipe:
    """What a cache was made from: two caches are the same if their recipes are.

    Attributes:
      source: the spec's string.
      vocabulary: its fingerprint.
      vocabulary_name: "byte" or a file's base name, for messages.
      vocab_size: ids in all.
      document_ends: whether an end token follows each document.
      pairs: the objective whose records these are, "" for running text.
      files: `digest` of the files the source names, "" where it names none (hf).
    """

    source: str
    vocabulary: str
    vocabulary_name: str
    vocab_size: int
    document_ends: bool
    pairs: str
    files: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")


def fingerprint_files(paths: Sequence[str]) -> str:
    """Return 16 hex digits that change with the files' names and sizes, and not with the folder
    they lie in.
    """
    return hashlib.sha256(
        repr([(os.path.basename(path), os.path.getsize(path)) for path in paths]).encode()
    ).hexdigest()[:16]


def _write_file(path: str, body: bytes) -> None:
    """Write a file of a cache, which may be large: what a kill leaves of it is written over."""
    write_atomic(Path(path), body, None, temporary=Path(f"{path}.part"), to_disk=True)


def _write_json(path: str, value: Any) -> None:
    _write_file(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def _read_meta(path: str) -> tuple[dict[str, Any], CacheRecipe]:
    """Return a meta.json's or progress.json's content and the recipe in it; UserError where it is
    none of this format.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found["format"] != FORMAT:
            raise UserError(
                f"the cache's format is {found['format']}, this rosetta has {FORMAT}",
                path,
                "make it anew in another folder: rosetta data cache",
                kind=UNSUPPORTED,
                value=found["format"],
            )
        shards = [
            {name: int(shard[name]) for name in ("tokens", "documents")}
            for shard in found["shards"]
        ]
        if not shards:
            raise ValueError
        return {**found, "documents": int(found["documents"]), "shards": shards}, CacheRecipe(
            **found["recipe"]
        )
    except (ValueError, KeyError, TypeError):
        raise UserError(
            "the file is no token cache's", path, "name another folder", kind=INVALID
        ) from None


def read_vocabulary_fingerprint(folder: str) -> str:
    """Return the fingerprint of the vocabulary of the cache that a folder holds, whole or not; ""
    for none.
    """
    for name in ("meta.json", "progress.json"):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return _read_meta(path)[1].vocabulary
    return ""


def read_progress(folder: str, recipe: CacheRecipe) -> dict[str, Any]:
    """Return how far an earlier run came, {"documents": 0, "shards": []} for none. Leaves nothing:
    the first complete file makes the folder.

    Raises:
      UserError: the folder cannot be written, holds something else, or another recipe's cache.
    """
    path_checks.check_local_folder_writable(folder)
    held = os.listdir(folder) if os.path.isdir(folder) else []
    known = [name for name in ("meta.json", "progress.json") if name in held]
    if held and not known and not all(name.endswith(".part") for name in held):
        raise UserError(
            "the folder is not empty and holds no token cache",
            folder,
            "name a new folder",
            kind=EXISTS,
        )
    if not known:
        return {"documents": 0, "shards": []}
    found, theirs = _read_meta(os.path.join(folder, known[0]))
    if theirs.source == recipe.source and theirs.files != recipe.files:
        raise UserError(
            f"the cache there is of other files, or of another state of them ({recipe.source})",
            folder,
            "name another folder, or remove this one yourself",
            kind=DIFFERS,
            value="files",
        )
    if theirs != recipe:
        before, now = dataclasses.asdict(theirs), dataclasses.asdict(recipe)
        other = next(name for name in now if before[name] != now[name])
        raise UserError(
            f"the cache there differs in {other} ({before[other]!r})",
            folder,
            "name another folder, or remove this one yourself",
            kind=DIFFERS,
            value=other,
        )
    return {
        "documents": found["documents"],
        "shards": found["shards"],
        "complete": known[0] == "meta.json",
    }


def write_cache(
    folder: str,
    recipe: CacheRecipe,
    documents: Iterable[str],
    encode: Callable[[Iterator[list[str]]], Iterator[list[Array]]],
    *,
    end: int = vocabularies.EOS,
    shard_tokens: int = SHARD_TOKENS,
    report: Callable[[int, int], None] = lambda _documents, _tokens: None,
) -> dict[str, Any]:
    """Tokenise the documents into the folder, going on where an earlier run stopped; return
    meta.json's content.

    Args:
      folder: where to.
      recipe: what from.
      documents: texts in a fixed order (of pairs: inputs and targets in turn).
      encode: batches of texts to batches of ids, in order; may work ahead.
      end: the id that follows a document, where the recipe wants one.
      shard_tokens: tokens after which a new file begins.
      report: called with the documents and tokens in complete files.
    """
    done = read_progress(folder, recipe)
    if done.get("complete"):
        return _read_meta(os.path.join(folder, "meta.json"))[0]
    shards = list(done["shards"])
    count = done["documents"]
    held: list[Array] = []
    tokens = 0

    def close() -> None:
        nonlocal held, tokens, count
        os.makedirs(folder, exist_ok=True)
        number = len(shards)
        sizes = np.array([len(ids) for ids in held], np.int64)
        for kind, body in (
            (
                "tokens",
                np.concatenate([*held, np.zeros(0, recipe.dtype)]).astype(recipe.dtype).tobytes(),
            ),
            ("ends", np.cumsum(sizes).astype("<u8").tobytes()),
        ):
            _write_file(os.path.join(folder, f"{kind}-{number:05d}.bin"), body)
        shards.append({"tokens": tokens, "documents": len(held)})
        count += len(held)
        held, tokens = [], 0
        _write_json(
            os.path.join(folder, "progress.json"),
            {
                "format": FORMAT,
                "recipe": dataclasses.asdict(recipe),
                "documents": count,
                "shards": shards,
            },
        )
        report(count, sum(shard["tokens"] for shard in shards))

    ending = np.array([end], np.int32)
    for batch in encode(_batch_texts(documents, count)):
        for ids in batch:
            whole = np.concatenate([ids, ending]) if recipe.document_ends else ids
            held.append(whole.astype(recipe.dtype))
            tokens += len(whole)
        # A pair is never parted: batches hold an even number of texts.
        if tokens >= shard_tokens:
            close()
    total = tokens + sum(shard["tokens"] for shard in shards)
    if not total:
        raise UserError(
            "there is no text in the data",
            recipe.source,
            "name files with text in them",
            kind=MISSING,
        )
    if held:
        close()
    meta = {
        "format": FORMAT,
        "recipe": dataclasses.asdict(recipe),
        "documents": count,
        "tokens": total,
        "shards": shards,
    }
    _write_json(os.path.join(folder, "meta.json"), meta)
    os.unlink(os.path.join(folder, "progress.json"))
    return meta


def _batch_texts(documents: Iterable[str], skipped: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for number, text in enumerate(documents):
        if number < skipped:
            continue
        batch.append(text)
        if len(batch) == TEXTS_PER_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class TokenCache:
    """A complete cache, read by position."""

    def __init__(self, folder: str) -> None:
        path_checks.check_is_local(folder, f"DATA=cache:{folder}")
        meta_path = os.path.join(folder, "meta.json")
        if not os.path.exists(meta_path):
            unfinished = os.path.exists(os.path.join(folder, "progress.json"))
            what = "the token cache is not complete" if unfinished else "there is no token cache"
            raise UserError(
                what,
                folder,
                "run the same rosetta data cache again: it goes on where it stopped"
                if unfinished
                else "make one: rosetta data cache",
                kind=DAMAGED if unfinished else MISSING,
            )
        self.folder = folder
        self.meta, self.recipe = _read_meta(meta_path)
        self.token_ends = np.cumsum([shard["tokens"] for shard in self.meta["shards"]])
        self.document_ends = np.cumsum([shard["documents"] for shard in self.meta["shards"]])
        self.size = int(self.token_ends[-1])
        for number, shard in enumerate(self.meta["shards"]):
            for path, size in (
                (self._path("tokens", number), shard["tokens"] * self.recipe.dtype.itemsize),
                (self._path("ends", number), 8 * shard["documents"]),
            ):
                if os.path.exists(path) and os.path.getsize(path) == size:
                    continue
                raise UserError(
                    "the file is not as long as the cache says",
                    path,
                    "make the cache again, or copy it again",
                    kind=DAMAGED,
                )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "maps"}

    @functools.cached_property
    def maps(self) -> dict[tuple[str, int], Array]:
        return {}

    def _path(self, kind: str, number: int) -> str:
        return os.path.join(self.folder, f"{kind}-{number:05d}.bin")

    def _map_file(self, kind: str, number: int) -> Array:
        if (kind, number) not in self.maps:
            dtype = self.recipe.dtype if kind == "tokens" else np.dtype("<u8")
            self.maps[kind, number] = np.memmap(self._path(kind, number), dtype, mode="r")
        return self.maps[kind, number]

    def read_tokens(self, start: int, stop: int) -> Array:
        """Return the ids [stop - start], int32; what lies beyond the end begins again at the
        start.
        """
        found = []
        while start < stop:
            begin_at = start % self.size
            number = int(np.searchsorted(self.token_ends, begin_at, side="right"))
            first = int(self.token_ends[number - 1]) if number else 0
            last = min(begin_at + stop - start, int(self.token_ends[number]))
            found.append(self._map_file("tokens", number)[begin_at - first : last - first])
            start += last - begin_at
        return (found[0] if len(found) == 1 else np.concatenate(found)).astype(np.int32)

    def read_document(self, number: int) -> Array:
        """Return one document's ids, int32."""
        which = int(np.searchsorted(self.document_ends, number, side="right"))
        within = number - (int(self.document_ends[which - 1]) if which else 0)
        ends = self._map_file("ends", which)
        return self._map_file("tokens", which)[
            int(ends[within - 1]) if within else 0 : int(ends[within])
        ].astype(np.int32)

    def check_recipe(self, fingerprint: str, *, document_ends: bool, pairs: str) -> None:
        """Raise UserError where the cache was made with another vocabulary or for another kind of
        objective.
        """
        if self.recipe.vocabulary != fingerprint:
            raise UserError(
                (
                    f"the cache was made with another vocabulary ({self.recipe.vocabulary_name}, "
                    f"{self.recipe.vocab_size} ids)"
                ),
                self.folder,
                "set VOCAB to that one, or make a cache with yours",
                kind=DIFFERS,
            )
        if self.recipe.pairs != pairs or self.recipe.document_ends != document_ends:
            made_for = self.recipe.pairs or (
                "lm" if self.recipe.document_ends else "span_corruption and prefix_lm"
            )
            raise UserError(
                f"the cache was made for {made_for}",
                self.folder,
                "make one for this objective: rosetta data cache --objective",
                kind=DIFFERS,
            )
