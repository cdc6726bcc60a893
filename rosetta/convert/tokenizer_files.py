"""Write the tokenizer of a T5 model as transformers reads it, without transformers.

A tokenizer of a SentencePiece model is written twice, as in public models: `spiece.model` is the
model itself, and `tokenizer.json` describes it to the tokenizers library. The file tokenizer.json
gives the ids that SentencePiece gives:

- A removed or doubled space is removed before the text is split, as in SentencePiece's normalizer.
- The mark of a word is put before the first word of a text, and not before text that follows a
  sentinel without a space.

For this reason tokenizer_config.json names the class PreTrainedTokenizerFast, which uses
tokenizer.json as it is. The class T5Tokenizer of transformers 5 takes only the pieces and the
character map from the file. It loses the bytes of unknown characters, and marks a word after each
sentinel. T5Tokenizer and T5TokenizerFast of transformers 4 can still be named by a program.
"""

from __future__ import annotations

import base64
import importlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rosetta.convert import json_documents
from rosetta.core.errors import UNSUPPORTED, UserError
from rosetta.data import vocabularies

if TYPE_CHECKING:
    from rosetta.data.vocabularies import Vocabulary

MODEL_FILE = "spiece.model"
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
ADDED_TOKENS_FILE = "added_tokens.json"
# transformers writes this number, int(1e30), for a tokenizer that does not limit the length.
_NO_MAX_LENGTH = int(1e30)
_WORD_MARK = "\u2581"
# The numbers of sentencepiece_model.proto.
_UNIGRAM, _BPE = 1, 2
_NORMAL, _CONTROL = 1, 3  # types of pieces
_MODEL_TYPES = {3: "word", 4: "char"}
# SentencePiece's map "nmt_nfkc" keeps the first character, which NFKC replaces. No text has the
# second one, which stands for the first during NFKC.
_FULLWIDTH_TILDE, _NONCHARACTER = "\uff5e", "\ufdd0"
# The special tokens of the byte vocabulary, as ByT5Tokenizer names them.
_BYTE_SPECIAL_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}


def write_tokenizer(vocabulary: Vocabulary, folder: Path) -> list[str]:
    """Write the tokenizer of a T5 model into a folder.

    Args:
        vocabulary: The vocabulary of the model, with its sentinels.
        folder: The folder, which exists.

    Returns:
        The names of the files.

    Raises:
        UserError: transformers has no tokenizer that gives the ids of this vocabulary.
    """
    if vocabulary.name.startswith("ids:"):
        raise UserError(
            "this vocabulary has no text, so there is no tokenizer to write",
            f"VOCAB={vocabulary.name}",
            "name the vocabulary of the model: a SentencePiece model, or `byte`",
            kind=UNSUPPORTED,
        )
    if vocabulary.name == "byte":
        return _write_documents(folder, _describe_byte_tokenizer(vocabulary))
    if vocabularies.is_json_file(vocabulary.name):
        return _copy_files(Path(vocabulary.name).parent, folder)
    content = vocabularies.read_content(vocabulary.name)
    proto = _parse_model(content)
    _check_model(proto, vocabulary)
    documents = {
        TOKENIZER_FILE: _describe_tokenizer(proto, vocabulary),
        **_describe_settings(proto, vocabulary),
    }
    (folder / MODEL_FILE).write_bytes(content)
    return [MODEL_FILE, *_write_documents(folder, documents)]


def _copy_files(source: Path, folder: Path) -> list[str]:
    """Copy the files of a tokenizer of the tokenizers library; return their names."""
    names = (TOKENIZER_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE, ADDED_TOKENS_FILE)
    existing = [name for name in names if (source / name).is_file()]
    for name in existing:
        shutil.copyfile(source / name, folder / name)
    return existing


def _write_documents(folder: Path, documents: dict[str, Any]) -> list[str]:
    """Write JSON documents by file name; return the names."""
    for name, document in documents.items():
        json_documents.write_document(folder / name, document)
    return list(documents)


def _parse_model(content: bytes) -> Any:
    """Return the ModelProto of a SentencePiece model file that was loaded before."""
    # Only tokenizers with a model need the package, which has this parser beside the library.
    parser = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    return parser.ModelProto.FromString(content)


def _check_model(proto: Any, vocabulary: Vocabulary) -> None:
    """Raise UserError if tokenizer.json cannot describe a SentencePiece model."""
    model_type = proto.trainer_spec.model_type
    if model_type not in (_UNIGRAM, _BPE):
        raise UserError(
            f"a SentencePiece model of the type {_MODEL_TYPES.get(model_type, model_type)!r} has "
            "no tokenizer in transformers",
            vocabulary.name,
            "use a model of the type unigram or bpe",
            kind=UNSUPPORTED,
            value=model_type,
        )
    normalizer = proto.normalizer_spec
    if proto.trainer_spec.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise UserError(
            "the SentencePiece model does not mark the beginning of a word, as transformers "
            "expects",
            vocabulary.name,
            "train one without treat_whitespace_as_suffix and with escape_whitespaces",
            kind=UNSUPPORTED,
        )
    count = vocabulary.sentinel_count
    if vocabulary.sentinel_ids != tuple(vocabulary.size - 1 - number for number in range(count)):
        raise UserError(
            f"the sentinels have the ids {vocabularies.describe_sentinels(vocabulary)}, but "
            "transformers gives them the highest ids, <extra_id_0> the highest of all",
            vocabulary.name,
            "use a model file whose last pieces are the sentinels",
            kind=UNSUPPORTED,
        )


def _describe_tokenizer(proto: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the content of tokenizer.json."""
    eos = proto.pieces[vocabulary.eos].piece
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, **token} for number, token in _list_added_tokens(proto, vocabulary)
        ],
        "normalizer": _describe_normalizer(proto.normalizer_spec),
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": _WORD_MARK,
            "prepend_scheme": "first" if proto.normalizer_spec.add_dummy_prefix else "never",
            "split": _splits_at_words(proto),
        },
        "post_processor": _describe_post_processor(eos, vocabulary.eos),
        "decoder": _describe_decoder(proto),
        "model": _describe_model(proto, vocabulary),
    }


def _list_added_tokens(proto: Any, vocabulary: Vocabulary) -> list[tuple[int, dict[str, Any]]]:
    """Return the tokens that are looked for in an unsplit text, by id in ascending order."""
    names = {number: f"<extra_id_{n}>" for n, number in vocabulary.numbered_sentinels.items()}
    special_ids = set(names)
    for number, piece in enumerate(proto.pieces):
        if number in names:
            continue
        if piece.type == _CONTROL or number == vocabularies.UNK:
            special_ids.add(number)
        elif piece.type != vocabularies.USER_DEFINED:
            continue
        names[number] = piece.piece
    return [
        (number, _describe_added_token(name, special=number in special_ids))
        for number, name in sorted(names.items())
    ]


def _describe_added_token(name: str, *, special: bool) -> dict[str, Any]:
    """Return the fields of an added token, without its id."""
    return {
        "content": name,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _describe_normalizer(spec: Any) -> dict[str, Any] | None:
    """Return the normalizer: the model's character map, and the removal of spaces.

    SentencePiece removes the spaces at the end of a text after the character map, which makes
    spaces of other characters. Spaces at the beginning become one, which is the mark of the first
    word.
    """
    steps: list[dict[str, Any]] = []
    if spec.precompiled_charsmap:
        if "nfkc" in spec.name:
            # SentencePiece composes a letter and its marks before it looks up the map. The library
            # looks up a letter with its marks as one key, and may lose the marks. One character
            # has another form in NFKC than in SentencePiece's map.
            steps.append(_describe_replacement(_FULLWIDTH_TILDE, _NONCHARACTER))
            steps.append({"type": "NFKC"})
            steps.append(_describe_replacement(_NONCHARACTER, _FULLWIDTH_TILDE))
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        steps.append({"type": "Replace", "pattern": {"Regex": r" +\z"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return {"type": "Sequence", "normalizers": steps} if steps else None


def _describe_replacement(old: str, new: str) -> dict[str, Any]:
    """Return the normalizer that replaces a character."""
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def _splits_at_words(proto: Any) -> bool:
    """Return whether no piece goes beyond the end of a word, so that words can be split alone."""
    return not any(
        _WORD_MARK in piece.piece[1:]
        for piece in proto.pieces
        if piece.type != vocabularies.USER_DEFINED
    )


def _describe_post_processor(eos: str, eos_id: int) -> dict[str, Any]:
    """Return the post-processor, which puts an end token after each text."""
    end = {"SpecialToken": {"id": eos, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, end],
        "pair": [first, end, second, end],
        "special_tokens": {eos: {"id": eos, "ids": [eos_id], "tokens": [eos]}},
    }


def _describe_decoder(proto: Any) -> dict[str, Any]:
    """Return the decoder, which makes text of pieces."""
    if not proto.trainer_spec.byte_fallback:
        return {
            "type": "Metaspace",
            "replacement": _WORD_MARK,
            "prepend_scheme": "always",
            "split": True,
        }
    return {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": _WORD_MARK}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }


def _describe_model(proto: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the model of tokenizer.json: the pieces with their scores, or the merges of pairs."""
    scores = [(piece.piece, piece.score) for piece in proto.pieces]
    scores += [("", 0.0)] * vocabulary.extra_ids
    for number, sentinel in vocabulary.numbered_sentinels.items():
        scores[sentinel] = (f"<extra_id_{number}>", 0.0)
    byte_fallback = bool(proto.trainer_spec.byte_fallback)
    if proto.trainer_spec.model_type == _UNIGRAM:
        return {
            "type": "Unigram",
            "unk_id": vocabularies.UNK,
            "vocab": [list(item) for item in scores],
            "byte_fallback": byte_fallback,
        }
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": proto.pieces[vocabularies.UNK].piece,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
        "vocab": {piece: number for number, (piece, _) in enumerate(scores)},
        "merges": _list_merges(proto),
    }


def _list_merges(proto: Any) -> list[list[str]]:
    """Return the pairs of pieces that BPE merges, the first to merge first.

    SentencePiece stores the merged pieces with scores in place of the pairs.
    """
    numbers = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    merges = []
    for piece in proto.pieces:
        if piece.type != _NORMAL:
            continue
        for end in range(1, len(piece.piece)):
            left, right = piece.piece[:end], piece.piece[end:]
            if left in numbers and right in numbers:
                merges.append((-piece.score, numbers[left], numbers[right], left, right))
    return [[left, right] for *_, left, right in sorted(merges)]


def _describe_settings(proto: Any, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json and special_tokens_map.json."""
    special_tokens = {
        "pad_token": proto.pieces[vocabularies.PAD].piece,
        "eos_token": proto.pieces[vocabulary.eos].piece,
        "unk_token": proto.pieces[vocabularies.UNK].piece,
    }
    added_tokens = dict(_list_added_tokens(proto, vocabulary))
    settings = _describe_common_settings(special_tokens, added_tokens, vocabulary.sentinel_count)
    settings[CONFIG_FILE] |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "extra_ids": vocabulary.extra_ids,
        # For T5Tokenizer of transformers 4: no mark of a word after a sentinel without a space.
        "legacy": False,
    }
    return settings


def _describe_byte_tokenizer(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the contents of the files for ByT5Tokenizer, by name.

    ByT5Tokenizer gives <extra_id_0> the id after the bytes, and T5X the highest id. The files give
    the ids that the model was trained with.
    """
    names = {number: f"<extra_id_{n}>" for n, number in vocabulary.numbered_sentinels.items()}
    if not vocabulary.extra_ids:
        names = {}  # sentinels that share their ids with bytes are bytes to ByT5Tokenizer
    tokens = dict(enumerate(_BYTE_SPECIAL_TOKENS.values())) | dict(sorted(names.items()))
    added_tokens = {
        number: _describe_added_token(name, special=True) for number, name in tokens.items()
    }
    documents = _describe_common_settings(_BYTE_SPECIAL_TOKENS, added_tokens, vocabulary.extra_ids)
    documents[CONFIG_FILE] |= {
        "tokenizer_class": "ByT5Tokenizer",
        "extra_ids": vocabulary.extra_ids,
    }
    documents[ADDED_TOKENS_FILE] = {name: number for number, name in sorted(names.items())}
    return documents


def _describe_common_settings(
    special_tokens: dict[str, str], added_tokens: dict[int, dict[str, Any]], sentinel_count: int
) -> dict[str, Any]:
    """Return what tokenizer_config.json and special_tokens_map.json of all tokenizers have.

    Args:
        special_tokens: The padding, end and unknown tokens by transformers' name.
        added_tokens: The fields of the added tokens by id.
        sentinel_count: The number of sentinels.
    """
    sentinels = [f"<extra_id_{number}>" for number in range(sentinel_count)]
    return {
        CONFIG_FILE: {
            "added_tokens_decoder": {str(number): token for number, token in added_tokens.items()},
            "additional_special_tokens": sentinels,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": _NO_MAX_LENGTH,
            **special_tokens,
        },
        SPECIAL_TOKENS_FILE: {"additional_special_tokens": sentinels, **special_tokens},
    }
