"""Token caches: data that was tokenised once, in flat files that are mapped into memory.

`rosetta data cache` writes them, and `cache:FOLDER` reads them. A folder holds:

- `tokens-NNNNN.bin`: the ids, uint16 if the vocabulary has at most 65,536 ids, else uint32, both
  little-endian.
- `ends-NNNNN.bin`: uint64, for each document the index after its last token. The index counts from
  the beginning of the tokens file with the same number. The two files with one number are a shard.
- `meta.json`, which is written last: the recipe of the cache, and the size of each shard.
- `progress.json`, until `meta.json` is there: the same for the shards that are complete. A stopped
  run continues after them.

Each file is written under a temporary name that ends in `.part`, and renamed when it is complete.

In a cache of pairs (MNLI, SQuAD), inputs and targets alternate, and each counts as one document.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rosetta.core import path_checks
from rosetta.core.atomic_files import write_atomic
from rosetta.core.errors import DAMAGED, DIFFERS, EXISTS, INVALID, MISSING, UNSUPPORTED, UserError
from rosetta.data import token_shards, vocabularies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rosetta.data import Array

FORMAT = 2
SHARD_TOKENS = 1 << 26  # a shard with at least so many tokens is complete
TEXTS_PER_BATCH = 256  # even, so that a pair is never split
_NAME_ANOTHER_FOLDER = "name another folder, or remove this one yourself"


@dataclasses.dataclass(frozen=True)
class CacheRecipe:
    """What a cache was made from. Two caches are the same if their recipes are.

    Attributes:
        source: The spec of the source, and the split, field and limit with which it is read.
        vocabulary: The fingerprint of the vocabulary.
        vocabulary_name: "byte" or the base name of a file, for messages.
        vocab_size: The number of ids.
        document_ends: Whether an end token follows each document.
        pairs: The objective, if its records are pairs of an input and a target; "" for running
            text.
        files: The result of `fingerprint_files` for the files of the source; "" for hf, which has
            none.
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
        """The type of the ids in the files."""
        return np.dtype("<u2" if self.vocab_size <= 1 << 16 else "<u4")


def fingerprint_files(paths: Sequence[str]) -> str:
    """Return 16 hex digits that change with the names and sizes of files, but not with folders."""
    names_and_sizes = [(os.path.basename(path), os.path.getsize(path)) for path in paths]
    return hashlib.sha256(repr(names_and_sizes).encode()).hexdigest()[:16]


def _write_file(path: str, body: bytes) -> None:
    """Write a file of a cache. A .part file that a killed process left is overwritten."""
    write_atomic(Path(path), body, None, temporary=Path(f"{path}.part"), sync=True)


def _write_json(path: str, value: Any) -> None:
    """Write a JSON file of a cache."""
    _write_file(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def _read_meta(path: str) -> tuple[dict[str, Any], CacheRecipe]:
    """Return the content of a meta.json or progress.json, and the recipe in it.

    Raises:
        UserError: The file does not belong to a token cache, or the cache has another format.
    """
    try:
        with open(path, encoding="utf-8") as file:
            meta = json.load(file)
        if meta["format"] != FORMAT:
            raise UserError(
                f"the cache has format {meta['format']}, but this rosetta reads format {FORMAT}",
                path,
                "make it again in another folder: rosetta data cache",
                kind=UNSUPPORTED,
                value=meta["format"],
            )
        shards = [
            {"tokens": int(shard["tokens"]), "documents": int(shard["documents"])}
            for shard in meta["shards"]
        ]
        if not shards:
            raise ValueError("no shards")
        recipe = CacheRecipe(**meta["recipe"])
        return {**meta, "documents": int(meta["documents"]), "shards": shards}, recipe
    except (ValueError, KeyError, TypeError):
        raise UserError(
            "not a valid file of a token cache", path, "name another folder", kind=INVALID
        ) from None


def read_vocabulary_fingerprint(folder: str) -> str:
    """Return the fingerprint of the vocabulary of a complete or unfinished cache; "" for none.

    Raises:
        UserError: The folder has a file of another format.
    """
    for name in ("meta.json", "progress.json"):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return _read_meta(path)[1].vocabulary
    return ""


def read_progress(folder: str, recipe: CacheRecipe) -> dict[str, Any]:
    """Return how far an earlier run got with a cache.

    Nothing is written. The folder is made together with the first shard.

    Args:
        folder: The folder of the cache.
        recipe: The recipe of the cache.

    Returns:
        {"documents", "shards", "complete"}: the documents in complete shards, these shards, and
        whether the cache is complete. Without an earlier run {"documents": 0, "shards": []}.

    Raises:
        UserError: The folder cannot be written, holds something else, or holds the cache of another
            recipe.
    """
    path_checks.check_local_folder_writable(folder)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    descriptions = [name for name in ("meta.json", "progress.json") if name in names]
    has_other_files = not all(name.endswith(".part") for name in names)
    if not descriptions and has_other_files:
        raise UserError(
            "the folder is not empty and holds no token cache",
            folder,
            "name a new folder",
            kind=EXISTS,
        )
    if not descriptions:
        return {"documents": 0, "shards": []}
    meta, earlier = _read_meta(os.path.join(folder, descriptions[0]))
    if earlier.source == recipe.source and earlier.files != recipe.files:
        raise UserError(
            "the cache in this folder was made from other files, or the files have changed "
            f"({recipe.source})",
            folder,
            _NAME_ANOTHER_FOLDER,
            kind=DIFFERS,
            value="files",
        )
    if earlier != recipe:
        before, now = dataclasses.asdict(earlier), dataclasses.asdict(recipe)
        field = next(name for name in now if before[name] != now[name])
        raise UserError(
            f"the cache in this folder has another {field} ({before[field]!r})",
            folder,
            _NAME_ANOTHER_FOLDER,
            kind=DIFFERS,
            value=field,
        )
    return {
        "documents": meta["documents"],
        "shards": meta["shards"],
        "complete": descriptions[0] == "meta.json",
    }


class _CacheWriter:
    """Collect documents, and write them as the shards of a cache.

    Attributes:
        folder: The folder of the cache.
        recipe: The recipe of the cache.
        shards: The tokens and documents of each complete shard.
        documents: The number of documents in complete shards.
        pending: The ids of each document that is not written yet.
        pending_tokens: The number of these ids.
    """

    def __init__(self, folder: str, recipe: CacheRecipe, progress: dict[str, Any]) -> None:
        self.folder = folder
        self.recipe = recipe
        self.shards: list[dict[str, int]] = list(progress["shards"])
        self.documents: int = progress["documents"]
        self.pending: list[Array] = []
        self.pending_tokens = 0

    @property
    def shard_tokens(self) -> int:
        """The number of tokens in complete shards."""
        return sum(shard["tokens"] for shard in self.shards)

    def add(self, ids: Array) -> None:
        """Add a document to those that the next shard will have."""
        self.pending.append(ids.astype(self.recipe.dtype))
        self.pending_tokens += len(ids)

    def write_shard(self) -> None:
        """Write the pending documents as a shard, and then progress.json."""
        os.makedirs(self.folder, exist_ok=True)
        number = len(self.shards)
        dtype = self.recipe.dtype
        tokens = np.concatenate(self.pending).astype(dtype)
        lengths = np.array([len(ids) for ids in self.pending], np.int64)
        ends = np.cumsum(lengths).astype("<u8")
        for kind, array in (("tokens", tokens), ("ends", ends)):
            path = os.path.join(self.folder, f"{kind}-{number:05d}.bin")
            _write_file(path, array.tobytes())
        self.shards.append({"tokens": self.pending_tokens, "documents": len(self.pending)})
        self.documents += len(self.pending)
        self.pending = []
        self.pending_tokens = 0
        progress = {
            "format": FORMAT,
            "recipe": dataclasses.asdict(self.recipe),
            "documents": self.documents,
            "shards": self.shards,
        }
        _write_json(os.path.join(self.folder, "progress.json"), progress)

    def finish(self) -> dict[str, Any]:
        """Write meta.json, remove progress.json, and return the content of meta.json."""
        meta = {
            "format": FORMAT,
            "recipe": dataclasses.asdict(self.recipe),
            "documents": self.documents,
            "tokens": self.shard_tokens,
            "shards": self.shards,
        }
        _write_json(os.path.join(self.folder, "meta.json"), meta)
        os.unlink(os.path.join(self.folder, "progress.json"))
        return meta


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
    """Tokenise documents into a cache, and continue where an earlier run stopped.

    Args:
        folder: The folder of the cache.
        recipe: The recipe of the cache.
        documents: Texts in a fixed order. Inputs and targets of pairs alternate.
        encode: Turns batches of texts into batches of ids, in order. It may read more batches than
            it has yielded.
        end: The id that follows each document, if the recipe has document_ends.
        shard_tokens: A shard is complete when it has at least so many tokens.
        report: Called after each shard with the number of documents and of tokens in all shards.

    Returns:
        The content of meta.json.

    Raises:
        UserError: See read_progress, or there is no text.
    """
    progress = read_progress(folder, recipe)
    if progress.get("complete"):
        return _read_meta(os.path.join(folder, "meta.json"))[0]
    writer = _CacheWriter(folder, recipe, progress)

    def write_shard() -> None:
        writer.write_shard()
        report(writer.documents, writer.shard_tokens)

    end_token = np.array([end], np.int32)
    for batch in encode(_batch_texts(documents, writer.documents)):
        for ids in batch:
            writer.add(np.concatenate([ids, end_token]) if recipe.document_ends else ids)
        if writer.pending_tokens >= shard_tokens:
            write_shard()
    if writer.shard_tokens + writer.pending_tokens == 0:
        raise UserError(
            "there is no text in the data",
            recipe.source,
            "name files with text in them",
            kind=MISSING,
        )
    if writer.pending:
        write_shard()
    return writer.finish()


def _batch_texts(documents: Iterable[str], skipped: int) -> Iterator[list[str]]:
    """Yield the documents in batches, without the first `skipped` ones."""
    batch: list[str] = []
    for text in itertools.islice(documents, skipped, None):
        batch.append(text)
        if len(batch) == TEXTS_PER_BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


class TokenCache:
    """A complete cache, read by position.

    Attributes:
        folder: The folder of the cache.
        meta: The content of meta.json.
        recipe: What the cache was made from.
        ends: For each shard, the number of tokens in it and all shards before it.
        cumulative_documents: The same for documents.
        size: The number of tokens of the cache.

    Raises:
        UserError: There is no complete cache, or a file of it is damaged.
    """

    def __init__(self, folder: str) -> None:
        path_checks.check_is_local(folder, f"DATA=cache:{folder}")
        meta_path = os.path.join(folder, "meta.json")
        if not os.path.exists(meta_path):
            raise _make_missing_cache_error(folder)
        self.folder = folder
        self.meta, self.recipe = _read_meta(meta_path)
        shards = self.meta["shards"]
        self.ends = np.cumsum([shard["tokens"] for shard in shards])
        self.cumulative_documents = np.cumsum([shard["documents"] for shard in shards])
        self.size = int(self.ends[-1])
        for number, shard in enumerate(shards):
            token_bytes = shard["tokens"] * self.recipe.dtype.itemsize
            self._check_size("tokens", number, token_bytes)
            self._check_size("ends", number, 8 * shard["documents"])

    def _check_size(self, kind: str, number: int, size: int) -> None:
        """Raise UserError if a file of the cache does not have this size in bytes."""
        path = self._path(kind, number)
        if not os.path.exists(path) or os.path.getsize(path) != size:
            raise UserError(
                "the file is missing or does not have the size that meta.json gives",
                path,
                "make the cache again, or copy it again",
                kind=DAMAGED,
            )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the maps: another process makes its own."""
        return {name: value for name, value in self.__dict__.items() if name != "maps"}

    @functools.cached_property
    def maps(self) -> dict[tuple[str, int], Array]:
        """The files that this process has mapped into memory, by kind and number.

        They are a cached property, so that a copy of the object in another process has none.
        """
        return {}

    def _path(self, kind: str, number: int) -> str:
        """Return the path of a file of the cache; the kind is "tokens" or "ends"."""
        return os.path.join(self.folder, f"{kind}-{number:05d}.bin")

    def _map_file(self, kind: str, number: int) -> Array:
        """Return the content of a file of the cache, which is mapped at the first use."""
        if (kind, number) not in self.maps:
            dtype = self.recipe.dtype if kind == "tokens" else np.dtype("<u8")
            self.maps[kind, number] = np.memmap(self._path(kind, number), dtype, mode="r")
        return self.maps[kind, number]

    def map_shard(self, number: int) -> Array:
        """Return the tokens of a shard."""
        return self._map_file("tokens", number)

    def read_tokens(self, start: int, stop: int) -> Array:
        """Return the tokens in [start, stop), int32.

        The position after the last token of the cache is that of the first token again.
        """
        return token_shards.read_tokens(self, start, stop)

    def read_windows(self, starts: Array, length: int) -> Array:
        """Return the windows of `length` tokens that begin at `starts`, int32 [n, length]."""
        return token_shards.read_windows(self, starts, length)

    def describe(self) -> str:
        """Return the source and the size of the cache."""
        return f"cache {self.recipe.source} {self.size}"

    def read_document(self, number: int) -> Array:
        """Return the ids of a document, int32."""
        shard = int(np.searchsorted(self.cumulative_documents, number, side="right"))
        documents_before = int(self.cumulative_documents[shard - 1]) if shard else 0
        number_in_shard = number - documents_before
        ends = self._map_file("ends", shard)
        start = int(ends[number_in_shard - 1]) if number_in_shard else 0
        tokens = self._map_file("tokens", shard)
        return tokens[start : int(ends[number_in_shard])].astype(np.int32)

    def check_recipe(self, fingerprint: str, *, document_ends: bool, pairs: str) -> None:
        """Check that the cache fits a run.

        Args:
            fingerprint: The fingerprint of the run's vocabulary.
            document_ends: Whether the objective needs an end token after each document.
            pairs: The run's objective if it takes pairs, else "".

        Raises:
            UserError: The cache was made with another vocabulary, or for another objective.
        """
        if self.recipe.vocabulary != fingerprint:
            raise UserError(
                f"the cache was made with another vocabulary ({self.recipe.vocabulary_name}, "
                f"{self.recipe.vocab_size} ids)",
                self.folder,
                "set VOCAB to that vocabulary, or make a cache with yours",
                kind=DIFFERS,
            )
        if self.recipe.pairs != pairs or self.recipe.document_ends != document_ends:
            text_objectives = "span_corruption, prefix_lm and ul2"
            if self.recipe.document_ends:
                text_objectives = "lm"
            raise UserError(
                f"the cache was made for {self.recipe.pairs or text_objectives}",
                self.folder,
                "make a cache for this objective: rosetta data cache --objective",
                kind=DIFFERS,
            )


def _make_missing_cache_error(folder: str) -> UserError:
    """Return the error for a folder without a complete cache."""
    if os.path.exists(os.path.join(folder, "progress.json")):
        return UserError(
            "the token cache is not complete",
            folder,
            "run the same rosetta data cache again: it continues where it stopped",
            kind=DAMAGED,
        )
    return UserError(
        "there is no token cache", folder, "make one: rosetta data cache", kind=MISSING
    )
