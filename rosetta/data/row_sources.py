"""Check the sources of a run's data, and open them as sources of rows."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from rosetta.core.errors import CONFLICT, UNSUPPORTED, UserError
from rosetta.data import (
    array_records,
    compressed_files,
    data_spec,
    documents,
    labelled_records,
    megatron_files,
    mixtures,
    pair_rows,
    remote_files,
    rows,
    saved_datasets,
    table_files,
    task_records,
    text_corpora,
    text_heads,
    tfds,
    vocabularies,
)
from rosetta.data.streaming import Stream
from rosetta.data.token_cache import TokenCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rosetta.data.data_recipe import Recipe
    from rosetta.data.data_spec import Spec
    from rosetta.data.objectives import Objective

# Each source of a mixture has a seed of its own. Otherwise two sources with equally many examples
# would be drawn in the same order.
_SEED_STEP = 1_000_003


def check_source(
    spec: Spec, objective: Objective, vocabulary: vocabularies.Vocabulary, split: str = "train"
) -> None:
    """Check that a source exists and can serve an objective.

    Only the names and the beginnings of files are read.

    Args:
        spec: The source.
        objective: The objective.
        vocabulary: The vocabulary.
        split: The split of an hf or tfds set whose spec names none.

    Raises:
        UserError: The source is missing, or cannot serve the objective.
    """
    if spec.kind in ("task", "synthetic"):
        return
    objective.check_fits(vocabulary)
    _check_other_windows(spec, objective)
    if spec.kind not in data_spec.TOKEN_KINDS and vocabulary.name.startswith("ids:"):
        raise UserError(
            "a vocabulary without text cannot tokenise this data",
            f"VOCAB={vocabulary.name}",
            "name a SentencePiece model or `byte`",
            kind=CONFLICT,
        )
    is_running_text = spec.kind == "megatron" or (
        spec.kind == "text" and objective.name != "lambada"
    )
    if objective.takes_pairs and is_running_text:
        raise UserError(
            f"{objective.name} needs records, not running text",
            f"DATA={spec}",
            "use " + ", ".join(data_spec.RECORD_KINDS),
            kind=CONFLICT,
            value=spec.kind,
        )
    if spec.kind in data_spec.FILE_KINDS:
        _check_files(spec)
    elif spec.kind == "tfds":
        tfds.find_shards(spec, split)
    elif spec.kind == "cache":
        _check_cache(spec, objective, vocabulary)
    elif spec.kind == "megatron":
        megatron_files.MegatronTokens(spec, vocabulary.size)
    elif saved_datasets.is_saved(spec):
        saved_datasets.find_files(spec, split)
    elif spec.kind == "hf":
        documents.open_hugging_face(spec, split)


def _check_other_windows(spec: Spec, objective: Objective) -> None:
    """Raise UserError if an objective takes text from anywhere, and the source is a stream."""
    if objective.needs_other_windows and spec.kind == "hf" and not saved_datasets.is_saved(spec):
        raise UserError(
            f"{objective.name} takes texts from anywhere in the data, and a stream has none",
            f"DATA={spec}",
            "use the objective with sop instead, or save the data set to a folder",
            kind=UNSUPPORTED,
            value=objective.name,
        )


def _check_files(spec: Spec) -> None:
    """Check the files of a source of data_spec.FILE_KINDS, see check_source."""
    paths = data_spec.find_files(spec)
    if spec.kind == "text":
        text_heads.check_text_heads(
            [path for path in paths if not path.endswith(compressed_files.SUFFIXES)]
        )
    elif spec.kind in table_files.KINDS:
        for path in paths:
            table_files.read_columns(path, spec.kind)
    elif spec.kind == "arrayrecord":
        for path in paths:
            array_records.open_reader(path).close()


def _check_cache(spec: Spec, objective: Objective, vocabulary: vocabularies.Vocabulary) -> None:
    """Check that a token cache was made for an objective and a vocabulary, see check_source."""
    check_can_be_cached(objective.name, f"DATA={spec}")
    cache = TokenCache(spec.value)
    cache_fingerprint = cache.recipe.vocabulary
    # The tokens of a cache have no added sentinels, so their number may differ. And ids:SIZE stands
    # for any vocabulary of that size, since nothing is tokenised.
    is_same_size = vocabulary.name == f"ids:{cache.recipe.vocab_size}"
    if vocabularies.has_same_tokens(vocabulary, cache_fingerprint) or is_same_size:
        fingerprint = cache_fingerprint
    else:
        fingerprint = vocabulary.fingerprint()
    cache.check_recipe(
        fingerprint,
        document_ends=objective.document_ends,
        pairs=objective.name if objective.takes_pairs else "",
    )


def check_can_be_cached(objective: str, where: str) -> None:
    """Check that the records of an objective are texts alone, which a cache has the tokens of.

    Raises:
        UserError: The records have labels.
    """
    if objective in data_spec.LABEL_OBJECTIVES:
        raise UserError(
            "a token cache has texts, and no labels",
            where,
            "name the records themselves, as in DATA=jsonl:GLOB",
            kind=UNSUPPORTED,
            value=objective,
        )


def open_source(spec: Spec, recipe: Recipe) -> rows.Source:
    """Return the rows of one source.

    Args:
        spec: The source.
        recipe: What the rows are made with. Its `data` is not used.

    Raises:
        UserError: See check_source, or SeqIO has to read the source.
    """
    objective, vocabulary = recipe.sized_objective, recipe.vocabulary
    check_source(spec, objective, vocabulary, recipe.split)
    if spec.kind == "synthetic":
        return rows.Synthetic(objective, vocabulary, recipe.seed)
    if objective.takes_pairs:
        return _open_pairs(spec, recipe)
    if spec.kind in data_spec.TOKEN_KINDS:
        tokens: rows.TokenSource
        if spec.kind == "cache":
            tokens = TokenCache(spec.value)
        else:
            tokens = megatron_files.MegatronTokens(spec, vocabulary.size)
        return rows.TokenWindows(tokens, objective, vocabulary, recipe.seed, shuffle=recipe.shuffle)
    if spec.kind == "hf" and not saved_datasets.is_saved(spec):
        return Stream(
            spec, objective, vocabulary, recipe.seed, field=recipe.text_field, split=recipe.split
        )
    if spec.kind == "task":
        raise UserError(
            "SeqIO reads this data, and rosetta.data does not",
            f"DATA={spec}",
            "use it in a T5X run",
            kind=UNSUPPORTED,
        )
    return rows.Windows(
        text_corpora.open_corpus(spec, recipe.text_field, recipe.split),
        objective,
        vocabulary,
        recipe.seed,
        shuffle=recipe.shuffle,
    )


def _open_pairs(spec: Spec, recipe: Recipe) -> pair_rows.Pairs:
    """Return the rows of a source of inputs and targets, see open_source."""
    pairs: Sequence[pair_rows.Pair]
    objective = recipe.sized_objective
    if objective.name in data_spec.LABEL_OBJECTIVES:
        text_count = len(data_spec.parse_label_fields(recipe.text_field)) - 1
        labelled_records.check_length(objective.inputs, text_count)
    if spec.kind == "cache":
        cache = TokenCache(spec.value)
        count = int(cache.cumulative_documents[-1])
        pairs = [
            (cache.read_document(number), cache.read_document(number + 1))
            for number in range(0, count, 2)
        ]
    else:
        examples = list(
            task_records.read_examples(
                spec,
                objective.name,
                recipe.split,
                field=recipe.text_field,
                labels=recipe.labels,
            )
        )
        for example in examples:
            example["inputs"] = task_records.add_prefix(recipe.input_prefix, example["inputs"])
        if objective.name in data_spec.LABEL_OBJECTIVES:
            tokens = [example["label"] for example in examples]
            texts = [task_records.list_texts(example) for example in examples]
            pairs = labelled_records.EncodedLabels(
                texts, tokens, recipe.vocabulary, objective.inputs
            )
        else:
            pairs = task_records.EncodedPairs(
                [(example["inputs"], example["targets"]) for example in examples],
                recipe.vocabulary,
            )
    return pair_rows.Pairs(
        pairs,
        objective,
        recipe.seed,
        pack=recipe.pack,
        shuffle=recipe.shuffle,
        name=os.path.basename(remote_files.describe_address(spec.value).rstrip("/")),
    )


def open_sources(recipe: Recipe) -> rows.Source:
    """Return the rows of a recipe's source, or of its mixture of sources.

    Raises:
        UserError: See open_source.
    """
    parts = data_spec.parse_parts(recipe.data)
    if len(parts) == 1:
        return open_source(parts[0].spec, recipe)
    sources = []
    for number, part in enumerate(parts):
        source_recipe = dataclasses.replace(recipe, seed=recipe.seed + _SEED_STEP * number)
        sources.append(open_source(part.spec, source_recipe))
    rates = [part.rate for part in parts]
    names = list_specs(data_spec.describe_without_queries(recipe.data))
    return mixtures.Mixture(sources, rates, names, recipe.seed)


def list_specs(data: str) -> list[str]:
    """Return the specs of a run's data, in their order."""
    return [str(part.spec) for part in data_spec.parse_parts(data)]
