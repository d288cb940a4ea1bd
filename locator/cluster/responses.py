"""What comes back from an API server: lines as they come, refusals, and why nothing came, in words that help."""

from __future__ import annotations

import http
import http.client
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import urllib3
from msgspec import Struct, field
from msgspec.json import Decoder

CONNECT_SECONDS = 3.0  # the API server is near; TLS included; a name with several addresses has this for each
CHUNK = 1 << 16  # bytes read at a time
MAX_LINE = 64 << 20  # bytes: etcd keeps no object beyond 1.5 MB, so a longer line is no answer of an API server
MAX_ERROR = 1 << 16  # bytes of a refusal that are looked at

READ_ERRORS = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)


class Refused(Exception):
    """The API server answered with an error; the text says what was asked for and, if rights lack, which rule."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after


class Unreachable(Exception):
    """No answer, or only a part of one; the text says which host and why.

    ``word`` is "unreachable" where nothing came, "silent" where the time was up, "cut" where the answer broke off.
    """

    def __init__(self, message: str, word: str = "unreachable") -> None:
        super().__init__(message)
        self.word = word


class Stream:
    """An answer that is under way. Iterating gives batches of whole lines, without their ends, as they come.

    What follows the last newline is no line. Reading raises Unreachable if the answer breaks off or is silent for too
    long, and is for one thread, once.
    """

    def __init__(self, response: Any, host: str, silence: float) -> None:
        self._response = response
        self._host = host
        self._silence = silence

    def __iter__(self) -> Iterator[list[bytes]]:
        parts: list[bytes] = []  # of the line that has not ended yet
        size = 0
        for chunk in self._chunks():
            head, newline, tail = chunk.rpartition(b"\n")
            if newline:
                lines = b"".join((*parts, head)).split(b"\n")
                parts, size = [], 0
                yield [line for line in lines if line]
            parts.append(tail)
            size += len(tail)
            if size > MAX_LINE:
                raise Unreachable(f"{self._host}: a line of more than {MAX_LINE >> 20} MiB", "cut")

    def read(self) -> bytes:
        """Return all of it."""
        return b"".join(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        try:
            yield from self._response.stream(CHUNK, decode_content=True)
        except (*READ_ERRORS, AttributeError) as error:  # AttributeError: of a read that was ended
            raise unreachable(self._host, error, self._silence, begun=True) from None
        finally:
            self.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back, or up. Only for the thread that reads."""
        self._response.close()

    def end(self) -> None:
        """End a read that another thread waits in; it sees the answer break off. Harmless at any time."""
        try:
            self._response.shutdown()
        except (OSError, RuntimeError, ValueError):
            return  # it is over already


class _Details(Struct):
    retry_after: float | None = field(name="retryAfterSeconds", default=None)


class _Status(Struct):
    """How the API server words an error."""

    message: str | None = None
    reason: str | None = None
    details: _Details | None = None


_STATUS = Decoder(_Status)  # made here, since threads share it: see ``decoding.KINDS_READ``


class Asked(NamedTuple):
    """A request in the words of RBAC."""

    verb: str
    group: str
    resource: str
    namespace: str


def asked(method: str, path: str, query: Mapping[str, str]) -> Asked:
    """Return what a request asks for."""
    parts = path.strip("/").split("/")
    group, rest = (parts[1], parts[3:]) if parts[0] == "apis" and len(parts) > 2 else ("", parts[2:])
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, "get")
    if verb == "get" and len(rest) == 1:
        verb = "watch" if "watch" in query else "list"
    return Asked(verb, group, "/".join((*rest[:1], *rest[2:3])), namespace)


def refused(response: Any, what: Asked) -> Refused:
    """Read a refusal; close it."""
    status, retry_after = response.status, response.headers.get("Retry-After")
    try:
        text = response.read(MAX_ERROR, decode_content=True)
    except READ_ERRORS:
        text = b""
    finally:
        response.close()
    try:
        said = _STATUS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a proxy's page, or nothing
        said = _Status(text[:200].decode(errors="replace"))
    reason = said.reason or http.client.responses.get(status, "Error")
    message = " ".join((said.message or "").split())
    if status == http.HTTPStatus.FORBIDDEN and " cannot " in message:  # else it was no right that lacked: a quota, say
        verbs = '"list", "watch"' if what.verb in ("list", "watch") else f'"{what.verb}"'
        where = f"ClusterRole, or a Role in namespace {what.namespace}," if what.namespace else "ClusterRole"
        rule = f'apiGroups: ["{what.group}"], resources: ["{what.resource}"], verbs: [{verbs}]'
        message = f"{message}; a {where} lacks the rule {rule}"
    seconds = said.details.retry_after if said.details else None
    if retry_after is not None and retry_after.isdecimal():
        seconds = float(retry_after)
    return Refused(status, reason, message, seconds)


def unreachable(host: str, error: Exception, silence: float, *, begun: bool) -> Unreachable:
    """Return in our words why there is no answer, or, if it has *begun*, no more of it."""
    match error:
        case urllib3.exceptions.NameResolutionError():
            return Unreachable(f"{host}: its name cannot be resolved")
        case urllib3.exceptions.ConnectTimeoutError() if not isinstance(error, urllib3.exceptions.NewConnectionError):
            return Unreachable(f"{host}: no connection within {min(CONNECT_SECONDS, silence):g} s")
        case urllib3.exceptions.ReadTimeoutError() | TimeoutError():
            return Unreachable(f"{host}: silent for {silence:g} s", "silent")
    if begun:
        return Unreachable(f"{host}: the answer broke off", "cut")
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = next((arg for arg in cause.args if isinstance(arg, BaseException)), None) or cause.__cause__
    if isinstance(cause, ssl.SSLError):
        why = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or one_line(cause)
        return Unreachable(f"{host}: TLS: {why}")
    return Unreachable(f"{host}: {(isinstance(cause, OSError) and cause.strerror) or one_line(error)}")


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__
