"""A cluster of namespaces, made for real: its links, its shared memory, and that it goes away."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import byteprophet
from byteprophet.errors import UserError
from byteprophet.network import Cluster, Host, HostSpec, cut_cable, why_not_permitted

_REASON = why_not_permitted()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

_RATE_BPS = 200_000_000
_BURST_BYTES = 256 * 1024
_PAYLOAD_BYTES = 8 * 1024 * 1024

# Receives one connection to its end; prints the seconds it took and the bytes.
_RECEIVE = """
import socket, time
server = socket.create_server(("", 7000))
server.settimeout(30)
print("listening", flush=True)
connection, _ = server.accept()
start, total = time.monotonic(), 0
while data := connection.recv(1 << 16):
    total += len(data)
print(time.monotonic() - start, total)
"""
_SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=30) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, ...]]:
    """A limited host and two that are not."""
    with Cluster([HostSpec("limited", _RATE_BPS), HostSpec("free"), HostSpec("other")]) as cluster:
        yield cluster.hosts


def _on(host: Host, *command: str, directory: Path | None = None) -> str:
    done = subprocess.run(
        host.enter(command, directory), capture_output=True, text=True, timeout=30, check=True
    )
    return done.stdout


def _transfer_s(sender: Host, receiver: Host) -> float:
    with subprocess.Popen(
        receiver.enter([sys.executable, "-c", _RECEIVE]), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        _on(sender, sys.executable, "-c", _SEND, receiver.address, str(_PAYLOAD_BYTES))
        seconds, received = process.stdout.read().split()
    assert int(received) == _PAYLOAD_BYTES
    return float(seconds)


@pytest.mark.parametrize("upward", [True, False])
def test_a_limited_link_limits_each_direction(hosts: tuple[Host, ...], upward: bool) -> None:
    limited, free, _ = hosts
    sender, receiver = (limited, free) if upward else (free, limited)
    # What a token bucket lets through in t seconds is at most burst + rate * t, headers included.
    at_least_s = (_PAYLOAD_BYTES - _BURST_BYTES) * 8 / _RATE_BPS
    assert _transfer_s(sender, receiver) >= at_least_s


def test_only_limited_hosts_have_a_queue_that_limits(hosts: tuple[Host, ...]) -> None:
    shown = [_on(host, "tc", "qdisc", "show", "dev", "eth0") for host in hosts]
    assert [("tbf" in text) for text in shown] == [True, False, False]
    assert "rate 200Mbit" in shown[0]


def test_hosts_have_their_own_network_and_shared_memory(hosts: tuple[Host, ...]) -> None:
    limited, free, other = hosts
    assert len({host.address for host in hosts}) == 3
    name = f"byteprophet-test-{os.getpid()}"
    _on(limited, "touch", f"/dev/shm/{name}")
    assert _on(limited, "ls", "/dev/shm") == f"{name}\n"
    assert _on(free, "ls", "/dev/shm") == ""
    assert not Path("/dev/shm", name).exists()
    assert f"{other.address}/24" in _on(other, "ip", "-brief", "address")
    assert "127.0.0.1/8" in _on(other, "ip", "-brief", "address", "show", "dev", "lo")


def test_a_command_runs_in_the_directory_it_is_given(
    hosts: tuple[Host, ...], tmp_path: Path
) -> None:
    assert _on(hosts[1], "pwd", directory=tmp_path) == f"{tmp_path}\n"


def _namespace_ids() -> set[str]:
    """The network namespaces that any process is in."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.add(str((entry / "ns/net").readlink()))
    return found


def test_the_machines_own_network_shows_nothing(hosts: tuple[Host, ...]) -> None:
    links = subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
    assert "port0" not in links
    assert "bridge0" not in links


def test_nothing_is_left_when_the_maker_is_killed() -> None:
    code = (
        "import sys\n"
        "from byteprophet.network import Cluster, HostSpec\n"
        "with Cluster([HostSpec('a', 10**9), HostSpec('b')]) as cluster:\n"
        "    print(*cluster.pids, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with maker:
        assert maker.stdout is not None
        readable, _, _ = select.select([maker.stdout], [], [], 30)
        assert readable, "the cluster was not made within 30 s"
        pids = [int(word) for word in maker.stdout.readline().split()]
        assert len(pids) == 3  # two hosts and the switch
        namespaces = {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in pids}
        assert len(namespaces) == 3
        maker.send_signal(signal.SIGKILL)
        maker.wait(10)
    deadline_s = time.monotonic() + 10
    while namespaces & _namespace_ids() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not namespaces & _namespace_ids()


_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
_PYTHON = "/usr/bin/python3"  # one that any user can start, wherever the tests' own is
_SEE = """
import subprocess
from byteprophet.network import Cluster, HostSpec, why_not_permitted
reason = why_not_permitted()
if reason is None:
    with Cluster([HostSpec("a", 10**9), HostSpec("b")]) as cluster:
        a, b = cluster.hosts
        print(subprocess.run(a.enter(["tc", "qdisc", "show", "dev", "eth0"]), capture_output=True))
else:
    print("not permitted:", reason)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="already an ordinary user")
@pytest.mark.skipif(not os.access(_PYTHON, os.X_OK), reason=f"there is no {_PYTHON}")
def test_an_ordinary_user_gets_one_too_or_hears_why_not() -> None:
    source = Path(byteprophet.__file__).parent.parent
    done = subprocess.run(
        [*_NOBODY, _PYTHON, "-c", _SEE],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "tbf" in done.stdout or done.stdout.startswith("not permitted: network and mount ")


def test_what_is_not_permitted_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "tc"
    broken.write_text("#!/bin/sh\necho no queues >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reason = why_not_permitted()
    assert reason is not None
    assert reason.startswith("the tbf queue of tc cannot be made here (no queues)")
    broken.unlink()
    assert why_not_permitted() is None


def test_a_cut_cable_cuts_one_host_off() -> None:
    with Cluster([HostSpec("a"), HostSpec("b")]) as cluster:
        cut_cable(cluster.hosts[0].pid)
        states = [_on(host, "ip", "-o", "link", "show", "eth0") for host in cluster.hosts]
    assert ["state DOWN" in state for state in states] == [True, False]


def test_this_machines_own_cable_is_not_cut() -> None:
    with pytest.raises(UserError, match="this machine's own network"):
        cut_cable(os.getpid())
