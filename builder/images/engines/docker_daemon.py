"""Requests to the Docker daemon that the docker program would reach.

A request takes milliseconds. To start the docker program for it takes about fifty.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import socket
import subprocess
import tempfile
import urllib.parse
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from builder.images.engines import engine_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # A JSON document, or a function that writes an archive.
    _Body = dict[str, Any] | Callable[[IO[bytes]], None] | None

_DEFAULT_SOCKET = "/var/run/docker.sock"
_CHUNK_SIZE = 1 << 20  # bytes of an archive that are sent at once
_NOT_FOUND = 404


class _Answer(NamedTuple):
    """An answer of the daemon: the status of HTTP, the version of the API, and the content."""

    status: int
    api_version: str
    content: bytes


class Daemon:
    """The daemon at the place that DOCKER_HOST, or the context of the docker program, names."""

    def __init__(self) -> None:
        """Ask the daemon for the newest version of its API.

        Raises:
            UserError: The daemon does not answer, or refuses this user.
        """
        self._prefix = f"/v{_exchange('GET', '/_ping').api_version}"

    def inspect(self, image: str) -> dict[str, Any]:
        """Return what the daemon knows of an image; empty if it has no such image."""
        answer = self._ask("GET", f"/images/{_quote(image)}/json")
        if answer.status == _NOT_FOUND:
            return {}
        facts: dict[str, Any] = _read_document(answer, image)
        return facts

    def list_image_ids(self) -> list[str]:
        """Return the ids of all images.

        The store of containerd adds up the sizes of all images for this, so it may take a second.
        """
        images = _read_document(self._ask("GET", "/images/json"), "docker image ls")
        return sorted({str(image["Id"]) for image in images})

    def has_containerd_store(self) -> bool:
        """Return whether the daemon keeps images in the store of containerd."""
        facts = _read_document(self._ask("GET", "/info"), "docker info")
        return "io.containerd.snapshotter" in json.dumps(facts["DriverStatus"])

    def load(self, write_archive: Callable[[IO[bytes]], None]) -> None:
        """Load the archive that `write_archive` writes to the stream it gets."""
        answer = self._ask("POST", "/images/load?quiet=1", write_archive)
        _require_success(answer, "docker load")
        # The daemon sends the status before it reads the archive. Errors follow as documents.
        for line in answer.content.splitlines():
            message = json.loads(line)
            if "error" in message:
                raise engine_program.explain_failure(str(message["error"]), "docker load")

    def tag(self, image: str, name: str) -> None:
        """Give an image another name."""
        query = urllib.parse.urlencode({"repo": name})
        _require_success(self._ask("POST", f"/images/{_quote(image)}/tag?{query}"), name)

    def remove(self, name: str) -> None:
        """Remove a name of an image; a name that does not exist is ignored."""
        self._ask("DELETE", f"/images/{_quote(name)}?force=1")

    def create_container(self, image: str, platform: str) -> str:
        """Create a container, which is not started, and return its id.

        Args:
            image: The image.
            platform: For example "linux/amd64"; "" for that of the machine.
        """
        query = urllib.parse.urlencode({"platform": platform} if platform else {})
        document = {"Image": image, "Cmd": ["true"]}
        answer = self._ask("POST", f"/containers/create?{query}", document)
        return str(_read_document(answer, "docker create")["Id"])

    def remove_container(self, container: str) -> None:
        """Remove a container that does not run."""
        self._ask("DELETE", f"/containers/{container}")

    def _ask(self, method: str, path: str, body: _Body = None) -> _Answer:
        return _exchange(method, self._prefix + path, body)


def _quote(name: str) -> str:
    return urllib.parse.quote(name, safe="/:@")


def _exchange(method: str, path: str, body: _Body = None) -> _Answer:
    """Send a request on a connection of its own, and return the answer.

    Raises:
        UserError: The daemon cannot be reached, or ends the connection.
    """
    try:
        with _connect() as connection:
            if callable(body):
                _send_archive(connection, path, body)
            elif body is None:
                connection.request(method, path)
            else:
                header = {"Content-Type": "application/json"}
                connection.request(method, path, json.dumps(body), header)
            response = connection.getresponse()
            version = response.getheader("API-Version", "")
            return _Answer(response.status, version, response.read())
    except (ConnectionError, http.client.HTTPException) as error:
        raise engine_program.explain_failure(
            f"error during connect: the daemon ended the connection ({error})", "docker"
        ) from error


def _send_archive(
    connection: http.client.HTTPConnection, path: str, write_archive: Callable[[IO[bytes]], None]
) -> None:
    """Send a request whose body is an archive, in chunks."""
    connection.putrequest("POST", path)
    connection.putheader("Content-Type", "application/x-tar")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    # A daemon that stops reading says why in its answer.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        with io.BufferedWriter(_ChunkWriter(connection), _CHUNK_SIZE) as out:
            write_archive(out)
        connection.send(b"0\r\n\r\n")


class _ChunkWriter(io.RawIOBase):
    """A stream that sends what is written to it as chunks of an HTTP body."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = len(data)
        self._connection.send(b"%x\r\n%b\r\n" % (size, data))
        return size


def _read_document(answer: _Answer, where: str) -> Any:
    """Return the JSON document of an answer. Raises UserError if the daemon refused."""
    _require_success(answer, where)
    return json.loads(answer.content)


def _require_success(answer: _Answer, where: str) -> None:
    """Raise UserError if the daemon refused a request; `where` is the place that it names."""
    if answer.status < http.client.BAD_REQUEST:
        return
    try:
        message = str(json.loads(answer.content)["message"])
    except (ValueError, LookupError, TypeError):
        message = f"status {answer.status}"
    raise engine_program.explain_failure(message, where)


@contextlib.contextmanager
def _connect() -> Iterator[http.client.HTTPConnection]:
    """Yield a connection to the daemon."""
    connection = http.client.HTTPConnection("docker")
    connection.auto_open = 0  # nobody but this function connects
    path = _find_socket()
    with _open_socket(path) if path else _start_program() as stream:
        connection.sock = stream
        yield connection


def _find_socket() -> str:
    """Return the path of the daemon's socket; "" if only the docker program can find the daemon."""
    host = os.environ.get("DOCKER_HOST", "")
    if host:
        return host.removeprefix("unix://") if host.startswith("unix://") else ""
    context = os.environ.get("DOCKER_CONTEXT") or _read_current_context()
    return _DEFAULT_SOCKET if context in ("", "default") else ""


def _read_current_context() -> str:
    """Return the name of the context that `docker context use` set; "" for none."""
    folder = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")
    try:
        with open(os.path.join(folder, "config.json"), "rb") as file:
            return str(json.load(file).get("currentContext", ""))
    except (OSError, ValueError, AttributeError):
        return ""


@contextlib.contextmanager
def _open_socket(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as stream:
        try:
            stream.connect(path)
        except OSError as error:
            if isinstance(error, PermissionError):
                text = "permission denied while trying to connect to the Docker daemon"
            else:
                text = "Cannot connect to the Docker daemon"
            raise engine_program.explain_failure(
                f"{text} at unix://{path} ({error.strerror or error})", "docker"
            ) from error
        yield stream


@contextlib.contextmanager
def _start_program() -> Iterator[socket.socket]:
    """Yield a stream that the docker program connects with the daemon, whatever the way there."""
    stream, program_end = socket.socketpair()
    with stream, tempfile.TemporaryFile() as messages:
        with program_end:
            process = subprocess.Popen(
                ["docker", "system", "dial-stdio"],
                stdin=program_end.fileno(),
                stdout=program_end.fileno(),
                stderr=messages,
            )
        try:
            yield stream
        except (ConnectionError, http.client.HTTPException) as error:
            process.wait()  # the end of the stream is the end of the program
            messages.seek(0)
            text = messages.read().decode("utf-8", "replace")
            raise engine_program.explain_failure(
                f"error during connect: {text or error}", "docker"
            ) from error
        finally:
            stream.close()
            process.kill()
            process.wait()
