from __future__ import annotations

from dataclasses import replace

from byteprophet.launcher.environment import (
    JobFacts,
    RoleName,
    base_environment,
    given_environment,
    role_environment,
    told_environment,
)

_FACTS = JobFacts("10.0.0.1", 9000, 2, 3, "p3", "partition_bytes=4096", 4096, "/runs/x")


def test_what_another_job_left_in_the_shell_is_dropped() -> None:
    stale = {"DMLC_ROLE": "server", "BYTEPS_SCHEDULER": "fifo", "PORT": "8080"}
    base = base_environment({"PATH": "/bin", **stale}, {})
    assert base == {"PATH": "/bin", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def test_the_users_own_variables_win_over_defaults() -> None:
    base = base_environment({"OMP_NUM_THREADS": "4", "A": "1"}, {"A": "2", "BYTEPS_LOG_LEVEL": "I"})
    assert base["OMP_NUM_THREADS"] == "4"
    assert base["A"] == "2"
    assert told_environment(base) == {"BYTEPS_LOG_LEVEL": "I", "OMP_NUM_THREADS": "4"}


def test_defaults_do_not_travel_to_other_hosts() -> None:
    """A pod's image may have a value of its own."""
    assert given_environment({"PATH": "/bin", "DMLC_ROLE": "server"}, {}) == {"PATH": "/bin"}
    assert given_environment({"OMP_NUM_THREADS": "4"}, {}) == {"OMP_NUM_THREADS": "4"}


def test_a_workers_environment() -> None:
    environment = role_environment(
        {"A": "1"}, _FACTS, RoleName("worker", 1, "worker-1"), "10.0.0.5", "/tmp/s"
    )
    assert environment == {
        "A": "1",
        "DMLC_ROLE": "worker",
        "DMLC_WORKER_ID": "1",
        "DMLC_PS_ROOT_URI": "10.0.0.1",
        "DMLC_PS_ROOT_PORT": "9000",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "3",
        "DMLC_NODE_HOST": "10.0.0.5",
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_LOCAL_RANK": "0",
        "BYTEPS_LOCAL_SIZE": "1",
        "BYTEPS_PCIE_SWITCH_SIZE": "1",
        "BYTEPS_SOCKET_PATH": "/tmp/s",
        "BYTEPROPHET_SHARED_MEMORY": "",
        "BYTEPS_PARTITION_BYTES": "4096",
        "BYTEPS_SCHEDULER": "p3",
        "BYTEPROPHET_SETTINGS": "partition_bytes=4096",
        "BYTEPROPHET_ROLE": "worker-1",
        "BYTEPROPHET_RUN": "/runs/x",
        "BYTEPROPHET_RESTART": "0",
    }
    again = role_environment({}, replace(_FACTS, restart=2), RoleName("server", 0, "s"), "a", "b")
    assert again["BYTEPROPHET_RESTART"] == "2"


def test_local_ranks_share_the_workers_number() -> None:
    facts = replace(_FACTS, local_ranks=4)
    role = RoleName("worker", 1, "worker-1.3", local_rank=3)
    environment = role_environment({}, facts, role, "10.0.0.5", "/tmp/s")
    assert environment["BYTEPROPHET_ROLE"] == "worker-1.3"
    assert environment["DMLC_WORKER_ID"] == "1"
    assert environment["DMLC_NUM_WORKER"] == "2"
    assert environment["BYTEPS_LOCAL_RANK"] == "3"
    assert environment["BYTEPS_LOCAL_SIZE"] == "4"


def test_a_server_knows_the_scheduler_but_has_no_worker_id() -> None:
    environment = role_environment(
        {}, _FACTS, RoleName("server", 2, "server-2"), "10.0.0.2", "/tmp/s"
    )
    assert environment["BYTEPS_SCHEDULER"] == "p3"
    assert environment["DMLC_SERVER_ID"] == "2"
    assert "DMLC_WORKER_ID" not in environment


def test_stock_sets_no_scheduler() -> None:
    stock = JobFacts("10.0.0.1", 9000, 2, 3, None, "", 4096000, "/runs/x")
    environment = role_environment(
        {}, stock, RoleName("worker", 0, "worker-0"), "10.0.0.5", "/tmp/s"
    )
    assert "BYTEPS_SCHEDULER" not in environment
    assert "BYTEPROPHET_SETTINGS" not in environment
    assert environment["BYTEPS_PARTITION_BYTES"] == "4096000"
