"""All that can be said of a recorded run, together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from byteprophet.graph.measured import measure_run
from byteprophet.replay.predict import Prediction, predict
from byteprophet.replay.what_if import Changes


@dataclass(frozen=True)
class Diagnosis:
    """Of the run in ``directory``. ``gradients``: by worker. ``bound_ns``: no iteration is shorter.

    ``prediction``: of the job as it was recorded, replayed; None where it cannot be replayed, and
    ``not_predicted`` says why.
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
        """Of the slowest worker's iterations: median, 10th and 90th percentile."""
        p10, median, p90 = np.percentile(self.run.iteration_ns, (10, 50, 90))
        return {"median": int(median), "p10": int(p10), "p90": int(p90)}

    def mean_shares(self) -> Iterator[tuple[str, float]]:
        """How busy every worker, link and server was on average: name and share, where known.

        Of a link whose rate is known, of that rate; of others, the time with anything under way.
        """
        for name, share in self._shares():
            if not np.isnan(share):
                yield name, share

    def _shares(self) -> Iterator[tuple[str, float]]:
        used = self.utilisation
        for worker, share in enumerate(used.mean(used.compute).tolist()):
            yield f"worker {self.run.workers[worker].rank} computes", share
        for direction in DIRECTIONS:
            rates_bps = used.mean_rate_bps(direction)
            busy = used.mean(used.link_busy[direction])
            for worker, rate_bps in enumerate(rates_bps.tolist()):
                link_bps = int(used.link_bps[worker])
                share = rate_bps / link_bps if link_bps else float(busy[worker])
                yield f"worker {self.run.workers[worker].rank} {direction}", share
        for server, share in zip(used.servers.tolist(), used.mean(used.sums).tolist(), strict=True):
            yield f"server {server} sums", share


def diagnose(run_directory: Path) -> Diagnosis:
    """The diagnosis of a run directory; UserError in one line where there is none."""
    run = load_recorded(run_directory)
    found = breakdown(run)
    paced = paced_config(run_directory)
    prediction, not_predicted = _prediction(run_directory, run)
    return Diagnosis(
        directory=run_directory,
        run=run,
        breakdown=found,
        path=critical_path(run),
        utilisation=utilisation(run),
        stragglers=stragglers(run),
        gradients=[gradients(run, worker, found) for worker in range(len(run.workers))],
        facts=facts(run_directory, run, paced),
        bound_ns=prediction.bound_ns if prediction else paced_bound_ns(run, paced),
        prediction=prediction,
        not_predicted=not_predicted,
    )


def _prediction(run_directory: Path, run: Recorded) -> tuple[Prediction | None, str]:
    if not run.config:
        return None, "a replay needs config.toml, which this directory does not have"
    if run.config.get("workers") != len(run.workers):
        return None, (
            f"config.toml speaks of {run.config.get('workers')} workers, {len(run.workers)} were "
            "recorded: a replay knows one process per worker"
        )
    try:
        return predict(measure_run(run_directory), Changes()), ""
    except UserError as error:
        return None, str(error)
