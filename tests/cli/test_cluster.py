"""``byteprophet cluster`` and ``byteprophet costs``, as a user calls them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.input_files import parse_json
from byteprophet.launcher import JobSpec, run_job
from byteprophet.simulate.clusters.description import cluster_names
from byteprophet.simulate.costs.reference_operators import names
from byteprophet.simulate.costs.table import read_table

FEW_COSTS = Path(__file__).with_name("few_costs.py")


@pytest.mark.parametrize("name", cluster_names())
def test_shows_all_constants_with_their_source(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["cluster", "show", name]) == 0
    printed = capsys.readouterr().out
    assert "a fat tree without oversubscription" in printed
    for line in printed.splitlines():
        if "efficiency" in line or "_ns" in line:
            assert "±" in line
    assert "not stated" not in printed
    assert run_cli(["cluster", "show", name, "--json"]) == 0
    constants = parse_json(capsys.readouterr().out)["constants"]
    assert constants["gpu.launch_ns"]["most"] is None  # a whole number has no limit
    assert constants["gpu.matmul_efficiency"]["most"] == 1
    assert constants["gpu.matmul_efficiency"]["uncertainty"] > 0
    assert constants["gpu.flops_per_s"]["source"].startswith("NVIDIA")


def test_shows_single_links(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["cluster", "show", "dgx-1v"]) == 0
    assert "0-3 x2" in " ".join(capsys.readouterr().out.split())
    assert run_cli(["cluster", "show", "nowhere"]) == 2
    assert "cluster nowhere: not built in" in capsys.readouterr().err


@pytest.mark.thorough  # the job below does the same on its first rank, with fewer shapes
def test_collects_costs_of_this_cpu_and_simulates_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "costs.json"
    call = ["costs", "collect", "--device", "cpu", "--seconds", "0.1", "--passes", "1"]
    call += ["--out", str(out)]
    assert run_cli(call) == 0
    assert "GFLOP/s" in capsys.readouterr().out
    table = json.loads(out.read_text(encoding="utf-8"))
    assert len(table["products"]) >= 1
    assert table["launch_ns"] > 100
    assert 1e8 < table["memory_bytes_per_s"] < 1e12
    simulate = ["simulate", "gpt2", "--cluster", "dgx-a100", "--gpus", "8", "--costs", str(out)]
    assert run_cli(simulate) == 0
    assert f"Costs: {table['source']}" in capsys.readouterr().out


@pytest.mark.job
@pytest.mark.timeout(180)
def test_collects_collectives_in_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "costs.json"
    call = ("costs", "collect", "--device", "cpu", "--seconds", "0.1", "--passes", "1")
    spec = JobSpec(
        command=(sys.executable, str(FEW_COSTS), *call, "--out", str(out)),
        run_directory=tmp_path / "run",
        workers=2,
        servers=0,
        timeout_s=150,
        environment={"OMP_NUM_THREADS": "1"},
    )
    spec.run_directory.mkdir()
    run_job(spec).check()
    table = read_table(out)
    assert len(table.products) >= 1
    assert table.launch_ns > 100
    assert table.memory_bytes_per_s > 1e8
    assert {row[0] for row in table.collectives} == {
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "point-to-point",
    }
    assert {row[1] for row in table.collectives} == {2}
    passes = {(name, phase) for name, phase, *_ in table.operators}
    assert passes == {(name, phase) for name in names() for phase in ("forward", "backward")}
    sizes = {(rows, columns) for _, _, rows, columns, _ in table.operators}
    assert len(table.operators) == len(passes) * len(sizes)
    simulate = ["simulate", "gpt2", "--cluster", "dgx-a100", "--gpus", "16", "--costs", str(out)]
    assert run_cli(simulate) == 0
    assert f"Costs: {table.source}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "tpu"], "--device tpu: use cpu or cuda"),
        (["--seconds", "0"], "--seconds 0.0"),
        (["--passes", "0"], "--passes 0: must be from 1"),
    ],
)
def test_refuses_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["costs", "collect", *arguments]) == 2
    assert said in capsys.readouterr().err
