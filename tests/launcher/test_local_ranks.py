"""Several processes per worker: what they are told, what they share, what is recorded."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from fnmatch import fnmatch

import pytest

from byteprophet.launcher import read_worker_results, run_job
from byteprophet.launcher.plan import resolve_job

from ..namespaces import why_not_permitted
from .conftest import MakeSpec, python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Each process tells its place. What local rank 0 leaves in the worker's socket directory and in
# /dev/shm must be there for local rank 1, and for nobody else.
_TELL = python("""
import json, os, time
from pathlib import Path
e = os.environ
worker, local = int(e["DMLC_WORKER_ID"]), int(e["BYTEPS_LOCAL_RANK"])
places = [Path(e["BYTEPS_SOCKET_PATH"]), Path("/dev/shm")]
name = f"BytePS_test_{e['DMLC_PS_ROOT_PORT']}_{worker}_{e['BYTEPROPHET_SHARED_MEMORY']}_x"
if local == 0:
    for place in places:
        (place / name).touch()
deadline = time.monotonic() + 30
while not all((place / name).exists() for place in places) and time.monotonic() < deadline:
    time.sleep(0.02)
rank = worker * int(e["BYTEPS_LOCAL_SIZE"]) + local
told = {
    "worker": worker, "local": local, "size": e["BYTEPS_LOCAL_SIZE"], "host": e["DMLC_NODE_HOST"],
    "sockets": e["BYTEPS_SOCKET_PATH"], "there": [(place / name).exists() for place in places],
}
(Path(e["BYTEPROPHET_RUN"]) / "results" / f"worker-{rank}.json").write_text(json.dumps(told))
""")


def _check(make_spec: MakeSpec, namespaces: bool) -> list[dict[str, object]]:
    spec = make_spec(_TELL, workers=2, local_ranks=2, namespaces=namespaces)
    result = run_job(spec)
    result.check()
    workers = ["worker-0.0", "worker-0.1", "worker-1.0", "worker-1.1"]
    assert [role.name for role in result.roles] == ["scheduler", "server-0", *workers]
    assert all((spec.run_directory / "logs" / f"{name}.log").exists() for name in workers)
    told = read_worker_results(spec.run_directory)
    assert [(one["worker"], one["local"]) for one in told] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(one["size"] == "2" and one["there"] == [True, True] for one in told)
    assert told[0]["sockets"] == told[1]["sockets"] != told[2]["sockets"] == told[3]["sockets"]
    config = tomllib.loads((spec.run_directory / "config.toml").read_text())
    assert (config["workers"], config["local_ranks"]) == (2, 2)
    summary = json.loads((spec.run_directory / "summary.json").read_text())
    assert [role["name"] for role in summary["roles"]][2:] == workers
    return told


def test_local_ranks_of_a_worker_share_its_place(make_spec: MakeSpec) -> None:
    _check(make_spec, namespaces=False)


@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_local_ranks_of_a_worker_share_its_host(make_spec: MakeSpec) -> None:
    told = _check(make_spec, namespaces=True)
    assert told[0]["host"] == told[1]["host"] != told[2]["host"] == told[3]["host"]


def test_the_workers_link_is_limited_once(make_spec: MakeSpec) -> None:
    """One host, with one limit, per worker: its local ranks share the rate."""
    reason = why_not_permitted()
    if reason is not None:
        pytest.skip(reason)
    spec = make_spec(workers=2, local_ranks=3, namespaces=True, bandwidth_bps=10**9)
    hosts = resolve_job(spec).host_specs()
    assert [(host.name, host.rate_bps) for host in hosts] == [
        ("scheduler", None),
        ("server-0", None),
        ("worker-0", 10**9),
        ("worker-1", 10**9),
    ]


def test_single_servers_are_limited(make_spec: MakeSpec) -> None:
    reason = why_not_permitted()
    if reason is not None:
        pytest.skip(reason)
    spec = make_spec(
        servers=3, namespaces=True, bandwidth_bps=10**9, server_bandwidth_bps={1: 5 * 10**8}
    )
    rates = {host.name: host.rate_bps for host in resolve_job(spec).host_specs()}
    assert [rates[f"server-{index}"] for index in range(3)] == [None, 5 * 10**8, None]
    assert {rate for name, rate in rates.items() if name.startswith("worker")} == {10**9}


def test_jobs_with_one_port_share_no_memory(make_spec: MakeSpec) -> None:
    """Their root hosts may differ. Names of the first job match none of the second one's."""
    one, other = (replace(resolve_job(make_spec(("true",))), port=9000) for _ in range(2))
    (name,), (pattern,) = one.shared_memory, other.shared_memory
    made = name.replace("*", "0")
    assert fnmatch(made, name)
    assert not fnmatch(made, pattern)
