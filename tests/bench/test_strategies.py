"""Strategy files in a bench: they are used, end with equal parameters, or are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet import schedulers
from byteprophet.bench import Case, Plan, run_bench
from byteprophet.bench.case import all_reduce_case, job_of, strategy_case
from byteprophet.bench.execute import spec_of
from byteprophet.bench.result import bound_ns, paper_fields
from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job import Policy, Strategy
from byteprophet.job.strategy_file import Used, read_strategy, read_strategy_file, write_strategy
from byteprophet.strategy.builders import build

from ..namespaces import why_not_permitted
from .test_execute import mixed_workload, write


def saved(case: Case, builder: str, path: Path) -> Path:
    """The file of a known strategy for the paced job of ``case``."""
    job = job_of(case, mixed_workload())
    write_strategy(path, Used(job.model, build(builder, job).strategy, 0))
    return path


@pytest.mark.job
def test_jobs_use_their_strategies_and_end_alike(tmp_path: Path) -> None:
    base = all_reduce_case(
        Case(write(mixed_workload(), tmp_path), "prophet", None, workers=3),
        "allreduce",
        {"bucket_bytes": 1_000_000},
    )
    cases = [base] + [
        strategy_case(base, saved(base, builder, tmp_path / f"{builder}.json"))
        for builder in ("dear-planned", "dear")
    ]
    plan = Plan(tuple(cases), iterations=3, rounds=1, idle_s=0.0)
    rows = run_bench(plan, tmp_path / "runs", why_not_permitted() is None, print)
    assert len({row["parameters_sha256"] for row in rows}) == 1
    assert [row["strategy"] for row in rows] == [None, *(str(each.strategy) for each in cases[1:])]
    for row, case in zip(rows[1:], cases[1:], strict=True):
        used = read_strategy(Path(row["run"]))
        assert used is not None
        assert case.strategy is not None
        given = read_strategy_file(case.strategy)
        assert used.strategy.runtime == given.strategy.runtime == row["runtime"]
        assert used.strategy.buckets == given.strategy.buckets


def test_what_cannot_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = write(mixed_workload(), tmp_path)
    case = all_reduce_case(Case(workload, "prophet", None), "ddp", {})
    path = saved(case, "ddp", tmp_path / "ddp.json")
    with pytest.raises(UserError, match="runtime 'ddp': paced jobs can be given byteps, allreduce"):
        strategy_case(case, path)
    common = ["bench", "--workload", str(workload)]
    for given, says in (
        (["--strategies", "prophet,nothing.json"], "nothing.json: there is no such file"),
        (["--strategies", "prophet", "--runtime", "ddp"], "is what --strategies says"),
        (["--strategies", "byteps,allreduce"], "byteps: name its schedulers instead, e.g. prophet"),
    ):
        assert run_cli([*common, *given]) == 2
        assert says in capsys.readouterr().err


def served(case: Case, path: Path, servers: int = 0) -> Path:
    """The file of a strategy with servers for the paced job of ``case``."""
    policy = Policy("prophet", {})
    strategy = Strategy(partition_bytes=65536)
    write_strategy(path, Used(job_of(case, mixed_workload()).model, strategy, 0, policy, servers))
    return path


def test_the_option_decides_how_many_servers_there_are(tmp_path: Path) -> None:
    base = Case(write(mixed_workload(), tmp_path), "prophet", None, servers=2)
    path = served(base, tmp_path / "served.json", servers=1)
    plan = Plan((base,), iterations=3)
    for told, servers in ((None, 1), (2, 2)):
        case = strategy_case(base, path, told)
        assert case.servers == servers
        assert spec_of(case, plan, mixed_workload(), tmp_path, namespaces=False).servers == servers
    with pytest.raises(UserError, match="it needs servers; leave out --servers 0"):
        strategy_case(base, path, 0)


def test_a_partition_size_beside_that_of_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = write(mixed_workload(), tmp_path)
    path = served(Case(workload, "prophet", None), tmp_path / "served.json")
    given = ["--strategies", f"fifo,{path}", "--partition-bytes", "1000000"]
    assert run_cli(["bench", "--workload", str(workload), *given]) == 2
    assert f"--partition-bytes 1000000: {path} says its own" in capsys.readouterr().err


@pytest.mark.job
def test_a_job_of_two_transports_ends_as_others_do(tmp_path: Path) -> None:
    base = Case(write(mixed_workload(), tmp_path), "prophet", None, workers=2, servers=2)
    settings, partition_bytes = schedulers.resolve(base.scheduler, {})
    job = job_of(base, mixed_workload())
    job = replace(
        job,
        strategy=replace(job.strategy, partition_bytes=partition_bytes),
        policy=Policy(base.scheduler, {**settings, schedulers.PARTITION: partition_bytes}),
    )
    made = build("mixed", job)
    path = tmp_path / "two.json"
    write_strategy(path, Used(made.model, made.strategy, 0, made.policy, 2))
    cases = base, strategy_case(base, path)
    plan = Plan(cases, iterations=3, rounds=1, idle_s=0.0)
    served, mixed = run_bench(plan, tmp_path / "runs", why_not_permitted() is None, print)
    assert mixed["parameters_sha256"] == served["parameters_sha256"]
    assert mixed["strategy"] == str(path)
    assert mixed["servers"] == 2
    assert mixed["scheduled_partitions"] > 0
    assert read_strategy_file(Path(mixed["run"]) / "strategy.json").strategy == made.strategy


def test_paced_gradients_are_not_compressed(tmp_path: Path) -> None:
    base = all_reduce_case(
        Case(write(mixed_workload(), tmp_path), "prophet", None), "allreduce", {}
    )
    path = saved(base, "allreduce", tmp_path / "strategy.json")
    data = json.loads(path.read_text())
    name = data["parameters"][0]["name"]
    data["compressors"] = [{"parameters": [name], "type": "onebit"}]
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match="the gradients of paced jobs mean nothing"):
        strategy_case(base, path)


def changed(base: Case, path: Path, **members: object) -> Path:
    """The file of a strategy of ``base`` with other members."""
    saved(base, "allreduce", path)
    path.write_text(json.dumps(json.loads(path.read_text()) | members))
    return path


def test_the_bound_is_of_what_travels_under_the_file(tmp_path: Path) -> None:
    workload = replace(mixed_workload(), name="slow").scaled(1000)
    base = Case(write(workload, tmp_path), "prophet", 10**7, workers=4)
    base = all_reduce_case(base, "allreduce", {})
    plain = strategy_case(base, changed(base, tmp_path / "plain.json"))
    cast = strategy_case(base, changed(base, tmp_path / "cast.json", reduce_dtype="fp16"))
    assert bound_ns(workload, cast) == pytest.approx(bound_ns(workload, plain) / 2, rel=0.01)
    assert paper_fields(workload, plain)
    assert paper_fields(workload, cast) == {}


def test_steps_without_an_exchange_are_not_compared(tmp_path: Path) -> None:
    base = all_reduce_case(
        Case(write(mixed_workload(), tmp_path), "prophet", None), "allreduce", {}
    )
    with pytest.raises(UserError, match=r"file\.json: accumulation 4: steps of paced jobs are"):
        strategy_case(base, changed(base, tmp_path / "file.json", accumulation=4))
