"""What the processes of a run tell each other beside the training: short texts by key, without the
devices and without a shared folder.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

_KEY_PREFIX = "rosetta/health/"


class KeyValueStore(Protocol):
    """Where every process can write and read.

    Any call may raise where the process that keeps it is gone.
    """

    def put(self, key: str, value: str) -> None:
        """Write a value, over the one that is there."""

    def under(self, folder: str) -> dict[str, str]:
        """Return all that is written under a folder of keys: the rest of the key -> value."""


class LocalStore:
    """A board of one process, or of several threads that play processes."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()

    def put(self, key: str, value: str) -> None:
        """See Board."""
        with self._lock:
            self._values[key] = value

    def under(self, folder: str) -> dict[str, str]:
        """See Board."""
        with self._lock:
            return {
                key.removeprefix(f"{folder}/"): value
                for key, value in self._values.items()
                if key.startswith(f"{folder}/")
            }


class CoordinationStore:
    """The store of JAX's coordination service, which process 0 keeps."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, key: str, value: str) -> None:
        """See Board."""
        name = _KEY_PREFIX + key
        try:
            self._client.key_value_set(name, value, allow_overwrite=True)
        except TypeError:  # jaxlib 0.4.26 knows no such word
            self._client.key_value_delete(name)
            self._client.key_value_set(name, value)

    def under(self, folder: str) -> dict[str, str]:
        """See Board."""
        prefix = f"{_KEY_PREFIX}{folder}/"
        return {
            key.removeprefix(prefix): value for key, value in self._client.key_value_dir_get(prefix)
        }


def open_store(ranks: int) -> KeyValueStore:
    """Return the board of a run of so many processes, JAX's service being up where there are
    several.
    """
    if ranks == 1:
        return LocalStore()
    from jax._src import distributed

    return CoordinationStore(distributed.global_state.client)
