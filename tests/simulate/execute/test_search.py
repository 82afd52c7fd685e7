"""The search: all candidates are simulated, and the front has no worse ones."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.execute import search as search_module
from byteprophet.simulate.execute.kept import Found, Job, Kept
from byteprophet.simulate.execute.search import (
    candidates,
    evaluate,
    evaluate_family,
    fixed_keys,
    pareto,
    search,
)
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.load import Source, load_model, load_source
from byteprophet.simulate.models.module import Model
from byteprophet.simulate.tree.one_line import parse_strategy

_JOB = Job("gpt2", "dgx-a100", gpus=8, batch=16)
_GPT2 = load_source("gpt2")(1)
_WIDE = "llama:layers=2,hidden=3840,heads=3,kv_heads=1,inner=81920,vocabulary=64"


def test_candidates_have_the_batch_and_the_gpus() -> None:
    lines = list(candidates(_JOB, 8, _GPT2))
    assert len(set(lines)) == len(lines) > 50
    for line in lines:
        strategy = parse_strategy(line, _JOB.gpus)
        assert strategy.samples * strategy.micro_batches == _JOB.batch
        assert strategy.mesh.ranks == _JOB.gpus


def test_keys_that_are_not_searched_for_hold_for_all_candidates() -> None:
    job = replace(_JOB, fixed=fixed_keys("precision=fsdp2,  copies=1"))
    lines = list(candidates(job, 8, _GPT2))
    assert lines == [f"{line} precision=fsdp2 copies=1" for line in candidates(_JOB, 8, _GPT2)]
    keys = {item.partition("=")[0] for line in candidates(_JOB, 8, _GPT2) for item in line.split()}
    for key in sorted(keys | {"cp", "ep", "ring"}):
        with pytest.raises(UserError, match=f"{key}: is searched for"):
            fixed_keys(f"copies=1 {key}=1")
    with pytest.raises(UserError, match="expected KEY=VALUE"):
        fixed_keys("strategy.toml")


def test_the_fastest_comes_first_whoever_simulates_it() -> None:
    found = search(_JOB, load_source("gpt2"), lambda done, total: None)
    alone = [evaluate(_JOB, load_source("gpt2"), line) for line in candidates(_JOB, 8, _GPT2)]
    assert {one.strategy: one for one in found} == {one.strategy: one for one in alone}
    simulated = [one for one in found if one.iteration_ns]
    assert simulated == sorted(simulated, key=lambda one: one.iteration_ns)
    assert found[: len(simulated)] == simulated


def test_the_front_has_all_that_nothing_beats() -> None:
    pick = random.Random(1)
    some = [
        Found(str(at), pick.randint(1, 30), pick.randint(1, 30), fits=pick.random() < 0.8)
        for at in range(60)
    ]
    fitting = [one for one in some if one.fits]

    def beaten(one: Found) -> bool:
        here = (one.iteration_ns, one.memory_bytes)
        others = ((other.iteration_ns, other.memory_bytes) for other in fitting)
        return any(at != here and at[0] <= here[0] and at[1] <= here[1] for at in others)

    expected = {(one.iteration_ns, one.memory_bytes) for one in fitting if not beaten(one)}
    front = pareto(sorted(some, key=lambda one: (one.iteration_ns, one.memory_bytes)))
    assert {(one.iteration_ns, one.memory_bytes) for one in front} == expected


def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    """What an earlier search found is taken from its file; another search begins anew."""
    whole = search(
        _JOB, load_source("gpt2"), lambda done, total: None, Kept(tmp_path / "search.json")
    )
    data = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    data["found"] = data["found"][:40]
    data["found"][0]["mfu"] = 0.125  # as no simulation would say
    (tmp_path / "search.json").write_text(json.dumps(data), encoding="utf-8")
    began: list[int] = []
    again = search(
        _JOB,
        load_source("gpt2"),
        lambda done, total: began.append(done),
        Kept(tmp_path / "search.json"),
    )
    assert began[0] == 40
    changed = {one.strategy for one in again} - {one.strategy for one in whole if one in again}
    assert changed == {data["found"][0]["strategy"]}
    cluster = find_cluster("dgx-a100")
    assert len(Kept(tmp_path / "search.json").load(_JOB, cluster)) == len(whole)
    other = replace(cluster, network=replace(cluster.network, step_ns=1))
    assert Kept(tmp_path / "search.json").load(_JOB, other) == {}
    for job in (replace(_JOB, batch=8), replace(_JOB, fixed="copies=1")):
        assert Kept(tmp_path / "search.json").load(job, cluster) == {}
    (tmp_path / "search.json").write_text('{"format": 3', encoding="utf-8")
    assert Kept(tmp_path / "search.json").load(_JOB, cluster) == {}


def test_results_may_be_in_a_directory_that_has_the_models_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``byteprophet simulate gpt2 ... --out gpt2`` makes it."""
    monkeypatch.chdir(tmp_path)
    Path("gpt2").mkdir()
    kept = Kept(Path("gpt2") / "search.json")
    assert kept.load(_JOB, find_cluster("dgx-a100")) == {}
    kept.write({"tp=1": Found("tp=1", 1, 1)})
    assert set(kept.load(_JOB, find_cluster("dgx-a100"))) == {"tp=1"}


def test_what_cannot_fit_is_not_simulated() -> None:
    """175 billion parameters with 18 bytes each do not fit on 8 GPUs of 80 GB."""
    job = Job("gpt3-175b", "dgx-a100", gpus=8, batch=8)
    found = evaluate(job, load_source("gpt3-175b"), "tp=8 micro_batches=8")
    assert (found.iteration_ns, found.fits, found.refused) == (0, False, "")
    assert found.memory_bytes > 174e9 * 18 / 8
    strategy = parse_strategy("tp=8 micro_batches=8", 8)
    result = simulate(load_model("gpt3-175b", 1, None), strategy, find_cluster("dgx-a100"))
    assert max(rank.total for rank in result.memory) >= found.memory_bytes


def test_degrees_need_not_be_powers_of_two() -> None:
    lines = list(candidates(Job("gpt2", "dgx-a100", gpus=24, batch=64), 8, _GPT2))
    assert {line.partition(" micro")[0] for line in lines} >= {"tp=1 pp=3 dp=8", "tp=4 pp=6 dp=1"}


def test_experts_are_divided_in_all_ways() -> None:
    source = load_source("llama:layers=1,hidden=64,heads=1,experts=6,active_experts=2")
    lines = list(candidates(Job("a test", "dgx-a100", gpus=4, batch=4), 8, source(1)))
    degrees = {(parse_strategy(line, 4).mesh.dp, parse_strategy(line, 4).mesh.ep) for line in lines}
    assert degrees == {(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)}


def test_micro_batches_grow_while_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one does not fit, larger ones are not simulated; they need at least as much."""
    lines = [
        line for line in candidates(replace(_JOB, batch=1024), 8, _GPT2) if "tp=1 pp=1" in line
    ]
    lines = [line for line in lines if line.endswith("zero=1")]
    assert [f"micro_batch={1 << at} " in line for at, line in enumerate(lines)] == [True] * 8
    simulated: list[str] = []

    def small_fit(_job: Job, _source: Source, line: str) -> Found:
        simulated.append(line)
        return Found(line, memory_bytes=len(simulated), fits=len(simulated) < 4)

    monkeypatch.setattr(search_module, "evaluate", small_fit)
    found = evaluate_family(_JOB, load_source("gpt2"), tuple(lines))
    assert simulated == lines[:4]
    assert [one.strategy for one in found] == lines
    assert [one.memory_bytes for one in found] == [1, 2, 3, 4, 4, 4, 4, 4]


def test_a_model_is_made_once_for_each_size() -> None:
    made: list[int] = []
    gpt2 = load_source("gpt2")

    def source(samples: int) -> Model:
        made.append(samples)
        return gpt2(samples)

    for line in ("dp=8 micro_batches=2", "dp=8 zero=1 micro_batches=2", "dp=8 micro_batch=2"):
        assert evaluate(_JOB, source, line).fits
    assert made == [8, 16]


def test_a_model_is_traced_once_for_all_sizes_and_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The function writes down its calls, whatever process it is called in."""
    (tmp_path / "noted_model.py").write_text(
        "import torch\n"
        "def make(batch):\n"
        "    print(batch, file=open('calls', 'a'))\n"
        "    return torch.nn.Linear(64, 64), (torch.zeros(batch, 64),)\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    job = Job("noted_model:make", "dgx-a100", gpus=2, batch=16)
    found = search(job, load_source(job.model), lambda done, total: None)
    assert sum(one.fits for one in found) > 10
    # A graph for two sizes of batches each.
    assert (tmp_path / "calls").read_text(encoding="utf-8").split() == ["2", "3"]


def test_no_more_processes_run_than_cores_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine's cores, Slurm or taskset may leave a few."""
    asked = []

    def here(
        _: object, families: list[tuple[str, ...]], *, processes: int, **__: object
    ) -> list[list[Found]]:
        asked.append(processes)
        return [[Found(line, 1, fits=True) for line in family] for family in families]

    monkeypatch.setattr(search_module, "in_processes", here)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 5, 7})
    search(_JOB, load_source("gpt2"), lambda done, total: None)
    assert asked
    assert set(asked) == {3}


@pytest.mark.parametrize("sequence", [16_384, 131_072])
def test_context_parallelism_is_tried_where_it_may_be_needed(sequence: int) -> None:
    """With 3 heads and 2 layers, other degrees leave too much of a sample on each GPU."""
    job = Job(_WIDE, "dgx-h100", gpus=8, batch=1, sequence=sequence)
    found = search(job, load_source(_WIDE, sequence), lambda done, total: None)
    assert found[0].fits
    assert "cp=" in found[0].strategy


def test_a_search_without_a_candidate_says_why() -> None:
    with pytest.raises(UserError, match="no number of data-parallel ranks of 536 GPUs divides it"):
        search(Job("gpt2", "dgx-a100", 536, 7), load_source("gpt2"), lambda done, total: None)
    model = "gpt:layers=1,hidden=64,heads=1,fused_attention=0"  # no ring attention
    with pytest.raises(UserError, match=r"no strategy can be simulated: strategy: layers\.0"):
        search(Job(model, "dgx-a100", 64, 1), load_source(model), lambda done, total: None)
