"""What ``byteprophet simulate`` is told about slow ranks and failures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from byteprophet.errors import UserError
from byteprophet.simulate.execute.conditions import Conditions
from byteprophet.simulate.execute.failures import Failures
from byteprophet.simulate.execute.result import Simulated


def conditions_of(stragglers: Sequence[str], jitter: float, seed: int) -> Conditions:
    """The conditions that the options describe.

    Raises:
        UserError: a straggler is not RANK=FACTOR, or a value cannot be.
    """
    slow: dict[int, float] = {}
    for text in stragglers:
        rank, equals, factor = text.partition("=")
        if not equals or not rank.isdecimal() or len(rank) > 9 or not _is_number(factor):
            raise UserError(f"--straggler {text}: expected RANK=FACTOR, e.g. 5=1.3")
        if int(rank) in slow:
            raise UserError(f"--straggler {text}: rank {int(rank)} is given twice")
        slow[int(rank)] = float(factor)
    return Conditions(slow, jitter, seed)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def failures_as_json(result: Simulated, failures: Failures) -> dict[str, float]:
    """The figures of ``failures_line`` as plain data."""
    interval_s = failures.best_interval_s
    kept = failures.goodput(interval_s)
    return {
        "mtbf_s": failures.mtbf_s,
        "best_interval_s": interval_s,
        "goodput": kept,
        "kept_tokens_per_s": kept * result.tokens_per_s,
    }


def failures_line(result: Simulated, failures: Failures) -> str:
    """How often to save the job, and what is left of its throughput."""
    interval_s = failures.best_interval_s
    kept = failures.goodput(interval_s)
    return (
        f"A failure every {failures.mtbf_s / 3600:.3g} hours: save every {interval_s / 60:.3g} "
        f"minutes. Then {kept:.1%} of the time is kept: {kept * result.tokens_per_s:,.0f} "
        f"{'tokens' if result.program.model.tokens > 1 else 'samples'} per second."
    )
