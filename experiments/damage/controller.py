"""Messages that are not as they should be, to a controller and to the workers' clients.

A file of messages has one per line, each of which is a frame. ``hear_all`` hands them to what the
controller decides with, on a virtual clock; ``serve_all`` sends them to a real controller, which
has to answer others afterwards. ``obey_all`` sends them to a real client.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import zmq

from byteprophet import schedulers
from byteprophet.control.client import Client, Feeds, Identity
from byteprophet.control.coordinator import Coordinator
from byteprophet.control.keys import make_keys, read_keys
from byteprophet.control.messages import (
    INBOUND,
    OUTBOUND,
    Adopted,
    Bye,
    Hello,
    Inbound,
    Message,
    Plan,
    PlanOrder,
    ProfileReport,
    Ready,
    Refused,
    Sample,
    SamplesReport,
    Staged,
    Status,
    Unknown,
    Welcome,
    encode,
    parse,
)
from byteprophet.control.server import Controller
from byteprophet.control.sockets import prepare
from byteprophet.errors import JobFailed
from byteprophet.profile import Burst, Profile, TensorProfile

JOB = "127.0.0.1:9000"
_S = 1_000_000_000
_ANSWER_S = 10.0
_SETTINGS, _ = schedulers.resolve("prophet", {})
_STRANGER = Bye(job=JOB, worker="stranger")
"""From whoever has not said hello: he is told so, whatever others have said."""


def write_messages(directory: Path) -> None:
    """What two workers and their controller say to each other, as files of messages."""
    directory.mkdir(parents=True, exist_ok=True)
    inbound = [message for name in ("worker-0", "worker-1") for message in _first_words(name)]
    inbound += [_status(name, 60) for name in ("worker-0", "worker-1")]
    inbound.append(Staged(job=JOB, worker="worker-0", number=1))
    inbound.append(Staged(job=JOB, worker="worker-1", number=1, late=True, error="too late"))
    inbound += [Adopted(job=JOB, worker="worker-0", number=1, iteration=60)]
    inbound += [_status(name, 90) for name in ("worker-0", "worker-1")]
    inbound.append(Bye(job=JOB, worker="worker-1"))
    outbound = [
        Welcome(job=JOB, controller="c"),
        Unknown(job=JOB),
        PlanOrder(job=JOB, plan=_plan()),
    ]
    _write(directory / "inbound.jsonl", inbound)
    _write(directory / "outbound.jsonl", outbound)


def hear_all(_samples: Path, path: Path) -> None:
    """All messages, a third of a second apart, and a minute of silence; Refused if one was."""
    now_ns, refused = 0, None
    coordinator = Coordinator(
        JOB, "tested", lambda event, **fields: encode_event(event, fields), lambda: now_ns
    )
    for frame in _frames(path):
        now_ns += _S // 3
        try:
            coordinator.receive(b"peer", parse(INBOUND, [frame], JOB), now_ns)
        except Refused as error:
            refused = error
        _ordered(coordinator, now_ns)
    for _ in range(60):
        now_ns += _S
        _ordered(coordinator, now_ns)
    assert coordinator.receive(b"stranger", _STRANGER, now_ns), "the coordinator does not answer"
    coordinator.close()
    if refused is not None:
        raise refused


def serve_all(_samples: Path, path: Path) -> None:
    """The same over sockets; JobFailed where the controller answers nobody any more."""
    with tempfile.TemporaryDirectory() as name, zmq.Context() as context:
        directory, address = Path(name), f"tcp://127.0.0.1:{_free_port()}"
        make_keys(directory / "keys")
        serving = Controller(address, read_keys(directory / "keys", "controller"), JOB, directory)
        died: list[Exception] = []

        def serve() -> None:
            try:
                serving.serve()
            except Exception as error:  # noqa: BLE001  (whatever comes is what is looked for)
                died.append(error)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            frames = _frames(path)
            _talk(context, address, directory / "keys", frames)
            answer = _talk(context, address, directory / "keys", [encode(_STRANGER)])
        finally:
            serving.stop()
            thread.join(_ANSWER_S)
        if died:
            raise died[0]
        assert answer, "the controller answers nobody any more"


def parse_all(_samples: Path, path: Path) -> None:
    """What a client does with each message first; Refused for one that it is not to look at."""
    for frame in _frames(path):
        parse(OUTBOUND, [frame], JOB)


def obey_all(_samples: Path, path: Path) -> None:
    """A client that hears these messages has to go on and to say so."""
    with tempfile.TemporaryDirectory() as name, zmq.Context() as context:
        directory = Path(name)
        make_keys(directory / "keys")
        with context.socket(zmq.ROUTER) as router:
            prepare(router, read_keys(directory / "keys", "controller"))
            router.curve_server = True
            port = router.bind_to_random_port("tcp://127.0.0.1")
            identity = Identity(JOB, "worker-0", 2, "prophet", _SETTINGS)
            keys = read_keys(directory / "keys", "worker")
            address = f"tcp://127.0.0.1:{port}"
            client = Client(identity, address, keys, _Target(), {0: "layer0"}, Feeds())
            try:
                peer = _heard(router)
                for frame in _frames(path):
                    router.send_multipart([peer, frame])
                router.send_multipart([peer, encode(Unknown(job=JOB))])
                _heard(router)
                refused = dict(client.refused)
            finally:
                client.close()
    if refused:
        raise Refused("refused", ", ".join(refused))


def encode_event(event: str, fields: Mapping[str, object]) -> None:
    """An event has to be one that a log can hold."""
    import json

    json.dumps({"event": event, **fields}).encode()


class _Target:
    """A plug-in that checks a plan's settings with the policy's own rules."""

    def __init__(self) -> None:
        self._begun_ns = time.monotonic_ns()

    def iteration(self) -> int:
        return 1 + (time.monotonic_ns() - self._begun_ns) // 20_000_000

    def partition_bytes(self) -> int:
        return _SETTINGS["partition_bytes"]

    def iteration_starts(self) -> list[tuple[int, int]]:
        return []

    def stage_plan(
        self,
        at_iteration: int,
        settings: Mapping[str, int],
        times: Sequence[tuple[int, int, int, int]],
    ) -> None:
        from byteprophet import _core

        _core.Policy("prophet", {**_SETTINGS, **settings}).set_ready_times(list(times))
        assert at_iteration >= 0


def _ordered(coordinator: Coordinator, now_ns: int) -> None:
    for _, order in coordinator.tick(now_ns):
        encode(order)


def _frames(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().split(b"\n") if line][:200]


def _write(path: Path, messages: Sequence[Message]) -> None:
    path.write_bytes(b"".join(encode(message) + b"\n" for message in messages))


def _talk(
    context: zmq.Context[zmq.Socket[bytes]], address: str, keys: Path, frames: list[bytes]
) -> bool:
    """Says ``frames``; whether anything was answered."""
    with context.socket(zmq.DEALER) as dealer:
        pair = read_keys(keys, "worker")
        prepare(dealer, pair)
        dealer.curve_serverkey = pair.peer
        dealer.sndtimeo = int(_ANSWER_S * 1000)
        dealer.connect(address)
        for frame in frames:
            dealer.send(frame)
        # Too large a frame costs the connection.
        return bool(dealer.poll(int(_ANSWER_S * 1000) if len(frames) == 1 else 50))


def _heard(router: zmq.Socket[bytes]) -> bytes:
    """Who said hello."""
    deadline_s = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline_s:
        if router.poll(100):
            peer, frame = router.recv_multipart()
            if isinstance(parse(INBOUND, [frame], JOB), Hello):
                return peer
    raise JobFailed("the client says no hello any more")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _first_words(worker: str) -> list[Inbound]:
    samples = [
        Sample(server=None, direction="push", bandwidth_bps=10**9, spread_bps=10**7),
        Sample(server=0, direction="pull", bandwidth_bps=10**9, delay_ns=50_000),
    ]
    return [
        Hello(
            job=JOB, worker=worker, client=f"life of {worker}", workers=2, policy="prophet",
            settings=_SETTINGS, iteration=10, plan=0,
        ),
        ProfileReport(job=JOB, worker=worker, profile=_profile()),
        SamplesReport(job=JOB, worker=worker, samples=samples),
    ]  # fmt: skip


def _status(worker: str, iteration: int) -> Status:
    took = [(iteration - n, 20_000_000 + n) for n in range(20, 0, -1)]
    return Status(
        job=JOB, worker=worker, iteration=iteration, partition_bytes=262144, took=took,
        refused={"not JSON": 1},
    )  # fmt: skip


def _profile() -> Profile:
    tensors = tuple(
        TensorProfile(
            name=f"layer{n}", size_bytes=100_000 * n + 4000, forward_order=n,
            ready_ns=(2 - n) * 1_000_000, spread_ns=1000, forward_ns=1_000_000, burst=2 - n,
        )
        for n in range(3)
    )  # fmt: skip
    bursts = tuple(
        Burst(ready_ns=t.ready_ns, spread_ns=1000, tensors=1, size_bytes=t.size_bytes)
        for t in reversed(tensors)
    )
    return Profile(
        scheduler="prophet", workers=2, rank=0, iterations=10, batch_size=None,
        forward_ns=3_000_000, backward_ns=10_000_000, tensors=tensors, bursts=bursts,
    )  # fmt: skip


def _plan() -> Plan:
    return Plan(
        number=1, at_iteration=200, settings={"window_max_bytes": 1 << 20},
        ready=[Ready(name="layer0", ready_ns=1_000_000, spread_ns=0)], blocks=[],
        predicted_iteration_ns=30_000_000, reason="a test",
    )  # fmt: skip
