"""A run's config.toml: valid files are read; invalid ones give one line that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.network import payload_bps
from byteprophet.workload.run_config import read_run_config, server_limits_bps

RIGHT = """
workers = 2
servers = 1
scheduler = "prophet"
partition_bytes = 65536
bandwidth_bps = 1000000000
command = ["python"]
[settings]
partition_bytes = 65536
[worker_bandwidth_bps]
1 = 500000000
[server_bandwidth_bps]
0 = 250000000
"""
ALL_REDUCE = "workers = 2\nservers = 0\n"


def test_what_is_right_comes_through(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(RIGHT)
    config = read_run_config(tmp_path)
    assert (config["workers"], config["local_ranks"], config["steps"]) == (2, 1, [])
    assert config["worker_bandwidth_bps"] == {"1": 500_000_000}
    assert server_limits_bps(config) == [payload_bps(250_000_000)]
    assert server_limits_bps({"servers": 2}) == [None, None]
    assert config["command"] == ["python"]
    (tmp_path / "config.toml").write_text(ALL_REDUCE)
    assert read_run_config(tmp_path)["servers"] == 0


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("workers = 2", "workers = 0", "workers must be a whole number from 1"),
        ("workers = 2", "workerz = 2", "workers is missing"),
        ("workers = 2", "workers = 99999999999", "workers must be"),
        ("servers = 1", 'servers = "1"', "servers must be a whole number"),
        ('"prophet"', '"profet"', "scheduler 'profet'"),
        ('"prophet"', "7", "scheduler must be text"),
        ("bandwidth_bps = 1000000000", "bandwidth_bps = -1", "bandwidth_bps must be"),
        ("[settings]\npartition_bytes", "[settings]\nportion_bytes", "portion_bytes"),
        ("[settings]\npartition_bytes = 65536", "settings = 3", "settings must be a table"),
        ("1 = 500000000", "1 = true", "worker_bandwidth_bps.1 must be"),
        ("1 = 500000000", "1 = 0", "worker_bandwidth_bps.1 must be"),
        ("0 = 250000000", "0 = -1", "server_bandwidth_bps.0 must be"),
        ("\npartition_bytes = 65536\nb", "\nb", "partition_bytes is missing"),
        ("workers = 2", "workers = 60000\nlocal_ranks = 60000", "workers x local_ranks is 36000"),
        ('command = ["python"]', "directory = 5", "directory must be text"),
        ('command = ["python"]', 'environment = "x"', "environment must be a table"),
        ('command = ["python"]', "namespaces = 2026-01-01", "namespaces must be true or false"),
        ('command = ["python"]', "controller = 1", "controller must be true or false, got 1"),
        ("[settings]", "steps = 1\n[settings]", "steps must be a list"),
        ("[settings]", "[settings", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(before: str, after: str, named: str, tmp_path: Path) -> None:
    assert before in RIGHT
    path = tmp_path / "config.toml"
    path.write_text(RIGHT.replace(before, after))
    with pytest.raises(UserError, match=named) as caught:
        read_run_config(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
