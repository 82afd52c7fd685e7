"""A worker that trains forever, or does something else with BytePS in between.

``heartbeat_worker.py forever``     push_pull without end
``heartbeat_worker.py front FILE``  trains with our optimizer; what a RuntimeError says goes to FILE
``heartbeat_worker.py stop``        worker 1 stops itself as soon as it has joined the job
``heartbeat_worker.py pause S``     worker 1 does nothing in Python for S seconds, holding the GIL
``heartbeat_worker.py cut``         worker 0 cuts its data links, and goes on
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path

import byteps.torch as bps
import torch

_PAUSE_S = 0.01
"""Between iterations of a worker that goes on for long: others need the processors."""


def exchange() -> None:
    """One iteration without an optimizer: importing one takes as long as all of the rest."""
    bps.synchronize(bps.byteps_push_pull(torch.ones(50_000), name="t"))


def forever() -> None:
    exchange()
    print("training", flush=True)
    while True:
        exchange()
        time.sleep(_PAUSE_S)


def front(file: str) -> None:
    layer = torch.nn.Linear(100, 100)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=0.01), named_parameters=layer.named_parameters()
    )
    try:
        for iteration in range(10**9):
            optimizer.zero_grad()
            layer(torch.ones(4, 100)).sum().backward()
            optimizer.step()
            if iteration == 3:
                print("training", flush=True)
            time.sleep(_PAUSE_S)
    except RuntimeError as error:
        Path(file).write_text(str(error))
        raise


def stop() -> None:
    exchange()
    if bps.rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    forever()


def pause(seconds: str) -> None:
    exchange()
    if bps.rank() == 1:
        ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))  # a PyDLL call keeps the GIL
    exchange()
    print("done", flush=True)


def cut() -> None:
    exchange()
    if bps.rank() == 0:
        open_ones = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
        links = [fd for fd in open_ones if _is_data_link(fd)]
        print(f"cuts {len(links)} sockets", flush=True)
        for number, fd in enumerate(links):
            # The other end may close the second one when it sees the first one end.
            with contextlib.suppress(OSError) if number else contextlib.nullcontext():
                socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)
    forever()


def _is_data_link(fd: int) -> bool:
    """Of all sockets of a worker, only those end after a silence."""
    try:
        end = socket.socket(fileno=os.dup(fd))
        return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) != 0
    except OSError:  # no socket, or not of TCP
        return False


if __name__ == "__main__":
    bps.init()
    modes = {"forever": forever, "front": front, "stop": stop, "pause": pause, "cut": cut}
    modes[sys.argv[1]](*sys.argv[2:])
