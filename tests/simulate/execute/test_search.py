"""The search: all candidates are simulated, and the front has no worse ones."""

from __future__ import annotations

import random

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.execute.kept import Found, Job, Kept
from byteprophet.simulate.execute.search import candidates, evaluate, pareto, search
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
    simulated = [one for one in found if not one.refused]
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


def test_a_search_without_a_candidate_says_why() -> None:
    with pytest.raises(UserError, match="no number of data-parallel ranks of 24 GPUs divides it"):
        search(Job("gpt2", "dgx-a100", gpus=24, batch=7), lambda done, total: None)
    with pytest.raises(UserError, match=r"no strategy can be simulated: strategy: layers\.0"):
        search(Job("gpt:layers=1,hidden=64,heads=1", "dgx-a100", 64, 1), lambda done, total: None)
