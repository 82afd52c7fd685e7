"""A real Slurm on this machine: munged, slurmctld, and one slurmd per node, on loopback.

    .venv/bin/python -m tests.remote.slurm_cluster [-- COMMAND...]

runs a command, or a shell, that can use it, and ends it afterwards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .jobs import NO_FORKS

_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_READY_TIMEOUT_S = 60.0


def why_not() -> str | None:
    """Why there can be no Slurm here; None: there can."""
    missing = [
        program
        for program in ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch")
        if shutil.which(program, path=_PATH) is None
    ]
    if missing:
        return f"{missing[0]} is not installed: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "slurmd needs root"
    return None


@dataclass(frozen=True)
class SlurmCluster:
    """A running cluster. ``environment``: for its commands. ``daemons``: slurmd's by node."""

    directory: Path
    nodes: tuple[str, ...]
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]]

    def command(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command of Slurm, to its end."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def jobs(self) -> list[str]:
        """The ids of jobs that have not ended."""
        return self.command("squeue", "--noheader", "--format=%i").stdout.split()

    def ready_nodes(self) -> int:
        """How many nodes are idle."""
        said = self.command("sinfo", "--noheader", "--Node", "--format=%t").stdout.split()
        return said.count("idle")


def _ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def _write_config(directory: Path, nodes: Sequence[str], munge: Path) -> Path:
    control, *ports = _ports(1 + len(nodes))
    host = socket.gethostname()
    rows = [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"
        for node, port in zip(nodes, ports, strict=True)
    ]
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"{host}(127.0.0.1)",
        "SlurmctldPort": control,
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={munge}",
        "CredType": "cred/munge",
        "StateSaveLocation": directory / "state",
        "SlurmdSpoolDir": directory / "spool-%n",
        "SlurmctldPidFile": directory / "slurmctld.pid",
        "SlurmdPidFile": directory / "slurmd-%n.pid",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SlurmdParameters": "config_overrides",  # this machine may have fewer cores
        "MpiDefault": "none",
        "ReturnToService": 2,
        "SlurmdTimeout": 10,
        "KillWait": 5,
        "SchedulerParameters": "batch_sched_delay=0",
    }
    path = directory / "slurm.conf"
    lines = [f"{name}={value}" for name, value in settings.items()]
    partition = (
        "PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO"
    )
    path.write_text("\n".join([*lines, *rows, partition]) + "\n")
    return path


@contextmanager
def slurm_cluster(
    directory: Path, nodes: Sequence[str] = ("n1", "n2", "n3")
) -> Iterator[SlurmCluster]:
    """Starts the daemons and waits until all nodes are idle; ends everything."""
    directory.mkdir()
    (directory / "state").mkdir()
    key, munge = directory / "munge.key", directory / "munge.socket"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = _write_config(directory, nodes, munge)
    environment = {**os.environ, **NO_FORKS, "PATH": _PATH, "SLURM_CONF": str(config)}
    daemons: dict[str, subprocess.Popen[bytes]] = {}
    with ExitStack() as stack:

        def start(name: str, *command: str) -> None:
            log = stack.enter_context((directory / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            daemons[name] = process
            stack.callback(_end, process)

        files = {
            "socket": munge,
            "key-file": key,
            "pid-file": directory / "munged.pid",
            "log-file": directory / "munged.own.log",
            "seed-file": directory / "munge.seed",
        }
        options = [f"--{name}={path}" for name, path in files.items()]
        start("munged", "munged", "--foreground", "--force", *options)
        cluster = SlurmCluster(directory, tuple(nodes), environment, daemons)
        _wait(munge.exists, cluster)
        start("slurmctld", "slurmctld", "-D", "-i")
        for node in nodes:
            start(node, "slurmd", "-D", "-N", node)
        _wait(lambda: cluster.ready_nodes() == len(nodes), cluster)
        yield cluster
        cluster.command("scancel", "--user=root")


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def _wait(is_ready: object, cluster: SlurmCluster) -> None:
    assert callable(is_ready)
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while not is_ready():
        logs = {path.name: path.read_text()[-2000:] for path in cluster.directory.glob("*.log*")}
        assert time.monotonic() < deadline_s, logs
        assert all(process.poll() is None for process in cluster.daemons.values()), logs
        time.sleep(0.1)


def main() -> int:
    """Runs a command in a new cluster; its exit status, or 2 if there can be no cluster."""
    parser = argparse.ArgumentParser(prog="python -m tests.remote.slurm_cluster")
    parser.add_argument("command", nargs="*", help="with its arguments, after --; default: a shell")
    command = parser.parse_args().command or [os.environ.get("SHELL", "/bin/sh")]
    missing = why_not()
    if missing is not None:
        print(f"slurm_cluster: {missing}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as temporary,
        slurm_cluster(Path(temporary) / "slurm") as cluster,
    ):
        # Ctrl-C is for the command, which this process outlives.
        signal.signal(signal.SIGINT, lambda *_: None)
        path = f"{Path(sys.executable).parent}:{cluster.environment['PATH']}"
        environment = {**cluster.environment, "PATH": path}
        try:
            status = subprocess.run(command, env=environment, check=False).returncode
        except OSError as error:
            print(f"slurm_cluster: {command[0]}: {error.strerror}", file=sys.stderr)
            return 2
        return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
