"""A real job with a probe and a network monitor, whose links become slower during the run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from byteprophet.bench import Case, Plan, run_bench
from byteprophet.cli.main import run_cli
from byteprophet.launcher.stepper import read_steps
from byteprophet.monitor.samples import read_network
from byteprophet.network import Step
from byteprophet.session.monitoring import PROBE_VARIABLE, VARIABLE
from byteprophet.workload import Tensor, Workload, to_toml

from ..namespaces import why_not_permitted

_REASON = why_not_permitted()
_BEFORE_BPS, _AFTER_BPS = 200_000_000, 50_000_000


@pytest.mark.job
@pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
def test_the_estimate_moves_with_the_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = (4_096, 1_000_000, 256, 2_000_000)
    tensors = (Tensor(f"layer{i}", size, 2_000_000, 4_000_000) for i, size in enumerate(sizes))
    (tmp_path / "workload.toml").write_text(to_toml(Workload("small", 1, tuple(tensors))))
    case = Case(
        str(tmp_path / "workload.toml"),
        "prophet",
        _BEFORE_BPS,
        steps=(Step(_AFTER_BPS, at_update=12),),
        environment={VARIABLE: "1", PROBE_VARIABLE: "1"},
    )
    plan = Plan((case,), 15, rounds=1, idle_s=0.0)
    (row,) = run_bench(plan, tmp_path / "runs", True, print)
    assert row["steps"] == ["50mbit@12i"]
    assert row["bound_ns"] is None
    run = Path(row["run"])
    (made,) = read_steps(run)
    workers = read_network(run)
    assert [worker.rank for worker in workers] == [0, 1]
    for worker in workers:
        rates = {t: bps for t, _, bps in worker.history["push"]}
        before = np.median([bps for t, bps in rates.items() if t < made["began_ns"]])
        after = rates[max(rates)]
        # Nothing can go faster than the link, and a step to a quarter shows on any machine.
        assert before < 1.2 * _BEFORE_BPS
        assert after < 0.6 * before
        assert {sample.direction for sample in worker.probe} == {"push", "pull"}
        assert all(sample.estimate.bytes > 4_000_000 for sample in worker.probe)
        assert worker.check["interface"] == "eth0"

    capsys.readouterr()
    assert run_cli(["network", str(run)]) == 0
    assert "push (probe)" in capsys.readouterr().out
    assert run_cli(["network", "--json", str(run)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [worker["rank"] for worker in report["workers"]] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["network", "/nowhere"], "/nowhere: there is no such run directory"),
        (["run", "--step", "1gbit@3i", "--", "true"], "only bench counts updates"),
        (["run", "--step", "soon", "--", "true"], "use rate@when"),
        (["run", "--scheduler", "stock", "--monitor", "--", "true"], "stock records nothing"),
        (["run", "--scheduler", "stock", "--probe", "--", "true"], "stock records nothing"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(arguments) == 2
    assert said in capsys.readouterr().err
