"""Jobs whose models run regions: they train to the same bits as they must, and tell their costs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from byteprophet.job import Bucket, Model, Parameter, Policy, Strategy
from byteprophet.job.region_costs import read_region_costs
from byteprophet.job.strategy import BF16, BYTEPS, COMPILED, DEAR, EAGER, RECOMPUTED, Region
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.launcher import JobSpec, run_job
from byteprophet.runtime_settings import OWNERS, REGION_BUDGET_S, REGION_COSTS, REGION_MODES

from ...thorough import asked, pairs

WORKER = Path(__file__).with_name("regions_worker.py")
SYNCS = (DEAR, BYTEPS)
BLOCKS = [
    Parameter(f"{block}.layers.{layer}.{kind}", size)
    for block in range(4)
    for layer, kind, size in (
        (0, "weight", 2048),
        (0, "bias", 128),
        (2, "weight", 2048),
        (2, "bias", 64),
    )
]
MODEL = Model((*BLOCKS, Parameter("4.weight", 128), Parameter("4.bias", 8)))
REGIONS = {
    "compiled": (Region(("0", "1"), compiled=True), Region(("2", "3"), compiled=True)),
    "recomputed": (Region(("1", "2"), recomputed=True),),
}


def strategy_of(sync: str, regions: tuple[Region, ...]) -> Used:
    """Two buckets, or servers."""
    if sync == BYTEPS:
        strategy = Strategy(partition_bytes=65536, regions=regions)
        return Used(MODEL, strategy, 0, Policy("prophet", {}))
    buckets = Bucket(MODEL.names[8:], 0, 1, True), Bucket(MODEL.names[:8], 1, 0, True)
    return Used(MODEL, Strategy(sync, buckets, regions=regions), 0)


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both ranks of one job wrote: importing the compiler takes them longer than the rest."""
    folder = tmp_path_factory.mktemp("regions")
    for sync in SYNCS:
        (folder / sync).mkdir()
        for name in (each["name"] for each in asked(request, sync=sync)):
            write_strategy(folder / sync / f"{name}.json", strategy_of(sync, REGIONS[name]))
    spec = JobSpec(
        command=(sys.executable, str(WORKER), str(folder), *SYNCS),
        run_directory=folder / "run",
        servers=1,
        ranks=True,
        partition_bytes=65536,
        timeout_s=200.0,
    )
    said: list[str] = []
    run_job(spec, lambda role, line: said.append(line)).check()
    assert not any("not compiled" in line for line in said)
    return folder


@pytest.mark.job
@pytest.mark.parametrize(("name", "sync"), pairs(tuple(REGIONS), SYNCS))
def test_overlap_changes_nothing(trained: Path, name: str, sync: str) -> None:
    """Recomputed regions train to the bits of the plain model, compiled ones with any overlap."""
    first, second = ((trained / sync / f"rank-{rank}.txt").read_text() for rank in (0, 1))
    assert first == second
    digests: dict[str, set[str]] = {}
    for line in first.splitlines():
        trained_with, digest = line.split()
        digests.setdefault(trained_with, set()).add(digest)
    assert len(digests["none"]) == len(digests[name]) == 1
    if name == "recomputed":
        assert digests[name] == digests["none"]


@pytest.mark.job
def test_a_script_measures_its_regions(tmp_path: Path) -> None:
    """Those of the model that the optimizer is given, in which a strategy is installed.

    How much each of the recorded job's three ranks owned says nothing of the only one.
    """
    path = tmp_path / "costs.json"
    spec = JobSpec(
        command=(sys.executable, str(WORKER), str(tmp_path), "dear:inner"),
        run_directory=tmp_path / "run",
        workers=1,
        servers=0,
        environment={
            OWNERS: "2,2,1",
            REGION_COSTS: str(path),
            REGION_MODES: f"{COMPILED},{BF16}",
        },
        timeout_s=200.0,
    )
    said: list[str] = []
    run_job(spec, lambda role, line: said.append(line)).check()
    costs = read_region_costs(path)
    whole, units = costs.chains
    assert whole == (("",),)
    assert units == (("0",), ("1",), ("2",), ("3",), ("4",))
    assert costs.regions[("",)].parameters == MODEL.names
    assert costs.regions[("1",)].parameters == MODEL.names[4:8]
    for region in costs.regions.values():
        assert set(region.modes) == {EAGER, COMPILED, BF16}
        for cost in region.modes.values():
            assert 0 < cost.forward_ns < 10**9
            assert max(cost.ready_ns) <= cost.backward_ns < 10**9
    # Equal structures are measured once. The first block's input needs no gradient.
    assert costs.regions[("1",)].modes == costs.regions[("3",)].modes
    assert costs.regions[("1",)].modes != costs.regions[("0",)].modes
    assert len([line for line in said if line.startswith("regions: ")]) < len(costs.regions)
    assert not [*tmp_path.glob("*/rank-0.txt")]


@pytest.mark.job(2)
def test_one_structure_is_measured_without_a_budget_and_the_rest_later(tmp_path: Path) -> None:
    """The first block's input needs no gradient, so its structure differs from the others'.

    A script of DistributedDataParallel measures the rest.
    """
    path = tmp_path / "costs.json"
    found = []
    for budget_s, sync in (("1e-9", "dear"), ("900", "torch")):
        spec = JobSpec(
            command=(sys.executable, str(WORKER), str(tmp_path), sync),
            run_directory=tmp_path / f"run-{len(found)}",
            workers=1,
            servers=0,
            environment={
                REGION_COSTS: str(path),
                REGION_MODES: RECOMPUTED,
                REGION_BUDGET_S: budget_s,
            },
            timeout_s=200.0,
        )
        run_job(spec).check()
        found.append(read_region_costs(path))
    first, second = found
    assert {*first.regions} in ({("0",)}, {("1",), ("2",), ("3",)}, {("4",)})
    assert not second.unmeasured
    assert {*first.regions} | {*first.unmeasured} == {*second.regions}
    assert {modules: second.regions[modules] for modules in first.regions} == first.regions
