"""What iperf3 moves between two hosts of a cluster of namespaces, and the CPU time it takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from dataclasses import dataclass

from byteprophet.errors import JobFailed, UserError
from byteprophet.network import Cluster, HostSpec

_EXTRA_S = 20.0  # to start, and to end
_ATTEMPTS = 20


@dataclass(frozen=True)
class Flow:
    """What streams moved.

    Attributes:
        bytes_per_s: payload, of both directions if both had a stream.
        cpu_s_per_gb: CPU seconds of both ends per gigabyte.
    """

    bytes_per_s: float
    cpu_s_per_gb: float


def require_iperf() -> None:
    """UserError that says how to install it where it is not."""
    if shutil.which("iperf3") is None:
        raise UserError("iperf3 is not installed: apt-get install iperf3")


def measure(seconds: float, hosts: Cluster | None = None, both_ways: bool = False) -> Flow:
    """One stream for ``seconds`` over a veth pair and bridge like those of a job's hosts.

    ``hosts``: a server and a worker, not started; None: on links without a limit. ``both_ways``: a
    second stream at the same time, from the server.
    """
    with hosts or Cluster([HostSpec("server"), HostSpec("worker")]) as cluster:
        server, worker = cluster.hosts
        with subprocess.Popen(
            server.enter(["setpriv", "--pdeathsig", "KILL", "iperf3", "--server", "--one-off"]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as listening:
            try:
                command = _command(server.address, seconds)
                if both_ways:
                    command.append("--bidir")
                return _client(worker.enter(command), seconds)
            finally:
                listening.kill()


def _command(address: str, seconds: float) -> list[str]:
    return ["iperf3", "--client", address, "--time", f"{seconds:g}", "--json"]


def _client(command: list[str], seconds: float) -> Flow:
    said = ""
    for _ in range(_ATTEMPTS):  # until the server listens
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + _EXTRA_S, check=False
        )
        report = json.loads(done.stdout or "{}")
        if "error" not in report and done.returncode == 0:
            return _flow(report)
        said = report.get("error", done.stderr.strip())
        time.sleep(0.2)
    raise JobFailed(f"iperf3: {said}")


def _flow(report: dict[str, dict[str, dict[str, float]]]) -> Flow:
    end = report["end"]
    streams = [end[name] for name in ("sum_received", "sum_received_bidir_reverse") if name in end]
    cpu = end["cpu_utilization_percent"]
    cpu_s = (cpu["host_total"] + cpu["remote_total"]) / 100 * streams[0]["seconds"]
    return Flow(
        sum(stream["bits_per_second"] for stream in streams) / 8,
        cpu_s / (sum(stream["bytes"] for stream in streams) / 1e9),
    )
