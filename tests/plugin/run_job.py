"""A real job of C++ processes on loopback: two workers, two servers and the scheduler role.

run_job.py WORKER SERVER POLICY ITERATIONS [MODE]: exit status 0 if all of them end well in time.
Without a word about sanitizers: whatever the programs were built with, a report makes them fail.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKERS, SERVERS = 2, 2
TIMEOUT_S = 240


def free_port() -> int:
    """A port below those that the kernel gives to connections, as another test may open some."""
    for port in random.sample(range(10_000, 30_000), 50):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port on 127.0.0.1: 50 were tried")


def main() -> int:
    worker, server, policy, *arguments = sys.argv[1:]
    job = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": str(WORKERS),
        "DMLC_NUM_SERVER": str(SERVERS),
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
        "BYTEPS_PARTITION_BYTES": "8192",
        "BYTEPS_SCHEDULER": policy,
    }
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DMLC_", "BYTEPS_"))}
    roles = [("scheduler", 0)]
    roles += [("server", number) for number in range(SERVERS)]
    roles += [("worker", number) for number in range(WORKERS)]
    with tempfile.TemporaryDirectory(prefix="byteprophet-job-") as directory:
        running: dict[str, subprocess.Popen[bytes]] = {}
        failed: list[str] = []
        try:
            for role, number in roles:
                name = f"{role}-{number}"
                place = Path(directory, name)
                place.mkdir()
                own = {
                    "DMLC_ROLE": role,
                    "DMLC_WORKER_ID": str(number),
                    "BYTEPS_SOCKET_PATH": str(place),
                }
                command = [worker, *arguments] if role == "worker" else [server]
                with Path(directory, f"{name}.log").open("wb") as log:
                    running[name] = subprocess.Popen(
                        command, env={**kept, **job, **own}, stdout=log, stderr=log
                    )
            deadline = time.monotonic() + TIMEOUT_S
            waiting = dict(running)
            while waiting and not failed and time.monotonic() < deadline:
                time.sleep(0.05)
                for name, process in list(waiting.items()):
                    status = process.poll()
                    if status is not None:
                        del waiting[name]
                        failed += [f"{name} ended with status {status}"] if status != 0 else []
            if waiting and not failed:
                failed = [f"still running after {TIMEOUT_S} s: {', '.join(waiting)}"]
        finally:
            for process in running.values():
                process.kill()
                process.wait()
        for name in running if failed else ():
            print(f"--- {name}\n{Path(directory, f'{name}.log').read_text(errors='replace')}")
    print(failed[0] if failed else f"{policy}: all {len(roles)} roles ended well")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
