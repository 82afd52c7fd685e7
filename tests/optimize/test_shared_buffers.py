"""A real job in which small gradients share buffers: what regions change is known nevertheless."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_jobs import region_costs_of

from byteprophet.cli.main import run_cli
from byteprophet.errors import UserError
from byteprophet.job.region_costs import write_region_costs
from byteprophet.job.strategy import Region
from byteprophet.measure.parameters import measure_parameters
from byteprophet.measure.run import Run
from byteprophet.measure.servers import measure_run
from byteprophet.optimize.by_parameter import ByParameter
from byteprophet.optimize.passes.compile import Compile
from byteprophet.optimize.recorded import digest_of_config
from byteprophet.replay.predict import kind_of

from ..namespaces import why_not_permitted
from .network_jobs import NETWORK, recorded


@pytest.mark.job
@pytest.mark.skipif(why_not_permitted() is not None, reason=str(why_not_permitted()))
def test_regions_of_a_job_whose_gradients_share_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = recorded(200_000_000)
    run = Run(path)
    job = measure_run(run).job
    assert run.fused.parameters
    known = ByParameter.measured(run, job)
    assert known.shares
    assert known.model.names == tuple(each.name for each in NETWORK.tensors)
    assert known.model.size_bytes == job.model.size_bytes
    assert known.times.ready_ns.shape[:2] == job.times.ready_ns.shape[:2]

    with pytest.raises(UserError, match="no iteration was recorded since then"):
        measure_parameters(run, job, 1000)

    # A buffer was handed over soon after its last gradient was complete, in all iterations.
    ends = [*known.starts[1:], len(known.model)]
    for tensor, (first, end) in enumerate(zip(known.starts, ends, strict=True)):
        latest_ns = known.times.ready_ns[..., first:end].max(axis=2)
        late_ns = np.median(job.times.ready_ns[..., tensor] - latest_ns)
        assert -1e6 < late_ns < 20e6, job.model.names[tensor]

    # A region in the middle, at half its time: buffers behind it are ready earlier by that.
    alone = replace(job, model=known.model, times=known.times)
    costs = region_costs_of(alone, 3)
    modules = tuple(name.removesuffix(".weight") for name in known.model.names[4:6])
    cost = costs.regions[modules]
    half = replace(cost.modes["eager"], forward_ns=500_000, backward_ns=1_000_000)
    half = replace(half, ready_ns=(1_000_000, 1_000_000), compile_ns=1)
    regions = {modules: replace(cost, modes={**cost.modes, "compiled": half})}
    costs = replace(costs, regions={**costs.regions, **regions})
    by = Compile()
    by.learn(job, costs, known)
    changed = by.with_regions(job, [Region(modules, compiled=True)])
    assert changed is not None
    assert changed.model is job.model
    saved_ns = job.times.ready_ns[..., 0] - changed.times.ready_ns[..., 0]
    place = known.model.places[known.model.names[4]]
    begins_ns = known.times.ready_ns[..., place + 2]
    took_ns = known.times.ready_ns[..., place] - begins_ns
    assert np.allclose(saved_ns, took_ns / 2, atol=1_000)
    assert (job.times.backward_ns - changed.times.backward_ns == saved_ns).all()
    assert np.median(kind_of(changed).iterations_ns(changed)) > 0

    # The command tells what they would add, and does not use them.
    directory = Path("out/regions") / digest_of_config(run.config)[:12]
    directory.mkdir(parents=True)
    write_region_costs(directory / "region-costs.json", costs)
    capsys.readouterr()
    assert run_cli(f"optimize {path} --budget-s 3 --out out --json result.json".split()) == 0
    result = json.loads(Path("result.json").read_text())
    others = {each["pass"]: each for each in result["would_add"]}
    bf16, compiled = others["bf16"], others["compile"]
    assert (bf16["pass"], bf16["ratio"]) == ("bf16", None)
    assert compiled["pass"] == "compile"
    assert compiled["ratio"] > 1
    assert f"{compiled['ratio']:.2f} times as fast, with --allow compile" in capsys.readouterr().out
    if result["strategy"] is not None:
        assert "regions" not in json.loads(Path(result["strategy"]).read_text())
