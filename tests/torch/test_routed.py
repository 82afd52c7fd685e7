"""Real jobs in which some gradients go to servers and others over a mesh of the ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byteprophet import schedulers
from byteprophet.cli.main import run_cli
from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.routes import MESH, SERVERS, Piece, Route
from byteprophet.job.strategy import ALL_REDUCE, DEAR_PLANNED, MIXED
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.launcher import JobResult, JobSpec, run_job
from byteprophet.launcher.leftovers import marked_processes
from byteprophet.runtime_settings import STRATEGY

from ..thorough import examples

pytestmark = [pytest.mark.job, pytest.mark.timeout(400)]
WORKER = Path(__file__).with_name("routed_worker.py")
ENDS_WITHIN_S = 30.0
_SETTINGS, _PARTITION_BYTES = schedulers.resolve(schedulers.DEFAULT, {})
LINEAR = Used(
    Model((Parameter("weight", 64 * 10 * 4), Parameter("bias", 40))),
    Strategy(
        MIXED,
        (Bucket(("bias",), 0, 1, sharded=True),),
        partition_bytes=_PARTITION_BYTES,
        routes=(
            Route("weight", (Piece(64 * 10 * 4, SERVERS),)),
            Route("bias", (Piece(40, MESH),)),
        ),
        mesh=DEAR_PLANNED,
    ),
    0,
    Policy(schedulers.DEFAULT, {**_SETTINGS, schedulers.PARTITION: _PARTITION_BYTES}),
)
CUT = replace(
    LINEAR,
    strategy=replace(
        LINEAR.strategy,
        mesh=ALL_REDUCE,
        buckets=(Bucket(("weight[1]",), 0, 1),),
        routes=(
            Route("weight", (Piece(1000, SERVERS), Piece(1560, MESH))),
            Route("bias", (Piece(40, SERVERS),)),
        ),
    ),
)


PACED = replace(CUT, strategy=replace(CUT.strategy, mesh_bps=80_000_000))
UNLIMITED = (1 << 64) - 1  # bytes per second, of a socket


def spec_of(
    folder: Path, workers: int, servers: int, given: Used | None, **options: Any
) -> JobSpec:
    environment = {"BYTEPROPHET_TIMEOUT_S": "100"}
    if given is not None:
        path = folder / "strategy.json"
        write_strategy(path, given)
        environment[STRATEGY] = str(path)
    return JobSpec(
        command=(sys.executable, str(WORKER), json.dumps({"out": str(folder), **options})),
        run_directory=folder / "run",
        directory=folder,
        workers=workers,
        servers=servers,
        environment=environment,
        ranks=True,
        forks=True,
        timeout_s=300.0,
    )


def results(folder: Path, workers: int) -> list[Any]:
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(workers)]


@pytest.mark.parametrize("given", [LINEAR, CUT, PACED], ids=["whole", "cut", "paced"])
def test_two_parameters_that_go_two_ways(
    given: Used, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user starts it. The mesh moves its own share of the bytes, and no others."""
    monkeypatch.chdir(tmp_path)
    write_strategy(tmp_path / "mixed.json", given)
    options = json.dumps({"out": str(tmp_path), "linear": True})
    command = [sys.executable, str(WORKER), options]
    assert run_cli(["run", "--strategy", "mixed.json", "--servers", "1", "--", *command]) == 0
    first, second = results(tmp_path, 2)
    assert first["equal"]
    assert second["weight"] == first["weight"]
    for found in (first, second):  # once nothing is on its way, there is no limit
        assert set(found["paced"]) == (
            {PACED.strategy.mesh_bps // 8, UNLIMITED} if given is PACED else set()
        )
        assert found["limits"] == [UNLIMITED]
    own = _mesh_bytes(given)
    # An all-reduce of two ranks sends each byte once. Messages (orders, wishes) are small.
    for found in (first, second):
        assert 10 * own <= found["sent_bytes"] <= 10 * own + 1200
    (run,) = Path("runs").iterdir()
    recorded = json.loads((run / "strategy.json").read_text())
    assert recorded["routes"] == json.loads(Path("mixed.json").read_text())["routes"]


def _mesh_bytes(given: Used) -> int:
    pieces = (piece for route in given.strategy.routes for piece in route.pieces)
    return sum(piece.size_bytes for piece in pieces if piece.way == MESH)


@pytest.mark.parametrize(
    ("workers", "servers", "seeds"),
    [(2, 2, range(examples(5, 10))), (3, 1, range(10, 10 + examples(2, 3)))],
)
def test_drawn_strategies_train_like_one_process(
    workers: int, servers: int, seeds: range, tmp_path: Path
) -> None:
    """Routes, pieces, buckets, keys, optimizer, clipping, accumulation and a resume are drawn."""
    spec = spec_of(tmp_path, workers, servers, None, seeds=list(seeds))
    run_job(spec, None).check()
    first, *others = results(tmp_path, workers)
    for drawn in zip(first, *others, strict=True):
        assert all(one["parameters"] == drawn[0]["parameters"] for one in drawn), drawn[0]["seed"]
    if workers == 2:  # the drawing covers what it is to cover
        assert any(each["cut"] for each in first)
        assert any(each["shards"] and not each["rounds"] for each in first)
    for each in first:
        # Servers add three gradients in the order in which they come.
        exact = workers == 2 and not each["rounds"]
        assert each["apart"] <= (0.0 if exact else 2e-4), each["seed"]


def _when(there: Callable[[], bool], do: Callable[[], None]) -> threading.Thread:
    def wait() -> None:
        for _ in range(2000):
            if there():
                do()
                return
            time.sleep(0.05)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("victim", ["worker-1", "server-0", "scheduler"])
def test_a_killed_role_is_named(victim: str, tmp_path: Path) -> None:
    killed_s: list[float] = []

    def kill() -> None:
        killed_s.append(time.monotonic())
        for pid in marked_processes(str(tmp_path / "run"), victim):
            os.kill(pid, signal.SIGKILL)

    spec = spec_of(tmp_path, 2, 1, LINEAR, linear=True, dies_at=20)
    watch = _when(lambda: all((tmp_path / f"here-{rank}").exists() for rank in (0, 1)), kill)
    result: JobResult = run_job(spec, None)
    watch.join()
    assert time.monotonic() - killed_s[0] < ENDS_WITHIN_S
    assert result.failed is not None
    (line,) = result.failed.splitlines()
    assert line.startswith(f"{victim} was killed by signal 9"), line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"calls": "suspend"}, "suspend\\(\\): .* lets gradients travel among the ranks"),
        ({"calls": "resume"}, "resume\\(\\): .* lets gradients travel among the ranks"),
        ({"odd_on": 1}, "ranks differ: option \\d is strategy=.* on rank 0, strategy=.* on rank 1"),
        ({"compresses": True}, "the script compresses the gradient of 'weight' with one of"),
    ],
    ids=["suspend", "resume", "digest", "compressor"],
)
def test_what_cannot_have_two_transports(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    given = CUT if "compresses" in options else LINEAR
    other = replace(LINEAR.strategy, buckets=(Bucket(("bias",), 1, 2, sharded=True),))
    write_strategy(tmp_path / "strategy.json.odd", replace(LINEAR, strategy=other))
    heard: list[str] = []
    spec = spec_of(tmp_path, 2, 1, given, linear=True, **options)
    result = run_job(spec, lambda _, line: heard.append(line))
    assert result.failed is not None
    assert any(re.search(said, line) for line in heard), heard


def test_a_strategy_of_another_model_is_refused(tmp_path: Path) -> None:
    (weight, bias) = LINEAR.strategy.routes
    other = replace(
        LINEAR,
        model=Model((Parameter("weight", 64 * 10 * 4), Parameter("bias", 44))),
        strategy=replace(
            LINEAR.strategy, routes=(weight, replace(bias, pieces=(Piece(44, MESH),)))
        ),
    )
    heard: list[str] = []
    result = run_job(
        spec_of(tmp_path, 2, 1, other, linear=True), lambda _, line: heard.append(line)
    )
    assert result.failed is not None
    said = "the strategy of another model: parameter 'bias' has 44 bytes, and 40 in this model"
    assert any(said in line for line in heard), heard
