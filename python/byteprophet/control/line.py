"""The worker's connection to the controller: non-blocking, and made anew when it is dead.

libzmq looks for a controller that is gone by itself, but gives a connection up for good after a
handshake that the other side refuses, which an impostor on the controller's port can do. So one
over which nothing can be sent for ``_DEAD_S`` is closed, and another takes its place.

Threads: all by one.
"""

from __future__ import annotations

import time

import zmq

from byteprophet.control.keys import Keys
from byteprophet.control.messages import Message, encode
from byteprophet.control.sockets import failed_handshakes, prepare, watch_handshakes
from byteprophet.errors import UserError

_RECONNECT_MS, _LONGEST_RECONNECT_MS = 100, 2000
_DEAD_S = 3.0
_FAREWELL_MS = 200


class Line:
    """To ``address``, ``tcp://host:port``; UserError where it is no such address."""

    def __init__(self, address: str, keys: Keys) -> None:
        self._address = address
        self._keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._alive_s = time.monotonic()
        try:
            self._connect()
        except zmq.ZMQError as error:
            self._context.destroy(0)
            why = zmq.strerror(error.errno or 0)
            raise UserError(f"controller {address}: {why}; use tcp://ADDRESS:PORT") from None

    def wait(self, timeout_s: float) -> None:
        """Until a message is here, at most ``timeout_s``."""
        self._socket.poll(int(timeout_s * 1000))

    def receive(self, most: int) -> list[list[bytes]]:
        """At most ``most`` messages that are here, as frames."""
        messages: list[list[bytes]] = []
        while len(messages) < most and self._socket.poll(0):
            messages.append(self._socket.recv_multipart(zmq.NOBLOCK))
        return messages

    def send(self, message: Message) -> bool:
        """Whether it could be queued; False while there is no controller."""
        now_s = time.monotonic()
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            if now_s - self._alive_s > _DEAD_S:
                self._alive_s = now_s
                self._disconnect()
                self._connect()
            return False
        self._alive_s = now_s
        return True

    def turned_away(self, most: int) -> list[str]:
        """Why handshakes failed since the last call: who is there is not the controller."""
        return failed_handshakes(self._monitor, most)

    def close(self) -> None:
        """Gives what was sent a moment to leave, and ends."""
        self._disconnect(_FAREWELL_MS)
        self._context.term()

    def _connect(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        prepare(self._socket, self._keys)
        self._socket.curve_serverkey = self._keys.peer
        self._socket.immediate = True  # nothing queues up for a controller that is not there
        self._socket.reconnect_ivl = _RECONNECT_MS
        self._socket.reconnect_ivl_max = _LONGEST_RECONNECT_MS
        self._monitor = watch_handshakes(self._socket)
        self._socket.connect(self._address)

    def _disconnect(self, linger_ms: int = 0) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)
