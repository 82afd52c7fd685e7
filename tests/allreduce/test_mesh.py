"""Real sockets on loopback, real stores, ranks as threads and as processes; who does not belong."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from byteprophet._core import Mesh
from byteprophet.allreduce.meeting import Meeting
from byteprophet.allreduce.mesh import connect
from byteprophet.errors import JobFailed, UserError

from ..python_process import start_python

dist = pytest.importorskip("torch.distributed")

LONG_S = 120.0
WORKER = Path(__file__).with_name("mesh_worker.py")


@pytest.fixture
def store() -> Any:
    return dist.HashStore()


def meshes(store: Any, size: int) -> list[Mesh]:
    def one(rank: int) -> Mesh:
        return connect(Meeting(store, "test", LONG_S), rank, size, address="127.0.0.1")

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))


@contextlib.contextmanager
def closed_in_the_end(made: list[Mesh]) -> Iterator[list[Mesh]]:
    yield made
    with ThreadPoolExecutor(len(made)) as threads:
        list(threads.map(lambda mesh: mesh.close(LONG_S), made))


def of(*arrays: npt.NDArray[Any]) -> list[tuple[int, int]]:
    return [(array.ctypes.data, array.size) for array in arrays]


def done(mesh: Mesh, count: int = 1) -> list[tuple[int, str | None]]:
    over: list[tuple[int, str | None]] = []
    while len(over) < count:
        some = mesh.completed(LONG_S)
        assert some, f"{count} operations are not over"
        over += some
    return over


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_reduce_then_gather_is_an_all_reduce(store: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    shapes = [1, size + 1, 1000, 70_001]
    values = [[rng.normal(size=n).astype(np.float32) for n in shapes] for _ in range(size)]
    expected = [sum((v[i] for v in values[1:]), values[0][i].copy()) for i in range(len(shapes))]
    with closed_in_the_end(meshes(store, size)) as made:
        for rank, mesh in enumerate(made):
            mesh.reduce(1, of(*values[rank]), "float32", False, 0)
        for rank, mesh in enumerate(made):
            assert done(mesh) == [(1, None)]
            for array, total in zip(values[rank], expected, strict=True):
                own = slice(rank * array.size // size, (rank + 1) * array.size // size)
                np.testing.assert_array_equal(array[own], total[own])
            mesh.gather(2, of(*values[rank]), "float32", 0)
        for rank, mesh in enumerate(made):
            assert done(mesh) == [(2, None)]
            for array, total in zip(values[rank], expected, strict=True):
                np.testing.assert_array_equal(array, total)
            sent, received = mesh.traffic()
            assert sent.payload_bytes == 4 * sum(
                (n - own_elements(n, rank, size)) + (size - 1) * own_elements(n, rank, size)
                for n in shapes
            )
            assert (sent.busy_ns > 0) == (received.frames > 0) == (size > 1)


def own_elements(elements: int, rank: int, size: int) -> int:
    return (rank + 1) * elements // size - rank * elements // size


def test_what_does_not_fit_is_refused(store: Any) -> None:
    array = np.zeros(4, np.int32)
    with closed_in_the_end(meshes(store, 1)) as (mesh,):
        with pytest.raises(ValueError, match="int32 has no averages"):
            mesh.reduce(1, of(array), "int32", True, 0)
        with pytest.raises(ValueError, match="complex32 cannot be exchanged"):
            mesh.reduce(1, of(array), "complex32", False, 0)
        with pytest.raises(ValueError, match="not aligned"):
            mesh.gather(1, [(array.ctypes.data + 1, 1)], "int32", 0)
        mesh.close(0)
        mesh.close(0)
        with pytest.raises(ValueError, match="closed"):
            mesh.gather(1, of(array), "int32", 0)
        assert mesh.completed(LONG_S) == []
    with pytest.raises(ValueError, match="rank 1 of 1 ranks"):
        Mesh(1, [-1])


def test_a_rank_that_leaves_is_named_and_whose_part_is_missing(store: Any) -> None:
    array = np.zeros(8, np.float32)
    made = meshes(store, 3)
    made[0].reduce(7, of(array), "float32", False, 0)
    assert made[0].missing(7) == [1, 2]
    assert made[0].completed(0.01) == []
    made[2].close(LONG_S)
    assert done(made[0]) == [(7, "rank 2 has left the job")]
    assert made[0].missing(7) == []
    made[0].gather(8, of(array), "float32", 0)
    assert done(made[0]) == [(8, "rank 2 has left the job")]
    made[1].close(LONG_S)
    made[0].close(LONG_S)


def test_a_mesh_without_an_owner_ends(store: Any) -> None:
    made = meshes(store, 2)
    made[0].gather(1, of(np.zeros(8, np.float32)), "float32", 0)
    del made[0]
    array = np.zeros(8, np.float32)
    made[0].reduce(2, of(array), "float32", False, 0)
    (number, error), *_ = done(made[0])
    assert number == 2
    assert error is not None
    assert error.startswith("rank 0 ")


def test_processes_with_a_tcp_store() -> None:
    size = 3
    server = dist.TCPStore(
        "127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    workers = [
        start_python(WORKER, server.port, rank, size, stdout=subprocess.PIPE)
        for rank in range(size)
    ]
    lines = [worker.communicate(timeout=LONG_S)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * size
    # Each rank gave the squares of what it had, rank + 1 everywhere.
    assert [json.loads(line) for line in lines] == [sum((r + 1) ** 2 for r in range(size))] * size


def test_a_process_that_is_killed_is_named(store: Any) -> None:
    server = dist.TCPStore(
        "127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    with start_python(WORKER, server.port, 1, 2, "stay") as worker:
        mesh = connect(Meeting(server, "mesh", LONG_S), 0, 2, address="127.0.0.1")
        array = np.zeros(8, np.float32)
        mesh.reduce(7, of(array), "float32", False, 0)
        worker.kill()
        (number, error), *_ = done(mesh)
        assert number == 7
        assert error in ("rank 1 is gone: connection closed", "rank 1 is gone: connection reset")
        mesh.close(LONG_S)


# ---- who does not belong


def intrude(port: int, what: bytes) -> socket.socket:
    intruder = socket.create_connection(("127.0.0.1", port), timeout=LONG_S)
    intruder.sendall(what)
    return intruder


def test_intruders_do_not_stop_a_rendezvous_and_are_closed(store: Any) -> None:
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(connect, Meeting(store, "t", LONG_S), 0, 2, address="127.0.0.1")
        store.wait(["t/0"], timedelta(seconds=LONG_S))
        port = int(store.get("t/0").split()[1])
        hello = b"byteprophet mesh" + (1).to_bytes(4, "little") + bytes(4) + bytes(32)
        silent, garbage = intrude(port, b""), intrude(port, os.urandom(56))
        # Says what rank 1 would say, is challenged, and cannot answer.
        liar = intrude(port, hello)
        challenge = liar.recv(64, socket.MSG_WAITALL)
        assert len(challenge) == 64
        liar.sendall(bytes(32))
        # Gives the challenge's own proof back.
        mirror = intrude(port, hello)
        mirror.sendall(mirror.recv(64, socket.MSG_WAITALL)[32:])
        for intruder in (garbage, liar, mirror):
            assert ended(intruder)
        second = threads.submit(connect, Meeting(store, "t", LONG_S), 1, 2, address="127.0.0.1")
        made = [first.result(LONG_S), second.result(LONG_S)]
    assert ended(silent)
    with pytest.raises(ConnectionRefusedError):
        intrude(port, b"")
    array = np.ones(2, np.float32)
    other = np.ones(2, np.float32)
    with closed_in_the_end(made):
        made[0].reduce(1, of(array), "float32", True, 0)
        made[1].reduce(1, of(other), "float32", True, 0)
        assert done(made[0]) == done(made[1]) == [(1, None)]
    for intruder in (silent, garbage, liar, mirror):
        intruder.close()


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_more_silent_connections_than_are_kept(store: Any) -> None:
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(connect, Meeting(store, "t", LONG_S), 0, 2, address="127.0.0.1")
        store.wait(["t/0"], timedelta(seconds=LONG_S))
        port = int(store.get("t/0").split()[1])
        silent = [intrude(port, b"") for _ in range(300)]
        second = threads.submit(connect, Meeting(store, "t", LONG_S), 1, 2, address="127.0.0.1")
        with closed_in_the_end([first.result(LONG_S), second.result(LONG_S)]):
            for connection in silent:
                connection.close()


def test_who_listens_without_the_key_is_not_joined(store: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        store.set("t/key", bytes(32))
        store.set("t/0", f"127.0.0.1 {impostor.getsockname()[1]}")

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = impostor.accept()
                    peer.sendall(bytes(64))
                    peer.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(JobFailed, match="cannot join rank 0 at "):
            connect(Meeting(store, "t", 0.5), 1, 2, address="127.0.0.1")
        impostor.shutdown(socket.SHUT_RDWR)


def test_who_reads_the_store_and_not_the_secret_cannot_join(store: Any) -> None:
    with ThreadPoolExecutor(2) as threads:
        meeting = Meeting(store, "t", LONG_S)
        first = threads.submit(connect, meeting, 0, 2, address="127.0.0.1", secret="one")
        for other in ("", "two"):
            with pytest.raises(JobFailed, match="does not belong to the job"):
                connect(Meeting(store, "t", 0.5), 1, 2, address="127.0.0.1", secret=other)
        meeting = Meeting(store, "t", LONG_S)
        second = threads.submit(connect, meeting, 1, 2, address="127.0.0.1", secret="one")
        with closed_in_the_end([first.result(LONG_S), second.result(LONG_S)]):
            pass


# ---- who does not come


def test_missing_ranks_are_named(store: Any) -> None:
    with pytest.raises(JobFailed, match=r"ranks 1, 2 have not come within 0.2 s"):
        connect(Meeting(store, "a", 0.2), 0, 3, address="127.0.0.1")
    with pytest.raises(JobFailed, match=r"rank 0 has not come within 0.2 s"):
        connect(Meeting(store, "b", 0.2), 1, 3, address="127.0.0.1")


def test_a_rank_that_fails_tells_the_others_why(store: Any) -> None:
    def one(rank: int) -> str:
        meeting = Meeting(store, "t", LONG_S)
        address = "192.0.2.1" if rank == 1 else "127.0.0.1"
        with pytest.raises((JobFailed, UserError)) as failure, meeting.failure_is_said():
            connect(meeting, rank, 3, address=address)
        return str(failure.value)

    began_s = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        (said,) = set(threads.map(one, range(3)))
    assert "cannot listen on 192.0.2.1" in said
    assert time.monotonic() - began_s < LONG_S / 2


def test_what_is_no_place_is_refused(store: Any) -> None:
    store.set("t/key", bytes(32))
    store.set("t/0", b"somewhere 80")
    with pytest.raises(JobFailed, match="rank 0 has published b'somewhere 80'"):
        connect(Meeting(store, "t", 5), 1, 2, address="127.0.0.1")


def test_a_place_that_answers_nothing_is_not_waited_for(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a firewall that drops packets; here a full queue of connections drops them."""
    monkeypatch.setattr("byteprophet.allreduce.mesh._CONNECT_S", 0.2)
    monkeypatch.setattr("byteprophet.allreduce.mesh._NOBODY_S", 0.5)
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        stack.enter_context(socket.create_connection(full.getsockname()))
        store.set("t/key", bytes(32))
        store.set("t/0", f"127.0.0.1 {full.getsockname()[1]}")
        began_s = time.monotonic()
        with pytest.raises(JobFailed, match=r"within 0.5 s: timed out \(another host may have"):
            connect(Meeting(store, "t", LONG_S), 1, 2, address="127.0.0.1")
        assert time.monotonic() - began_s < LONG_S / 2


def test_an_address_of_another_host_is_refused(store: Any) -> None:
    with pytest.raises(UserError, match=r"cannot listen on 192\.0\.2\.1"):
        connect(Meeting(store, "t", 5), 0, 2, address="192.0.2.1")
