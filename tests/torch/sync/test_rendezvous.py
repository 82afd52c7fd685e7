"""Ranks without servers that meet in other ways than by MASTER_ADDR, and in places used before."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch import distributed

from byteprophet.launcher import JobSpec, run_job
from byteprophet.launcher.checks import LOOPBACK, root_port

from ...namespaces import why_not_permitted
from ...python_process import start_python

pytestmark = [pytest.mark.job, pytest.mark.timeout(300)]
WORKER = Path(__file__).with_name("rendezvous_worker.py")
PATIENCE_S = 120.0
_REASON = why_not_permitted()


def together(*commands: tuple[object, ...]) -> list[list[str]]:
    """Run a worker per command; what each said. All end well."""
    places = ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
    environment = {name: v for name, v in os.environ.items() if name not in places}
    environment["BYTEPROPHET_TIMEOUT_S"] = "60"
    workers = [
        start_python(WORKER, *command, stdout=subprocess.PIPE, env=environment)
        for command in commands
    ]
    try:
        said = [worker.communicate(timeout=PATIENCE_S)[0].splitlines() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * len(workers)
    return [[line for line in lines if line.endswith("alike")] for lines in said]


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_one_after_the_other(tmp_path: Path) -> None:
    """In one process, each time another process group; and then another job in the last's store.

    As torchrun's, which stays from one attempt to the next, and that may have more ranks.
    """
    store = distributed.TCPStore(
        LOOPBACK, 0, None, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    hosts = [LOOPBACK, *(["[::1]"] if has_ipv6() else [])]
    ports = [root_port(None, LOOPBACK) for _ in hosts]
    said = together(*(("ways", rank, tmp_path, store.port, *ports) for rank in range(2)))
    assert said == [[f"{way}: 2 ranks alike" for way in (*hosts, "file", "store", "joined")]] * 2
    # PyTorch itself joins the addresses of the attempt before, where they are still there.
    kept = [key for key in store.list_keys() if "byteprophet" in key]
    assert kept
    for key in set(store.list_keys()) - set(kept):
        store.delete_key(key)
    said = together(*(("joins", rank, 3, store.port) for rank in range(3)))
    assert said == [["joined: 3 ranks alike"]] * 3


@pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
def test_hosts_that_know_only_loopback_addresses_of_themselves(tmp_path: Path) -> None:
    """Rank 0 finds its other address; where nobody has another one, all say so at once."""
    spec = JobSpec(
        command=(sys.executable, str(WORKER), "hosts", str(tmp_path), "29871"),
        run_directory=tmp_path / "run",
        directory=tmp_path,
        workers=2,
        servers=0,
        environment={"BYTEPROPHET_TIMEOUT_S": "100"},
        namespaces=True,
        timeout_s=150.0,
    )
    run_job(spec, None).check()
    for rank in range(2):
        text = (tmp_path / "run" / "logs" / f"worker-{rank}.log").read_text()
        assert "hosts: 2 ranks alike" in text
        (line,) = (line for line in text.splitlines() if line.startswith("after "))
        assert int(line.split()[1]) < 30
        assert "on another host" in line
        assert line.endswith(
            "set GLOO_SOCKET_IFNAME, on every host, to the interface of the job's network"
        )
