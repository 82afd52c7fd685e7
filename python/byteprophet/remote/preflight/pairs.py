"""How a host reaches the others: which of their ports, how far their clocks are, how fast.

    python -m byteprophet.remote.preflight.pairs INDEX TOLD

runs on every host at the same time. TOLD is a file, or - for standard input, with a ``Meeting``.

A connection proves first that it knows the meeting's key, and is closed otherwise:

    listens    16 random bytes
    connects   8 bytes, its index; HMAC-SHA256(key, random bytes and index); then commands:
               P  the answer is 8 bytes, the listener's clock in ns
               S  bytes follow until the sending half is closed; the answer is 8 bytes, their number
               B  the host that has connected is done

In the first phase, a host connects to all ports of all others, in any order and at once. In the
second one it sends to the others for a moment each, host i in round r to host i + r, so that at one
time each host sends to one and receives from one, as long as all are about equally fast.

Threads: the main thread goes through both phases. One thread per port accepts, and one per
connection answers. They share only ``_Guests``, which knows who is done, under its condition. It
is the only wait without a socket, and ends when all others are done, or after ``_LATE_S``.
"""

from __future__ import annotations

import errno
import hmac
import json
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field

from byteprophet.errors import UserError
from byteprophet.input_files import parse_json
from byteprophet.remote.preflight.mark import own_index, read_told, tell_marked

_PING, _SEND, _BYE = b"P", b"S", b"B"
_RANDOM_BYTES, _PROOF_BYTES = 16, 32
_NUMBER = struct.Struct("<q")
_PINGS = 8
_BLOCK = bytes(1 << 18)
_CONNECT_TIMEOUT_S = 4.0
_ANSWER_TIMEOUT_S = 10.0
_START_S = 20.0  # how much later another host may begin
_RETRY_S = 0.1
_LATE_S = 20.0
_MOST_AT_ONCE = 32


@dataclass(frozen=True)
class Peer:
    """A host of the meeting. ``ports`` are those on which it listens, by their purpose."""

    name: str
    address: str
    ports: dict[str, int]


@dataclass(frozen=True)
class Meeting:
    """All hosts, a key that only they know, and for how long each sends to each other one.

    A host without ports does not take part.
    """

    peers: list[Peer]
    key: str
    send_s: float

    @classmethod
    def parse(cls, text: str) -> Meeting:
        """The meeting that ``to_text`` wrote."""
        fields = parse_json(text)
        return cls(**{**fields, "peers": [Peer(**peer) for peer in fields["peers"]]})

    def to_text(self) -> str:
        """As ``parse`` reads it."""
        return json.dumps(asdict(self))


@dataclass
class Pair:
    """How ``source`` reaches ``target``, both by their index.

    Attributes:
        errors: why a port is not reached, by its purpose; empty: all are.
        round_trip_ns: the shortest of some.
        offset_ns: the target's clock minus the source's, exact to half of the round trip.
        bits_per_s: at which the source sent.
    """

    source: int
    target: int
    errors: dict[str, str] = field(default_factory=dict)
    round_trip_ns: int | None = None
    offset_ns: int | None = None
    bits_per_s: float | None = None


class _Guests:
    """Knows which hosts have come here, and which of them are done."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._come: set[int] = set()
        self._done: set[int] = set()

    def comes(self, index: int) -> None:
        with self._condition:
            self._come.add(index)

    def is_done(self, index: int) -> None:
        with self._condition:
            self._done.add(index)
            self._condition.notify_all()

    def wait(self, awaited: set[int], timeout_s: float) -> None:
        """Until all ``awaited``, and all that have come, are done, or until the time is over."""
        with self._condition:
            self._condition.wait_for(lambda: self._done >= self._come | awaited, timeout_s)


def meet(meeting: Meeting, own: int) -> list[Pair]:
    """Take part as host ``own``; how it reaches each other one, or itself if it is alone.

    Raises ``UserError`` if it cannot listen where the others would look for it.
    """
    key, guests, count = bytes.fromhex(meeting.key), _Guests(), len(meeting.peers)
    ring = [(own + step) % count for step in range(1, count)]
    others = [other for other in ring if meeting.peers[other].ports] or [own]
    pairs = [Pair(own, other) for other in others]
    end_s = time.monotonic() + _START_S
    with ExitStack() as stack:
        for port in meeting.peers[own].ports.values():
            listener = stack.enter_context(_listen(meeting.peers[own], port))
            threading.Thread(target=_accept, args=(listener, key, guests), daemon=True).start()
        with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
            list(pool.map(lambda pair: _reach(meeting, key, pair, end_s), pairs))
        reached = [pair for pair in pairs if pair.round_trip_ns is not None]
        for pair in reached:
            _measure(meeting, key, pair)
        for pair in reached:
            with suppress(OSError), _connect(meeting.peers[pair.target], key, own) as connection:
                connection.sendall(_BYE)
        guests.wait({pair.target for pair in reached}, _LATE_S)
    return pairs


def _listen(peer: Peer, port: int) -> socket.socket:
    try:
        return socket.create_server((peer.address, port))
    except OSError as error:
        raise UserError(f"it cannot listen on {peer.address}:{port}: {error.strerror}") from None


def _accept(listener: socket.socket, key: bytes, guests: _Guests) -> None:
    with suppress(OSError):  # the listener was closed
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, key, guests), daemon=True).start()


def _answer(connection: socket.socket, key: bytes, guests: _Guests) -> None:
    with suppress(OSError), connection:
        connection.settimeout(_ANSWER_TIMEOUT_S)
        challenge = secrets.token_bytes(_RANDOM_BYTES)
        connection.sendall(challenge)
        index = _receive(connection, _NUMBER.size)
        proof = _receive(connection, _PROOF_BYTES)
        if not hmac.compare_digest(proof, hmac.digest(key, challenge + index, "sha256")):
            return
        (guest,) = _NUMBER.unpack(index)
        guests.comes(guest)
        while command := connection.recv(1):
            if command == _PING:
                connection.sendall(_NUMBER.pack(time.time_ns()))
            elif command == _SEND:
                connection.sendall(_NUMBER.pack(_drain(connection)))
            elif command == _BYE:
                guests.is_done(guest)


def _drain(connection: socket.socket) -> int:
    """Read to the end; the number of bytes."""
    count, buffer = 0, bytearray(len(_BLOCK))
    while received := connection.recv_into(buffer):
        count += received
    return count


def _connect(peer: Peer, key: bytes, own: int, port: int | None = None) -> socket.socket:
    """A connection that has proved itself. ``port`` None: the first one."""
    place = (peer.address, next(iter(peer.ports.values())) if port is None else port)
    connection = socket.create_connection(place, _CONNECT_TIMEOUT_S)
    try:
        connection.settimeout(_ANSWER_TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = _receive(connection, _RANDOM_BYTES)
        index = _NUMBER.pack(own)
        connection.sendall(index + hmac.digest(key, challenge + index, "sha256"))
    except OSError:
        connection.close()
        raise
    return connection


def _receive(connection: socket.socket, size_bytes: int) -> bytes:
    received = b""
    while len(received) < size_bytes:
        part = connection.recv(size_bytes - len(received))
        if not part:
            raise ConnectionResetError(0, "the connection was closed")
        received += part
    return received


def _reach(meeting: Meeting, key: bytes, pair: Pair, end_s: float) -> None:
    """Connect to every port of the target, and compare clocks; the result is in ``pair``."""
    peer = meeting.peers[pair.target]
    for purpose, port in peer.ports.items():
        error = _ping(peer, key, port, pair)
        while error is not None and error.errno == errno.ECONNREFUSED and time.monotonic() < end_s:
            time.sleep(_RETRY_S)  # it may not have begun
            error = _ping(peer, key, port, pair)
        if error is not None:
            pair.errors[purpose] = _reason(error)


def _ping(peer: Peer, key: bytes, port: int, pair: Pair) -> OSError | None:
    try:
        with _connect(peer, key, pair.source, port) as connection:
            for _ in range(_PINGS):
                sent_ns, began_ns = time.time_ns(), time.monotonic_ns()
                connection.sendall(_PING)
                (theirs_ns,) = _NUMBER.unpack(_receive(connection, _NUMBER.size))
                took_ns = time.monotonic_ns() - began_ns
                if pair.round_trip_ns is None or took_ns < pair.round_trip_ns:
                    pair.round_trip_ns = took_ns
                    pair.offset_ns = theirs_ns - (sent_ns + took_ns // 2)
    except OSError as error:
        return error
    return None


def _measure(meeting: Meeting, key: bytes, pair: Pair) -> None:
    """Send for a moment. The time until the answer counts, too: all bytes were read."""
    try:
        with _connect(meeting.peers[pair.target], key, pair.source) as connection:
            began_s = time.monotonic()
            connection.sendall(_SEND)
            while time.monotonic() < began_s + meeting.send_s:
                connection.sendall(_BLOCK)
            connection.shutdown(socket.SHUT_WR)
            (count,) = _NUMBER.unpack(_receive(connection, _NUMBER.size))
            pair.bits_per_s = 8 * count / (time.monotonic() - began_s)
    except OSError as error:
        pair.errors["sending"] = _reason(error)


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_TIMEOUT_S:.0f} s"
    return error.strerror or str(error)


def main(arguments: Sequence[str]) -> int:
    """Take part as the arguments say; prints one line."""
    own = own_index(arguments[0])
    try:
        rows = [asdict(pair) for pair in meet(Meeting.parse(read_told(arguments[1])), own)]
        tell_marked({"index": own, "error": "", "pairs": rows})
    except UserError as error:
        tell_marked({"index": own, "error": str(error), "pairs": []})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
