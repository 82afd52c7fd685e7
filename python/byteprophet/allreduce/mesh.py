"""The rendezvous of a mesh: ranks that share a store connect with each other.

Each rank listens on a port of the one address at which the others reach it, and publishes that in
the store. Higher ranks connect to lower ones. Both sides of a connection prove to each other that
they know a key that rank 0 has put into the store, so whoever can reach a port, but not the store,
gets nothing:

    connects   hello: mark, own rank, the other's rank, a nonce
    listens    a nonce, proof(key, "listens", hello, both nonces)
    connects   proof(key, "connects", hello, both nonces)
    listens    one byte: welcome

Connections are not encrypted afterwards. One that proves nothing is closed at the latest when the
rendezvous ends, and meanwhile nobody waits for it. Every port is closed in the end.
"""

from __future__ import annotations

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
from datetime import timedelta
from typing import Protocol

import psutil

from byteprophet._core import Mesh
from byteprophet.errors import JobFailed, UserError

_MARK = b"byteprophet mesh"
_HELLO = struct.Struct("<16sII32s")
_NONCE_BYTES = _KEY_BYTES = _PROOF_BYTES = 32
_WELCOME = b"+"
_MOST_UNPROVEN = 256  # connections at a time; the oldest is closed for one more
_RETRY_S = 0.05


class Store(Protocol):
    """What of torch.distributed's stores is used."""

    def set(self, key: str, value: str, /) -> None:
        """Keeps ``value``."""

    def get(self, key: str, /) -> bytes:
        """What was set."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Until all are set; raises RuntimeError after ``timeout``."""


def connect(
    store: Store,
    rank: int,
    size: int,
    timeout_s: float,
    *,
    prefix: str,
    address: str,
    frame_bytes: int = 1 << 18,
) -> Mesh:
    """The mesh of ``rank``; all ranks of the job call it at about the same time.

    Args:
        store: a torch.distributed store that all ranks share.
        rank: this one, of ``size``.
        size: how many ranks.
        timeout_s: for all of it.
        prefix: of keys in the store, unused before.
        address: where the others reach this rank: ``own_address``.
        frame_bytes: after how many bytes something more urgent may overtake.

    Raises:
        JobFailed: a rank did not come in time, or cannot be reached.
        UserError: ``address`` is none of this host's.
    """
    deadline = _Deadline(timeout_s)
    peers: dict[int, socket.socket] = {}
    with ExitStack() as stack:
        stack.callback(_close, peers)
        listener = stack.enter_context(_listen(address))
        host, port = listener.getsockname()[:2]
        store.set(f"{prefix}/{rank}", f"{host} {port}")
        if rank == 0:
            store.set(f"{prefix}/key", secrets.token_hex(_KEY_BYTES))
        key = _awaited(store, f"{prefix}/key", 0, deadline)
        for lower in range(rank):
            place = _place(_awaited(store, f"{prefix}/{lower}", lower, deadline), lower)
            peers[lower] = _join(place, key, rank, lower, deadline)
        awaited = set(range(rank + 1, size))
        stack.enter_context(_Door(listener, key, rank, awaited, peers)).admit(deadline)
        # The mesh closes what it is given, even if it refuses it.
        sockets = [peers.pop(r).detach() if r != rank else -1 for r in range(size)]
        return Mesh(rank, sockets, frame_bytes)


def own_address(towards: str, interface: str | None = None) -> str:
    """The address of this host at which ranks that reach ``towards`` reach it, too.

    ``towards``: the host of the rendezvous, MASTER_ADDR. It is the address from which packets go
    there: loopback if that is loopback. ``interface``: one of this host's, "eth0", whose address is
    taken instead. UserError if there is none.
    """
    if interface is not None:
        found = psutil.net_if_addrs().get(interface, [])
        for family in (socket.AF_INET, socket.AF_INET6):
            for entry in found:
                if entry.family == family:
                    return entry.address
        raise UserError(f"mesh: interface {interface} has no address here: name another one")
    try:
        family, kind, _, _, place = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # a route is looked up, and nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(
            f"mesh: no route to {towards}: {error.strerror}: check MASTER_ADDR"
        ) from None


def _close(peers: dict[int, socket.socket]) -> None:
    for peer in peers.values():
        peer.close()


class _Deadline:
    """The time that all waits share."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        return max(0.0, self._end_s - time.monotonic())


def _listen(address: str) -> socket.socket:
    try:
        family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.bind(place)
            listener.listen(_MOST_UNPROVEN)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UserError(f"mesh: cannot listen on {address}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def _awaited(store: Store, key: str, rank: int, deadline: _Deadline) -> bytes:
    """What ``rank`` puts into the store."""
    try:
        # Some stores give up a little early.
        store.wait([key], timedelta(seconds=deadline.left_s() + 0.01))
        return bytes(store.get(key))
    except RuntimeError as error:
        if deadline.left_s() > 0:
            line = str(error).partition("\n")[0]
            raise JobFailed(
                f"mesh: the store failed while waiting for rank {rank}: {line}"
            ) from None
        raise JobFailed(_not_come([rank], deadline)) from None


def _not_come(ranks: list[int], deadline: _Deadline) -> str:
    names = ", ".join(str(r) for r in ranks)
    have = "rank {} has" if len(ranks) == 1 else "ranks {} have"
    return f"mesh: {have.format(names)} not come within {deadline.timeout_s:g} s"


def _place(published: bytes, rank: int) -> tuple[str, int]:
    """Where ``rank`` listens."""
    host, _, port = published.decode("ascii", "replace").partition(" ")
    with suppress(ValueError):
        return str(ipaddress.ip_address(host.partition("%")[0]) and host), int(port)
    raise JobFailed(f"mesh: rank {rank} has published {published!r} in place of host and port")


def _proof(key: bytes, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    """Of ``side``; the two sides' differ, so that none can be sent back to its maker."""
    return hmac.digest(key, side + hello + nonce, hashlib.sha256)


def _join(
    place: tuple[str, int], key: bytes, rank: int, lower: int, deadline: _Deadline
) -> socket.socket:
    """A connection that both sides have proven; tries again until the deadline."""
    why = "no answer"
    while deadline.left_s() > 0:
        with ExitStack() as stack:
            try:
                peer = socket.create_connection(place, timeout=max(0.001, deadline.left_s()))
                stack.callback(peer.close)
                _prove(peer, key, rank, lower, deadline)
            except (OSError, EOFError) as error:
                why = (error.strerror if isinstance(error, OSError) else "") or str(error)
            else:
                stack.pop_all()
                peer.setblocking(False)
                return peer
        time.sleep(min(_RETRY_S, deadline.left_s()))
    raise JobFailed(
        f"mesh: rank {rank} cannot join rank {lower} at {place[0]} port {place[1]} "
        f"within {deadline.timeout_s:g} s: {why}"
    )


def _prove(peer: socket.socket, key: bytes, rank: int, lower: int, deadline: _Deadline) -> None:
    hello = _HELLO.pack(_MARK, rank, lower, secrets.token_bytes(_NONCE_BYTES))
    peer.sendall(hello)
    answer = _receive(peer, _NONCE_BYTES + _PROOF_BYTES, deadline)
    nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, b"listens", hello, nonce)):
        raise EOFError("who listens there does not belong to the job")
    peer.sendall(_proof(key, b"connects", hello, nonce))
    if _receive(peer, len(_WELCOME), deadline) != _WELCOME:
        raise EOFError("no welcome")


def _receive(peer: socket.socket, count: int, deadline: _Deadline) -> bytes:
    data = b""
    while len(data) < count:
        peer.settimeout(max(0.001, deadline.left_s()))
        more = peer.recv(count - len(data))
        if not more:
            raise EOFError("the connection was closed before both sides had proven who they are")
        data += more
    return data


class _Door:
    """Lets awaited ranks in; ``peers`` gets their sockets. Others are closed on leaving it."""

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
        # In order of arrival; what has come of what is asked for, and who asks.
        self._unproven: dict[socket.socket, tuple[bytearray, int, _Handshake]] = {}

    def __enter__(self) -> _Door:
        self._selector.register(self._listener, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for peer in self._unproven:
            peer.close()

    def admit(self, deadline: _Deadline) -> None:
        """Until all awaited ranks are in; JobFailed at the deadline."""
        while self._awaited - self._peers.keys():
            if deadline.left_s() <= 0:
                missing = sorted(self._awaited - self._peers.keys())
                raise JobFailed(_not_come(missing, deadline))
            for ready, _ in self._selector.select(deadline.left_s()):
                if ready.fileobj is self._listener:
                    self._accept()
                elif ready.fileobj in self._unproven:  # not one closed a moment ago
                    assert isinstance(ready.fileobj, socket.socket)
                    self._hear(ready.fileobj)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
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
        """Asks for so many bytes, is sent them, and returns the proven rank; else OSError."""
        hello = yield _HELLO.size
        mark, rank, own, _ = _HELLO.unpack(hello)
        if mark != _MARK or own != self._rank or rank not in self._awaited:
            raise ConnectionError
        # An empty buffer takes so few bytes at once.
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
        if rank in self._peers:  # it has tried again: the earlier one is of no use to it
            self._peers[rank].close()
        self._peers[rank] = peer

    def _turn_away(self, peer: socket.socket) -> None:
        self._selector.unregister(peer)
        del self._unproven[peer]
        peer.close()


_Handshake = Generator[int, bytes, int]
