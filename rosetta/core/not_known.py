"""A value that stands for what a reader of configurations cannot know."""

from __future__ import annotations

from enum import Enum


class NotKnown(Enum):
    """The type of NOT_KNOWN. None would not do, because configurations have None as a value."""

    NOT_KNOWN = "not known here"


NOT_KNOWN = NotKnown.NOT_KNOWN
