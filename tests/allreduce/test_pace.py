"""The limit of real sockets, read back from the kernel."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from byteprophet.allreduce.pace import Pace

MAX_PACING_RATE = 47  # asm-generic/socket.h
UNLIMITED = (1 << 64) - 1


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Connections to a listener on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = [socket.create_connection(listener.getsockname()) for _ in range(3)]
        yield made
        for each in made:
            each.close()


def rates(sockets: list[socket.socket]) -> list[int]:
    """Bytes per second."""
    return [
        struct.unpack("@L", each.getsockopt(socket.SOL_SOCKET, MAX_PACING_RATE, 8))[0]
        for each in sockets
    ]


def test_all_sockets_share_the_rate(sockets: list[socket.socket]) -> None:
    pace = Pace([sockets[0].fileno(), -1, sockets[1].fileno(), sockets[2].fileno()])
    assert rates(sockets) == [UNLIMITED] * 3
    pace.limit(240_000_000)
    assert rates(sockets) == [10_000_000] * 3
    pace.limit(0)
    assert rates(sockets) == [UNLIMITED] * 3
    pace.limit(1)  # never none at all
    assert rates(sockets) == [1] * 3


def test_closed_sockets_are_left_alone(sockets: list[socket.socket]) -> None:
    """Their numbers may be those of other files by then."""
    pace = Pace([each.fileno() for each in sockets])
    pace.close()
    pace.limit(8000)
    assert rates(sockets) == [UNLIMITED] * 3


def test_a_paced_connection_sends_no_faster() -> None:
    """At 4 MB/s, 2 MB take half a second, less a first burst; nothing else limits loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
        with sender, receiver:
            Pace([sender.fileno()]).limit(8 * 4_000_000)
            got: list[int] = []

            def read() -> None:
                while data := receiver.recv(1 << 16):
                    got.append(len(data))

            thread = threading.Thread(target=read)
            thread.start()
            since_s = time.monotonic()
            sender.sendall(bytes(2_000_000))
            sender.shutdown(socket.SHUT_WR)
            thread.join(60)
            assert sum(got) == 2_000_000
            assert time.monotonic() - since_s > 0.25
