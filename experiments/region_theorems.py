"""Tests dPRO's Theorems 1 and 3 for regions of a model, as the pass ``compile`` uses them.

    python experiments/region_theorems.py

*Chains* are what the theorems speak of, with more than one gradient per operation: one device that
computes 2 to 8 operations, and one link that sends buckets in the order in which they are ready. An
operation completes up to three gradients, at its end, and buckets are any runs of gradients. Two or
more neighbours are fused, and replayed. The forward pass waits for all gradients, or layer by layer
for its own. What ``serial_backward.py`` expects is compared with what the replay says: whether the
job is slower although it should not be ("held"), or not slower although it should be ("otherwise").
Theorem 3 sends the buckets that a fused operation completes as one.

*Jobs* are whole jobs under ``allreduce``, with random costs of regions, in random regions and
buckets. Every move that the pass offers is replayed, as the search does. Their end is an iteration,
and differences below 0.05% count as none. Then the script prints how many moves the search must
replay until one helps: in the order of the pass, and in any order. Takes a minute.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean

from region_chains import Chain, random_chain
from rich.table import Table
from script import run_script
from small_jobs import random_job, region_costs_of, with_runtime

from byteprophet.errors import UserError
from byteprophet.job import Job
from byteprophet.job.strategy import ALL_REDUCE
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.passes.compile import Compile
from byteprophet.optimize.theorems import fuses_gradients_of_fused_operations
from byteprophet.report.console import table_console

_SAME = 0.0005  # of an iteration; the search knows no smaller differences


@dataclass
class Tally:
    """How often a condition held, and how often the claim was wrong then."""

    held: int = 0
    wrong: int = 0
    worst: float = 0.0
    example: str = ""

    def add(self, later: float, end: float, example: Callable[[], str] = str) -> None:
        """Count a move that should not make the end ``later``."""
        self.held += 1
        if later > 0:
            self.wrong += 1
            self.worst = max(self.worst, later / end)
            text = example()
            if not self.example or len(text) < len(self.example):
                self.example = text


def tally_chains(seeds: Iterable[int], *, bare: bool) -> dict[str, Tally]:
    """Fuse all runs of two to four neighbours of each chain."""
    tallies: dict[str, Tally] = {}
    for seed in seeds:
        chain = random_chain(seed, bare=bare)
        lot = random.Random(seed)
        was = chain.played()
        for first, last in _runs(len(chain.compute)):
            both = sum(chain.compute[first : last + 1])
            fused = chain.fused(first, last, max(1, both + lot.randint(-both // 2, both // 4)))
            moved = fused.played()
            for name, later in _claims(
                chain, first, last, both - fused.compute[first], moved - was
            ):
                one = f"operations {first} to {last} as one take {fused.compute[first]}"
                said = partial(_said, chain, one, was, moved)
                tallies.setdefault(name, Tally()).add(later, was, said)
            _tally_buckets(tallies, fused, first, moved)
    return tallies


def _claims(
    chain: Chain, first: int, last: int, saved: int, later: int
) -> Iterator[tuple[str, int]]:
    """What the wordings of Theorem 1 say of a fusion that makes the job ``later``.

    Each with how much later the job is than it says.
    """
    begin, end = chain.ends[first] - chain.compute[first], chain.ends[last]
    waits = "by layer" if chain.by_layer else "for all"
    which = "some operations without gradients, " if 0 in chain.gradients else ""
    name = f"1, {which}forward waits {waits}"
    if chain.serial.sooner_ns(begin, end, saved) >= 0:
        yield f"{name}: held", later
    else:
        yield f"{name}: otherwise", 1 - later
    of_first, behind = chain.serial.between(begin, end - chain.compute[last])
    if sum(chain.serial.sync_ns[of_first:behind]) <= saved:
        yield "1, the paper's", later
    else:
        yield "1, the paper's otherwise", -later


def _tally_buckets(tallies: dict[str, Tally], fused: Chain, at: int, was: int) -> None:
    """Send the buckets that operation ``at`` completes as one."""
    owners = fused.owners
    shared = [bucket for bucket in fused.buckets if owners[bucket[-1]] == at]
    if len(shared) < 2:
        return
    moved = replace(fused, cuts=fused.cuts - {bucket[0] for bucket in shared[1:]}).played()
    together = range(shared[0][0], shared[-1][-1] + 1)
    one = fused.sync(together)
    said = partial(_said, fused, f"buckets of {list(together)} as one take {one}", was, moved)
    tallies.setdefault("3, the paper's", Tally()).add(moved - was, was, said)
    *first, last = map(fused.sync, shared)
    if fuses_gradients_of_fused_operations(
        sync_first_ns=sum(first), sync_second_ns=last, sync_fused_ns=one
    ):
        tallies.setdefault("3, repaired", Tally()).add(moved - was, was, said)


def _said(chain: Chain, what: str, was: int, moved: int) -> str:
    return f"{chain}; {what}: end {was} -> {moved}"


def _runs(count: int) -> Iterator[tuple[int, int]]:
    for length in (2, 3, 4):
        yield from ((first, first + length - 1) for first in range(count - length + 1))


@dataclass
class Jobs:
    """What came of the moves of the pass, on whole jobs."""

    tallies: dict[str, Tally] = field(default_factory=dict)
    until_helps: list[int] = field(default_factory=list)
    in_any_order: list[float] = field(default_factory=list)


def tally_jobs(seeds: Iterable[int]) -> Jobs:
    """Replay all moves that the pass offers."""
    found = Jobs()
    for seed in seeds:
        job, by = _job(seed)
        evaluate = Evaluator()
        was = evaluate(job)
        gains = []
        for move in by.moves(job, was.hints):
            gain = 1 - evaluate(move.job).iteration_ns / was.iteration_ns
            gains.append(gain > _SAME)
            name = f"gain expected by {move.theorem}" if move.theorem else "no gain is sure"
            wrong = -gain if move.theorem else gain
            said = partial("seed {}: {}: {:+.2%}".format, seed, move.what, gain)
            tally = found.tallies.setdefault(f"jobs, {name}", Tally())
            tally.add(wrong if wrong > _SAME else 0.0, 1.0, said)
        if any(gains):
            found.until_helps.append(1 + gains.index(True))
            found.in_any_order.append((len(gains) + 1) / (sum(gains) + 1))
    return found


def _job(seed: int) -> tuple[Job, Compile]:
    """A job in some regions, and the pass, which knows what all of them cost."""
    lot = random.Random(seed)
    job = random_job(seed, lot.randint(4, 10), lot.randint(2, 3))
    job = with_runtime(job, ALL_REDUCE, lot.choice((1, 100_000, 500_000, 2_000_000)))
    by = Compile()
    by.learn(job, region_costs_of(job, seed))
    for _ in range(lot.randint(0, 3)):
        moves = [*by.moves(job, Evaluator()(job).hints)]
        if moves:
            job = lot.choice(moves).job
    return job, by


def main(arguments: Sequence[str]) -> None:
    """Draw, replay, count, print."""
    parser = argparse.ArgumentParser(
        description="Test dPRO's Theorems 1 and 3 for regions of a model.",
        epilog="example: python experiments/region_theorems.py --chains 100 --jobs 20",
    )
    parser.add_argument("--chains", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first chain and job")
    options = parser.parse_args(arguments)
    if options.chains < 1 or options.jobs < 1:
        raise UserError("--chains, --jobs: must be at least 1")
    seeds = range(options.seed, options.seed + options.chains)
    tallies = tally_chains(seeds, bare=False)
    tallies |= {
        name: each
        for name, each in tally_chains(seeds, bare=True).items()
        if "without gradients" in name
    }
    jobs = tally_jobs(range(options.seed, options.seed + options.jobs))
    table = Table("theorem", "held", "wrong", "worst", title="fusing neighbours", box=None)
    for name, each in sorted({**tallies, **jobs.tallies}.items()):
        worst = f"{each.worst:.2%}" if each.wrong else ""
        table.add_row(name, str(each.held), str(each.wrong), worst)
    table_console().print(table)
    print(
        f"replays until a move helps, in the mean of {len(jobs.until_helps)} jobs: "
        f"{mean(jobs.until_helps):.2f} in the pass' order, {mean(jobs.in_any_order):.2f} in any"
    )
    for name, each in (*tallies.items(), *jobs.tallies.items()):
        if each.example:
            print(f"{name}: {each.example}")


if __name__ == "__main__":
    run_script(main)
