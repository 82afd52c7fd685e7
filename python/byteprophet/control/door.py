"""The controller's socket: admits clients with the workers' key, and reports the others.

Threads: the controller's one thread calls everything. pyzmq's authenticator has a thread of its
own, which only compares keys; libzmq's I/O thread does the handshakes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import zmq
from zmq.auth.thread import ThreadAuthenticator

from byteprophet.control.keys import Keys
from byteprophet.control.messages import Message, encode
from byteprophet.control.sockets import failed_handshakes, prepare, watch_handshakes
from byteprophet.errors import UserError

_DOMAIN = "control"  # of the authenticator
_BIND_TIMEOUT_S = 10.0  # to wait for the port of a controller that was killed


class _Guard:
    """Tells the authenticator which key is allowed."""

    def __init__(self, allowed: bytes) -> None:
        self._allowed = allowed

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether ``key`` (z85 text in bytes) is allowed."""
        return key == self._allowed


class Door:
    """Listens on ``listen`` (``tcp://address:port``). ``endpoint`` is the actual address."""

    def __init__(self, listen: str, keys: Keys) -> None:
        with contextlib.ExitStack() as undo:
            context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            undo.callback(context.destroy, 0)
            authenticator = ThreadAuthenticator(context)
            authenticator.start()
            undo.callback(authenticator.stop)
            guard = _Guard(keys.peer)
            authenticator.configure_curve_callback(_DOMAIN, credentials_provider=guard)
            self._socket = context.socket(zmq.ROUTER)
            prepare(self._socket, keys)
            self._socket.curve_server = True
            self._socket.zap_domain = _DOMAIN.encode()
            self._socket.router_mandatory = True
            self._monitor = watch_handshakes(self._socket)
            undo.callback(self._socket.disable_monitor)
            _bind(self._socket, listen)
            self._undo = undo.pop_all()
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Waits until there is something to do, at most ``timeout_s``."""
        self._poller.poll(int(timeout_s * 1000))

    def receive(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yields messages until none is left that has arrived: the connection and the frames."""
        while self._socket.poll(0):
            peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            yield peer, frames

    def turned_away(self, most: int) -> list[str]:
        """The reasons for failed handshakes since the last call, at most ``most``."""
        return failed_handshakes(self._monitor, most)

    def send(self, peer: bytes, message: Message) -> bool:
        """Queues ``message``; False if the connection is gone or its queue is full."""
        try:
            self._socket.send_multipart([peer, encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        """Ends everything at once."""
        self._undo.close()


def _bind(socket: zmq.Socket[bytes], listen: str) -> None:
    deadline_s = time.monotonic() + _BIND_TIMEOUT_S
    while True:
        try:
            socket.bind(listen)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE and time.monotonic() < deadline_s:
                time.sleep(0.1)
                continue
            raise UserError(
                f"--listen {listen}: {zmq.strerror(error.errno or 0)}; use tcp://ADDRESS:PORT"
            ) from None
        return
