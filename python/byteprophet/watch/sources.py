"""Where states come from: a run directory here, or another viewer.

``Shared`` gives the same state to everybody who asks within a period. Threads: any may call it; its
lock covers the source, which so has one caller at a time.
"""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from byteprophet.errors import JobFailed, UserError
from byteprophet.input_files import has_schema, parse_json
from byteprophet.observe.newest_run import newest_run
from byteprophet.watch.run_watch import RunWatch
from byteprophet.watch.state import SCHEMA

PERIOD_S = 1.0
_TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 26
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Source(Protocol):
    """Gives states."""

    def look(self) -> dict[str, Any]:
        """The state now."""


class RemoteWatch:
    """The states of another viewer, by the address that it printed, or with its token beside it.

    Raises ``UserError`` if the address is not such an address, and ``JobFailed`` if the viewer does
    not answer, or not with a state.
    """

    def __init__(self, address: str, token: str | None = None) -> None:
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise UserError(f"{address}: is not an address: {error}") from None
        if parts.scheme != "http" or host is None or port is None or not (parts.query or token):
            raise UserError(
                f"{parts.scheme}://{parts.netloc}: give the whole address that byteprophet watch "
                "printed, e.g. http://127.0.0.1:8000/?token=..., or its token by --token-file"
            )
        if host not in _LOOPBACK:
            raise UserError(
                f"{host}: viewers listen on loopback only: forward the port, e.g. ssh -L "
                f"{port}:127.0.0.1:{port} {host}, and use 127.0.0.1 here"
            )
        self._where = f"{host}:{port}"
        if any(not "!" <= letter <= "~" for letter in parts.query):
            raise UserError(f"{self._where}: the token in the address has a letter that none has")
        bearer = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._request = urllib.request.Request(
            f"http://{parts.netloc}/state?{parts.query}", headers=bearer
        )
        # Without a proxy: it could not reach this machine's loopback interface.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def look(self) -> dict[str, Any]:
        """The other viewer's state."""
        try:
            with self._opener.open(self._request, timeout=_TIMEOUT_S) as answer:
                content = answer.read(_MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            why = "the token is wrong" if error.code == 403 else f"HTTP status {error.code}"
            raise JobFailed(f"viewer at {self._where}: {why}") from None
        except http.client.HTTPException:
            raise JobFailed(f"viewer at {self._where}: what answers there is no viewer") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise JobFailed(f"viewer at {self._where}: does not answer: {reason}") from None
        try:
            state = parse_json(content) if len(content) <= _MOST_BYTES else None
        except ValueError:
            state = None
        if not isinstance(state, dict) or not has_schema(state, SCHEMA):
            raise JobFailed(f"viewer at {self._where}: its answer is not a state of this version")
        return state


class Shared:
    """A source for several threads, which is looked at once per period at most."""

    def __init__(self, source: Source, period_s: float = PERIOD_S) -> None:
        self._source = source
        self._period_s = period_s
        self._lock = threading.Lock()
        self._state: dict[str, Any] | None = None
        self._looked_s = 0.0

    def state(self) -> dict[str, Any]:
        """A state that is at most a period old."""
        with self._lock:
            now_s = time.monotonic()
            if self._state is None or now_s - self._looked_s >= self._period_s:
                self._state = self._source.look()
                self._looked_s = now_s
            return self._state


def is_address(what: str) -> bool:
    """Whether a user means another viewer."""
    return "://" in what


def source_of(what: str, token: str | None = None) -> tuple[Source, str]:
    """The source that a user names: a run directory, a directory of runs, or an address.

    Also returns its name. ``token``: for an address without one. Raises ``UserError`` if there is
    no such thing.
    """
    if is_address(what):
        return RemoteWatch(what, token), urlsplit(what).netloc
    run = newest_run(Path(what))
    return RunWatch(run), str(run)
