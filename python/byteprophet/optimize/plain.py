"""An outcome as plain data for its page (``byteprophet.report.page.optimization``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from byteprophet.job import Job
from byteprophet.optimize.apply import BASELINE, OPTIMISED, Applied
from byteprophet.optimize.moves import Pass
from byteprophet.optimize.outcome import Outcome
from byteprophet.optimize.search import RESUMED
from byteprophet.optimize.trials import Trial
from byteprophet.optimize.would_add import Addition


def plain(
    name: str,
    outcome: Outcome,
    passes: Iterable[Pass],
    additions: Sequence[Addition],
    trials: Sequence[Trial],
    applied: Applied | None,
) -> dict[str, Any]:
    """Numbers, texts and lists; times in ns, of an iteration of the slowest worker.

    ``name``: of the recorded run. ``passes`` took part in the search. ``additions``: what those
    would add that did not, because they change results.
    """
    low_ns, high_ns = outcome.interval_ns
    why = {RESUMED: "An earlier search of this run had found this, and this one began with it."}
    why |= {each.name: getattr(each, "why", "") for each in passes}
    return {
        "run": name,
        "gains": outcome.gains,
        "before": _job(outcome.recorded),
        "after": _job(outcome.job),
        "workers": outcome.recorded.workers,
        "servers": outcome.recorded.servers,
        "link_bps": [host.slower_bps or None for host in outcome.recorded.cluster.workers],
        "model_bytes": outcome.recorded.model.size_bytes,
        "parameters": len(outcome.recorded.model),
        "iterations": outcome.recorded.iterations,
        "replays": outcome.replays,
        "replay_error": outcome.replay_error,
        "baseline_ns": outcome.baseline_ns,
        "predicted_ns": outcome.predicted_ns,
        "low_ns": low_ns,
        "high_ns": high_ns,
        "bound_ns": outcome.bound_ns,
        "path": {"before": dict(outcome.path_before), "after": dict(outcome.path_after)},
        "decisions": [
            {
                "pass": each.by,
                "what": each.what,
                "gain_ns": each.gain_ns,
                "why": why.get(each.by, ""),
            }
            for each in outcome.decisions
        ],
        "reasons": [each.as_json() for each in outcome.reasons],
        "compile_ns": outcome.compile_ns,
        "pays_after": outcome.pays_after if outcome.compile_ns else None,
        "memory": None if outcome.memory is None else asdict(outcome.memory),
        "would_add": [each.as_json() for each in additions],
        "trials": [
            {
                "what": each.candidate.job.title,
                "ratio": each.ratio,
                "chosen": number == 0 and outcome.gains,
            }
            for number, each in enumerate(trials)
        ],
        "measured": None if applied is None else _measured(outcome, applied),
    }


def _job(job: Job) -> dict[str, Any]:
    """``buckets``: those of a job without servers, in the order in which they are sent."""
    sizes = dict(zip(job.model.names, job.model.sizes_bytes, strict=True))
    ordered = sorted(enumerate(job.strategy.buckets), key=lambda each: each[1].reduce_place)
    policy = job.policy
    return {
        "title": job.title,
        "runtime": job.strategy.runtime,
        "buckets": [
            {
                "number": number,
                "size_bytes": sum(sizes[name] for name in bucket.parameters),
                "parameters": list(bucket.parameters),
                "gather_place": bucket.gather_place,
                "sharded": bucket.sharded,
            }
            for number, bucket in ordered
        ],
        "policy": None
        if policy is None
        else {
            "name": policy.name,
            "settings": dict(sorted(policy.settings.items())),
            "partition_bytes": job.strategy.partition_bytes,
        },
        "regions": [
            {"modules": list(region.modules), "mode": region.mode()}
            for region in job.strategy.regions
        ],
        "autocast": job.strategy.autocast,
        "reduce_dtype": job.strategy.reduce_dtype or None,
        "accumulation": job.strategy.accumulation,
    }


def _measured(outcome: Outcome, applied: Applied) -> dict[str, Any]:
    """``low_ns``, ``high_ns``: the predicted interval, from the job's time in these rounds."""
    was_ns = applied.median_ns(BASELINE)
    low_ns, high_ns = outcome.interval_from_ns(was_ns)
    return {
        "baseline_ns": was_ns,
        "optimised_ns": applied.median_ns(OPTIMISED),
        "low_ns": low_ns,
        "high_ns": high_ns,
        "held": low_ns <= applied.median_ns(OPTIMISED) <= high_ns,
        "rounds": [
            {"baseline_ns": before_ns, "optimised_ns": after_ns}
            for before_ns, after_ns in zip(
                applied.rounds_ns(BASELINE), applied.rounds_ns(OPTIMISED), strict=True
            )
        ],
    }
