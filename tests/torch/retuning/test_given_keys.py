"""Real jobs whose strategy gives gradients servers and partition sizes: they go there, exactly."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byteprophet import schedulers
from byteprophet.cli.main import run_cli
from byteprophet.job import Model, Parameter, Policy, Strategy
from byteprophet.job.partitions import PAGE_BYTES
from byteprophet.job.strategy import Keys
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.launcher import JobSpec, run_job
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.observe import recording
from byteprophet.runtime_settings import STRATEGY
from byteprophet.timeline.read_events import load_run
from byteprophet.timeline.tables import SERVED_TABLE, TRANSFERS, tensor_of

WORKER = Path(__file__).with_name("keys_worker.py")
SERVERS = 2
BUFFER = "0.weight and 1 more"
KEYS = (
    Keys(BUFFER, 0, (1,)),
    Keys("2.weight", 20_480, (0,)),
    Keys("2.bias", 0, (0,)),
    Keys("4.weight", 131_072, (1, 1, 0)),
    Keys("4.bias", 0, (1,)),
)

SIZES_BYTES = {
    BUFFER: 4 * (64 * 40 + 40),
    "2.weight": 4 * 40 * 400,
    "2.bias": 4 * 400,
    "4.weight": 4 * 400 * 1000,
    "4.bias": 4 * 1000,
}


def used(keys: Sequence[Keys], scheduler: str = "prophet") -> Used:
    """A strategy with ``keys``."""
    settings, size_bytes = schedulers.resolve(scheduler, {}, 65_536)
    return Used(
        Model(tuple(Parameter(name, size) for name, size in SIZES_BYTES.items())),
        Strategy(partition_bytes=size_bytes, keys=tuple(keys)),
        0,
        Policy(scheduler, settings),
    )


def run(folder: Path, given: Used, *arguments: str) -> tuple[str | None, list[str]]:
    """Why the job failed, and what the workers say."""
    assert given.policy is not None
    path = folder / "strategy.json"
    write_strategy(path, given)
    said: list[str] = []
    spec = JobSpec(
        command=(sys.executable, str(WORKER), *arguments),
        run_directory=folder / "run",
        directory=folder,
        workers=2,
        servers=SERVERS,
        scheduler=given.policy.name,
        settings=given.policy.settings,
        environment={
            "BYTEPROPHET_TIMEOUT_S": "100",
            recording.VARIABLE: "1",
            STRATEGY: str(path),
        },
        timeout_s=200.0,
    )
    result = run_job(spec, lambda _, line: said.append(line))
    return result.failed, said


def digest(said: Sequence[str]) -> str:
    """That of both workers."""
    one, other = [line for line in said if line.startswith("digest ")]
    assert one == other
    return one


@pytest.mark.job
@pytest.mark.timeout(300)
def test_gradients_go_where_the_strategy_says(tmp_path: Path) -> None:
    for name in ("plain", "placed"):
        (tmp_path / name).mkdir()
    failed, plain = run(tmp_path / "plain", used((), "fifo"))
    assert failed is None
    failed, placed = run(tmp_path / "placed", used(KEYS))
    assert failed is None
    assert not [line for line in placed if "warning" in line]
    assert digest(placed) == digest(plain)

    keys = {each.tensor: each for each in KEYS}
    for events in load_run(tmp_path / "placed" / "run"):
        if events.table is not TRANSFERS:
            continue
        seen = set()
        numbers = tensor_of(events.rows)
        for number, name in events.names.items():
            rows = events.rows[numbers == number]
            own = keys.get(name)
            if own is None or not len(rows):
                continue
            seen.add(name)
            part = (rows["key"] & np.uint64(0xFFFF)).astype(np.int64)
            assert (
                rows["server"].tolist() == np.array(own.servers)[part % len(own.servers)].tolist()
            )
            if own.partition_bytes:
                assert rows["size_bytes"].max() == own.partition_bytes // PAGE_BYTES * PAGE_BYTES
        assert seen == set(keys)
    served = [e for e in load_run(tmp_path / "placed" / "run") if e.table is SERVED_TABLE]
    # A number means the same server in every run: ps-lite would go by addresses and ports.
    assert {(events.origin.role, events.origin.rank) for events in served} == {
        (f"server-{number}", number) for number in range(SERVERS)
    }
    bytes_of = [int(events.rows["size_bytes"].sum()) for events in served]
    assert min(bytes_of) > max(bytes_of) // 10

    # A replay of the recorded run has them there, too.
    strategy = measure_run(Run(tmp_path / "placed" / "run")).job.strategy
    found = {each.tensor: each for each in strategy.keys}
    for name in ("4.weight", "2.weight"):
        size_bytes = found[name].partition_bytes or strategy.partition_bytes
        assert size_bytes == keys[name].partition_bytes
    assert found["4.weight"].servers == keys["4.weight"].servers
    assert not measure_run(Run(tmp_path / "plain" / "run")).job.strategy.keys


@pytest.mark.job
@pytest.mark.timeout(300)
def test_ranks_with_different_strategies_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    write_strategy(other, used(KEYS[:2]))
    failed, said = run(tmp_path, used(KEYS), str(other))
    assert failed is not None
    assert re.search("refused: ranks have different strategies: .* on rank 0, .* on rank 1", failed)
    assert used(KEYS).digest in "".join(said)


@pytest.mark.job
@pytest.mark.timeout(300)
def test_a_strategy_of_another_model_is_refused(tmp_path: Path) -> None:
    strange = used((Keys("4.weight", 0, (1,)), Keys("6.weight", 0, (1,))))
    strange = replace(strange, model=Model((*strange.model.parameters, Parameter("6.weight", 8))))
    failed, _ = run(tmp_path, strange)
    assert failed is not None
    assert "the strategy of another model: this optimizer has no parameter '6.weight'" in failed


def test_a_server_that_the_job_has_not_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "strategy.json"
    write_strategy(path, used((Keys("4.weight", 0, (0, 2)),)))
    options = ["--servers", "2", "--runs", str(tmp_path / "runs"), "--strategy", str(path)]
    assert run_cli(["run", *options, "--", "true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"byteprophet: error: --strategy {path}: it places '4.weight' on server 2, and the job has "
        "2 server(s), numbered from 0"
    )
    assert not (tmp_path / "runs").exists()
