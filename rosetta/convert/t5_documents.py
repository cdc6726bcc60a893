"""Write the documents beside the weights of a converted T5, and say what the conversion changed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rosetta.convert import json_documents, model_card, t5_config, t5_tensors
from rosetta.convert.t5x_model import T5XModel
from rosetta.t5x.run import checkpoint_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rosetta.convert.t5_conversion import Conversion

GIN_FILE = "model.gin"
_NOT_RECORDED = "not recorded"
_ORIGIN = model_card.Origin(
    "a checkpoint of T5X", "rosetta convert t5", task="text2text-generation"
)


def describe_changes(conversion: Conversion) -> list[str]:
    """Return lines that say what a conversion changed, added or left out."""
    model = conversion.model
    lines = [*(f"left out: {line}" for line in model.dropped), *model.notes]
    if model.is_scaled:
        amount = "exactly"
        if conversion.fold_difference:
            amount = f"with a relative difference of at most {conversion.fold_difference:.1e}"
        lines.append(
            f"the division of attention logits by sqrt({model.architecture.head_dim}) is now in "
            f"the query kernels, {amount}"
        )
    own_rows, rows = model.architecture.vocab_size, conversion.architecture.vocab_size
    if rows > own_rows:
        lines.append(
            f"the vocabulary of {own_rows:,} ids was padded to {rows:,} rows of zeros, whose "
            "logits are 0"
        )
    if rows < own_rows:
        lines.append(
            f"left out: the last {own_rows - rows:,} of {own_rows:,} rows of the vocabulary"
        )
    if conversion.rounded:
        lines.append(f"{conversion.rounded:,} values were rounded to {conversion.dtype.name}")
    elif not model.is_scaled:
        lines.append("all values are unchanged")
    return lines


def write_config(conversion: Conversion) -> None:
    """Write config.json, and generation_config.json if there is a decoder."""
    folder = conversion.part.path
    config = t5_config.make_config(conversion.architecture, conversion.dtype.name)
    json_documents.write_document(folder / "config.json", config)
    if conversion.architecture.num_decoder_layers:
        json_documents.write_document(
            folder / "generation_config.json", t5_config.make_generation_config()
        )


def write_card(conversion: Conversion, title: str, changes: Sequence[str]) -> None:
    """Write the model card.

    Args:
        conversion: A conversion of a checkpoint of T5X.
        title: The title.
        changes: What `describe_changes` returned.
    """
    architecture, model = conversion.architecture, conversion.model
    facts = {
        "layers": (
            f"{architecture.num_encoder_layers} in the encoder, "
            f"{architecture.num_decoder_layers} in the decoder"
        ),
        "sizes": (
            f"{architecture.emb_dim} features, {architecture.num_heads} heads of "
            f"{architecture.head_dim}, MLP of {architecture.mlp_dim}, "
            f"{architecture.vocab_size:,} rows of the vocabulary"
        ),
        "parameters": f"{t5_tensors.count_parameters(architecture):,}, {conversion.dtype.name}",
    }
    if isinstance(model, T5XModel):
        record = model.record
        versions = record.versions if record else {}
        version_list = ", ".join(f"{name} {version}" for name, version in versions.items())
        facts |= {
            "made from": f"{model.source.folder.name} ({model.source.format})",
            "step": f"{model.source.step:,}",
            "run": (record.run if record else "") or _NOT_RECORDED,
            "trained with": version_list or _NOT_RECORDED,
        }
    facts["converted by"] = model_card.describe_converter()
    model_type = t5_config.choose_model_type(architecture)
    text = model_card.render_card(title, _ORIGIN, model_type, facts, changes)
    (conversion.part.path / "README.md").write_text(text, encoding="utf-8")


def make_record(
    conversion: Conversion, step: int, vocabulary: str = ""
) -> checkpoint_record.Record:
    """Return the record of the checkpoint to write.

    Args:
        conversion: The conversion.
        step: The step of the checkpoint.
        vocabulary: The fingerprint of the vocabulary in the source, if the source has no record.
    """
    own_rows, rows = conversion.model.architecture.vocab_size, conversion.architecture.vocab_size
    record = checkpoint_record.Record(
        step=step,
        scale_attn_logits=False,
        config=conversion.architecture.as_text(),
        versions={"rosetta convert t5": model_card.describe_converter()},
        vocabulary=vocabulary,
        unpadded_vocab_size=own_rows if own_rows < rows else None,
    )
    old = conversion.model.record
    if old is None:
        return record
    return dataclasses.replace(
        record,
        batch_size=old.batch_size,
        targets_length=old.targets_length,
        vocabulary=old.vocabulary,
        unpadded_vocab_size=record.unpadded_vocab_size or old.unpadded_vocab_size,
    )


def write_gin_file(conversion: Conversion) -> None:
    """Write the gin file with which a run builds the network of the checkpoint."""
    values = dataclasses.asdict(conversion.architecture)
    del values["dropout_rate"]  # of the run, not of the weights
    text = "\n".join(make_gin_lines(values))
    (conversion.part.path / GIN_FILE).write_text(f"{text}\n", encoding="utf-8")


def make_gin_lines(values: Mapping[str, Any]) -> list[str]:
    """Return the lines of a gin file that sets fields of T5Config."""
    return [
        "# The network of the checkpoint in this folder. Read this file with ROSETTA_GIN.",
        "from __gin__ import dynamic_registration\n",
        "from rosetta.t5x import network\n",
        "RESTORE_OPTIMIZER = False  # the checkpoint has weights alone",
        "network.T5Config:",
        *(f"  {name} = {value!r}" for name, value in values.items()),
    ]
