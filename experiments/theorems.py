"""Tests dPRO's Theorems 1 to 3 on random graphs: as the paper words them, and repaired.

    python experiments/theorems.py

Each graph is exactly what the theorems speak of: one device that computes, one link in FIFO order,
2 to 8 operations with small integer times, some without gradients. Time on the link is a function
of the size: linear, concave, with the best number of partitions, or with a step, as where a buffer
overflows. A fused operation may be faster or slower than its parts. After the backward pass comes a
forward pass, which waits either for all gradients or, layer by layer, for its own. Every pair of
neighbours of every graph is fused, in operations, gradients, or both, and replayed.

For each wording the script prints for how many pairs its condition held, and how often the claim
was wrong: about q(n), the time that the theorem speaks of, and about the end of the job.
"Otherwise" is the claim that a move does not pay where the condition does not hold. Then it prints
the smallest counter-example to each wording that was ever wrong.

Two kinds of rows are beyond the theorems: "urgent first", where the link sends the gradients that
the forward pass needs first, and "jobs", which are whole jobs without servers under ``allreduce``,
replayed as the search replays them, with the rule that the search uses (``serial_link.py``). There
the end is an iteration, and differences below 0.05% count as none. Takes two minutes.
``region_theorems.py`` does the same for regions of a model, which have many gradients.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt

from rich.table import Table
from script import run_script
from small_jobs import random_job, with_runtime

from byteprophet.allreduce.strategies import strategy_of_groups, timing_of
from byteprophet.errors import UserError
from byteprophet.graph import GraphBuilder
from byteprophet.job.strategy import ALL_REDUCE
from byteprophet.optimize import theorems
from byteprophet.optimize.cuts import Buckets
from byteprophet.optimize.evaluate import Evaluator
from byteprophet.optimize.passes.tensor_fusion import merge_gain_ns
from byteprophet.replay import replay
from byteprophet.replay.all_reduce import with_strategy
from byteprophet.report.console import table_console

_MOST_OPERATIONS = 8
_SAME = 0.0005  # of an iteration; the search knows no smaller differences


@dataclass(frozen=True)
class Chain:
    """A backward pass of N operations, in order, and the forward pass that follows.

    Attributes:
        compute: the time of each operation, N values.
        sizes: the size of its gradient; 0: it has none.
        curve: the time that the link needs for a size.
        fused: the time of operations n - 1 and n as one, by n; entry 0 is not used.
        forward: the time of each layer, by the operation that it belongs to; the last one is first.
        by_layer: whether layers wait for their own gradients only.
        urgent_first: whether the link sends the last one of those that are ready, not the first.
    """

    compute: tuple[int, ...]
    sizes: tuple[int, ...]
    curve: Callable[[int], int]
    fused: tuple[int, ...]
    forward: tuple[int, ...]
    by_layer: bool
    urgent_first: bool = False

    def __len__(self) -> int:
        return len(self.compute)

    def sync(self, size: int) -> int:
        """The time of the link for ``size``; nothing for a gradient that is not there."""
        return self.curve(size) if size else 0


@dataclass(frozen=True)
class Played:
    """Times of a replayed chain: p and q of its operations, and the end of its forward pass."""

    ready: tuple[int, ...]
    synced: tuple[int, ...]
    end: int


def random_chain(seed: int) -> Chain:
    """A chain with times from 1 to 9."""
    lot = random.Random(seed)
    count = lot.randint(2, _MOST_OPERATIONS)
    compute = tuple(lot.randint(1, 9) for _ in range(count))
    sums = [0, *(a + b for a, b in pairwise(compute))]
    return Chain(
        compute,
        tuple(0 if lot.random() < 0.15 else lot.randint(1, 9) for _ in range(count)),
        _curve(lot),
        tuple(max(1, both + lot.randint(-both // 2, both // 4)) if both else 0 for both in sums),
        tuple(lot.randint(1, 5) for _ in range(count)),
        by_layer=lot.random() < 0.5,
    )


def _curve(lot: random.Random) -> Callable[[int], int]:
    cost, limit = lot.randint(0, 4), lot.randint(3, 12)
    return lot.choice(
        (
            lambda size: cost + size,
            lambda size: cost + isqrt(4 * size),
            lambda size: min((k + 1) * (cost + -(-size // k)) for k in range(1, 9)),
            lambda size: cost + size + (5 if size > limit else 0),
        )
    )


def play(chain: Chain, *, operations: int = 0, gradients: int = 0) -> Played:
    """Replay a chain.

    Args:
        chain: the chain.
        operations: fuses this operation with the one before; 0: none.
        gradients: sends this operation's gradient together with the one before; 0: none.
    """
    graph = GraphBuilder()
    device = graph.serial("compute")
    link = graph.serial("link", by_priority=chain.urgent_first)
    computed: list[int] = []
    for n in range(len(chain)):
        if n == operations - 1:
            continue  # it ends with the next one
        time = chain.fused[n] if operations and n == operations else chain.compute[n]
        after = computed[-1:]
        one = graph.add("", time, device=device, after=after)
        computed += [one] * (2 if operations and n == operations else 1)
    sent: list[int] = []
    for n in range(len(chain)):
        if gradients and n == gradients - 1:
            continue
        together = bool(gradients) and n == gradients
        size = chain.sizes[n] + (chain.sizes[n - 1] if together else 0)
        after = [computed[n], *(() if chain.urgent_first and size else sent[-1:])]
        if size:
            one = graph.add("", chain.sync(size), device=link, priority=n, after=after)
        else:
            one = graph.add("", 0, after=after)
        sent += [one] * (2 if together else 1)
    last = computed[-1]
    for n in reversed(range(len(chain))):
        waits = [sent[n]] if chain.sizes[n] else []
        after = [last, *(waits if chain.by_layer else sent)]
        last = graph.add("", chain.forward[n], device=device, after=after)
    ends = replay(graph.freeze()).end_ns
    return Played(
        tuple(int(ends[one]) for one in computed),
        tuple(int(ends[one]) for one in sent),
        int(ends[last]),
    )


@dataclass(frozen=True)
class Pair:
    """Operations ``n`` - 1 and ``n`` of a chain: how it was, and the times of the theorems."""

    chain: Chain
    n: int
    was: Played

    @property
    def before(self) -> int:
        """q(n-2)."""
        return self.was.synced[self.n - 2] if self.n > 1 else 0

    @property
    def saved(self) -> int:
        """What fusing the operations saves."""
        return sum(self.chain.compute[self.n - 1 : self.n + 1]) - self.chain.fused[self.n]

    @property
    def syncs(self) -> tuple[int, int, int]:
        """Time on the link of the first, the second, and both as one."""
        first, second = self.chain.sizes[self.n - 1 : self.n + 1]
        return tuple(map(self.chain.sync, (first, second, first + second)))  # type: ignore[return-value]

    @property
    def slacks(self) -> tuple[int, int]:
        """By how much q(n), and all later operations, may be later; if all gradients are awaited.

        Later operations have no gradient of their own to wait for, so a job ends when the link has
        sent what is left, counted from q(n) or from any later operation.
        """
        sync = [self.chain.sync(size) for size in self.chain.sizes]
        later = range(self.n + 1, len(self.chain))
        left = sum(sync[m] for m in later)
        by_compute = max((self.was.ready[m] + sum(sync[m:]) for m in later), default=-(10**9))
        ends = max(self.was.synced[self.n] + left, by_compute)
        return ends - left - self.was.synced[self.n], ends - by_compute


def operation_gain(pair: Pair) -> int:
    """How much earlier q(n) is by Theorem 1."""
    return theorems.operation_fusion_gain_ns(
        synced_before_ns=pair.before,
        ready_second_ns=pair.was.ready[pair.n],
        synced_second_ns=pair.was.synced[pair.n],
        saved_ns=pair.saved,
        sync_first_ns=pair.syncs[0],
        sync_second_ns=pair.syncs[1],
    )


def exact_operations(pair: Pair) -> bool:
    """Theorem 1 with both slacks."""
    link, compute = pair.slacks
    return theorems.fuses_operations(
        operation_gain(pair), pair.saved, link_slack_ns=link, compute_slack_ns=compute
    )


def tensor_gain(pair: Pair) -> int:
    """How much earlier q(n) is by Theorem 2."""
    return theorems.tensor_fusion_gain_ns(
        synced_before_ns=pair.before,
        ready_second_ns=pair.was.ready[pair.n],
        synced_second_ns=pair.was.synced[pair.n],
        sync_fused_ns=pair.syncs[2],
    )


def paper_tensors(pair: Pair) -> bool:
    """Theorem 2 as the paper has it."""
    _, second, fused = pair.syncs
    return pair.was.synced[pair.n - 1] > pair.was.ready[pair.n] + fused - second


def fuses_gradients(pair: Pair) -> bool:
    """The second half of Theorem 3, repaired."""
    first, second, fused = pair.syncs
    return theorems.fuses_gradients_of_fused_operations(
        sync_first_ns=first, sync_second_ns=second, sync_fused_ns=fused
    )


def both(pair: Pair) -> bool:
    """Whether both operations have gradients, without which there is nothing to fuse."""
    return min(pair.chain.sizes[pair.n - 1 : pair.n + 1]) > 0


@dataclass(frozen=True)
class Wording:
    """A claim: where ``holds``, the job with ``move`` is not slower than that with ``instead``.

    ``move`` and ``instead`` say whether operations and gradients are fused. ``otherwise``: it
    says that the move does not make the job faster instead.
    ``speaks``: of which pairs the wording speaks at all. ``urgent_first``: on which chains it is
    tested. ``about_q``: whether it says anything of q(n).
    """

    theorem: str
    wording: str
    move: tuple[bool, bool]
    holds: Callable[[Pair], bool]
    instead: tuple[bool, bool] = (False, False)
    otherwise: bool = False
    speaks: Callable[[Pair], bool] = lambda pair: True
    urgent_first: bool = False
    about_q: bool = True


OPERATIONS, GRADIENTS, BOTH = (True, False), (False, True), (True, True)


def awaits_all(pair: Pair) -> bool:
    """Whether the forward pass waits for all gradients, for which slacks are known."""
    return not pair.chain.by_layer


WORDINGS = (
    Wording("1", "paper", OPERATIONS, lambda pair: pair.syncs[0] <= pair.saved),
    Wording(
        "1",
        "paper, otherwise",
        OPERATIONS,
        lambda pair: pair.syncs[0] > pair.saved,
        otherwise=True,
    ),
    Wording(
        "1",
        "repaired",
        OPERATIONS,
        lambda pair: theorems.fuses_operations(operation_gain(pair), pair.saved),
    ),
    Wording(
        "1", "repaired, slacks", OPERATIONS, exact_operations, speaks=awaits_all, about_q=False
    ),
    Wording(
        "1",
        "its otherwise",
        OPERATIONS,
        lambda pair: not exact_operations(pair),
        otherwise=True,
        speaks=awaits_all,
        about_q=False,
    ),
    Wording("2", "paper", GRADIENTS, paper_tensors, speaks=both),
    Wording(
        "2",
        "paper, otherwise",
        GRADIENTS,
        lambda pair: not paper_tensors(pair),
        otherwise=True,
        speaks=both,
    ),
    Wording("2", "repaired", GRADIENTS, lambda pair: tensor_gain(pair) >= 0, speaks=both),
    Wording(
        "2",
        "its otherwise",
        GRADIENTS,
        lambda pair: tensor_gain(pair) <= 0,
        otherwise=True,
        speaks=both,
    ),
    Wording(
        "2",
        "repaired, urgent first",
        GRADIENTS,
        lambda pair: tensor_gain(pair) >= 0,
        speaks=both,
        urgent_first=True,
    ),
    Wording("3, operations", "paper", BOTH, lambda pair: True, instead=GRADIENTS, speaks=both),
    Wording(
        "3, operations",
        "repaired",
        BOTH,
        lambda pair: theorems.fuses_operations_of_fused_gradients(pair.saved),
        instead=GRADIENTS,
        speaks=both,
    ),
    Wording("3, gradients", "paper", BOTH, lambda pair: True, instead=OPERATIONS, speaks=both),
    Wording("3, gradients", "repaired", BOTH, fuses_gradients, instead=OPERATIONS, speaks=both),
)


@dataclass
class Tally:
    """What came of a wording. ``worst``: by how much the end was wrong, over the job without it.

    ``example``: the smallest counter-example, and what it is measured by.
    """

    held: int = 0
    wrong_about_q: int = 0
    wrong_about_end: int = 0
    worst: float = 0.0
    example: tuple[tuple[int, ...], str] | None = None

    def add(self, wording: Wording, pair: Pair, instead: Played, moved: Played) -> None:
        """Count a pair for which the condition held."""
        self.held += 1
        sign = -1 if wording.otherwise else 1
        q_later, end_later = (
            sign * (moved.synced[pair.n] - instead.synced[pair.n]),
            sign * (moved.end - instead.end),
        )
        q_later *= wording.about_q
        self.wrong_about_q += q_later > 0
        self.wrong_about_end += end_later > 0
        self.worst = max(self.worst, end_later / instead.end)
        if q_later > 0 or end_later > 0:
            chain = pair.chain
            size = (len(chain), sum(chain.compute) + sum(pair.syncs) + sum(chain.sizes))
            if self.example is None or size < self.example[0]:
                self.example = size, _described(pair, instead, moved)


def _described(pair: Pair, instead: Played, moved: Played) -> str:
    chain, n = pair.chain, pair.n
    first, second, fused = pair.syncs
    waits = "its own gradient" if chain.by_layer else "all gradients"
    return (
        f"operations take {list(chain.compute)}, link "
        f"{[chain.sync(size) for size in chain.sizes]}; n = {n} (from 0), operations fused take "
        f"{chain.fused[n]}, gradients fused {fused} instead of {first} + {second}; forward "
        f"{list(reversed(chain.forward))} waits for {waits}: q(n) {instead.synced[n]} -> "
        f"{moved.synced[n]}, end {instead.end} -> {moved.end}"
    )


def pairs_of(chain: Chain) -> Iterator[Pair]:
    """All pairs of neighbours."""
    was = play(chain)
    for n in range(1, len(chain)):
        yield Pair(chain, n, was)


def tally(chains: Sequence[Chain]) -> list[Tally]:
    """One for each of ``WORDINGS``."""
    tallies = [Tally() for _ in WORDINGS]
    for chain in (*chains, *(replace(chain, urgent_first=True) for chain in chains)):
        for pair in pairs_of(chain):
            played = {
                (operations, gradients): play(
                    chain,
                    operations=pair.n if operations else 0,
                    gradients=pair.n if gradients else 0,
                )
                for operations in (False, True)
                for gradients in (False, True)
            }
            for wording, counted in zip(WORDINGS, tallies, strict=True):
                of_these = wording.urgent_first == chain.urgent_first
                if of_these and wording.speaks(pair) and wording.holds(pair):
                    counted.add(wording, pair, played[wording.instead], played[wording.move])
    return tallies


def tally_jobs(seeds: Iterable[int]) -> dict[str, Tally]:
    """Theorem 2 as the search uses it, on jobs with these seeds.

    The rule offers a merge unless it expects a loss of which it is sure. ``Tally.example`` is None.
    """
    tallies = {"jobs, gain expected": Tally(), "jobs, not offered": Tally()}
    for seed in seeds:
        lot = random.Random(seed)
        job = random_job(seed, lot.randint(3, 12), lot.randint(2, 4))
        job = with_runtime(job, ALL_REDUCE, lot.choice((1, 100_000, 500_000, 2_000_000)))
        evaluate = Evaluator()
        was = evaluate(job)
        timing, link = timing_of(job), was.hints.link
        assert link is not None
        buckets = Buckets.of(job, timing)
        for first in range(len(buckets) - 1):
            gain_ns = merge_gain_ns(buckets, link, first)
            if -link.unsure_ns <= gain_ns <= 0:
                continue
            counted = tallies["jobs, gain expected" if gain_ns > 0 else "jobs, not offered"]
            groups = buckets.groups(buckets.cuts - {buckets.edges[first + 1]})
            merged = with_strategy(job, strategy_of_groups(timing, ALL_REDUCE, groups))
            longer = evaluate(merged).iteration_ns / was.iteration_ns - 1
            wrong = longer if gain_ns > 0 else -longer
            counted.held += 1
            counted.wrong_about_end += wrong > _SAME
            counted.worst = max(counted.worst, wrong if wrong > _SAME else 0.0)
    return tallies


def main(arguments: Sequence[str]) -> None:
    """Draw, replay, print."""
    parser = argparse.ArgumentParser(
        description="Test dPRO's theorems on random graphs.",
        epilog="example: python experiments/theorems.py --graphs 100 --seed 5",
    )
    parser.add_argument("--graphs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    options = parser.parse_args(arguments)
    if options.graphs < 1:
        raise UserError(f"--graphs {options.graphs}: must be at least 1")
    chains = [random_chain(options.seed + number) for number in range(options.graphs)]
    tallies = tally(chains)
    table = Table(box=None, pad_edge=False)
    for heading in ("theorem", "wording"):
        table.add_column(heading)
    for heading in ("held", "wrong about q(n)", "about the end", "worst"):
        table.add_column(heading, justify="right")
    for wording, counted in zip(WORDINGS, tallies, strict=True):
        about_q = str(counted.wrong_about_q) if wording.about_q else ""
        table.add_row(wording.theorem, wording.wording, *_figures(counted, about_q))
    seeds = range(options.seed, options.seed + options.graphs)
    for name, counted in tally_jobs(seeds).items():
        table.add_row("2", name, *_figures(counted, ""))
    table_console().print(table)
    for wording, counted in zip(WORDINGS, tallies, strict=True):
        if counted.example is not None:
            print(f"Theorem {wording.theorem}, {wording.wording}: {counted.example[1]}")


def _figures(counted: Tally, about_q: str) -> tuple[str, ...]:
    worst = f"{counted.worst:.2%}" if counted.worst else ""
    return str(counted.held), about_q, str(counted.wrong_about_end), worst


if __name__ == "__main__":
    run_script(main)
