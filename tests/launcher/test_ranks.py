"""Jobs without servers: ranks of torch.distributed."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.launcher import check_job, run_job
from byteprophet.launcher.environment import JobFacts, RoleName
from byteprophet.launcher.ranks import rank_environment

from ..namespaces import why_not_permitted
from .conftest import MakeSpec, python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FACTS = JobFacts("10.0.0.1", 9000, 3, 0, None, "", 0, "/runs/x", local_ranks=2)
# Each rank says what torchrun would have told it, in a file of its own.
_TELL = """
import json, os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "GLOO_SOCKET_IFNAME", "BYTEPROPHET_MESH_KEY")
told = {name: os.environ[name] for name in names}
told["others"] = [name for name in os.environ if name.startswith(("DMLC_", "BYTEPS_"))]
with open(f"rank-{told['RANK']}.json", "w") as file:
    json.dump(told, file)
"""


def test_a_ranks_environment() -> None:
    role = RoleName("worker", 2, "worker-2.1", local_rank=1)
    others = {"TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_RANK": "1", "DMLC_ROLE": "worker"}
    theirs = {"A": "1", "ROLE_ARN": "arn:aws:iam::1:role/train", "GROUP_ID": "7"}
    assert rank_environment({**theirs, "RANK": "7", **others}, _FACTS, role, "eth0") == {
        **theirs,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "RANK": "5",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "9000",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "BYTEPROPHET_RESTART": "0",
        "BYTEPROPHET_ROLE": "worker-2.1",
        "BYTEPROPHET_RUN": "/runs/x",
    }
    loud = rank_environment({"TORCH_CPP_LOG_LEVEL": "INFO"}, _FACTS, role, "eth0")
    assert loud["TORCH_CPP_LOG_LEVEL"] == "INFO"
    secret = replace(_FACTS, mesh_key="1f")
    assert rank_environment({}, secret, role, "eth0")["BYTEPROPHET_MESH_KEY"] == "1f"
    stepped = replace(_FACTS, step_updates="3,8")
    assert rank_environment({}, stepped, role, "eth0")["BYTEPROPHET_STEP_UPDATES"] == "3,8"


@pytest.mark.parametrize("namespaces", [False, True])
def test_there_are_workers_only(make_spec: MakeSpec, tmp_path: Path, namespaces: bool) -> None:
    if namespaces and why_not_permitted():
        pytest.skip(str(why_not_permitted()))
    spec = make_spec(
        python(_TELL), scheduler="prophet", servers=0, local_ranks=2, namespaces=namespaces
    )
    result = run_job(spec)
    assert result.failed is None
    assert [role.name for role in result.roles] == [
        "worker-0.0",
        "worker-0.1",
        "worker-1.0",
        "worker-1.1",
    ]
    told = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(4)]
    assert [one["LOCAL_RANK"] for one in told] == ["0", "1", "0", "1"]
    # Rank 0's host is the first of the cluster, or all are this machine.
    address, interface = ("10.87.0.1", "eth0") if namespaces else ("127.0.0.1", "lo")
    for one in told:
        assert (one["MASTER_ADDR"], one["GLOO_SOCKET_IFNAME"]) == (address, interface)
        assert (one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"]) == ("4", "2")
        assert one["others"] == []
    (secret,) = {one["BYTEPROPHET_MESH_KEY"] for one in told}
    assert len(secret) == 64
    text = (spec.run_directory / "config.toml").read_text()
    assert secret not in text
    config = tomllib.loads(text)
    assert config["servers"] == 0
    assert "scheduler" not in config
    assert "partition_bytes" not in config
    assert {one["MASTER_PORT"] for one in told} == {str(config["port"])}


def test_a_rank_that_dies_ends_the_job(make_spec: MakeSpec) -> None:
    code = 'import os, time; time.sleep(100) if os.environ["RANK"] != "1" else os.abort()'
    began_s = time.monotonic()
    result = run_job(make_spec(python(code), scheduler="prophet", servers=0, workers=3))
    assert result.failed is not None
    assert "worker-1 was killed by signal 6 (SIGABRT)" in result.failed
    assert time.monotonic() - began_s < 50


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"scheduler": "p3"}, "scheduler p3: without servers there is no BytePS"),
        ({"scheduler": "stock"}, "scheduler stock: without servers there is no BytePS"),
        ({"settings": {"window_floor_bytes": 1}}, "settings of a scheduler: without servers"),
        ({"partition_bytes": 4096}, "settings of a scheduler: without servers"),
        ({"controller": True}, "controller: without servers"),
    ],
)
def test_what_only_byteps_has_is_refused(
    make_spec: MakeSpec, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(UserError) as raised:
        check_job(make_spec(**{"scheduler": "prophet", **fields, "servers": 0}))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--monitor"], "--monitor, --probe: they watch BytePS, which --servers 0"),
        (["--profile", "profile.json"], "--profile: it is for BytePS, which --servers 0"),
        (["--scheduler", "p3"], "scheduler p3: without servers"),
        (["--controller"], "controller: without servers"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(["run", "--servers", "0", *options, "--", "true"]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
