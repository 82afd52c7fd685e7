"""The best candidates of a search, tried in the real job: the job decides between them.

A replay knows the recorded runtime and policy best. Of another one it may be wrong by more than the
candidates differ, so the best candidate of each is run once, beside the recorded job; those of
different transports come first. The fastest of several runs was also a lucky one. So it runs again,
twice in turn with the recorded job and with those that came close; the median of its rounds counts.
So does the recorded command as it ran under a transport of these: what the search has changed there
must pay in the job, too. A candidate whose run fails is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from byteprophet.errors import JobFailed
from byteprophet.job import Job
from byteprophet.job.strategy_file import Used, write_strategy
from byteprophet.optimize.apply import BASELINE, Applied, apply
from byteprophet.optimize.recorded import used_by
from byteprophet.optimize.search import Candidate
from byteprophet.whole_files import make_directory

_CLOSE = 1.03
"""Those that take at most so many times as long as the fastest one run again, too."""
_MORE_ROUNDS = 2
_FAR = 1.2
_START = "trial start"


@dataclass(frozen=True)
class Trial:
    """A candidate that ran.

    ``ratios``: by round, its measured iteration over the recorded job's.
    """

    candidate: Candidate
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median of the rounds."""
        return float(np.median(self.ratios))

    def as_json(self, recorded_ns: int) -> dict[str, Any]:
        """As ``byteprophet optimize --json`` saves it. ``recorded_ns``: of the recorded job."""
        return {
            "what": self.candidate.job.title,
            "replayed_gain": recorded_ns / self.candidate.iteration_ns,
            "measured_gain": 1 / self.ratio,
        }


def worth_trying(families: Sequence[Candidate], count: int) -> list[Candidate]:
    """``count`` of ``families``, which are sorted: the best of each transport, then the others.

    A replay compares jobs of one transport better than those of several. A transport whose best
    job is predicted to take more than ``_FAR`` times as long as the best of all has no precedence.
    """
    first: dict[str, Candidate] = {}
    for each in families:
        if each.iteration_ns <= _FAR * families[0].iteration_ns:
            first.setdefault(each.job.transport, each)
    leading = [*first.values()]
    return [*leading, *(each for each in families if each not in leading)][:count]


def try_candidates(
    config: Mapping[str, Any],
    recorded: Job,
    candidates: Sequence[Candidate],
    directory: Path,
    progress: Callable[[str], None],
    starts: Sequence[Candidate] = (),
    *,
    start_fits: bool = True,
) -> list[Trial]:
    """Run the recorded job and each of ``candidates``; the fastest of several rounds comes first.

    ``config``: a run's ``config.toml``; ``recorded``: its job. ``directory``: where strategies and
    runs are kept; runs of these candidates that have finished there are not made again. ``starts``:
    the recorded command under other transports, as it ran there. ``start_fits``: the recorded job
    may stay as it is, so candidates that are slower are not run again. Raises JobFailed if the
    recorded job fails, or every candidate does.
    """
    if not candidates:
        return []
    make_directory(directory)
    named = {f"trial {number}": candidate for number, candidate in enumerate(candidates, 1)}
    strategies = _strategies(named, recorded, directory)
    runs, kept = directory / "runs", directory / "rounds"
    first = apply(config, strategies, runs, 1, progress, kept / "first.json", may_fail=True)
    ratios = _ratios(first)
    fastest = min((ratio for (ratio,) in ratios.values()), default=math.inf)
    again: list[str] = []
    if fastest < (1 if start_fits else math.inf):
        again = [name for name in ratios if ratios[name][0] <= _CLOSE * fastest]
        changed = enumerate(_changed([named[name] for name in again], starts), 1)
        added = {f"{_START} {number}": start for number, start in changed}
        named |= added
        strategies |= _strategies(added, recorded, directory)
        again += added
        close = {name: strategies[name] for name in again}
        more = apply(
            config, close, runs, _MORE_ROUNDS, progress, kept / "again.json", may_fail=True
        )
        further = _ratios(more)
        for name in again:
            if name in further:
                ratios[name] = (*ratios.get(name, ()), *further[name])
            else:
                ratios.pop(name, None)
    if not ratios:
        raise JobFailed(
            f"--trials: every candidate failed, as said above; their runs are in {runs}"
        )
    trials = {name: Trial(named[name], of) for name, of in ratios.items()}
    ordered = sorted(trials, key=lambda name: (name not in again, trials[name].ratio))
    return [trials[name] for name in ordered]


def _changed(candidates: Iterable[Candidate], starts: Iterable[Candidate]) -> list[Candidate]:
    """Those of ``starts`` which the search has changed into one of ``candidates``."""
    jobs = [each.job for each in candidates]
    known = {job.decided for job in jobs}
    transports = {job.transport for job in jobs}
    return [
        each
        for each in starts
        if each.job.transport in transports and each.job.decided not in known
    ]


def _strategies(
    named: Mapping[str, Candidate], recorded: Job, directory: Path
) -> dict[str, tuple[Used, Path]]:
    """The strategies of candidates, as they are, and as they were written into files."""
    strategies = {}
    for name, candidate in named.items():
        used = used_by(candidate.job, recorded)
        path = directory / f"{name.replace(' ', '-')}.json"
        write_strategy(path, used)
        strategies[name] = used, path
    return strategies


def _ratios(applied: Applied) -> dict[str, tuple[float, ...]]:
    """By strategy, the median iteration of each round over the recorded job's in that round."""
    was_ns = applied.rounds_ns(BASELINE)
    return {
        name: tuple(is_ns / was for is_ns, was in zip(applied.rounds_ns(name), was_ns, strict=True))
        for name in applied.iteration_ns
        if name != BASELINE
    }
