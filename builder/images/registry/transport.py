"""HTTP requests to a registry: authenticated and retried.

Credentials are sent to the registry and to its token service, and to no other host.
"""

from __future__ import annotations

import concurrent.futures
import email.utils
import json
import random
import re
import socket
import ssl
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import requests
import requests.adapters
import requests.utils
import urllib3.exceptions

from builder.core.secrets import redact, remember_login
from builder.images.oci.reference import is_loopback, strip_port
from builder.images.registry import credentials, trusted_cas
from rosetta.core.errors import DENIED, FAILED, INVALID, UNREACHABLE, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from builder.images.oci.reference import Reference

TRIES = 5
THREADS = 4
# Timeouts in seconds. A registry may take minutes to end a large upload.
_CONNECT_TIMEOUT = 20
_READ_TIMEOUT = 60
_PUT_TIMEOUT = 600
# A download is stalled if it is slower than this rate (bytes a second) after so many seconds.
_MINIMUM_RATE = 1024
_MINIMUM_RATE_AFTER = 60
_NO_HEAD = (405, 501)  # answers of a registry that does not support HEAD
_MAXIMUM_PAUSE = 120  # seconds that a registry may ask us to wait
_MAXIMUM_REDIRECTS = 5
_TRANSIENT_STATUSES = (408, 429, 500, 502, 503, 504)
_OTHER_DIGEST = "DIGEST_INVALID"  # the code by which a registry says that a digest does not fit
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_SEND_AGAIN = "run again: what has arrived is not sent twice"
_READ_AGAIN = "check the network and run again"
_ALTERED = (
    "do not use the content: it was changed in the registry, or by a proxy on the way; have it "
    "published anew"
)
_ASK_ADMINISTRATOR = "ask the administrator of the registry"
# The largest document in bytes. The distribution specification asks registries to take as much.
_DOCUMENT_LIMIT = 4 << 20


class TransientError(Exception):
    """A failure that another attempt may repair.

    Attributes:
        pause: Seconds to wait before the next attempt, if the registry asked for a pause.
    """

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class MismatchError(TransientError):
    """The content that came does not have its digest."""


class AlteredError(UserError):
    """The registry gives another content under a digest, at every attempt."""


class StoppedError(Exception):
    """Another thread has failed."""


class Connection:
    """A connection to one repository of a registry. Several threads may use it.

    Use it as a context.
    """

    def __init__(self, reference: Reference, actions: str, mount_from: str = "") -> None:
        """Prepare a connection; nothing is sent yet.

        Args:
            reference: The repository, or an image in it.
            actions: What is to be done: "pull" or "pull,push".
            mount_from: Another repository of the registry that blobs are mounted from.
        """
        self.reference = reference
        self.base = reference.url
        self._sends = "push" in actions
        self._scopes = [f"repository:{reference.name}:{actions}"]
        if mount_from:
            self._scopes.append(f"repository:{mount_from}:pull")
        self._session = requests.Session()
        # No .netrc. Proxies and CA certificates are looked up for each address.
        self._session.trust_env = False
        for scheme in ("http://", "https://"):
            self._session.mount(
                scheme, requests.adapters.HTTPAdapter(pool_connections=8, pool_maxsize=16)
            )
        self._login_lock = threading.Lock()
        # Guards what is known of hosts. A thread may take it while it has the login lock.
        self._hosts_lock = threading.Lock()
        self._stopped = threading.Event()
        self._scratch = tempfile.TemporaryDirectory(prefix="rosetta-ca-")
        self._ca_bundles: dict[str, str | bool] = {}
        # Whether the scheme, http or https, is known. A registry on this machine may speak either.
        self._is_scheme_known = not is_loopback(strip_port(reference.host))
        self._authorization = ""
        self._credentials: credentials.Credentials | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._scratch.cleanup()

    def url(self, path: str) -> str:
        """Return the address of a path in the repository."""
        return f"{self.base}/v2/{self.reference.name}/{path}"

    def resolve_location(self, location: str, request_url: str) -> str:
        """Return the address that the Location header of an answer names.

        Args:
            location: The header; it may be relative.
            request_url: The address that sent the answer.

        Raises:
            UserError: The address is not valid, or would leave https.
        """
        address = urllib.parse.urljoin(request_url, location)
        if _split_origin(address)[0] == "http" and self.base.startswith("https:"):
            if urllib.parse.urlsplit(address).hostname != urllib.parse.urlsplit(self.base).hostname:
                raise UserError(
                    "the registry sends us to an address without https",
                    str(self.reference),
                    _ASK_ADMINISTRATOR,
                    kind=DENIED,
                )
            address = "https" + address[4:]  # a proxy in front of the registry took the TLS off
        if _split_origin(address)[0] not in ("http", "https"):
            raise UserError(
                "the registry sends us to an address that is not valid",
                str(self.reference),
                _ASK_ADMINISTRATOR,
                kind=INVALID,
            )
        return address

    def request(
        self,
        method: str,
        url: str,
        good: Collection[int],
        *,
        body: Callable[[], Any] | None = None,
        headers: Mapping[str, str] | None = None,
        follow: bool = False,
        stream: bool = False,
    ) -> requests.Response:
        """Send one request, log in if the registry asks for it, and return the answer.

        Args:
            method: The HTTP method. GET replaces HEAD if the registry does not support HEAD.
            url: The address.
            good: The statuses that are returned.
            body: Makes the body; called again if the request has to be sent again.
            headers: Further headers.
            follow: Whether to follow redirects.
            stream: Whether the caller reads the body of the answer in pieces.

        Raises:
            TransientError: Another attempt may work.
            UserError: The answer has another status.
        """
        url = self._settle_scheme(url)
        authorization = self._authorization
        for attempt in range(2):
            answer = self._follow_redirects(
                method, url, body, headers, authorization, follow=follow, stream=stream
            )
            if answer.status_code in good:
                return answer
            if method == "HEAD" and answer.status_code in _NO_HEAD:
                answer.close()
                return self.request("GET", url, good, headers=headers, follow=follow, stream=True)
            with answer:
                if answer.status_code != 401 or attempt:
                    raise self._make_error(answer, method)
                challenge = answer.headers.get("WWW-Authenticate", "")
                authorization = self._log_in(challenge, authorization)
        raise AssertionError

    def _follow_redirects(
        self,
        method: str,
        url: str,
        body: Callable[[], Any] | None,
        headers: Mapping[str, str] | None,
        authorization: str,
        *,
        follow: bool,
        stream: bool,
    ) -> requests.Response:
        """Send a request; the authorization goes to the registry only, not to other hosts."""
        for _ in range(_MAXIMUM_REDIRECTS + 1):
            sent_headers = {"User-Agent": "rosetta-builder", **(headers or {})}
            if authorization and _split_origin(url) == _split_origin(self.base):
                sent_headers["Authorization"] = authorization
            answer = self._send(method, url, body, sent_headers, stream=stream)
            if not follow or answer.status_code not in _REDIRECT_STATUSES:
                return answer
            answer.close()
            url = self.resolve_location(answer.headers.get("Location", ""), url)
        raise UserError(
            "the registry sends us round in circles", str(self.reference), _ASK_ADMINISTRATOR
        )

    def _send(
        self,
        method: str,
        url: str,
        body: Callable[[], Any] | None,
        headers: dict[str, str],
        *,
        stream: bool,
    ) -> requests.Response:
        """Send one request. Raises TransientError or UserError if no answer comes."""
        host = urllib.parse.urlsplit(url).hostname or ""
        if is_loopback(host):
            proxies = {}
        else:
            proxies = dict(requests.utils.get_environ_proxies(url, no_proxy=None))
        verify: str | bool = True
        if url.startswith("https:"):
            verify = self._find_ca_bundle(urllib.parse.urlsplit(url).netloc)
        try:
            return self._session.request(
                method,
                url,
                data=body() if body else None,
                headers=headers,
                allow_redirects=False,
                stream=stream,
                proxies=proxies,
                timeout=(_CONNECT_TIMEOUT, _PUT_TIMEOUT if method == "PUT" else _READ_TIMEOUT),
                verify=verify,
            )
        except requests.exceptions.SSLError as error:
            if _is_caused_by(error, ssl.SSLCertVerificationError):
                raise UserError(
                    f"the certificate of {host} is not trusted here",
                    str(self.reference),
                    "name the CA's file in SSL_CERT_FILE, or put it into docker's certs.d",
                    kind=DENIED,
                ) from error
            raise TransientError("the TLS connection broke") from error
        except requests.exceptions.InvalidURL as error:
            raise UserError(
                f"{host!r} is not a valid host", str(self.reference), "check the name"
            ) from error
        except requests.exceptions.ProxyError as error:
            raise TransientError("the proxy cannot be reached") from error
        except requests.exceptions.ConnectTimeout as error:
            raise TransientError(f"{host} does not answer") from error
        except (requests.exceptions.RequestException, OSError) as error:
            if isinstance(error, OSError) and error.filename:
                raise  # a local file, not the network
            raise TransientError(_describe_failure(error, host)) from error

    def _settle_scheme(self, url: str) -> str:
        """Return an address of a registry on this machine with the scheme that it speaks.

        The scheme is https if the registry answers a TLS greeting, else http.
        """
        with self._hosts_lock:
            if not self._is_scheme_known:
                self._is_scheme_known = True
                if self.base.startswith("http:") and _speaks_tls(*_split_origin(self.base)[1:]):
                    self.base = "https" + self.base.removeprefix("http")
        _, host, port = _split_origin(url)
        if (
            self.base.startswith("https:")
            and is_loopback(host)
            and (host, port) == _split_origin(self.base)[1:]
        ):
            return "https:" + url.partition(":")[2]
        return url

    def _find_ca_bundle(self, host: str) -> str | bool:
        """Return the file that verifies a host's certificate; True for Python's own list."""
        with self._hosts_lock:
            if host not in self._ca_bundles:
                files = trusted_cas.find_files(host)
                if len(files) > 1:
                    joined = Path(self._scratch.name) / f"{len(self._ca_bundles)}.pem"
                    joined.write_bytes(trusted_cas.join_certificates(files))
                    files = [joined]
                self._ca_bundles[host] = str(files[0]) if files else True
            return self._ca_bundles[host]

    def _make_error(self, answer: requests.Response, method: str) -> Exception:
        """Return the exception for an answer with a bad status."""
        status = answer.status_code
        quoted = _quote_error(answer)
        message = f"the registry answered {status} to {method}{quoted}"
        # Content is sent with the digest that it has. So the registry received something else, or
        # is mistaken, as docker-registry once was during two pushes of the same layers.
        is_refused = method == "PUT" and quoted.startswith(f" ({_OTHER_DIGEST}")
        if status in _TRANSIENT_STATUSES or is_refused:
            return TransientError(
                message, _parse_retry_after(answer.headers.get("Retry-After", ""))
            )
        if status in (401, 403):
            if self._credentials in (None, credentials.ANONYMOUS):
                used = "no credentials"
            else:
                used = "the credentials kept for it"
            return UserError(
                f"{message}: access denied with {used}",
                str(self.reference),
                f"docker login {self.reference.host}, with an account that may do this",
                kind=DENIED,
                value=status,
            )
        if _is_web_page(answer):
            return UserError(
                f"{message} with a web page (a login page or a proxy's?)",
                str(self.reference),
                "check the name, the network and the proxy settings",
                kind=INVALID,
                value=status,
            )
        return UserError(
            message,
            str(self.reference),
            "check the name, and that the registry takes OCI images",
            kind=FAILED,
            value=status,
        )

    def retry(self, name: str, action: Callable[[], Any]) -> Any:
        """Call a function until it raises no TransientError, at most `TRIES` times.

        Args:
            name: What the function does, for errors, such as "reading the tag latest".
            action: The function.

        Returns:
            What the function returns.

        Raises:
            UserError: The last attempt failed, too, or the registry asks for a long pause.
        """
        for attempt in range(1, TRIES + 1):
            try:
                return action()
            except TransientError as error:
                pause = error.pause
                if pause is None:
                    pause = min(30.0, 2.0 ** (attempt - 1)) * random.uniform(0.75, 1.25)  # noqa: S311
                if pause > _MAXIMUM_PAUSE:
                    reason = f"{error} (it asks us to wait {pause:.0f} s)"
                    raise self._give_up(f"{name} failed: {reason}", error) from error
                if attempt == TRIES:
                    reason = f"{error} (tried {attempt} times)"
                    raise self._give_up(f"{name} failed: {reason}", error) from error
                self.wait(pause)
                self.raise_if_stopped()
        raise AssertionError

    def _give_up(self, message: str, error: TransientError) -> UserError:
        if isinstance(error, MismatchError):
            return AlteredError(message, str(self.reference), _ALTERED)
        return UserError(
            message,
            str(self.reference),
            _SEND_AGAIN if self._sends else _READ_AGAIN,
            kind=UNREACHABLE,
        )

    def wait(self, seconds: float) -> None:
        """Wait before the next attempt; another thread's failure ends the wait."""
        self._stopped.wait(seconds)

    def raise_if_stopped(self) -> None:
        """Raise StoppedError if another thread has failed, so that this one ends early."""
        if self._stopped.is_set():
            raise StoppedError

    def map_threads(
        self, action: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]
    ) -> list[Any]:
        """Call a function with each tuple of arguments, in a few threads.

        Returns:
            The results, in the order of `arguments`. The first failure ends all threads and is
            raised.
        """
        with concurrent.futures.ThreadPoolExecutor(THREADS, "registry") as pool:
            futures = [pool.submit(action, *values) for values in arguments]
            try:
                done, _ = concurrent.futures.wait(
                    futures, return_when=concurrent.futures.FIRST_EXCEPTION
                )
                _raise_failure(done)
            except BaseException:
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
                raise
            return [future.result() for future in futures]

    def read_document(self, answer: requests.Response) -> bytes:
        """Return the body of a streamed answer that is a document."""
        data = b"".join(self.read_pieces(answer, _DOCUMENT_LIMIT))
        if len(data) > _DOCUMENT_LIMIT:
            raise UserError(
                f"the registry sent a document of more than {_DOCUMENT_LIMIT >> 20} MiB",
                str(self.reference),
                "check the name",
            )
        return data

    def read_pieces(self, answer: requests.Response, limit: int) -> Any:
        """Yield the body of a streamed answer piece by piece.

        Args:
            answer: The answer; it is closed at the end.
            limit: Bytes after which the body ends; the piece that passes the limit comes whole.

        Raises:
            TransientError: The connection broke or stalled.
        """
        received, start = 0, time.monotonic()
        try:
            with answer:
                while piece := answer.raw.read1(1 << 20, decode_content=True):
                    received += len(piece)
                    yield piece
                    if received > limit:
                        return
                    seconds = time.monotonic() - start
                    if seconds > _MINIMUM_RATE_AFTER and received < _MINIMUM_RATE * seconds:
                        raise TransientError(f"only {received} bytes came in {seconds:.0f} s")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if isinstance(error, OSError) and error.filename:
                raise  # a local file, not the network
            raise TransientError(f"the connection broke after {received} bytes") from error
        length = answer.headers.get("Content-Length", "")
        is_encoded = "Content-Encoding" in answer.headers
        if _is_number(length) and not is_encoded and received != int(length):
            raise TransientError(f"{received} of {length} bytes came")

    def _log_in(self, challenge: str, refused: str) -> str:
        """Return the Authorization header to send after a 401.

        Args:
            challenge: The WWW-Authenticate header of the answer.
            refused: The Authorization header that was refused. Another thread may have logged in
                since then.
        """
        with self._login_lock:
            if self._authorization != refused:
                return self._authorization
            if self._credentials is None:
                self._credentials = credentials.find_credentials(self.reference)
                remember_login(
                    self._credentials.user,
                    self._credentials.password,
                    self._credentials.identity_token,
                )
            scheme, _, parameters = challenge.partition(" ")
            basic_header = self._credentials.basic_header
            if scheme.lower() == "bearer":
                fields = dict(re.findall(r'([a-zA-Z_]+)="([^"]*)"', parameters))
                self._authorization = self._request_token(fields)
            elif scheme.lower() == "basic" and basic_header and refused != basic_header:
                self._authorization = basic_header
            else:
                if basic_header:
                    problem = "does not take the credentials kept for it"
                else:
                    problem = "wants a login"
                raise UserError(
                    f"the registry {problem}",
                    str(self.reference),
                    f"docker login {self.reference.host}",
                    kind=DENIED,
                    value=401,
                )
            return self._authorization

    def _request_token(self, challenge: dict[str, str]) -> str:
        """Return an Authorization header with a token of the registry's token service.

        Args:
            challenge: The fields of the registry's challenge: `realm`, `service`.
        """
        realm = challenge.get("realm", "")
        self._require_safe_realm(realm)
        with self._ask_token_service(realm, challenge.get("service", "")) as answer:
            if answer.status_code != 200:
                raise self._make_error(answer, "a login")
            text = self.read_document(answer)
        try:
            data = json.loads(text)
            token = data.get("token") or data["access_token"]
        except (ValueError, KeyError, AttributeError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise UserError(
                (
                    "what answers for the registry's logins gave no token (a login page or a "
                    "proxy's answer?)"
                ),
                str(self.reference),
                "check the proxy settings",
            )
        remember_login("", "", token)
        return f"Bearer {token}"

    def _require_safe_realm(self, realm: str) -> None:
        """Raise UserError if a login would be sent to another machine without https."""
        scheme, host, _ = _split_origin(realm)
        if scheme == "https":
            return
        is_registry = (scheme, host) == _split_origin(self.base)[:2]
        if scheme != "http" or not (is_loopback(host) or is_registry):
            raise UserError(
                "the registry names an address without https for logins",
                str(self.reference),
                _ASK_ADMINISTRATOR,
                kind=DENIED,
            )

    def _ask_token_service(self, realm: str, service: str) -> requests.Response:
        """Ask for a token: by POST with an identity token, else by GET with user and password."""
        login = self._credentials or credentials.ANONYMOUS
        if login.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": login.identity_token,
                "client_id": "rosetta-builder",
                "service": service,
                "scope": " ".join(self._scopes),
            }
            body = urllib.parse.urlencode(form).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            return self._send("POST", realm, lambda: body, headers, stream=True)
        query = [("service", service), *(("scope", scope) for scope in self._scopes)]
        url = realm + ("&" if "?" in realm else "?") + urllib.parse.urlencode(query)
        headers = {"Authorization": login.basic_header} if login.basic_header else {}
        return self._send("GET", url, None, headers, stream=True)


def _raise_failure(futures: Iterable[concurrent.futures.Future[Any]]) -> None:
    """Raise the exception of a future that failed, if possible not a StoppedError."""
    errors = [error for future in futures if (error := future.exception())]
    causes = [error for error in errors if not isinstance(error, StoppedError)]
    if errors:
        raise (causes or errors)[0]


def _split_origin(url: str) -> tuple[str, str, int]:
    """Return the scheme, host and port of an address; empty ones if it is not valid."""
    try:
        parts = urllib.parse.urlsplit(url)
        return (
            parts.scheme,
            parts.hostname or "",
            parts.port or (443 if parts.scheme == "https" else 80),
        )
    except ValueError:
        return "", "", 0


def _speaks_tls(name: str, port: int) -> bool:
    """Return whether a port answers a TLS greeting. Its certificate is checked later."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((name, port), timeout=_CONNECT_TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=name),
        ):
            return True
    except OSError:
        return False


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,18}", text))


def _is_web_page(answer: requests.Response) -> bool:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip() == "text/html"


def _quote_error(answer: requests.Response) -> str:
    """Return the registry's own error in parentheses: on one line, cut, and without secrets."""
    try:
        first = json.loads(next(answer.iter_content(1 << 16), b""))["errors"][0]
        text = redact(f"{first.get('code', '')} {first.get('message', '')}".strip())
    except Exception:  # noqa: BLE001 - the answer does not have the form of an error
        return ""
    return f" ({re.sub(r'[^ -~]+', ' ', text)[:160]})" if text else ""


def _parse_retry_after(value: str) -> float | None:
    """Return the seconds to wait by a Retry-After header: a number or a date; None if neither."""
    if _is_number(value.strip()):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    """Return whether an exception of this kind is the error, or among its causes or arguments."""
    visited: list[BaseException] = []
    queue: list[Any] = [error]
    while queue:
        item = queue.pop()
        if isinstance(item, kind):
            return True
        if isinstance(item, BaseException) and item not in visited:
            visited.append(item)
            queue += [*item.args, item.__cause__, item.__context__, getattr(item, "reason", None)]
    return False


def _describe_failure(error: Exception, host: str) -> str:
    """Describe a failed request without its address: the query may be a secret."""
    if isinstance(error, requests.exceptions.Timeout):
        return f"{host} stopped answering"
    for kind, text in (
        (ConnectionRefusedError, "refuses the connection"),
        (BrokenPipeError, "cut the connection"),
        (ConnectionResetError, "cut the connection"),
    ):
        if _is_caused_by(error, kind):
            return f"{host} {text}"
    return f"the connection to {host} failed"
