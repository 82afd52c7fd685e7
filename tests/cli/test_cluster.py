"""``byteprophet cluster`` and ``byteprophet costs``, as a user calls them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from byteprophet.cli.main import run_cli
from byteprophet.input_files import parse_json
from byteprophet.launcher import JobSpec, run_job
from byteprophet.simulate.clusters import description
from byteprophet.simulate.clusters.description import cluster_names
from byteprophet.simulate.costs.reference_operators import names
from byteprophet.simulate.costs.table import CostTable, read_table, write_table

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
    cluster = cluster_like_a_cpu(tmp_path)
    simulate = ["simulate", "gpt2", "--cluster", cluster, "--gpus", "8", "--costs", str(out)]
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
    simulate = ["simulate", "gpt2", "--gpus", "16", "--costs", str(out), "--cluster"]
    assert run_cli([*simulate, "dgx-a100"]) == 2
    assert "measured on another device than A100" in capsys.readouterr().err
    cluster = cluster_like_a_cpu(tmp_path)
    for search in ([], ["--batch", "16"]):
        assert run_cli([*simulate, cluster, *search]) == 0
        assert f"Costs: {table.source}" in capsys.readouterr().out


def cluster_like_a_cpu(folder: Path) -> str:
    """A description whose devices compute like CPUs: up to 1 TFLOP/s, 200 GB/s."""
    text = (Path(description.__file__).parent / "dgx-a100.toml").read_text(encoding="utf-8")
    for key, value in (("flops_per_s", 10**12), ("memory_bytes_per_s", 2 * 10**11)):
        text = re.sub(rf"(?m)^{key} = [0-9_]+$", f"{key} = {value}", text)
    path = folder / "cpus.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_shows_switches_and_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(description.__file__).parent / "dgx-a100.toml").read_text(encoding="utf-8")
    path, costs = tmp_path / "mine.toml", tmp_path / "costs.json"
    more = "[network]\nrails = true\nring_only = true"
    path.write_text(text.replace("[network]", more), encoding="utf-8")
    write_table(costs, CostTable("a test", launch_ns=5_000.0))
    assert run_cli(["cluster", "show", str(path), "--costs", str(costs)]) == 0
    printed = capsys.readouterr().out
    assert "without oversubscription, with rails" in " ".join(printed.split())
    assert "ring only" in printed
    assert "a test" in printed
    assert run_cli(["cluster", "show", str(path), "--costs", str(costs), "--json"]) == 0
    shown = parse_json(capsys.readouterr().out)
    assert shown["network"]["rails"]
    assert not shown["network"]["all_reduce_only"]
    assert (shown["gpu"], shown["costs"]) == ("A100-SXM4-80GB", ["a test"])


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
