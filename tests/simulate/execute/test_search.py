"""The search: all candidates are simulated, and the front has no worse ones."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.execute.kept import Found, Job, Kept
from byteprophet.simulate.execute.search import candidates, evaluate, pareto, search
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.load import load_model
from byteprophet.simulate.tree.one_line import parse_strategy

_JOB = Job("gpt2", "dgx-a100", gpus=8, batch=16)


def test_candidates_have_the_batch_and_the_gpus() -> None:
    lines = list(candidates(_JOB, 8))
    assert len(set(lines)) == len(lines) > 50
    for line in lines:
        strategy = parse_strategy(line, _JOB.gpus)
        assert strategy.samples * strategy.micro_batches == _JOB.batch
        assert strategy.mesh.ranks == _JOB.gpus


def test_the_fastest_comes_first_whoever_simulates_it() -> None:
    found = search(_JOB, lambda done, total: None)
    alone = [evaluate(_JOB, line) for line in candidates(_JOB, 8)]
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
    whole = search(_JOB, lambda done, total: None, Kept(tmp_path / "search.json"))
    data = json.loads((tmp_path / "search.json").read_text(encoding="utf-8"))
    data["found"] = data["found"][:40]
    data["found"][0]["mfu"] = 0.125  # as no simulation would say
    (tmp_path / "search.json").write_text(json.dumps(data), encoding="utf-8")
    began: list[int] = []
    again = search(_JOB, lambda done, total: began.append(done), Kept(tmp_path / "search.json"))
    assert began[0] == 40
    changed = {one.strategy for one in again} - {one.strategy for one in whole if one in again}
    assert changed == {data["found"][0]["strategy"]}
    cluster = find_cluster("dgx-a100")
    assert len(Kept(tmp_path / "search.json").load(_JOB, cluster)) == len(whole)
    other = replace(cluster, network=replace(cluster.network, step_ns=1))
    assert Kept(tmp_path / "search.json").load(_JOB, other) == {}
    assert Kept(tmp_path / "search.json").load(replace(_JOB, batch=8), cluster) == {}
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
    found = evaluate(job, "tp=8 micro_batches=8")
    assert (found.iteration_ns, found.fits, found.refused) == (0, False, "")
    assert found.memory_bytes > 174e9 * 18 / 8
    strategy = parse_strategy("tp=8 micro_batches=8", 8)
    result = simulate(load_model("gpt3-175b", 1, None), strategy, find_cluster("dgx-a100"))
    assert max(rank.total for rank in result.memory) >= found.memory_bytes


def test_a_search_without_a_candidate_says_why() -> None:
    with pytest.raises(UserError, match="no number of data-parallel ranks of 24 GPUs divides it"):
        search(Job("gpt2", "dgx-a100", gpus=24, batch=7), lambda done, total: None)
    with pytest.raises(UserError, match=r"no strategy can be simulated: strategy: layers\.0"):
        search(Job("gpt:layers=1,hidden=64,heads=1", "dgx-a100", 64, 1), lambda done, total: None)
