from __future__ import annotations

import re
import sys

import pytest

from byteprophet.launcher import run_job

from ..namespaces import why_not_permitted
from .conftest import MakeSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_a_worker_with_a_rate_of_its_own(make_spec: MakeSpec) -> None:
    spec = make_spec(
        ("tc", "qdisc", "show", "dev", "eth0"),
        workers=3,
        bandwidth_bps=500_000_000,
        worker_bandwidth_bps={1: 50_000_000},
        namespaces=True,
    )
    said: dict[str, str] = {}

    def echo(role: str, line: str) -> None:
        said.setdefault(role, line)

    result = run_job(spec, echo)
    assert result.failed is None
    rates = {role: re.findall(r"rate (\w+)", line) for role, line in said.items()}
    assert rates == {"worker-0": ["500Mbit"], "worker-1": ["50Mbit"], "worker-2": ["500Mbit"]}
    config = tomllib.loads((spec.run_directory / "config.toml").read_text())
    assert config["bandwidth_bps"] == 500_000_000
    assert config["worker_bandwidth_bps"] == {"1": 50_000_000}
