"""``sync="fsdp2"``: torch's FSDP2 shards the model of an optimizer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import byteprophet.torch as bps
from byteprophet.cli.main import run_cli
from byteprophet.graph.gloo_graph import build
from byteprophet.job.peak_memory import read_peak
from byteprophet.measure.processor_file import measure_on_cores
from byteprophet.measure.run import Run
from byteprophet.replay.all_reduce import change
from byteprophet.replay.predict import Changes
from byteprophet.runtime_settings import SHARDED_MEMORY

SCRIPT = Path(__file__).with_name("fully_sharded_script.py")
KINDS = "", "unnamed", "units", "held", "skipped", "again", "recomputed", "zeros", "saved", "raised"
SAYS = {
    "passes": "sends after every backward pass",
    "compression": "takes none",
    "owners": "knows no owners",
    "fusion": "has units, which a strategy may choose",
    "part": "calls FSDPBlock, a part of the model, whose parameters are whole only while Net is",
    "two": "the model has two optimizers",
    "assign": "load without assign=True",
    "pickled": "save its state_dict(), or its sharded_state_dict()",
    "copied": "the optimizer cannot be pickled or copied",
    "held": "step() after backward passes in no_sync() alone",
    "hook": "parameter 'embedding.weight' has hooks",
    "added": "a parameter of shape (3,) is not the sharded model's",
    "state": "the optimizer has a state already",
    "alone": "all ranks must call the model together",
    "by hand": "no call of a model with the optimizer's parameters was seen",
}


@pytest.mark.job
def test_two_ranks_end_with_the_bits_of_our_own_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a script does with its model; what would be wrong is refused in one line."""
    monkeypatch.chdir(tmp_path)
    pairs = {f"fsdp2:{kind}": _reference(kind) for kind in KINDS}
    ways = [*dict.fromkeys([*pairs.values(), *pairs])]
    command = [sys.executable, str(SCRIPT), str(tmp_path), *ways, "norms", "refused"]
    assert run_cli(["run", "--servers", "0", "--workers", "2", "--", *command]) == 0
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    for way, reference in pairs.items():
        assert first[way] == second[way] == first[reference], way
    ours, theirs = first["norms"]
    assert theirs == pytest.approx(ours, rel=1e-6)  # norms of shards are added
    for name, text in SAYS.items():
        assert text in first["refused"][name], name
        assert "\n" not in first["refused"][name]
    assert "rank 1 has not called state_dict() of the model" in first["refused"]["missing"]


@pytest.mark.job
def test_a_recorded_job_is_measured_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its units are those of its strategy file, and evaluations do not count.

    One of its units is frozen, and the first one is in part. Iterations in which memory is measured
    do not count, either.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SHARDED_MEMORY, str(tmp_path))
    command = [sys.executable, str(SCRIPT), str(tmp_path), "fsdp2:long"]
    assert run_cli(["run", "--servers", "0", "--workers", "2", "--record", "--", *command]) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    job = measure_on_cores(Run(directory)).job
    assert job.strategy.runtime == "fsdp2"
    assert job.iterations == 3  # the seventh is the first that is not followed; the last has no end
    rest_bytes = read_peak(tmp_path, 2) - sum(job.model.sizes_bytes)  # all units are whole at once
    assert 0 < rest_bytes < 1_000_000
    units = sorted(job.strategy.buckets, key=lambda unit: unit.gather_place)
    assert units[0].parameters[:2] == ("embedding.weight", "frozen.weight")
    assert [unit.parameters[0] for unit in units[1:]] == [
        f"blocks.{number}.inner.weight" for number in range(3)
    ]
    trained = [unit for unit in units if job.model.trains(unit.parameters)]
    assert trained == [units[0], units[1], units[3]]
    assert units[0].reduce_place == max(unit.reduce_place for unit in trained)
    assert {each.name for each in job.model.parameters if each.frozen} == {
        "frozen.weight",
        "frozen.bias",
        *units[2].parameters,
    }
    reduced = build(job).done.shape[2] - len(units)
    assert reduced == len(trained)
    assert job.times.ready_ns.max() > 0
    assert change(job, Changes(compute_scale=2.0)).strategy.buckets == job.strategy.buckets
    assert run_cli(["replay", str(directory)]) == 0
    assert run_cli(["optimize", str(directory), "--allow", "compile", "--pass", "compile"]) == 2
    assert "the script's modules run as they are" in capsys.readouterr().err


def _reference(kind: str) -> str:
    """What ends with the same bits."""
    same = kind in ("unnamed", "units", "recomputed", "zeros", "saved", "raised")
    return "allreduce:" if same else f"allreduce:{kind}"


def test_it_needs_a_process_group() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="init_process_group"):
        bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model=model, sync="fsdp2"
        )
