"""Attacks a job's controller: ``controller_attack.py HOW ADDRESS KEYS``.

    garbage    sends random bytes to its port, and messages without keys and with unknown keys
    forged     uses the workers' own keys to send plans, wrong messages and frames that are too
    large impostor   listens on its port with other keys while it is down, and sends plans to all
    callers

``controller_faults.py`` runs this script on the controller's host.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import zmq
from script import run_script

from byteprophet.control.keys import Keys, make_keys, read_keys
from byteprophet.control.messages import LARGEST_BYTES, Plan, PlanOrder, encode
from byteprophet.control.sockets import prepare
from byteprophet.errors import UserError

_IMPOSTURE_S = 4.0
_TIMES = 20


def forged_plan() -> bytes:
    """A plan that would make a job crawl: a window of one byte, and a number above all others."""
    plan = Plan(
        number=10**9,
        at_iteration=1,
        settings={"window_max_bytes": 1},
        ready=[],
        blocks=[],
        predicted_iteration_ns=1,
        reason="forged",
    )
    return encode(PlanOrder(job="10.87.0.1:9000", plan=plan))


def _send(address: str, keys: Keys | None, messages: Sequence[bytes]) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        if keys is not None:
            prepare(dealer, keys)
            dealer.curve_serverkey = keys.peer
        dealer.sndtimeo = 2000
        dealer.connect(address)
        with contextlib.suppress(zmq.Again):  # the controller has closed the connection
            for message in messages:
                dealer.send(message)
        dealer.linger = 1000


def garbage(address: str, keys: Path) -> None:
    """Send random bytes, and messages without keys and with unknown keys."""
    host, _, port = address.removeprefix("tcp://").partition(":")
    for _ in range(_TIMES):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5) as raw:
            raw.sendall(os.urandom(100_000))
    stranger = Keys(*zmq.curve_keypair(), peer=read_keys(keys, "worker").peer)
    _send(address, None, [forged_plan()])
    _send(address, stranger, [forged_plan()])


def forged(address: str, keys: Path) -> None:
    """Send forged and oversized messages with a worker's keys."""
    huge = [b"x" * (LARGEST_BYTES + 1), b"x" * (5 * LARGEST_BYTES)]
    messages = [os.urandom(1000), b'{"schema": 1, "kind": "status"}', forged_plan()] * _TIMES
    _send(address, read_keys(keys, "worker"), [*messages, *huge])


def impostor(address: str, _keys: Path) -> None:
    """Answer in the controller's place for a while."""
    with tempfile.TemporaryDirectory() as directory, zmq.Context() as context:
        make_keys(Path(directory) / "keys")
        with context.socket(zmq.ROUTER) as router:
            prepare(router, read_keys(Path(directory) / "keys", "controller"))
            router.curve_server = True
            deadline_s = time.monotonic() + _IMPOSTURE_S
            bound = False
            while time.monotonic() < deadline_s:
                if not bound:
                    with contextlib.suppress(zmq.ZMQError):
                        router.bind(address)
                        bound = True
                        continue
                    time.sleep(0.01)
                elif router.poll(50):
                    router.send_multipart([router.recv_multipart()[0], forged_plan()])


HOW = {"garbage": garbage, "forged": forged, "impostor": impostor}


def main(arguments: Sequence[str]) -> None:
    """Attack once."""
    if len(arguments) != 3 or arguments[0] not in HOW:
        raise UserError(f"usage: controller_attack.py {'|'.join(HOW)} ADDRESS KEYS")
    how, address, keys = arguments
    print("ready", flush=True)
    HOW[how](address, Path(keys))


if __name__ == "__main__":
    run_script(main)
