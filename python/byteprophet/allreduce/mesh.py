"""The rendezvous of a mesh: ranks that share a store connect to each other.

Each rank listens on a port of the address at which the others reach it, and publishes both in the
store. Higher ranks connect to lower ones. Both sides of a connection prove to each other that they
know a key. Its parts are one that rank 0 has put into the store, new for each rendezvous, and one
that the launcher has given to all ranks, if there is one. So a process that can reach a port, but
not the store, cannot join; and with a launcher, nor can one that reads the store:

    connects   hello: mark, own rank, the other's rank, a nonce
    listens    a nonce, proof(key, "listens", hello, both nonces)
    connects   proof(key, "connects", hello, both nonces)
    listens    one byte: welcome

Connections are not encrypted afterwards. A connection without a proof is closed at the end of the
rendezvous at the latest, and does not delay other connections. All ports are closed at the end. A
rank that fails tells the others why (``meeting.py``).
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Generator
from contextlib import ExitStack, suppress

from byteprophet._core import Mesh
from byteprophet.allreduce.address import SET
from byteprophet.allreduce.meeting import LOOK_S, Meeting
from byteprophet.errors import JobFailed, UserError

_MARK = b"byteprophet mesh"
_HELLO = struct.Struct("<16sII32s")
_NONCE_BYTES = _KEY_BYTES = _PROOF_BYTES = 32
_WELCOME = b"+"
_MOST_UNPROVEN = 256  # the limit of unproven connections; beyond it, the oldest is closed
_RETRY_S = 0.05
# The other rank has published that it listens. If it cannot be reached for _NOBODY_S seconds, it is
# not late, and further waiting is useless.
_NOBODY_THERE = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
_NOBODY_S = 20.0
_CONNECT_S = 5.0  # the kernel of a host that listens accepts at once, however busy the rank is


def connect(
    meeting: Meeting,
    rank: int,
    size: int,
    *,
    address: str,
    secret: str = "",
    frame_bytes: int = 1 << 18,
) -> Mesh:
    """Connect ``rank`` to all others by ``connected_sockets``, and make a mesh of the sockets.

    ``frame_bytes``: the size of a frame. More urgent data may overtake after each frame.
    """
    sockets = connected_sockets(meeting, rank, size, address=address, secret=secret)
    return Mesh(rank, sockets, frame_bytes)


def connected_sockets(
    meeting: Meeting, rank: int, size: int, *, address: str, secret: str = ""
) -> list[int]:
    """Connect ``rank`` to all others. All ranks of the job must call this at about the same time.

    Returns the descriptors of the sockets, by rank; -1 in this rank's own place. A mesh takes
    ownership of them, and closes them even if it raises an error.

    Args:
        meeting: the messages between all ranks.
        rank: this rank, 0 to ``size - 1``.
        size: the number of ranks.
        address: the address at which the others reach this rank (``address.py``).
        secret: what all ranks know and the store does not; "": nothing.

    Raises:
        JobFailed: a rank did not arrive in time, has failed, or cannot be reached.
        UserError: ``address`` is not an address of this host.
    """
    peers: dict[int, socket.socket] = {}
    with ExitStack() as stack:
        stack.callback(_close, peers)
        listener = stack.enter_context(_listen(address, size))
        host, port = listener.getsockname()[:2]
        meeting.say(str(rank), f"{host} {port}")
        if rank == 0:
            meeting.say("key", secrets.token_hex(_KEY_BYTES))
        key = hmac.digest(secret.encode(), meeting.hear("key", 0), hashlib.sha256)
        for lower in range(rank):
            place = _place(meeting.hear(str(lower), lower), lower)
            peers[lower] = _join(place, key, rank, lower, meeting)
        awaited = set(range(rank + 1, size))
        stack.enter_context(_Door(listener, key, rank, awaited, peers)).admit(meeting)
        return [peers.pop(r).detach() if r != rank else -1 for r in range(size)]


def _close(peers: dict[int, socket.socket]) -> None:
    for peer in peers.values():
        peer.close()


def _listen(address: str, size: int) -> socket.socket:
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.bind(place)
            listener.listen(max(size, _MOST_UNPROVEN))  # so many may come before this rank looks
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UserError(f"mesh: cannot listen on {address}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def _place(published: bytes, rank: int) -> tuple[str, int]:
    """Parse the host and port on which ``rank`` listens."""
    host, _, port = published.decode("ascii", "replace").partition(" ")
    with suppress(ValueError):
        return str(ipaddress.ip_address(host.partition("%")[0]) and host), int(port)
    raise JobFailed(f"mesh: rank {rank} has published {published!r} in place of host and port")


def _proof(key: bytes, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    """The proof of ``side``. It differs between the sides, so it cannot be sent back as theirs."""
    return hmac.digest(key, side + hello + nonce, hashlib.sha256)


def _join(
    place: tuple[str, int], key: bytes, rank: int, lower: int, meeting: Meeting
) -> socket.socket:
    """Make a connection on which both sides have given their proof. Retries until the deadline."""
    why, since_s, limit_s = "no answer", time.monotonic(), meeting.timeout_s
    while meeting.left_s() > 0:
        connected = False
        with ExitStack() as stack:
            try:
                limited_s = max(0.001, min(_CONNECT_S, meeting.left_s()))
                peer = socket.create_connection(place, timeout=limited_s)
                stack.callback(peer.close)
                connected = True
                _prove(peer, key, rank, lower, meeting)
            except (OSError, EOFError) as error:
                why = (error.strerror if isinstance(error, OSError) else "") or str(error)
                unheard = isinstance(error, TimeoutError) and not connected
                if unheard or getattr(error, "errno", None) in _NOBODY_THERE:
                    why += f" (another host may have that address, too: {SET})"
                else:
                    since_s = time.monotonic()
            else:
                stack.pop_all()
                peer.setblocking(False)
                return peer
        if time.monotonic() - since_s > _NOBODY_S:
            limit_s = _NOBODY_S
            break
        meeting.raise_if_failed(lower)
        time.sleep(min(_RETRY_S, meeting.left_s()))
    raise JobFailed(
        f"mesh: rank {rank} cannot join rank {lower} at {place[0]} port {place[1]} "
        f"within {limit_s:g} s: {why}"
    )


def _prove(peer: socket.socket, key: bytes, rank: int, lower: int, meeting: Meeting) -> None:
    hello = _HELLO.pack(_MARK, rank, lower, secrets.token_bytes(_NONCE_BYTES))
    peer.sendall(hello)
    answer = _receive(peer, _NONCE_BYTES + _PROOF_BYTES, meeting)
    nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, b"listens", hello, nonce)):
        raise EOFError("the process that listens there does not belong to the job")
    peer.sendall(_proof(key, b"connects", hello, nonce))
    if _receive(peer, len(_WELCOME), meeting) != _WELCOME:
        raise EOFError("no welcome")


def _receive(peer: socket.socket, count: int, meeting: Meeting) -> bytes:
    data = b""
    while len(data) < count:
        peer.settimeout(max(0.001, meeting.left_s()))
        more = peer.recv(count - len(data))
        if not more:
            raise EOFError("the connection was closed before both sides had proven who they are")
        data += more
    return data


class _Door:
    """Accepts connections of ``awaited`` ranks and puts their sockets into ``peers``.

    On exit, it closes all other connections.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        rank: int,
        awaited: set[int],
        peers: dict[int, socket.socket],
    ) -> None:
        self._listener = listener
        self._key = key
        self._rank = rank
        self._awaited = awaited
        self._peers = peers
        self._selector = selectors.DefaultSelector()
        # Unproven connections in order of arrival: the bytes received so far, the number of bytes
        # that the handshake needs next, and the handshake.
        self._unproven: dict[socket.socket, tuple[bytearray, int, _Handshake]] = {}

    def __enter__(self) -> _Door:
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for peer in self._unproven:
            peer.close()

    def admit(self, meeting: Meeting) -> None:
        """Accept connections until all awaited ranks have joined.

        Raises ``JobFailed`` at the deadline, or if a rank has failed.
        """
        look_s = time.monotonic() + LOOK_S
        while missing := sorted(self._awaited - self._peers.keys()):
            if meeting.left_s() <= 0:
                raise meeting.not_come(missing)
            if time.monotonic() >= look_s:
                meeting.raise_if_failed(missing[0])
                look_s = time.monotonic() + LOOK_S
            for ready, _ in self._selector.select(min(LOOK_S, meeting.left_s())):
                if ready.fileobj is self._listener:
                    self._accept()
                elif ready.fileobj in self._unproven:  # it may have been closed a moment ago
                    assert isinstance(ready.fileobj, socket.socket)
                    self._hear(ready.fileobj)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return  # the peer has closed the connection already
        if len(self._unproven) >= _MOST_UNPROVEN:
            self._turn_away(next(iter(self._unproven)))
        peer.setblocking(False)
        self._selector.register(peer, selectors.EVENT_READ)
        handshake = self._handshake(peer)
        self._unproven[peer] = (bytearray(), next(handshake), handshake)

    def _hear(self, peer: socket.socket) -> None:
        data, wanted, handshake = self._unproven[peer]
        try:
            more = peer.recv(wanted - len(data))
            if not more:
                raise ConnectionError
            data += more
            if len(data) == wanted:
                self._unproven[peer] = (bytearray(), handshake.send(bytes(data)), handshake)
        except BlockingIOError:
            return
        except OSError:
            self._turn_away(peer)
        except StopIteration as proven:
            self._let_in(peer, proven.value)

    def _handshake(self, peer: socket.socket) -> _Handshake:
        """A generator that performs one handshake.

        It yields the number of bytes that it needs next, receives these bytes, and finally returns
        the rank. Raises ``OSError`` if the handshake fails.
        """
        hello = yield _HELLO.size
        mark, rank, own, _ = _HELLO.unpack(hello)
        if mark != _MARK or own != self._rank or rank not in self._awaited:
            raise ConnectionError
        # This does not block, because the empty send buffer has room for so few bytes.
        nonce = secrets.token_bytes(_NONCE_BYTES)
        peer.sendall(nonce + _proof(self._key, b"listens", hello, nonce))
        proof = yield _PROOF_BYTES
        if not hmac.compare_digest(proof, _proof(self._key, b"connects", hello, nonce)):
            raise ConnectionError
        peer.sendall(_WELCOME)
        return int(rank)

    def _let_in(self, peer: socket.socket, rank: int) -> None:
        self._selector.unregister(peer)
        del self._unproven[peer]
        if rank in self._peers:  # the rank has retried, so close its earlier connection
            self._peers[rank].close()
        self._peers[rank] = peer

    def _turn_away(self, peer: socket.socket) -> None:
        self._selector.unregister(peer)
        del self._unproven[peer]
        peer.close()


_Handshake = Generator[int, bytes, int]
