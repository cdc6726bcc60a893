"""tf.train.Example as a message of the protobuf package, which parses records in C.

`tfrecord` finds the texts of records with it, and decodes all others in Python. The message is
declared here, because TensorFlow's own takes seconds to import.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE = "rosetta"
# Message -> its fields: name, number, whether it is repeated, and its type: a message or a name in
# FieldDescriptorProto (tensorflow/core/example/{example,feature}.proto).
_MESSAGES = {
    "BytesList": [("value", 1, True, "TYPE_BYTES")],
    "FloatList": [("value", 1, True, "TYPE_FLOAT")],
    "Int64List": [("value", 1, True, "TYPE_INT64")],
    "Feature": [
        ("bytes_list", 1, False, "BytesList"),
        ("float_list", 2, False, "FloatList"),
        ("int64_list", 3, False, "Int64List"),
    ],
    "Features": [("feature", 1, True, "Features.FeatureEntry")],
    "Example": [("features", 1, False, "Features")],
}
_MAP_ENTRY = [("key", 1, False, "TYPE_STRING"), ("value", 2, False, "Feature")]


def find_bytes(body: bytes, name: str) -> bytes | None:
    """Return the first value of a feature of bytes.

    Args:
        body: A serialised Example.
        name: The name of the feature.

    Returns:
        The value; None if there is none, if the bytes are not an Example, or without protobuf.
    """
    parser = _make_parser()
    if parser is None:
        return None
    try:
        feature = parser.parse(body).features.feature.get(name)
    except parser.error:
        return None
    return next(iter(feature.bytes_list.value), None) if feature is not None else None


class _Parser(NamedTuple):
    """How bytes become a message.

    Attributes:
        parse: Returns the Example of bytes.
        error: What it raises for other bytes.
    """

    parse: Callable[[bytes], Any]
    error: type[Exception]


@functools.lru_cache(maxsize=1)
def _make_parser() -> _Parser | None:
    """Return the parser of Examples; None without the protobuf package."""
    try:
        descriptor_pb2, descriptor_pool, message, message_factory = (
            importlib.import_module(f"google.protobuf.{name}")
            for name in ("descriptor_pb2", "descriptor_pool", "message", "message_factory")
        )
    except ImportError:
        return None
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}/example.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        description = file.message_type.add(name=name)
        _add_fields(description, fields, descriptor_pb2.FieldDescriptorProto)
        if name == "Features":
            entry = description.nested_type.add(name="FeatureEntry")
            entry.options.map_entry = True
            _add_fields(entry, _MAP_ENTRY, descriptor_pb2.FieldDescriptorProto)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.Example")
    return _Parser(message_factory.GetMessageClass(descriptor).FromString, message.DecodeError)


def _add_fields(description: Any, fields: list[tuple[str, int, bool, str]], kinds: Any) -> None:
    """Add fields to the description of a message.

    Args:
        description: A DescriptorProto, which is changed.
        fields: See _MESSAGES.
        kinds: The class FieldDescriptorProto.
    """
    for name, number, is_repeated, kind in fields:
        label = kinds.LABEL_REPEATED if is_repeated else kinds.LABEL_OPTIONAL
        field = description.field.add(name=name, number=number, label=label)
        if kind.startswith("TYPE_"):
            field.type = getattr(kinds, kind)
        else:
            field.type = kinds.TYPE_MESSAGE
            field.type_name = f".{_PACKAGE}.{kind}"
