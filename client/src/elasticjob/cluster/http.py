"""Requests to one API server, as JSON."""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import urllib3
from urllib3.util import Timeout

from elasticjob.cluster.api_errors import ServerBusyError, UnauthorizedError, api_error
from elasticjob.cluster.credentials import Certificate, Credentials
from elasticjob.cluster.kubeconfig import ClusterAccess
from elasticjob.cluster.proxies import proxy_for, usable
from elasticjob.errors import UnreachableError

Json = dict[str, Any]
CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
SLOW_SECONDS = 1.5
"""An answer that takes longer is worth a word to the person who waits, s."""
STREAM_SECONDS = 330.0
"""Longest silence of a stream, s. A watch ends earlier: the API server is asked to close it after 5 minutes."""
METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
"""Accepts a list of what is in metadata only."""
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
"""Accepts a list as the rows that kubectl prints."""
MOST_RETRIES, LONGEST_RETRY = 10, 30.0
"""How often a request that the API server postpones is sent again, as by kubectl, and after how many seconds at most.
"""
MERGE_PATCH = "application/merge-patch+json"

_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
"""So that a stream notices within half a minute that its API server is gone."""
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


class ApiServer:
    """Thread-safe. Every method raises an ElasticJobError that a person understands."""

    def __init__(
        self,
        target: ClusterAccess,
        warn: Callable[[str], None] | None = None,
        on_slow: Callable[[str], None] | None = None,
    ) -> None:
        """`warn`: receives the API server's warnings. `on_slow`: receives its address if an answer takes long."""
        self.target = target
        self._on_slow = on_slow
        self._warn = warn or (lambda _: None)
        self._credentials = Credentials(target)
        self.skew = 0.0
        """How far the API server's clock is ahead of this machine's, s."""
        self._lock = threading.Lock()
        self._pool: urllib3.PoolManager | None = None
        self._certificate: Certificate | None = None
        """With which the connections of the pool were opened."""
        proxy = target.proxy or proxy_for(target.server, os.environ)
        self._proxy = usable(proxy) if proxy else ""

    def _connections(self) -> urllib3.PoolManager:
        """New ones if the program that logs in has printed another client certificate."""
        certificate = self._credentials.certificate
        with self._lock:
            if self._pool is None or certificate != self._certificate:
                self._pool, self._certificate = self._new_pool(certificate), certificate
            return self._pool

    def _new_pool(self, certificate: Certificate) -> urllib3.PoolManager:
        target = self.target
        options: dict[str, Any] = {"maxsize": 8, "retries": False, "socket_options": _KEEPALIVE}
        if target.server.startswith("https:"):
            options["ssl_context"] = self._credentials.tls(certificate)
            if target.server_name:
                options["server_hostname"] = target.server_name
            if target.insecure:
                options["assert_hostname"] = False
        return _through(self._proxy, options) if self._proxy else urllib3.PoolManager(**options)

    def now(self) -> datetime.datetime:
        """The API server's clock, by its last answer: this machine's may be wrong."""
        return datetime.datetime.fromtimestamp(time.time() + self.skew, datetime.timezone.utc)

    def get(self, path: str, **query: Any) -> Json:
        return self.call("GET", path, **query)

    def call(self, method: str, path: str, body: Any = None, content: str = "application/json", **query: Any) -> Json:
        """The answer to one request."""
        response = self._send(method, path, body, content, query, stream=False)
        try:
            answer: Json = json.loads(response.data)
        except ValueError:
            raise UnreachableError(
                f"{self.target.server} does not answer as an API server, but with {response.data[:60]!r}.",
                "Check the server's address in the kubeconfig, and whether a proxy or a login page is in between.",
            ) from None
        return answer

    def text(self, path: str, **query: Any) -> str:
        """An answer that is not JSON."""
        return self._send("GET", path, None, "", query, stream=False).data.decode("utf-8", "replace")

    def stream(self, path: str, **query: Any) -> Stream:
        """Opens a watch or a log."""
        return Stream(self._send("GET", path, None, "", query, stream=True))

    def _send(
        self, method: str, path: str, body: Any, content: str, query: dict[str, Any], *, stream: bool
    ) -> urllib3.BaseHTTPResponse:
        renewed = False
        for _ in range(MOST_RETRIES):
            try:
                return self._try_to_send(method, path, body, content, query, stream=stream)
            except UnauthorizedError:
                if renewed or not self._credentials.forget():
                    raise
                renewed = True
            except ServerBusyError as error:
                if error.retry_after is None:
                    raise
                time.sleep(error.retry_after)
        return self._try_to_send(method, path, body, content, query, stream=stream)

    def _try_to_send(
        self, method: str, path: str, body: Any, content: str, query: dict[str, Any], *, stream: bool
    ) -> urllib3.BaseHTTPResponse:
        accept = query.get("accept", "application/json, */*")
        asked = {key: str(value) for key, value in query.items() if value not in (None, "") and key != "accept"}
        url = f"{self.target.server}{path}" + (f"?{urlencode(asked)}" if asked else "")
        headers = urllib3.HTTPHeaderDict(self._credentials.headers())
        headers.extend({"Accept": accept, "User-Agent": "elasticjob"})
        if not stream:
            headers["Accept-Encoding"] = "gzip"
        for name, value in self.target.impersonate:
            headers.add(name, value)
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = content
        timeout = Timeout(connect=CONNECT_SECONDS, read=STREAM_SECONDS if stream else READ_SECONDS)
        options: dict[str, Any] = {"preload_content": not stream, "redirect": False, "timeout": timeout}
        with self._slowness_told():
            try:
                response = self._connections().request(method, url, body=data, headers=headers, **options)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise self._unreachable(error) from error
            self._note(response)
            if response.status >= 300:
                raise self._error(response, path)
            return response

    @contextlib.contextmanager
    def _slowness_told(self) -> Iterator[None]:
        if self._on_slow is None:
            yield
            return
        timer = threading.Timer(SLOW_SECONDS, self._on_slow, [self.target.server])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _note(self, response: urllib3.BaseHTTPResponse) -> None:
        stamp = response.headers.get("Date")
        parsed = email.utils.parsedate_to_datetime(stamp) if stamp else None
        if parsed is not None:
            ahead = parsed.timestamp() - time.time()
            self.skew = ahead if abs(ahead) > 2 else 0.0  # whole seconds, and the time that the answer took
        for warning in _WARNING.findall(response.headers.get("Warning", "")):
            self._warn(warning.replace('\\"', '"'))

    def _error(self, response: urllib3.BaseHTTPResponse, path: str) -> Exception:
        data = response.data
        try:
            body = json.loads(data)
        except ValueError:
            body = {"message": data.decode("utf-8", "replace").strip()[:300]}
        namespace = _namespace_of(path) or self.target.namespace
        error = api_error(response.status, body if isinstance(body, dict) else {}, path, namespace, self.target.server)
        after = response.headers.get("Retry-After", "")
        if isinstance(error, ServerBusyError) and after.isdecimal():
            error.retry_after = min(float(after), LONGEST_RETRY)
        return error

    def _unreachable(self, error: Exception) -> UnreachableError:
        where = f"the API server {self.target.server}"
        if self.target.context:
            where += f" of context {self.target.context}"
        return UnreachableError(
            f"Cannot reach {where}: {_cause(error)}.",
            "Check that the cluster is running and that this machine may reach it (network, VPN, proxy), or choose "
            "another --context.",
        )


class Stream:
    """Lines of a watch or a log as they come. Close it from any thread to end it."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        """Raises ServerBusyError if the connection breaks."""
        pending = b""
        try:
            for chunk in self._response.stream(amt=None):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    if self._closed:
                        return
                    yield line
            if pending and not self._closed:
                yield pending
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            if not self._closed:
                raise ServerBusyError(f"The connection to the API server broke: {_cause(error)}.") from error
        finally:
            self._response.close()

    def close(self) -> None:
        """Wakes the thread that reads, which ends as if the server had closed the connection."""
        self._closed = True
        sock = getattr(getattr(self._response, "_connection", None), "sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket.shutdown: it turns TLS off, and the reader would go on with encrypted bytes.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _cause(error: BaseException) -> str:
    """The innermost cause, without the names of classes and objects."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _cause(reason)
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "its name cannot be resolved"
    cause = error.__cause__ or error.__context__
    wrong = next((arg for arg in (error, cause, *error.args) if isinstance(arg, ssl.SSLCertVerificationError)), None)
    if wrong is not None:
        return f"its certificate does not match the kubeconfig ({wrong.verify_message})"
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    if isinstance(error, urllib3.exceptions.TimeoutError | TimeoutError):
        return "no answer in time"
    text = re.sub(r"^<[^>]*>: |^[\w.]*\(.*?\): ", "", str(error))
    return text.split(": ", 1)[-1].rstrip(".") if text.startswith("HTTP") else text.rstrip(".")


def _namespace_of(path: str) -> str:
    found = re.search(r"/namespaces/([^/]+)", path)
    return found[1] if found else ""


def _through(proxy: str, options: dict[str, Any]) -> urllib3.ProxyManager:
    """With the user and password of the proxy's URL, which urllib3 leaves out."""
    parts = urlsplit(proxy)
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    headers = urllib3.util.make_headers(proxy_basic_auth=login) if login else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **options)
