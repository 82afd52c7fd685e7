"""A job some of whose gradients travel compressed, because its user says so.

No builder does this by itself, and a search only with leave: it changes the course of a training
(docs/compression.md). Leave is a list of rules, as ``byteprophet strategy compress`` takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from byteprophet.job import Job
from byteprophet.job.strategy_file import Used
from byteprophet.optimize.compressing_costs import with_compressing_costs
from byteprophet.replay.all_reduce import with_updates
from byteprophet.replay.under import check_compresses, check_forms, without_other_costs
from byteprophet.strategy.rules import with_rules


def compressed(job: Job, rules: Sequence[str], option: str) -> Job:
    """``job`` with compressors by ``rules``, and what these cost on this host.

    ``option``: the command's, which had the rules. Raises ``UserError`` if the job's runtime
    compresses nothing, or a rule is wrong or cannot be predicted.
    """
    if not rules:
        return job
    check_compresses(option, job.strategy.runtime)
    used = with_rules(Used(job.model, replace(job.strategy, compressors=()), 0), rules, option)
    check_forms(option, used)
    made = with_updates(replace(job, strategy=used.strategy), job)
    return with_compressing_costs(without_other_costs(made, job))
