"""A key-value store through which the processes of a run tell each other short texts.

It works beside the training: without the devices, and without a shared folder.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

_KEY_PREFIX = "rosetta/health/"


class KeyValueStore(Protocol):
    """A store that every process of a run can write and read.

    Any call may raise an error if the process that keeps the store is gone.
    """

    def put(self, key: str, value: str) -> None:
        """Write a value, and replace the one that is there."""

    def list_folder(self, folder: str) -> dict[str, str]:
        """Return the values of all keys below a folder, by the rest of the key."""


class LocalStore:
    """A store for one process, or for several threads that stand in for processes."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()

    def put(self, key: str, value: str) -> None:
        """Write a value, see KeyValueStore."""
        with self._lock:
            self._values[key] = value

    def list_folder(self, folder: str) -> dict[str, str]:
        """Return the values below a folder, see KeyValueStore."""
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
        """Write a value, see KeyValueStore."""
        full_key = _KEY_PREFIX + key
        try:
            self._client.key_value_set(full_key, value, allow_overwrite=True)
        except TypeError:  # jaxlib 0.4.26 does not have this argument.
            self._client.key_value_delete(full_key)
            self._client.key_value_set(full_key, value)

    def list_folder(self, folder: str) -> dict[str, str]:
        """Return the values below a folder, see KeyValueStore."""
        prefix = f"{_KEY_PREFIX}{folder}/"
        return {
            key.removeprefix(prefix): value for key, value in self._client.key_value_dir_get(prefix)
        }


def open_store(ranks: int) -> KeyValueStore:
    """Return the store of a run of so many processes.

    For several processes, JAX's distributed service must be running.
    """
    if ranks == 1:
        return LocalStore()
    from jax._src import distributed

    return CoordinationStore(distributed.global_state.client)
