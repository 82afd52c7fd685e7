"""The complete diagnosis of a recorded run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from byteprophet.diagnose.breakdown import Breakdown, breakdown
from byteprophet.diagnose.facts import facts, paced_bound_ns, paced_config
from byteprophet.diagnose.gradients import Gradient, gradients
from byteprophet.diagnose.links import DIRECTIONS
from byteprophet.diagnose.path import Path as CriticalPath
from byteprophet.diagnose.path import critical_path
from byteprophet.diagnose.recorded import Recorded, load_recorded
from byteprophet.diagnose.stragglers import Stragglers, stragglers
from byteprophet.diagnose.utilisation import Utilisation, utilisation
from byteprophet.errors import UserError
from byteprophet.measure.processor_file import measure_on_cores
from byteprophet.measure.run import Run
from byteprophet.order_statistics import quantile
from byteprophet.replay.predict import Prediction, predict
from byteprophet.replay.what_if import Changes


class Share(NamedTuple):
    """Mean utilisation of a worker, a link or a server: its share of the time.

    ``of_rate``: of a link whose rate is known, it is the share of that rate instead.
    """

    name: str
    share: float
    of_rate: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of the run in ``directory``. ``gradients``: by worker. ``bound_ns``: lower bound.

    ``prediction``: the replay of the job as recorded; None if it cannot be replayed, and
    ``not_predicted`` then says why.
    """

    directory: Path
    run: Recorded
    breakdown: Breakdown
    path: CriticalPath
    utilisation: Utilisation
    stragglers: Stragglers
    gradients: Sequence[Sequence[Gradient]]
    facts: Mapping[str, Any]
    bound_ns: int | None
    prediction: Prediction | None
    not_predicted: str = ""

    def spread_ns(self) -> dict[str, int]:
        """Median, 10th and 90th percentile of the iterations' times."""
        shares = {"median": 0.5, "p10": 0.1, "p90": 0.9}
        return {name: int(quantile(self.run.iteration_ns, shares[name])) for name in shares}

    def settled(self) -> tuple[int, int]:
        """How many iterations, the last ones, the bound and the replay are of, and their median.

        A replay leaves out warm-up and what ran before settings settled (``replay.predict``).
        """
        if self.prediction is None:
            return len(self.run.iteration_ns), self.spread_ns()["median"]
        found = self.prediction
        return found.counted, found.recorded_ns * found.job.strategy.accumulation

    def mean_shares(self) -> Iterator[Share]:
        """Yield the mean utilisation of every worker, link and server, where known."""
        for one in self._shares():
            if not np.isnan(one.share):
                yield one

    def _shares(self) -> Iterator[Share]:
        used = self.utilisation
        for worker, share in enumerate(used.mean(used.compute).tolist()):
            yield Share(f"worker {self.run.workers[worker].rank} computes", share)
        for direction in DIRECTIONS:
            rates_bps = used.mean_rate_bps(direction)
            busy = used.mean(used.link_busy[direction])
            for worker, rate_bps in enumerate(rates_bps.tolist()):
                link_bps = int(used.link_bps[worker])
                share = rate_bps / link_bps if link_bps else float(busy[worker])
                name = f"worker {self.run.workers[worker].rank} {direction}"
                yield Share(name, share, of_rate=link_bps > 0)
        for server, share in zip(used.servers.tolist(), used.mean(used.sums).tolist(), strict=True):
            yield Share(f"server {server} sums", share)


def diagnose(source: Run) -> Diagnosis:
    """Diagnose a run; UserError in one line if that is impossible."""
    run = load_recorded(source)
    found = breakdown(run)
    paced = paced_config(source.directory)
    prediction, not_predicted = _prediction(source, run)
    return Diagnosis(
        directory=source.directory,
        run=run,
        breakdown=found,
        path=critical_path(run),
        utilisation=utilisation(run),
        stragglers=stragglers(run),
        gradients=[gradients(run, worker, found) for worker in range(len(run.workers))],
        facts=facts(source.directory, run, paced),
        bound_ns=_all_steps_ns(prediction) if prediction else paced_bound_ns(run, paced),
        prediction=prediction,
        not_predicted=not_predicted,
    )


def _all_steps_ns(prediction: Prediction) -> int:
    """The bound of a recorded iteration, which has all steps that share an update."""
    return prediction.bound_ns * prediction.job.strategy.accumulation


def _prediction(source: Run, run: Recorded) -> tuple[Prediction | None, str]:
    if not run.config:
        return None, "a replay needs config.toml, which this directory does not have"
    try:
        return predict(measure_on_cores(source), Changes()), ""
    except UserError as error:
        return None, str(error)
