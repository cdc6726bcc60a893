"""Requests to a registry: authenticated, repeated while it makes sense, and never telling another
host who we are.
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
_CONNECT, _READ, _COMMIT = (
    20,
    60,
    600,
)  # seconds; a registry may take minutes over the end of a large upload
_SLOW_AFTER, _LEAST_RATE = (
    60,
    1024,
)  # seconds, and bytes a second: whoever sends less after them has stalled
_NO_HEAD = (405, 501)  # what a registry answers that does not know HEAD
_PATIENCE = 120  # seconds that a registry may ask us to wait
_AGAIN = (408, 429, 500, 502, 503, 504)
_MOVED = (301, 302, 303, 307, 308)
_SEND_AGAIN = "run again: what has arrived is not sent twice"
_READ_AGAIN = "check the network and run again"
_ALTERED = (
    "do not use it: it was changed in the registry, or by a proxy on the way; have it published "
    "anew"
)
_LIMIT = (
    4 << 20
)  # bytes of a document; what the distribution specification says a registry must take


class TransientError(Exception):
    """Something that may go better another time, after `pause` seconds if the registry said so."""

    def __init__(self, what: str, pause: float | None = None) -> None:
        super().__init__(what)
        self.pause = pause


class MismatchError(TransientError):
    """What came is not what its digest says."""


class AlteredError(UserError):
    """The registry gives another content under a digest, however often it is asked."""


class StoppedError(Exception):
    """Another thread has failed."""


class Connection:
    """A registry, for one repository and what is to be done with it ("pull" or "pull,push").

    May be used by several threads.
    """

    def __init__(self, reference: Reference, actions: str, mount_from: str = "") -> None:
        self.reference = reference
        self.base = reference.url
        self._sends = "push" in actions
        self._scopes = [
            f"repository:{reference.name}:{actions}",
            *([f"repository:{mount_from}:pull"] if mount_from else []),
        ]
        self._session = requests.Session()
        self._session.trust_env = (
            False  # no .netrc; proxies and CA bundle are looked up below, for each address
        )
        for scheme in ("http://", "https://"):
            self._session.mount(
                scheme, requests.adapters.HTTPAdapter(pool_connections=8, pool_maxsize=16)
            )
        self._lock = threading.Lock()  # of who we are
        self._facts_lock = (
            threading.Lock()
        )  # of what is known of hosts; taken while the other one is held
        self._stopped = threading.Event()
        self._scratch = tempfile.TemporaryDirectory(prefix="rosetta-ca-")
        self._bundles: dict[str, str | bool] = {}
        self._is_settled = not is_loopback(
            strip_port(reference.host)
        )  # whether http or https is spoken is known
        self._authorization = ""
        self._credentials: credentials.Credentials | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._scratch.cleanup()

    def url(self, path: str) -> str:
        """Return the address of something in the repository."""
        return f"{self.base}/v2/{self.reference.name}/{path}"

    def resolve_location(self, location: str, beside: str) -> str:
        """Return the address that an answer from `beside` names.

        Raises UserError where it would leave https.
        """
        found = urllib.parse.urljoin(beside, location)
        if _split_origin(found)[0] == "http" and self.base.startswith("https:"):
            if urllib.parse.urlsplit(found).hostname != urllib.parse.urlsplit(self.base).hostname:
                raise UserError(
                    "the registry sends us to an address without https",
                    str(self.reference),
                    "its administrator can mend that",
                    kind=DENIED,
                )
            found = "https" + found[4:]  # a proxy in front of it took the TLS off
        if _split_origin(found)[0] not in ("http", "https"):
            raise UserError(
                "the registry sends us to an address that is none",
                str(self.reference),
                "its administrator can mend that",
                kind=INVALID,
            )
        return found

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
        """One request. Returns an answer whose status is among `good`; raises Transient or
        UserError for any other.

        `body` gives what to send, and is called again where it has to be sent again.
        """
        url = self._settle(url)
        known = self._authorization
        for attempt in range(2):
            answer = self._follow(method, url, body, headers, known, follow=follow, stream=stream)
            if answer.status_code in good:
                return answer
            if method == "HEAD" and answer.status_code in _NO_HEAD:
                answer.close()
                return self.request("GET", url, good, headers=headers, follow=follow, stream=True)
            with answer:
                if answer.status_code != 401 or attempt:
                    raise self._problem(answer, method)
                known = self._login(answer.headers.get("WWW-Authenticate", ""), known)
        raise AssertionError

    def _follow(
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
        for _ in range(6):
            own = {"User-Agent": "rosetta-builder", **(headers or {})}
            if authorization and _split_origin(url) == _split_origin(self.base):
                own["Authorization"] = authorization
            answer = self._send(method, url, body, own, stream=stream)
            if not follow or answer.status_code not in _MOVED:
                return answer
            answer.close()
            url = self.resolve_location(answer.headers.get("Location", ""), url)
        raise UserError(
            "the registry sends us round in circles",
            str(self.reference),
            "its administrator can mend that",
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
        name = urllib.parse.urlsplit(url).hostname or ""
        proxies = (
            {} if is_loopback(name) else requests.utils.get_environ_proxies(url, no_proxy=None)
        )
        bundle = (
            self._bundle(urllib.parse.urlsplit(url).netloc) if url.startswith("https:") else True
        )
        try:
            return self._session.request(
                method,
                url,
                data=body() if body else None,
                headers=headers,
                allow_redirects=False,
                stream=stream,
                proxies=dict(proxies),
                timeout=(_CONNECT, _COMMIT if method == "PUT" else _READ),
                verify=bundle,
            )
        except requests.exceptions.SSLError as error:
            if _is_caused_by(error, ssl.SSLCertVerificationError):
                raise UserError(
                    f"the certificate of {name} is not trusted here",
                    str(self.reference),
                    "name the CA's file in SSL_CERT_FILE, or put it into docker's certs.d",
                    kind=DENIED,
                ) from error
            raise TransientError("the TLS connection broke") from error
        except requests.exceptions.InvalidURL as error:
            raise UserError(
                f"{name!r} is no host", str(self.reference), "check the name"
            ) from error
        except requests.exceptions.ProxyError as error:
            raise TransientError("the proxy cannot be reached") from error
        except requests.exceptions.ConnectTimeout as error:
            raise TransientError(f"{name} does not answer") from error
        except (requests.exceptions.RequestException, OSError) as error:
            if isinstance(error, OSError) and error.filename:
                raise  # a file of ours, not the network
            raise TransientError(_describe_failure(error, name)) from error

    def _settle(self, url: str) -> str:
        """Return an address of a registry on this machine with the scheme that it speaks: TLS where
        it greets by that, else http.
        """
        with self._facts_lock:
            if not self._is_settled:
                self._is_settled = True
                if self.base.startswith("http:") and _speaks_tls(*_split_origin(self.base)[1:]):
                    self.base = "https" + self.base.removeprefix("http")
        if (
            self.base.startswith("https:")
            and is_loopback(_split_origin(url)[1])
            and _split_origin(url)[1:] == _split_origin(self.base)[1:]
        ):
            return "https" + url.partition(":")[1] + url.partition(":")[2]
        return url

    def _bundle(self, host: str) -> str | bool:
        """Return what a host's certificate is checked against: a file, or True for Python's own
        list.
        """
        with self._facts_lock:
            if host not in self._bundles:
                files = trusted_cas.find_files(host)
                place = Path(self._scratch.name) / f"{len(self._bundles)}.pem"
                if len(files) > 1:
                    place.write_bytes(trusted_cas.join_certificates(files))
                self._bundles[host] = str(place if len(files) > 1 else files[0]) if files else True
            return self._bundles[host]

    def _problem(self, answer: requests.Response, method: str) -> Exception:
        status = answer.status_code
        what = f"the registry answered {status} to {method}{_quote_error(answer)}"
        if status in _AGAIN:
            return TransientError(what, _parse_retry_after(answer.headers.get("Retry-After", "")))
        if status in (401, 403):
            who = (
                "the credentials kept for it"
                if self._credentials not in (None, credentials.ANONYMOUS)
                else "no credentials"
            )
            return UserError(
                f"{what}: access denied with {who}",
                str(self.reference),
                f"docker login {self.reference.host}, with an account that may do this",
                kind=DENIED,
                value=status,
            )
        if _is_web_page(answer):
            return UserError(
                f"{what} with a web page (a login page or a proxy's?)",
                str(self.reference),
                "check the name, the network and the proxy settings",
                kind=INVALID,
                value=status,
            )
        return UserError(
            what,
            str(self.reference),
            "check the name, and that the registry takes OCI images",
            kind=FAILED,
            value=status,
        )

    def retry(self, what: str, action: Callable[[], Any]) -> Any:
        """Do `action` until it works, a few times at most.

        Raises UserError with the last reason where it does not.
        """
        for attempt in range(1, TRIES + 1):
            try:
                return action()
            except TransientError as problem:
                pause = (
                    problem.pause
                    if problem.pause is not None
                    else min(30.0, 2.0 ** (attempt - 1)) * random.uniform(0.75, 1.25)  # noqa: S311
                )
                if attempt == TRIES or pause > _PATIENCE:
                    tries = (
                        f"it asks us to wait {pause:.0f} s"
                        if pause > _PATIENCE
                        else f"tried {attempt} times"
                    )
                    message = f"{what} failed: {problem} ({tries})"
                    if isinstance(problem, MismatchError):
                        raise AlteredError(message, str(self.reference), _ALTERED) from problem
                    raise UserError(
                        message,
                        str(self.reference),
                        _SEND_AGAIN if self._sends else _READ_AGAIN,
                        kind=UNREACHABLE,
                    ) from problem
                self.wait(pause)
                self.raise_if_stopped()
        raise AssertionError

    def wait(self, seconds: float) -> None:
        """Wait before another try."""
        self._stopped.wait(seconds)

    def raise_if_stopped(self) -> None:
        """Raise StoppedError where another thread has failed, so that this one does not go on for
        nothing.
        """
        if self._stopped.is_set():
            raise StoppedError

    def map_threads(
        self, action: Callable[..., Any], items: Iterable[tuple[Any, ...]]
    ) -> list[Any]:
        """Return what `action` gives for the arguments in `items`, done by a few threads; the first
        failure ends them all.
        """
        with concurrent.futures.ThreadPoolExecutor(THREADS, "registry") as pool:
            futures = [pool.submit(action, *item) for item in items]
            try:
                done, _ = concurrent.futures.wait(
                    futures, return_when=concurrent.futures.FIRST_EXCEPTION
                )
                problems = [problem for future in done if (problem := future.exception())]
                if problems:
                    raise next(
                        (each for each in problems if not isinstance(each, StoppedError)),
                        problems[0],
                    )
            except BaseException:
                self._stopped.set()
                pool.shutdown(cancel_futures=True)
                raise
            return [future.result() for future in futures]

    def read_document(self, answer: requests.Response) -> bytes:
        """Return the body of a streamed answer that is a document."""
        data = b"".join(self.read_pieces(answer, _LIMIT))
        if len(data) > _LIMIT:
            raise UserError(
                f"the registry sent a document of more than {_LIMIT >> 20} MiB",
                str(self.reference),
                "check the name",
            )
        return data

    def read_pieces(self, answer: requests.Response, limit: int) -> Any:
        """Yield the body of a streamed answer, piece by piece, up to the one that passes `limit`
        bytes.
        """
        came, start = 0, time.monotonic()
        try:
            with answer:
                while piece := answer.raw.read1(1 << 20, decode_content=True):
                    came += len(piece)
                    yield piece
                    if came > limit:
                        return
                    seconds = time.monotonic() - start
                    if seconds > _SLOW_AFTER and came < _LEAST_RATE * seconds:
                        raise TransientError(f"it sent only {came} bytes in {seconds:.0f} s")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if isinstance(error, OSError) and error.filename:
                raise  # a file of ours, not the network
            raise TransientError(f"the connection broke after {came} bytes") from error
        length = answer.headers.get("Content-Length", "")
        if _is_number(length) and "Content-Encoding" not in answer.headers and came != int(length):
            raise TransientError(f"{came} of {length} bytes came")

    def _login(self, challenge: str, refused: str) -> str:
        """Return what to send as Authorization after a 401; another thread may have found it
        meanwhile.
        """
        with self._lock:
            if self._authorization != refused:
                return self._authorization
            if self._credentials is None:
                self._credentials = credentials.find_credentials(self.reference)
                remember_login(
                    self._credentials.user,
                    self._credentials.password,
                    self._credentials.identity_token,
                )
            kind, _, rest = challenge.partition(" ")
            if kind.lower() == "bearer":
                self._authorization = self._token(dict(re.findall(r'([a-zA-Z_]+)="([^"]*)"', rest)))
            elif (
                kind.lower() == "basic"
                and self._credentials.basic_header
                and refused != self._credentials.basic_header
            ):
                self._authorization = self._credentials.basic_header
            else:
                why = (
                    "does not take the credentials kept for it"
                    if self._credentials.basic_header
                    else "wants a login"
                )
                raise UserError(
                    f"the registry {why}",
                    str(self.reference),
                    f"docker login {self.reference.host}",
                )
            return self._authorization

    def _token(self, told: dict[str, str]) -> str:
        realm, known = told.get("realm", ""), self._credentials or credentials.ANONYMOUS
        scheme, name = _split_origin(realm)[:2]
        if scheme != "https" and not (
            scheme == "http"
            and (is_loopback(name) or _split_origin(realm)[:2] == _split_origin(self.base)[:2])
        ):
            raise UserError(
                "the registry names an address without https for logins",
                str(self.reference),
                "its administrator can mend that",
                kind=DENIED,
            )
        asked: list[tuple[str, str]] = [
            ("service", told.get("service", "")),
            *(("scope", each) for each in self._scopes),
        ]
        if known.identity_token:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": known.identity_token,
                "client_id": "rosetta-builder",
                "service": told.get("service", ""),
                "scope": " ".join(self._scopes),
            }
            body = urllib.parse.urlencode(form).encode()
            answer = self._send(
                "POST",
                realm,
                lambda: body,
                {"Content-Type": "application/x-www-form-urlencoded"},
                stream=True,
            )
        else:
            url = realm + ("&" if "?" in realm else "?") + urllib.parse.urlencode(asked)
            answer = self._send(
                "GET",
                url,
                None,
                {"Authorization": known.basic_header} if known.basic_header else {},
                stream=True,
            )
        with answer:
            if answer.status_code != 200:
                raise self._problem(answer, "a login")
            raw = self.read_document(answer)
        try:
            data = json.loads(raw)
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


def _split_origin(url: str) -> tuple[str, str, int]:
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
    """Say whether what listens on this machine answers a TLS greeting.

    Its certificate is checked later.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((name, port), timeout=_CONNECT) as plain,
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
    """Return the registry's own words for an error, without secrets that it repeats, on one line
    and cut.
    """
    try:
        first = json.loads(next(answer.iter_content(1 << 16), b""))["errors"][0]
        words = redact(f"{first.get('code', '')} {first.get('message', '')}".strip())
    except Exception:  # noqa: BLE001 - whatever it said, it was not that
        return ""
    return f" ({re.sub(r'[^ -~]+', ' ', words)[:160]})" if words else ""


def _parse_retry_after(value: str) -> float | None:
    """Seconds to wait by a Retry-After header, in either of its forms; None where it says
    nothing.
    """
    if _is_number(value.strip()):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    seen: list[BaseException] = []
    waiting: list[Any] = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, kind):
            return True
        if isinstance(each, BaseException) and each not in seen:
            seen.append(each)
            waiting += [*each.args, each.__cause__, each.__context__, getattr(each, "reason", None)]
    return False


def _describe_failure(error: Exception, name: str) -> str:
    """Without the address: its query may be a secret."""
    if isinstance(error, requests.exceptions.Timeout):
        return f"{name} stopped answering"
    for kind, words in (
        (ConnectionRefusedError, "refuses the connection"),
        (BrokenPipeError, "cut the connection"),
        (ConnectionResetError, "cut the connection"),
    ):
        if _is_caused_by(error, kind):
            return f"{name} {words}"
    return f"the connection to {name} failed"
