from __future__ import annotations

import socket
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.launcher import check_job
from byteprophet.launcher.checks import interface_address, root_port
from byteprophet.network import Step

from ..namespaces import why_not_permitted
from .conftest import MakeSpec

_DISORDERED = (Step(10**9, at_s=20.0), Step(3 * 10**9, at_s=10.0))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"workers": 0}, "workers 0"),
        ({"workers": 65537}, "workers 65537: a job has at most 65536"),
        ({"servers": 10**30}, "a job has at most 65536"),
        ({"servers": -1}, "servers -1"),
        ({"local_ranks": 0}, "local ranks 0"),
        ({"local_ranks": 65}, "local ranks 65"),
        ({"timeout_s": 0.0}, "timeout 0"),
        ({"partition_bytes": 0}, "partition bytes 0"),
        ({"partition_bytes": 2**30 + 1}, "partition bytes 1073741825"),
        ({"bandwidth_bps": 10**9}, "needs namespaces"),
        ({"worker_bandwidth_bps": {0: 10**9}}, "needs namespaces"),
        ({"namespaces": True, "worker_bandwidth_bps": {2: 10**9}}, "worker 2: there is no such"),
        ({"namespaces": True, "worker_bandwidth_bps": {-1: 10**9}}, "this job has 0 to 1"),
        ({"namespaces": True, "worker_bandwidth_bps": {1: 0}}, "worker 1: 0 bit/s is not a rate"),
        ({"server_bandwidth_bps": {0: 10**9}}, "needs namespaces"),
        ({"namespaces": True, "server_bandwidth_bps": {1: 10**9}}, "server 1: there is no such"),
        ({"namespaces": True, "steps": _DISORDERED}, "step 3gbit@10s: comes before step 1gbit@20s"),
        (
            {"namespaces": True, "steps": _DISORDERED[:1], "worker_bandwidth_bps": {0: 1, 1: 1}},
            "step 1gbit@20s: every worker has a bandwidth of its own",
        ),
        ({"namespaces": True, "interface": "lo"}, "interface 'lo'"),
        ({"interface": "nope0"}, "interface 'nope0': there are lo"),
        ({"port": 70000}, "port 70000"),
        ({"port": 70000, "namespaces": True}, "port 70000"),
        ({"port": 0, "namespaces": True}, "port 0"),
        ({"scheduler": "best"}, "scheduler 'best': choose one of stock, "),
        ({"settings": {"window": 1}}, "setting 'window'"),
        ({"directory": Path("/nowhere")}, "directory /nowhere"),
        ({"environment": {"BYTEPS_ENABLE_ASYNC": "1"}}, "BYTEPS_ENABLE_ASYNC=1"),
        ({"environment": {"BYTEPS_SERVER_ENABLE_SCHEDULE": "1"}}, "can give wrong sums"),
        ({"environment": {"BYTEPROPHET_DEAD_AFTER_S": "2.9"}}, "DEAD_AFTER_S='2.9': must be"),
        ({"environment": {"BYTEPROPHET_START_TIMEOUT_S": "nan"}}, "START_TIMEOUT_S='nan'"),
        ({"environment": {"BYTEPS_SERVER_ENGINE_BLOCKING": "1"}}, "unset it"),
        ({"environment": {"BYTEPS_PCIE_SWITCH_SIZE": "1"}, "local_ranks": 2}, "PCIe switch"),
        ({"environment": {"BYTEPS_NCCL_GROUP_SIZE": "0"}}, "BYTEPS_NCCL_GROUP_SIZE=0"),
        ({"environment": {"BYTEPS_REDUCE_ROOTS": "0,2"}, "local_ranks": 2}, "0 to 1"),
        ({"environment": {"BYTEPS_REDUCE_ROOTS": ""}}, "BYTEPS_REDUCE_ROOTS="),
        ({"command": ("ls", "\udcff")}, r"command '\udcff': is not UTF-8"),
        ({"environment": {"BYTEPROPHET_PROFILE": "/\udcff"}}, "BYTEPROPHET_PROFILE '/"),
    ],
)
def test_a_job_that_cannot_work_is_refused(
    make_spec: MakeSpec, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(UserError) as raised:
        check_job(make_spec(**fields))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_so_many_hosts_are_refused_as_a_cluster_has_not(make_spec: MakeSpec) -> None:
    check_job(make_spec(namespaces=True, workers=251))
    with pytest.raises(UserError, match="254 hosts: a cluster of namespaces has up to 253"):
        check_job(make_spec(namespaces=True, workers=252))
    with pytest.raises(UserError, match="254 hosts"):
        check_job(make_spec(namespaces=True, workers=254, servers=0, scheduler="prophet"))


@pytest.mark.parametrize("command", [(), ("",), ("no-such-program",), ("./data.txt",)])
def test_the_command_must_exist_and_be_executable(
    make_spec: MakeSpec, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "data.txt").write_text("not a program")
    with pytest.raises(UserError, match="command"):
        check_job(make_spec(command))


def test_a_program_is_looked_for_where_the_workers_start(
    make_spec: MakeSpec, tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    check_job(make_spec(("./train.sh",), environment={"BYTEPS_ENABLE_ASYNC": "0"}))


def test_what_suits_the_local_ranks_is_accepted(make_spec: MakeSpec) -> None:
    variables = {
        "BYTEPS_PCIE_SWITCH_SIZE": "8",
        "BYTEPS_NCCL_GROUP_SIZE": "2",
        "BYTEPS_REDUCE_ROOTS": "0,3",
    }
    check_job(make_spec(local_ranks=4, environment=variables))


def test_a_port_in_use_is_told_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use on 127.0.0.1: Address already"):
            root_port(port, "127.0.0.1")
    assert root_port(port, "127.0.0.1") == port


def test_a_free_port_is_found() -> None:
    assert 20000 <= root_port(None, "127.0.0.1") < 32000


def test_addresses_of_interfaces() -> None:
    assert interface_address(None) == "127.0.0.1"
    assert interface_address("lo") == "127.0.0.1"
