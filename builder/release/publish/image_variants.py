"""Image variants: the images of one distribution for several accelerators, in one repository.

A suffix of the tags separates the variants. The variant for the newest CUDA version has no suffix,
so that `docker pull HOST/OWNER/t5x` gets an image for GPUs: `latest`, `latest-cuda12` and
`latest-cpu`.
"""

from __future__ import annotations

import re

from builder.core.accelerators import NEWEST_CUDA
from rosetta.core.errors import CONFLICT, UserError

# A variant of a later version of rosetta is recognised, too. So an old checkout does not take its
# tags for those of the variant without a suffix.
SUFFIX_PATTERN = r"-(?:cpu|cuda[1-9][0-9]?)"
_SUFFIX = re.compile(SUFFIX_PATTERN + "$")


def find_suffix(accelerator: str) -> str:
    """Return the suffix of the tags of an accelerator's images, "" for the newest CUDA version."""
    return "" if accelerator == NEWEST_CUDA else f"-{accelerator}"


def is_tag_of(tag: str, start: str) -> bool:
    """Return whether a tag is `start`, or `start` with the suffix of a variant."""
    return tag.removesuffix(read_suffix(tag)) == start


def read_suffix(tag: str) -> str:
    """Return the suffix of a tag, "" if the tag is of the variant without a suffix."""
    match = _SUFFIX.search(tag)
    return match[0] if match else ""


def add_suffix(tag: str, suffix: str) -> str:
    """Return a tag with the suffix of a variant. The tag may have this suffix already.

    Raises:
        UserError: the tag has the suffix of another variant.
    """
    present = read_suffix(tag)
    if present not in ("", suffix):
        image = f"an image with {suffix}" if suffix else "the image for the newest CUDA version"
        raise UserError(
            f"{present} at the end of a tag says that its image is another one than {image}",
            f"the tag {tag}",
            f"give {tag.removesuffix(present)}, to which the suffix of the image is added",
            kind=CONFLICT,
            value=tag,
        )
    return tag.removesuffix(present) + suffix
