"""Files that hold strategies: what is written is read, and what is wrong is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.strategy import FSDP2, Keys
from byteprophet.job.strategy_file import (
    Used,
    check_servers,
    read_strategy,
    read_strategy_file,
    write_strategy,
)

MODEL = Model((Parameter("a", 400), Parameter("b", 800, "layer"), Parameter("c", 4)))
BUCKETED = Used(
    MODEL,
    Strategy("dear", (Bucket(("c", "b"), 0, 3, sharded=True), Bucket(("a",), 1, 2)), 1000),
    since=12,
)
OWNED = replace(BUCKETED, strategy=replace(BUCKETED.strategy, owners=(1, 0, 2)))
SERVED = Used(
    MODEL,
    Strategy(partition_bytes=65536),
    since=0,
    policy=Policy("p3", {"partition_bytes": 65536, "outstanding_messages": 4}),
)
KEYS = (Keys("b", 4096), Keys("a", 0, (1,)), Keys("c", 8192, (2, 0)))
PLACED = replace(SERVED, strategy=replace(SERVED.strategy, keys=KEYS))
CAST = replace(BUCKETED, strategy=replace(BUCKETED.strategy, reduce_dtype="bf16", accumulation=4))
SERVED_CAST = replace(SERVED, strategy=replace(SERVED.strategy, reduce_dtype="fp16"))
FIXED = replace(SERVED, strategy=replace(SERVED.strategy, reduce_fixed="why", accumulation=2))
WHOLE = replace(
    BUCKETED,
    strategy=replace(
        BUCKETED.strategy,
        buckets=tuple(replace(each, sharded=False) for each in BUCKETED.strategy.buckets),
        shardable=False,
    ),
)


@pytest.mark.parametrize(
    "used",
    [BUCKETED, OWNED, SERVED, PLACED, CAST, SERVED_CAST, FIXED, WHOLE],
    ids=["buckets", "owners", "servers", "keys", "cast", "served-cast", "fixed", "whole"],
)
def test_what_is_written_is_read(used: Used, tmp_path: Path) -> None:
    for name in ("strategy.json", "strategy.yaml", "strategy.yml"):
        write_strategy(tmp_path / name, used)
        assert read_strategy_file(tmp_path / name) == used
    assert (tmp_path / "strategy.json").read_text().startswith("{")
    assert (tmp_path / "strategy.yaml").read_text().startswith("schema: 1\n")


def test_frozen_parameters(tmp_path: Path) -> None:
    """Only FSDP2 has any, and files without are as they have always been."""
    path = tmp_path / "strategy.json"
    model = Model((Parameter("a", 4), Parameter("b", 8, frozen=True)))
    used = Used(model, Strategy(FSDP2, (Bucket(("a", "b"), 0, 0, sharded=True),)), 1)
    write_strategy(path, used)
    assert read_strategy_file(path) == used
    data = json.loads(path.read_text())
    assert [row.get("frozen") for row in data["parameters"]] == [None, True]
    path.write_text(json.dumps({**data, "runtime": "dear"}))
    with pytest.raises(UserError, match="one is frozen, and only 'fsdp2' has any such"):
        read_strategy_file(path)


def test_yaml_that_nobody_could_read_is_not_written(tmp_path: Path) -> None:
    """The limit counts bytes, not characters."""
    path = tmp_path / "large.yaml"
    large = Model((Parameter("\u00e4" * (1 << 19), 4),))
    with pytest.raises(UserError, match=r"large.yaml: is larger than 1 MiB, .*: use JSON"):
        write_strategy(path, replace(SERVED, model=large))
    assert not path.exists()


def test_yaml_by_hand_is_the_same_strategy(tmp_path: Path) -> None:
    """What is equal has an equal digest, in whatever words and in either language."""
    json_file, yaml_file = tmp_path / "one.json", tmp_path / "one.yaml"
    table = {
        "schema": 1,
        "runtime": "dear",
        "since": 0,
        "bucket_bytes": 0,
        "parameters": [{"name": name, "size_bytes": 400, "layer": ""} for name in ("no", "on")],
        "buckets": [
            {"parameters": ["on", "no"], "reduce_place": 0, "gather_place": 1, "sharded": True}
        ],
        "compressors": [{"parameters": ["n*"], "type": "topk", "k": 0.1}],
        "staleness": {"no": 1},
    }
    json_file.write_text(json.dumps(table))
    yaml_file.write_text(
        """\
# A name that YAML 1.1 would take for false is a name here.
staleness: {no: 1}
compressors:
- {k: 1e-1, type: topk, parameters: ["n*"]}
buckets:
- parameters: [on, no]
  gather_place: 1
  reduce_place: 0
  sharded: true
parameters:
- {name: no, size_bytes: 400, layer: ""}
- {name: on, size_bytes: 400, layer: ""}
runtime: dear
since: 0
bucket_bytes: 0
schema: 1
"""
    )
    read = read_strategy_file(yaml_file)
    assert read == read_strategy_file(json_file)
    assert read.digest == read_strategy_file(json_file).digest
    yaml_file.write_text(yaml_file.read_text() + "since: 1\n")
    with pytest.raises(UserError, match=r"one.yaml: is not YAML: line 17, column 1: key .since."):
        read_strategy_file(yaml_file)
    json_file.write_text(json.dumps(table)[:-1] + ', "since": 1}')
    with pytest.raises(UserError, match=r"one.json: is not JSON: .since. occurs twice"):
        read_strategy_file(json_file)
    yaml_file.write_text("schema: 2\n")
    with pytest.raises(UserError, match=r"one.yaml: schema: must be 1"):
        read_strategy_file(yaml_file)


def test_digests_tell_strategies_apart_and_not_when_they_were_used() -> None:
    assert replace(BUCKETED, since=40).digest == BUCKETED.digest
    (first, second) = BUCKETED.strategy.buckets
    others = [
        replace(BUCKETED, strategy=replace(BUCKETED.strategy, runtime="dear-planned")),
        replace(BUCKETED, strategy=replace(BUCKETED.strategy, buckets=(second, first))),
        replace(BUCKETED, model=Model(MODEL.parameters[:2])),
        OWNED,
        SERVED,
        PLACED,
        CAST,
        replace(CAST, strategy=replace(CAST.strategy, accumulation=2)),
        SERVED_CAST,
        replace(PLACED, strategy=replace(PLACED.strategy, keys=KEYS[:2])),
        replace(SERVED, policy=Policy("fifo", {})),
    ]
    assert len({BUCKETED.digest, *(other.digest for other in others)}) == len(others) + 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema: must be 1"),
        ({"schema": True}, "schema: must be 1"),
        ({"schema": 1.0}, "schema: must be 1"),
        ({"compression": "fp8"}, "compression: this version knows no such member"),
        ({"runtime": "horovod"}, "runtime 'horovod': must be one of byteps, ddp"),
        ({"buckets": []}, "buckets: there must be one at least"),
        ({"buckets": 3}, "buckets: must be a list of tables"),
        ({"bucket_bytes": -1}, "strategy: bucket_bytes must be an integer"),
        ({"owners": 3}, "owners: must be a list of weights, one for each rank"),
        ({"owners": [0, 0]}, "owners 0,0: all weights are 0, so nobody would sum"),
        ({"owners": [1, -1]}, "owners 1,-1: weights are whole numbers from 0 on"),
        ({"owners": [1, "x"]}, "owners 1,x: weights are whole numbers from 0 on"),
        ({"runtime": "ddp", "owners": [1, 2]}, "owners: 'ddp' has none; allreduce, dear"),
        ({"runtime": "byteps"}, "buckets: a job with servers has none"),
        ({"runtime": "byteps", "buckets": []}, "strategy: partition_bytes must be an integer"),
        (
            {"runtime": "byteps", "buckets": [], "partition_bytes": 1},
            "policy: must be a table with a name and settings",
        ),
        (
            {
                "runtime": "byteps",
                "buckets": [],
                "partition_bytes": 1,
                "policy": {"name": "p3", "settings": {"x": "y"}},
            },
            "policy: settings: x must be an integer",
        ),
        ({"autocast": None}, "autocast: must be 'bf16', or left out"),
        ({"policy": {"name": "fifo", "settings": {}}}, "policy: only a job with servers has any"),
        ({"partition_bytes": 4096}, "partition_bytes: only a job with servers has any"),
        ({"servers": 2}, "servers: only a job with servers has any"),
        (
            {
                "runtime": "byteps",
                "buckets": [],
                "partition_bytes": 1,
                "policy": {"name": "p3", "settings": {}, "pinned": True},
            },
            "policy: pinned: this version knows no such member",
        ),
        (
            {"predicted": {"iteration_ns": 1, "interval_ns": [1, 1], "bound_ns": 1, "by": "x"}},
            "predicted: by: this version knows no such member",
        ),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, BUCKETED)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=said) as refused:
        read_strategy_file(path)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"tensor": "d"}, "keys: must name a parameter at most once, and no others"),
        ({"tensor": "b"}, "keys: must name a parameter at most once, and no others"),
        ({"servers": 1}, "keys: servers must be a list of numbers"),
        ({"servers": [-1]}, "keys: servers must be an integer from 0"),
        ({"partition_bytes": 1 << 31}, "keys: partition_bytes must be at most"),
        ({"partition_bytes": None}, "keys: partition_bytes must be an integer"),
        ({"compressor": "topk"}, "keys: compressor: this version knows no such member"),
    ],
)
def test_wrong_keys_are_named(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, PLACED)
    data = json.loads(path.read_text())
    data["keys"][1] |= keys
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=said):
        read_strategy_file(path)
    write_strategy(path, BUCKETED)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"keys": data["keys"][:1]}))
    with pytest.raises(UserError, match="keys: only a job with servers has any"):
        read_strategy_file(path)


@pytest.mark.parametrize(
    ("used", "change", "said"),
    [
        (BUCKETED, {"reduce_dtype": "int8"}, "under 'dear' it must be one of bf16, fp16, or left"),
        (SERVED, {"reduce_dtype": "bf16"}, "'bf16': under 'byteps' it must be one of fp16, or"),
        (BUCKETED, {"runtime": "fsdp2", "reduce_dtype": "bf16"}, "'fsdp2' it must be left out"),
        (BUCKETED, {"runtime": "fsdp2"}, "under 'fsdp2', every one is sharded"),
        (BUCKETED, {"runtime": "fsdp2", "autocast": "bf16"}, "regions and autocast: 'fsdp2' has"),
        (BUCKETED, {"reduce_fixed": 1}, "reduce_fixed must be text"),
        (WHOLE, {"shardable": 0}, "strategy: shardable must be true or false"),
        (SERVED, {"shardable": False}, "shardable: a job with servers has none"),
        (BUCKETED, {"shardable": False}, "shardable: is false, and a bucket is sharded"),
        (BUCKETED, {"accumulation": 0}, "accumulation: must be an integer from 1 to 1024"),
        (BUCKETED, {"accumulation": True}, "accumulation: must be an integer from 1 to 1024"),
        (
            BUCKETED,
            {"runtime": "ddp", "accumulation": 2},
            "accumulation: 'ddp' has none; byteps, allreduce, dear, dear-planned, mixed have",
        ),
        (BUCKETED, {"runtime": "allreduce"}, "one is sharded, and 'allreduce' shards none"),
        (BUCKETED, {"runtime": "ddp"}, "one is sharded, and 'ddp' shards none"),
    ],
)
def test_wrong_changes_of_gradients_are_named(
    used: Used, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, used)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=said):
        read_strategy_file(path)


@pytest.mark.parametrize(
    ("rows", "change", "said"),
    [
        ("buckets", {"sharded": 1}, "buckets: sharded must be true or false"),
        ("buckets", {"sharded": "true"}, "buckets: sharded must be true or false"),
        ("buckets", {"later": 1}, "buckets: later: this version knows no such member"),
        ("parameters", {"later": 1}, "parameters: later: this version knows no such member"),
    ],
)
def test_rows_with_wrong_members_are_refused(
    rows: str, change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, BUCKETED)
    data = json.loads(path.read_text())
    data[rows][0] |= change
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=said):
        read_strategy_file(path)


def test_buckets_of_any_size_need_no_bucket_bytes(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, BUCKETED)
    data = json.loads(path.read_text())
    del data["bucket_bytes"]
    path.write_text(json.dumps(data))
    assert read_strategy_file(path).strategy.bucket_bytes == 0


def test_a_server_that_the_job_has_not_is_refused() -> None:
    check_servers("FILE", PLACED.strategy, 3)
    with pytest.raises(UserError, match="FILE: it places 'c' on server 2, and the job has 2 serv"):
        check_servers("FILE", PLACED.strategy, 2)


def test_a_run_without_servers_has_used_buckets(tmp_path: Path) -> None:
    assert read_strategy(tmp_path) is None
    write_strategy(tmp_path / "strategy.json", SERVED)
    with pytest.raises(UserError, match="a job without servers was expected"):
        read_strategy(tmp_path)
