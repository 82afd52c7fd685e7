"""The worker's connection to the controller: non-blocking, and replaced when it is dead.

libzmq reconnects by itself when a controller is gone. But it gives up a connection for good if the
other side refuses a handshake, which an impostor on the controller's port can do. So a connection
that could send nothing for ``_DEAD_S`` is closed and replaced.

Threads: one thread calls everything.
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
    """A connection to ``address``, ``tcp://host:port``. Raises ``UserError`` if it is not valid."""

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
        """Waits until a message has arrived, at most ``timeout_s``."""
        self._socket.poll(int(timeout_s * 1000))

    def receive(self, most: int) -> list[list[bytes]]:
        """At most ``most`` messages that have arrived, as frames."""
        messages: list[list[bytes]] = []
        while len(messages) < most and self._socket.poll(0):
            messages.append(self._socket.recv_multipart(zmq.NOBLOCK))
        return messages

    def send(self, message: Message) -> bool:
        """Queues ``message``; False if that is not possible, e.g. without a controller."""
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
        """The reasons for failed handshakes since the last call, at most ``most``.

        A failed handshake means that the other side is not the job's controller.
        """
        return failed_handshakes(self._monitor, most)

    def close(self) -> None:
        """Closes the connection. Queued messages get a moment to leave."""
        self._disconnect(_FAREWELL_MS)
        self._context.term()

    def _connect(self) -> None:
        self._socket = self._context.socket(zmq.DEALER)
        prepare(self._socket, self._keys)
        self._socket.curve_serverkey = self._keys.peer
        self._socket.immediate = True  # no messages are queued for an absent controller
        self._socket.reconnect_ivl = _RECONNECT_MS
        self._socket.reconnect_ivl_max = _LONGEST_RECONNECT_MS
        self._monitor = watch_handshakes(self._socket)
        self._socket.connect(self._address)

    def _disconnect(self, linger_ms: int = 0) -> None:
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)
