# SPDX-License-Identifier: Apache-2.0

"""Responses of an API server: streams of lines, HTTP errors, and failed connections, as exceptions with clear texts."""

from __future__ import annotations

import errno
import http
import http.client
import io
import ssl
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import urllib3
from msgspec import Struct, field
from msgspec.json import Decoder

CONNECT_SECONDS = 3.0  # TLS handshake included, for each address of the host; API servers are near
CHUNK = 1 << 16  # bytes read at a time
MAX_WATCH_LINE = 64 << 20  # bytes: etcd stores no object beyond 1.5 MB, so no API server sends a longer line
MAX_ERROR = 1 << 16  # bytes read of an HTTP error
ANONYMOUS = "system:anonymous"  # whom the API server takes a request for that says nothing of who sent it

MAX_SIZE_LINE = 1 << 14  # octets of a chunk's size with its extensions; API servers send up to ten
LINE_END = b"\r\n"

READ_ERRORS = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)


_EXPECTED_OF_TLS = {  # by a word of what is wrong
    "WRONG_VERSION_NUMBER": "expected a server that speaks TLS: something else listens there",
    "self-signed": "expected a certificate by the certificate-authority of the kubeconfig",
    "local issuer": "expected a certificate by the certificate-authority of the kubeconfig",
    "Hostname mismatch": "expected one that the kubeconfig's server, or its tls-server-name, names",
    "expired": "expected a certificate that is valid now",
}


class Refused(Exception):
    """The API server responded with an HTTP error. For a missing permission the text names the RBAC rule to add.

    ``page`` is the start of a response that is not the API server's own, such as that of a pod behind its proxy.
    """

    def __init__(
        self, status: int, reason: str, message: str, retry_after: float | None = None, *, page: str = ""
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if message else f"{status} {reason}")
        self.status, self.reason, self.message, self.retry_after = status, reason, message, retry_after
        self.page = page


class Unreachable(Exception):
    """No response came, or only a part of one; the text names the host and the cause.

    ``reason`` is "unreachable" if nothing came, "silent" after a timeout, "cut" if the response ended too early.
    """

    def __init__(self, message: str, reason: str = "unreachable") -> None:
        super().__init__(message)
        self.reason = reason


class Stream:
    """A response that is being received. Iteration yields batches of whole lines, without newlines, as they arrive.

    Drops what follows the last newline. Raises Unreachable if the response is cut, or silent for *silence* seconds.
    Only one thread may read a stream, and only once.
    """

    def __init__(self, response: Any, host: str, silence: float) -> None:
        self._response = response
        self._host = host
        self._silence = silence

    def __iter__(self) -> Iterator[list[bytes]]:
        parts: list[bytes] = []  # of the unfinished line
        size = 0
        for chunk in self._chunks():
            head, newline, tail = chunk.rpartition(b"\n")
            if newline:
                lines = b"".join((*parts, head)).split(b"\n")
                parts, size = [], 0
                yield [line for line in lines if line]
            parts.append(tail)
            size += len(tail)
            if size > MAX_WATCH_LINE:
                raise Unreachable(f"{self._host}: a line of more than {MAX_WATCH_LINE >> 20} MiB", "cut")

    def read(self) -> bytes:
        """Return the whole body."""
        return b"".join(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        try:
            if (chunked := self._chunked_response()) is not None:
                if (yield from _content(chunked.fp)):
                    chunked.close()
                    self._response.release_conn()
            else:
                yield from self._response.stream(CHUNK, decode_content=True)
        except (*READ_ERRORS, AttributeError) as error:  # AttributeError: another thread called ``end``
            raise unreachable(self._host, error, self._silence, begun=True) from None
        finally:
            self.close()

    def _chunked_response(self) -> http.client.HTTPResponse | None:
        """Return the response below the library's, to read its chunks; None to leave the reading to the library."""
        if not getattr(self._response, "chunked", False) or "Content-Encoding" in self._response.headers:
            return None
        below = getattr(self._response, "_fp", None)
        return below if isinstance(below, http.client.HTTPResponse) else None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Return the connection to the pool, or close it. Only the reading thread may call this."""
        self._response.close()

    def end(self) -> None:
        """Abort the read of another thread, which then raises Unreachable. Harmless at any time."""
        try:
            self._response.shutdown()
        except (OSError, RuntimeError, ValueError):
            return  # the response has ended


class Dechunker:
    """Takes the octets of a body as they arrive, and returns what its chunks hold (RFC 9112, section 7.1).

    An API server sends each object of a watch as a chunk of its own. urllib3 takes a dozen calls for each, which would
    make the first view of a large cluster a tenth slower; so this takes apart whatever has arrived at once.
    """

    def __init__(self) -> None:
        self.over = False
        """Whether the last chunk has come. Trailers may follow."""
        self.rest = b""
        """What has come behind the last chunk: an empty line, if nothing is to follow."""
        self._left = 0  # octets of the present chunk that are still to come, the line end behind it included
        self._line = b""  # the beginning of a size line

    def take(self, received: bytes) -> bytes:
        """Return the content that *received* adds. Raises ValueError if it is not chunked as it should be."""
        received = self._line + received
        self._line = b""
        parts: list[bytes] = []
        position = 0
        while position < len(received) and not self.over:
            if self._left:
                content = received[position : position + max(0, self._left - len(LINE_END))]
                parts.append(content)
                taken = min(self._left, len(received) - position)
                position += taken
                self._left -= taken
                continue
            end = received.find(LINE_END, position)
            if end < 0:
                self._line = received[position:]
                if len(self._line) > MAX_SIZE_LINE:
                    raise ValueError("a chunk without a size")
                break
            size = int(received[position:end].partition(b";")[0], 16)
            if size < 0:
                raise ValueError("a chunk of negative size")
            position = end + len(LINE_END)
            self._left = size + len(LINE_END)
            self.over = not size
        if self.over:
            self.rest = received[position:]
        return b"".join(parts)


def _content(connection: io.BufferedReader) -> Generator[bytes, None, bool]:
    """Yield the content of a chunked response as it arrives; return whether the connection can serve another one."""
    dechunker = Dechunker()
    while not dechunker.over:
        received = connection.read1(CHUNK)
        if not received:
            raise http.client.IncompleteRead(b"")
        if content := dechunker.take(received):
            yield content
    return dechunker.rest == LINE_END


class _Details(Struct):
    retry_after: float | None = field(name="retryAfterSeconds", default=None)


class _Status(Struct):
    """The API's ``Status`` object."""

    message: str | None = None
    reason: str | None = None
    details: _Details | None = None


_STATUS = Decoder(_Status)  # created on import, as those of ``decoding.RESOURCES``


class ResourceAttributes(NamedTuple):
    """What RBAC decides on: the same fields as in a SubjectAccessReview."""

    verb: str
    group: str
    resource: str
    namespace: str


def resource_attributes(method: str, path: str, query: Mapping[str, str]) -> ResourceAttributes:
    """Return what RBAC decides on for a request."""
    parts = path.strip("/").split("/")
    group, rest = (parts[1], parts[3:]) if parts[0] == "apis" and len(parts) > 2 else ("", parts[2:])
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, "get")
    if verb == "get" and len(rest) == 1:
        verb = "watch" if "watch" in query else "list"
    return ResourceAttributes(verb, group, "/".join((*rest[:1], *rest[2:3])), namespace)


def read_refusal(response: Any, attributes: ResourceAttributes) -> Refused:
    """Read the HTTP error in *response*, and close it."""
    status, retry_after = response.status, response.headers.get("Retry-After")
    try:
        text = response.read(MAX_ERROR, decode_content=True)
    except READ_ERRORS:
        text = b""
    finally:
        response.close()
    page = ""
    try:
        stated = _STATUS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):  # the page of a proxy, or nothing
        page = text.decode(errors="replace")
        stated = _Status(text[:200].decode(errors="replace"))
    reason = stated.reason or http.client.responses.get(status, "Error")
    message = " ".join((stated.message or "").split())
    if status == http.HTTPStatus.FORBIDDEN and f'"{ANONYMOUS}"' in message:
        message = f"{message}; the request had no credentials, expected a token or a client certificate"
    elif status == http.HTTPStatus.FORBIDDEN and " cannot " in message:  # RBAC; a quota, say, words it differently
        verb, group, resource, namespace = attributes
        verbs = '"list", "watch"' if verb in ("list", "watch") else f'"{verb}"'
        role = f"ClusterRole, or a Role in namespace {namespace}," if namespace else "ClusterRole"
        rule = f'apiGroups: ["{group}"], resources: ["{resource}"], verbs: [{verbs}]'
        message = f"{message}; a {role} lacks the rule {rule}"
    elif status == http.HTTPStatus.UNAUTHORIZED:
        message = f"{message or reason}; the credentials are missing, wrong or expired"
    elif status < http.HTTPStatus.BAD_REQUEST:
        message = "a redirect found, expected the answer of an API server; is this its address?"
    seconds = stated.details.retry_after if stated.details else None
    if retry_after is not None and retry_after.isdecimal():
        seconds = float(retry_after)
    return Refused(status, reason, message, seconds, page=page)


def unreachable(host: str, error: Exception, silence: float, *, begun: bool) -> Unreachable:
    """Turn an error of the HTTP library into Unreachable; *begun* says whether the response had begun."""
    match error:
        case urllib3.exceptions.NameResolutionError():
            return Unreachable(f"{host}: the host name cannot be resolved, expected one that DNS knows")
        case urllib3.exceptions.ConnectTimeoutError() if not isinstance(error, urllib3.exceptions.NewConnectionError):
            return Unreachable(f"{host}: no connection within {min(CONNECT_SECONDS, silence):g} s")
        case urllib3.exceptions.ReadTimeoutError() | TimeoutError() if not _gave_up(error):
            return Unreachable(f"{host}: silent for {silence:g} s", "silent")
    if begun:
        return Unreachable(f"{host}: the answer broke off", "cut")
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = next((arg for arg in cause.args if isinstance(arg, BaseException)), None) or cause.__cause__
    if isinstance(cause, ssl.SSLError):
        problem = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or one_line(cause)
        expected = next((f", {text}" for word, text in _EXPECTED_OF_TLS.items() if word in problem), "")
        return Unreachable(f"{host}: TLS: {problem.removesuffix('.')}{expected}")
    return Unreachable(f"{host}: {(isinstance(cause, OSError) and cause.strerror) or one_line(cause or error)}")


def _gave_up(error: Exception) -> bool:
    """Whether the kernel gave the connection up, since the peer acknowledges nothing."""
    return any(getattr(cause, "errno", None) == errno.ETIMEDOUT for cause in (error, error.__cause__))


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
