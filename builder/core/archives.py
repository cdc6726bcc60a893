"""Extracting tar archives whose content is known to be good, on every supported Python."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def extract_verified(archive: tarfile.TarFile, folder: Path, *, keep_modes: bool = False) -> None:
    """Extract all members of an archive below a folder.

    Python 3.11.4 brought filters for extraction; Debian 12 has 3.11.2, which takes no argument
    `filter`. Setting the attribute works on both
    (https://docs.python.org/3/library/tarfile.html#hints-for-further-verification).

    Args:
      archive: An open archive. Its content must have been checked against a hash, because an
        older Python does not filter members.
      folder: The folder that gets the files. It need not exist.
      keep_modes: Whether to keep modes exactly, also those that let everyone write.

    Raises:
      tarfile.TarError: A member cannot be extracted, or a newer Python refuses it.
    """
    name = "fully_trusted_filter" if keep_modes else "data_filter"
    archive.extraction_filter = getattr(tarfile, name, lambda member, _: member)
    archive.extractall(folder)  # noqa: S202 - the caller has checked the archive's hash
