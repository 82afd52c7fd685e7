"""Opponents tuned and compared in cells: what is run, going on where it stopped, and the figures.

Jobs are stated here, by how long an iteration takes under given settings: real ones take minutes.
All else is real: cells, records, their fingerprints, and what is missing.
"""

from __future__ import annotations

from pathlib import Path

import allreduce
import pytest
from allreduce_cells import Setting, cell_of, counted
from allreduce_table import figures, targets
from stated_jobs import MS, Ran

from byteprophet.bench import Case, grid_run
from byteprophet.bench.execute import Measured
from byteprophet.bench.grid import Grid
from byteprophet.errors import UserError
from byteprophet.workload import load

from ..namespaces import why_not_permitted

pytestmark = pytest.mark.skipif(bool(why_not_permitted()), reason="limited links are checked for")


def iteration_ns(case: Case) -> int:
    """Best: ddp with 8 MB and plain views; fsdp2 with 16 MiB and, against the rest, all-to-all."""
    settings = case.collective_settings
    assert settings is not None
    if case.runtime == "ddp":
        steps = abs(settings["bucket_cap_mb"] - 8) + settings["gradient_as_bucket_view"]
        return (500 + 2 * steps) * MS
    if case.runtime == "fsdp2":
        return (640 - (settings["unit_bytes"] >> 20) - 20 * settings["all_to_all"]) * MS
    return {"dear": 480, "dear-planned": 460}[case.runtime] * MS


def test_opponents_are_tuned_and_their_best_sizes_run_beside_ours(
    options: list[str], ran: Ran
) -> None:
    allreduce.main([*options, "--runtimes", "ddp,fsdp2,dear"])
    jobs = [(case.runtime, dict(case.settings)) for case, _ in ran]
    ddp = [settings for name, settings in jobs if name == "ddp"]
    assert ddp[:6] == [{"bucket_cap_mb": size} for size in (1, 2, 4, 8, 16, 25)]
    for settings in ddp[6:9]:  # the switches, of the best size
        assert settings["bucket_cap_mb"] == 8
        assert len(settings) > 1
    compared = jobs[6 + 5 + 3 + 1 :]
    first = compared[:7]
    assert compared[7:] == first[::-1], "the second round runs backwards"
    assert [name for name, _ in first] == ["ddp"] * 3 + ["fsdp2"] * 3 + ["dear"]
    assert [settings["bucket_cap_mb"] for _, settings in first[:3]] == [8, 4, 2]
    assert first[0][1]["gradient_as_bucket_view"] == 0
    assert first[1][1] == {"bucket_cap_mb": 4}
    assert [settings for _, settings in first[3:]] == [
        *({"unit_bytes": size << 20} for size in (16, 8, 4)),
        {},
    ]
    warmups = {case.runtime: plan.warmup_iterations for case, plan in ran}
    assert warmups == {"ddp": 3, "fsdp2": 3, "dear": 16}


def test_opponents_are_tuned_once_for_all_links(options: list[str], ran: Ran) -> None:
    ratios = ["--ratios", "0.7,0.9,1.2", "--rounds", "1"]
    allreduce.main([*options, *ratios, "--runtimes", "ddp,dear"])
    links_bps = [case.bandwidth_bps for case, _ in ran]
    assert len(set(links_bps[:9])) == 1, "tuned where the ratio is nearest to 1"
    compared = links_bps[9:]
    assert len(compared) == 3 * (3 + 1)
    assert compared[0] > links_bps[0] == compared[4] > compared[8]  # type: ignore[operator]


def test_goes_on_where_it_was_stopped(
    options: list[str], ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    options += ["--runtimes", "ddp,dear"]
    run = grid_run.run_case

    def stopped(*arguments: object) -> Measured:
        if len(ran) == 11:
            raise KeyboardInterrupt
        return run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(grid_run, "run_case", stopped)
    with pytest.raises(KeyboardInterrupt):
        allreduce.main(options)
    monkeypatch.setattr(grid_run, "run_case", run)
    allreduce.main(options)
    # Nine to tune ddp, and in two rounds four.
    assert len(ran) == 9 + 2 * 4
    allreduce.main(options)
    allreduce.main([*options, "--report"])
    assert len(ran) == 17
    allreduce.main([*options, "--iterations", "7"])
    assert len(ran) == 25, "other jobs to compare, none to tune"


def test_figures(options: list[str], ran: Ran, tmp_path: Path) -> None:
    allreduce.main([*options, "--runtimes", "ddp,dear,dear-planned"])
    assert ran
    cell = cell_of(Setting(str(tmp_path / "small"), 1.0, 2))
    grid = Grid("allreduce", (cell,), 6)
    records = counted(grid, tmp_path / "out")
    (found,) = figures(grid, [r for r in records if r["phase"] == allreduce.COMPARED])
    assert found.median_ns("ddp") == 500 * MS
    assert found.median_ns("fsdp2") is None
    # Compute is 120 + 240 ms, either half of the all-reduce 180 ms: Eq. 6 allows 180 + 240. But
    # the first gradient comes after 60, all-reduces take 360 then, and the last layer 30.
    assert found.ideal_ns == pytest.approx(450 * MS, rel=1e-4)
    values = {what: value for what, value, _ in targets([found])}
    assert values["dear over Eq. 6's maximum, median"] == pytest.approx(450 / 480, rel=1e-4)
    assert values["ddp over dear-planned, all, least"] == pytest.approx(500 / 460)
    assert values["dear over dear-planned, least"] == pytest.approx(480 / 460)
    assert values["ddp over dear-planned, resnet50, mean"] is None
    assert values["bytes on our wires, most"] == pytest.approx(17 / 16)
    (dear, *_) = [record for record in records if record["runtime"] == "dear"]
    assert dear["scheduler"] is None
    assert dear["eq6_max_speedup"] == pytest.approx(2 * 360 / 420, rel=1e-4)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("ratio", [0.7, 1.4])
def test_the_link_makes_the_all_reduce_that_long(ranks: int, ratio: float) -> None:
    cell = cell_of(Setting("resnet18", ratio, ranks))
    workload = load("resnet18")
    rate_bps = cell.bandwidth_bps(workload)
    assert rate_bps is not None
    moved_bytes = 2 * (ranks - 1) / ranks * workload.size_bytes
    compute_ns = workload.forward_ns + workload.backward_ns
    # 0.9564 of the rate is payload (docs/architecture.md).
    assert moved_bytes * 8e9 / (0.9564 * rate_bps) == pytest.approx(ratio * compute_ns, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ratios", "1,slow"], "--ratios '1,slow': must be numbers"),
        (["--ranks", "1"], "--ranks '1': must be numbers from 2"),
        (["--runtimes", "ddp,mpi"], "--runtimes: 'mpi': choose from ddp, fsdp2"),
        (["--rounds", "0"], "--rounds 0: must be at least 1"),
        (["--models", "resnet51"], "neither built in"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        allreduce.main([*arguments, "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
