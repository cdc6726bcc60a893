"""A value that a reader of configurations cannot know."""

from __future__ import annotations

from enum import Enum


class NotKnown(Enum):
    """The type of NOT_KNOWN. None is a value that configurations have."""

    NOT_KNOWN = "not known here"


NOT_KNOWN = NotKnown.NOT_KNOWN
