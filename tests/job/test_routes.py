"""Routes of gradients: parts and their places, files, and what is wrong with a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byteprophet.errors import UserError
from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.predicted import Predicted
from byteprophet.job.routes import MESH, SERVERS, Piece, Route, bytes_of, carried, parts_of
from byteprophet.job.strategy import Keys
from byteprophet.job.strategy_file import (
    Used,
    read_given,
    read_strategy,
    read_strategy_file,
    write_strategy,
)

MODEL = Model((Parameter("a", 400), Parameter("b", 800, "layer"), Parameter("c", 4)))
ROUTES = (
    Route("a", (Piece(400, SERVERS),)),
    Route("b", (Piece(100, MESH), Piece(600, SERVERS), Piece(100, MESH))),
    Route("c", (Piece(4, MESH),)),
)
CUT = Used(
    MODEL,
    Strategy(
        "mixed",
        (Bucket(("c", "b[2]"), 1, 2), Bucket(("b[0]",), 0, 3)),
        partition_bytes=65536,
        keys=(Keys("b[1]", 4096, (1,)),),
        routes=ROUTES,
        mesh="dear-planned",
    ),
    since=0,
    policy=Policy("p3", {"partition_bytes": 65536, "outstanding_messages": 4}),
    servers=2,
)
WHOLE = replace(
    CUT,
    strategy=replace(
        CUT.strategy,
        routes=(ROUTES[0], Route("b", (Piece(800, MESH),)), ROUTES[2]),
        buckets=(Bucket(("b", "c"), 0, 1, sharded=True),),
        keys=(),
        owners=(1, 0, 2),
        mesh="dear",
        mesh_bps=100_000_000,
        accumulation=2,
        reduce_dtype="fp16",
    ),
    predicted=Predicted(1000, (900, 1200), 800),
)


def test_parts_lie_one_after_the_other() -> None:
    parts = [(each.name, each.first_byte, each.size_bytes, each.way) for each in parts_of(ROUTES)]
    assert parts == [
        ("a", 0, 400, SERVERS),
        ("b[0]", 0, 100, MESH),
        ("b[1]", 100, 600, SERVERS),
        ("b[2]", 700, 100, MESH),
        ("c", 0, 4, MESH),
    ]
    assert bytes_of(MODEL, ROUTES, MESH) == (0, 200, 4)
    assert carried(MODEL, ROUTES[::-1], SERVERS) == Model(
        (Parameter("a", 400), Parameter("b[1]", 600, "layer"))
    )


@pytest.mark.parametrize("used", [CUT, WHOLE], ids=["cut", "whole"])
def test_what_is_written_is_read(used: Used, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, used)
    assert read_strategy_file(path) == used
    # Another order of the routes is the same strategy.
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "routes": data["routes"][::-1]}))
    assert read_strategy_file(path).digest == used.digest
    assert read_given(tmp_path) == used
    with pytest.raises(UserError, match="'mixed': a job without servers was expected"):
        read_strategy(tmp_path)


def test_digests_tell_routes_apart() -> None:
    moved = (Route("a", (Piece(400, MESH),)), *ROUTES[1:])
    others = [
        WHOLE,
        replace(CUT, strategy=replace(CUT.strategy, routes=moved)),
        replace(CUT, strategy=replace(CUT.strategy, mesh="allreduce")),
        replace(CUT, strategy=replace(CUT.strategy, mesh_bps=1)),
        replace(CUT, servers=1),
    ]
    assert len({CUT.digest, *(other.digest for other in others)}) == 6
    # What was expected of a strategy does not change it.
    assert replace(CUT, predicted=WHOLE.predicted).digest == CUT.digest


def _route(tensor: str, *pieces: tuple[Any, Any]) -> dict[str, Any]:
    return {"tensor": tensor, "pieces": [{"size_bytes": size, "way": way} for size, way in pieces]}


A, B, C = _route("a", (400, "servers")), _route("b", (800, "mesh")), _route("c", (4, "mesh"))
BUCKETS = [{"parameters": ["b", "c"], "reduce_place": 0, "gather_place": 1, "sharded": False}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"routes": None}, "routes: must be a list with one table for each parameter"),
        ({"routes": [A, B]}, "routes: parameter 'c' has none"),
        ({"routes": [A, B, C, _route("d", (4, "mesh"))]}, "routes: there is no parameter 'd'"),
        ({"routes": [A, B, C, A]}, "routes: parameter 'a' has two routes"),
        ({"routes": [A, B, _route("c")]}, "routes: 'c' has no pieces"),
        (
            {"routes": [A, B, _route("c", (2, "mesh"), (1, "servers"))]},
            "routes: the pieces of 'c' have 3 bytes, and the parameter has 4",
        ),
        ({"routes": [A, B, _route("c", (4, "air"))]}, "routes: 'c' goes 'air': must be servers or"),
        ({"routes": [A, B, _route("c", (4, "mesh"), (0, "mesh"))]}, "must have 1 byte or more"),
        ({"routes": [A, B, {**C, "order": 3}]}, "each one must have the members tensor and pieces"),
        ({"routes": [_route("a", (400, "mesh")), B, C]}, "routes: nothing goes to servers"),
        ({"routes": [A, _route("b", (800, "servers")), _route("c", (4, "servers"))]}, "the mesh"),
        ({"mesh": "ddp"}, "mesh 'ddp': must be one of allreduce, dear, dear-planned"),
        (
            {"mesh": "allreduce", "buckets": [{**BUCKETS[0], "sharded": True}]},
            "buckets: one is sharded, and the mesh 'allreduce' shards none",
        ),
        ({"buckets": [{**BUCKETS[0], "parameters": ["b"]}]}, "'c' goes over the mesh, and"),
        ({"buckets": [{**BUCKETS[0], "parameters": ["a", "b", "c"]}]}, "must name what goes over"),
        ({"keys": [{"tensor": "b", "partition_bytes": 0, "servers": [0]}]}, "what goes to servers"),
        ({"reduce_dtype": "bf16"}, "reduce_dtype 'bf16': under 'mixed' it must be one of fp16"),
        ({"policy": None}, "policy: must be a table"),
        ({"mesh_bps": -1}, "strategy: mesh_bps must be an integer from 0"),
        (
            {"mesh_bps": 1},
            "mesh_bps 1: at this rate, 804 bytes over the mesh take longer",
        ),
        ({"predicted": {"iteration_ns": 5}}, "predicted: must have iteration_ns, interval_ns"),
        ({"predicted": []}, "predicted: must have iteration_ns, interval_ns"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, CUT)
    good = {**json.loads(path.read_text()), "routes": [A, B, C], "buckets": BUCKETS, "keys": []}
    path.write_text(json.dumps(good))
    read_strategy_file(path)
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(UserError) as refused:
        read_strategy_file(path)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mesh": "dear"}, "mesh 'dear': it shards all buckets, and that of 'c' is whole"),
        ({"buckets": (Bucket(("c", "b[0]", "b[2]"), 0, 1, True),)}, "nothing may be sharded"),
    ],
)
def test_nothing_is_sharded_beside_a_cut_gradient(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, replace(CUT, strategy=replace(CUT.strategy, **changes)))
    with pytest.raises(UserError, match=said):
        read_strategy_file(path)


def test_a_piece_is_not_called_like_a_parameter(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    model = Model((*MODEL.parameters, Parameter("b[1]", 8)))
    routes = (*ROUTES, Route("b[1]", (Piece(8, SERVERS),)))
    write_strategy(path, replace(CUT, model=model, strategy=replace(CUT.strategy, routes=routes)))
    with pytest.raises(UserError, match=r"a piece would be called 'b\[1\]', as a parameter is"):
        read_strategy_file(path)


def test_other_runtimes_have_no_routes(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    served = Strategy(partition_bytes=4096, routes=ROUTES, mesh="dear")
    write_strategy(path, Used(MODEL, served, 0, Policy("p3", {})))
    with pytest.raises(UserError, match="routes, mesh and mesh_bps: only 'mixed' has any"):
        read_strategy_file(path)
