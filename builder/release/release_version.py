"""The version of a release: its tag in git, and the tags of its images."""

from __future__ import annotations

from builder import __version__
from rosetta.core.errors import DIFFERS, UserError

GIT_TAG = f"v{__version__}"


def check_git_tag(tag: str) -> None:
    """Check that a tag in git is that of this checkout's version.

    Raises:
        UserError: The tag is that of another version, or of none.
    """
    if tag != GIT_TAG:
        raise UserError(
            f"this checkout is version {__version__}",
            f"the tag {tag!r}",
            f"check out that tag, or give {GIT_TAG}",
            kind=DIFFERS,
            value=tag,
        )


def list_image_tags(version: str) -> tuple[str, str]:
    """Return the tags of a release's images, without the suffix of an accelerator.

    Args:
        version: The version, such as 0.3.1.

    Returns:
        The tag that never moves, such as 0.3.1, and the tag that moves with the next patch release,
        such as 0.3.
    """
    return version, version.rpartition(".")[0]
