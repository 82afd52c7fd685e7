"""Options that both ends of the control connection share, and the names of failed handshakes."""

from __future__ import annotations

import zmq
import zmq.utils.monitor

from byteprophet.control.keys import Keys
from byteprophet.control.messages import LARGEST_BYTES

# Four times the largest accepted message. A message that is a little too large is refused and
# logged. One that is far too large ends the connection before it takes memory.
_LARGEST_FRAME_BYTES = 4 * LARGEST_BYTES

_HIGH_WATER_MARK = 128  # messages; beyond this, senders try again later or give up
_HEARTBEAT_MS = 2000
_SILENCE_MS = 6000
_HANDSHAKE_MS = 5000

_FAILED = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake broken off",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake: not our protocol or key",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "handshake: unknown key",
}


def prepare(socket: zmq.Socket[bytes], keys: Keys) -> None:
    """Sets limits, heartbeats and the socket's own keys. Must be called before bind or connect."""
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = _HIGH_WATER_MARK
    socket.maxmsgsize = _LARGEST_FRAME_BYTES
    socket.heartbeat_ivl = _HEARTBEAT_MS
    socket.heartbeat_timeout = socket.heartbeat_ttl = _SILENCE_MS
    socket.handshake_ivl = _HANDSHAKE_MS
    socket.curve_publickey = keys.public
    socket.curve_secretkey = keys.secret


def watch_handshakes(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """A socket that reports failed handshakes on ``socket``, for ``failed_handshakes``."""
    events = 0
    for event in _FAILED:
        events |= int(event)
    monitor = socket.get_monitor_socket(zmq.Event(events))
    assert monitor is not None
    return monitor


def failed_handshakes(monitor: zmq.Socket[bytes], most: int) -> list[str]:
    """The reasons for failed handshakes since the last call, at most ``most``. Never blocks."""
    reasons: list[str] = []
    while len(reasons) < most and monitor.poll(0):
        event = zmq.utils.monitor.recv_monitor_message(monitor, zmq.NOBLOCK)
        reasons.append(_FAILED.get(zmq.Event(event["event"]), "handshake failed"))
    return reasons
