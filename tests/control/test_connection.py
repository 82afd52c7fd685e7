"""Real sockets and real controllers: taken up again, and proof against what else is on the wire."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from zmq.auth.thread import ThreadAuthenticator

from byteprophet.control.client import Client, Feeds, Identity
from byteprophet.control.keys import Keys, make_keys, read_keys
from byteprophet.control.log import NAME, read_events
from byteprophet.control.messages import LARGEST_BYTES, Plan, PlanOrder, Ready, Sample, encode
from byteprophet.control.server import Controller
from byteprophet.control.sockets import prepare
from byteprophet.errors import UserError
from byteprophet.launcher.checks import root_port
from byteprophet.profile import Profile
from byteprophet.timeline.tables import TRANSFER

from .conftest import JOB, MEGABYTE, Plug, eventually, profile

Start = Callable[..., tuple[Client, Plug]]


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{root_port(None, '127.0.0.1')}"


@pytest.fixture
def start(keys: Path, address: str) -> Iterator[Start]:
    """Starts a worker's client and its plug-in; closes all at the end."""
    with ExitStack() as undo:

        def begin(
            name: str = "worker-0",
            one: Profile | None = None,
            first: int = 0,
            has_profile: bool = True,
        ) -> tuple[Client, Plug]:
            plug = Plug(first=first)
            found = one or profile(MEGABYTE, MEGABYTE)
            identity = Identity(JOB, name, 2, "prophet", {"partition_bytes": 262144})
            samples = [Sample(server=0, direction="push", bandwidth_bps=10**9)]
            feeds = Feeds(profile=lambda: found if has_profile else None, samples=lambda: samples)
            client = Client(identity, address, read_keys(keys, "worker"), plug, Plug.names, feeds)
            undo.callback(client.close)
            client.take(np.zeros(0, TRANSFER))  # as the observer does four times a second
            return client, plug

        yield begin


@contextmanager
def controller(address: str, keys: Path, run: Path) -> Iterator[Controller]:
    """One in a thread of this process."""
    serving = Controller(address, read_keys(keys, "controller"), JOB, run)
    thread = threading.Thread(target=serving.serve)
    thread.start()
    try:
        yield serving
    finally:
        serving.stop()
        thread.join(30)
    assert not thread.is_alive()


@contextmanager
def process(address: str, keys: Path, run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One as byteprophet control starts it."""
    command = [sys.executable, "-m", "byteprophet", "control", "--listen", address]
    command += ["--keys", str(keys), "--run", str(run), "--job", JOB]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert b"listens on" in started.stdout.readline()
        try:
            yield started
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(30)


def events(run: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run / NAME) if event["event"] == name]


def refused(run: Path) -> set[str]:
    return {event["reason"] for event in events(run, "refused") if event["by"] == "controller"}


def adoptions(run: Path) -> dict[tuple[int, str], int]:
    """Iterations by plan and worker; a successor is told of the plan before its own, too."""
    return {(e["plan"], e["worker"]): e["iteration"] for e in events(run, "adopted")}


def told(plug: Plug) -> list[tuple[dict[str, int], list[tuple[int, int, int, int]]]]:
    """The settings and times of its plans; at which of its own iterations depends on its past."""
    return [(settings, times) for _, settings, times in plug.plans]


def a_plan(number: int = 1, at_iteration: int = 10**4, **fields: Any) -> PlanOrder:
    defaults: dict[str, Any] = {
        "settings": {},
        "ready": [Ready(name="t0", ready_ns=5, spread_ns=1)],
        "blocks": [],
        "predicted_iteration_ns": 1,
        "reason": "a test",
    }
    plan = Plan(number=number, at_iteration=at_iteration, **{**defaults, **fields})
    return PlanOrder(job=JOB, plan=plan)


def test_ranks_with_different_pasts_adopt_a_plan_at_one_iteration_of_the_job(
    start: Start, keys: Path, address: str, tmp_path: Path
) -> None:
    """As after ``resume``, where one process is new."""
    pasts = (0, 50_000)
    plugs = [start(f"worker-{n}", first=past)[1] for n, past in enumerate(pasts)]
    with controller(address, keys, tmp_path):
        eventually(lambda: len(adoptions(tmp_path)) == 2)
    (plan,) = events(tmp_path, "plan")
    assert set(adoptions(tmp_path).values()) == {plan["at_iteration"]}
    staged = [plug.plans[0][0] for plug in plugs]
    # A client is made a few iterations after its plug-in here, while the clock goes on.
    for at, past in zip(staged, pasts, strict=True):
        assert past + plan["at_iteration"] <= at <= past + plan["at_iteration"] + 100
    assert events(tmp_path, "withdrawn") == []


def test_one_that_joins_without_a_profile_gets_the_known_plan_and_its_forward_order(
    start: Start, keys: Path, address: str, tmp_path: Path
) -> None:
    plugs = [start(f"worker-{n}")[1] for n in range(2)]
    with controller(address, keys, tmp_path):
        eventually(lambda: all(len(plug.plans) == 1 for plug in plugs))
        _, plug = start("worker-2", has_profile=False)
        eventually(lambda: len(plug.plans) == 1)
    assert plug.plans[0][2] == plugs[0].plans[0][2] == [(0, -1, 1_000_000, 1000), (1, -2, 0, 1000)]


def test_a_killed_controller_is_missed_by_nobody_and_its_successor_counts_on(
    start: Start, keys: Path, address: str, tmp_path: Path
) -> None:
    workers = [start(f"worker-{index}") for index in range(2)]  # before there is a controller
    plugs = [plug for _, plug in workers]
    with process(address, keys, tmp_path) as first:
        eventually(lambda: all(len(plug.plans) == 1 for plug in plugs))
        eventually(lambda: len(events(tmp_path, "outcome")) == 1)
        first.kill()
        first.wait()
    with process(address, keys, tmp_path):
        eventually(lambda: all(len(plug.plans) == 2 for plug in plugs))
        eventually(lambda: len(adoptions(tmp_path)) == 4)
    assert told(plugs[0]) == told(plugs[1])
    _, _, times = plugs[0].plans[-1]
    assert times == [(0, -1, 1_000_000, 1000), (1, -2, 0, 1000)]
    adopted = adoptions(tmp_path)
    for number in (1, 2):
        assert adopted[number, "worker-0"] == adopted[number, "worker-1"]
    assert len({event["controller"] for event in read_events(tmp_path / NAME)}) == 2
    assert len(events(tmp_path, "stopped")) == 1  # the second's, in order


def test_garbage_is_refused_counted_logged_and_stops_nothing(
    start: Start, keys: Path, address: str, tmp_path: Path
) -> None:
    with controller(address, keys, tmp_path), ExitStack() as undo:
        host, _, port = address.removeprefix("tcp://").partition(":")
        for data in (os.urandom(3000), b"\x00" * 10, b"GET / HTTP/1.1\r\n\r\n"):
            raw = undo.enter_context(socket.create_connection((host, int(port))))
            raw.sendall(data)
        context: zmq.Context[zmq.Socket[bytes]] = undo.enter_context(zmq.Context())

        def dealer(own: Keys | None) -> zmq.Socket[bytes]:
            one = undo.enter_context(context.socket(zmq.DEALER))
            one.linger = 0
            if own is not None:
                prepare(one, own)
                one.curve_serverkey = own.peer
            one.connect(address)
            return one

        insider = read_keys(keys, "worker")
        stranger = Keys(*zmq.curve_keypair(), peer=insider.peer)
        for own in (None, stranger):
            with suppress(zmq.Again):  # refused already: libzmq has given the connection up
                dealer(own).send(encode(a_plan()), zmq.NOBLOCK)
        inside = dealer(insider)
        for frames in (
            [os.urandom(100)],
            [b'{"schema": 1, "kind": "attack"}'],
            [encode(a_plan(999))],  # no worker has plans to give
            [encode(a_plan(999)).replace(b'"plan"', b'"status"', 1)],
            [b"{}", b"{}"],
            [b" " * (LARGEST_BYTES + 1)],
        ):
            inside.send_multipart(frames)
        dealer(insider).send(b"x" * 20_000_000)  # cut off while it comes
        plugs = [start(f"worker-{index}")[1] for index in range(2)]
        eventually(lambda: all(len(plug.plans) == 1 for plug in plugs))
        expected = {"not JSON", "wrong schema", "not one frame", "too large"}
        eventually(lambda: expected | {"handshake: unknown key"} <= refused(tmp_path))
        # Those without any key: libzmq tells more or less of them, depending on where it stopped.
        bare = {"handshake broken off", "handshake: not our protocol or key"}
        eventually(lambda: bare & refused(tmp_path))
        eventually(lambda: len(adoptions(tmp_path)) == 2)
    assert told(plugs[0]) == told(plugs[1])
    assert len(set(adoptions(tmp_path).values())) == 1
    assert [event["number"] for event in events(tmp_path, "plan")] == [1]
    # However much there was of it: one line at once, one each period, one at the end.
    assert len(events(tmp_path, "refused")) < 40


@pytest.mark.parametrize("kind", ["other keys", "no keys", "refuses all"])
def test_an_impostor_is_not_listened_to_and_the_controller_hears_of_it(
    kind: str, start: Start, keys: Path, address: str, tmp_path: Path
) -> None:
    """On the controller's port, while that is away; "refuses all" makes libzmq give up."""
    make_keys(tmp_path / "other")
    with ExitStack() as undo:
        context: zmq.Context[zmq.Socket[bytes]] = undo.enter_context(zmq.Context())
        impostor = undo.enter_context(context.socket(zmq.ROUTER))
        if kind != "no keys":
            real = read_keys(keys, "controller")
            prepare(impostor, read_keys(tmp_path / "other", "controller"))
            impostor.curve_server = True
            if kind == "refuses all":  # no impostor could: he would need the controller's keys
                impostor.curve_secretkey, impostor.curve_publickey = real.secret, real.public
                guard = ThreadAuthenticator(context)
                guard.start()
                undo.callback(guard.stop)
                guard.configure_curve("*", tmp_path / "other")
        impostor.bind(address)
        client, plug = start()
        counts = client.refused
        eventually(lambda: sum(counts.values()) > 0)
        while impostor.poll(200):
            impostor.send_multipart([impostor.recv_multipart()[0], encode(a_plan())])
    assert plug.plans == []
    with controller(address, keys, tmp_path):
        start("worker-1")
        eventually(lambda: len(plug.plans) == 1)
        eventually(lambda: any(e["by"] == "worker-0" for e in events(tmp_path, "refused")))


def test_a_client_takes_only_plans_that_make_sense(
    start: Start, keys: Path, address: str, tmp_path: Path
) -> None:
    """Even from one who has the controller's keys."""
    own = read_keys(keys, "controller")
    with ExitStack() as undo:
        context: zmq.Context[zmq.Socket[bytes]] = undo.enter_context(zmq.Context())
        guard = ThreadAuthenticator(context)
        guard.start()
        undo.callback(guard.stop)
        guard.configure_curve_callback("*", credentials_provider=_Anybody())
        insider = undo.enter_context(context.socket(zmq.ROUTER))
        prepare(insider, own)
        insider.curve_server = True
        insider.bind(address)
        client, plug = start()
        assert insider.poll(20_000)
        peer, hello = insider.recv_multipart()
        assert b'"hello"' in hello
        insider.send_multipart(
            [peer, b'{"schema":1,"kind":"welcome","job":"%b","controller":"x"}' % JOB.encode()]
        )
        for order in (
            a_plan(1, settings={"partition_bytes": 4096}),
            a_plan(2, at_iteration=0),
            a_plan(3, at_iteration=10**9),
            a_plan(4, settings={"refuse_me": 1}),
            a_plan(5, settings={"window_max_bytes": 7}),
            a_plan(5),
            a_plan(3),
            a_plan(6).model_copy(update={"job": "10.0.0.9:1"}),
        ):
            insider.send_multipart([peer, encode(order)])
        insider.send_multipart([peer, os.urandom(50)])
        answers: list[bytes] = []

        def answered() -> bool:
            while insider.poll(0):
                answers.append(insider.recv_multipart()[1])
            return sum(b'"staged"' in one for one in answers) == 5

        eventually(answered)
        eventually(lambda: client.refused["another job"] and client.refused["not JSON"])
    assert plug.plans == [(10**4, {"window_max_bytes": 7}, [(0, -1, 5, 1)])]
    staged = [one for one in answers if b'"staged"' in one]
    for answer, word in zip(
        staged, (b"partition_bytes", b"has begun", b"too far", b"refuse_me"), strict=False
    ):
        assert word in answer
    assert b'"late":true' in staged[1]
    assert b'"error":null' in staged[4]
    assert client.refused["an old plan"] == 2


@pytest.mark.parametrize("wrong", ["10.0.0.1:7000", "tcp://127.0.0.1", "tcp://127.0.0.1:port"])
def test_what_is_no_address_is_named(wrong: str, keys: Path) -> None:
    identity = Identity(JOB, "worker-0", 2, "prophet", {})
    with pytest.raises(UserError, match=f"controller {wrong}: .*; use tcp://ADDRESS:PORT"):
        Client(identity, wrong, read_keys(keys, "worker"), Plug(), Plug.names, Feeds())


class _Anybody:
    def callback(self, _domain: str, _key: bytes) -> bool:
        return True
