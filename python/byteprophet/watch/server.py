"""Serves the live view on loopback: the page, its state, and Prometheus' metrics.

    GET /          the page            GET /state     the state as JSON
    GET /metrics   Prometheus' text    all of them: ?token=... or Authorization: Bearer ...

The server binds 127.0.0.1 and nothing else. Whoever has not the token gets 403, whatever is asked
for. Nothing but GET is answered. Requests are not logged, because they contain the token.

Everybody on this machine can connect, so connections that have not shown the token are few: 64.
While they are all in use, the oldest one makes room for the next, once it has had a second.

Threads: one per request, and one that accepts. They share the token and the page, which do not
change, ``Shared``, which has a lock, and the connections without a token, which have one, too.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from byteprophet.errors import Error, UserError, described, one_line
from byteprophet.watch.metrics import CONTENT_TYPE, metrics_text
from byteprophet.watch.sources import Shared
from byteprophet.watch.tokens import is_right

ADDRESS = "127.0.0.1"
_REQUEST_S = 10.0
_MOST_STRANGERS = 64
_STRANGER_S = 1.0
_SCHEME = "bearer"
"""Schemes may be written with capitals or without (RFC 9110, section 11.1)."""


class LiveServer:
    """A context manager: serves from entry to exit. ``port`` 0: any free one.

    Raises ``UserError`` if the port cannot be used. ``page`` makes the page when it is first asked
    for.
    """

    def __init__(self, shared: Shared, token: str, page: Callable[[], str], port: int = 0) -> None:
        handler = _handler(shared, token, page)
        try:
            self._server = _Server((ADDRESS, port), handler)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "there is no such port"
            raise UserError(f"port {port} of {ADDRESS} cannot be used: {reason}") from None
        self._token = token
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="byteprophet-watch", daemon=True
        )

    @property
    def port(self) -> int:
        """The port."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """What a browser is given."""
        return f"http://{ADDRESS}:{self.port}/?token={self._token}"

    def __enter__(self) -> LiveServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Waiting for them at the end would take as long as the slowest client.
    block_on_close = False
    # Of connections that are not accepted yet. Beyond them, the kernel drops connections, whose
    # clients try again only after 1, 3, 7, ... seconds. socketserver's own limit is 5.
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        # Connections that have not shown the token, and since when, the oldest one first.
        self._strangers: dict[socket.socket, float] = {}
        self._fewer = threading.Condition()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._fewer:
            while len(self._strangers) >= _MOST_STRANGERS:
                self._make_room()
            self._strangers[request] = time.monotonic()
        super().process_request(request, client_address)

    def _make_room(self) -> None:
        """Waits for one stranger less; ends the oldest one if it has had its time."""
        oldest, since_s = next(iter(self._strangers.items()))
        left_s = since_s + _STRANGER_S - time.monotonic()
        if left_s <= 0:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
        self._fewer.wait(left_s if left_s > 0 else _STRANGER_S)

    def knows(self, connection: socket.socket) -> None:
        """``connection`` has shown the token, or is at its end."""
        with self._fewer:
            self._strangers.pop(connection, None)
            self._fewer.notify()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.knows(request)

    def handle_error(self, _request: Any, _address: Any) -> None:
        """Says nothing: a client has gone away."""


def _handler(shared: Shared, token: str, page: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    made: list[str] = []
    making = threading.Lock()

    def whole_page() -> str:
        with making:
            if not made:
                made.append(page())
            return made[0]

    class Handler(BaseHTTPRequestHandler):
        timeout = _REQUEST_S
        server_version = "byteprophet"
        sys_version = ""
        server: _Server

        def do_GET(self) -> None:
            path = self._asked()
            if path is None:
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", "the token is missing or wrong\n")
                return
            self.server.knows(self.connection)
            try:
                if path == "/":
                    self._answer(HTTPStatus.OK, "text/html", whole_page())
                elif path == "/state":
                    self._answer(
                        HTTPStatus.OK,
                        "application/json",
                        json.dumps(shared.state(), allow_nan=False),
                    )
                elif path == "/metrics":
                    self._answer(HTTPStatus.OK, CONTENT_TYPE, metrics_text(shared.state()))
                else:
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is no such page\n")
            except Error as error:
                text = f"{one_line(described(error))}\n"
                self._answer(HTTPStatus.BAD_GATEWAY, "text/plain", text)

        def _asked(self) -> str | None:
            """The path that is asked for; None without the token."""
            try:
                parts = urlsplit(self.path)
            except ValueError:  # e.g. "http://["
                return None
            return parts.path if is_right(token, self._given(parts.query)) else None

        def _given(self, query: str) -> str | None:
            authorization = self.headers.get("Authorization", "")
            scheme, _, given = authorization.partition(" ")
            if scheme.lower() == _SCHEME:
                return str(given.strip())
            try:
                return parse_qs(query, max_num_fields=8).get("token", [None])[0]
            except ValueError:
                return None

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            content = text.encode("utf-8", "replace")
            self.send_response(status)
            # Prometheus' type has parameters of its own.
            self.send_header("Content-Type", kind if ";" in kind else f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 (its name)
            """Logs nothing: a request has the token."""

    return Handler
