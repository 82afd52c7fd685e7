"""What a validation runs: the job that is recorded, and jobs that differ from it in one thing each.

Each is said twice, as what is predicted from the record (``Changes``) and as what is run for real
(``bench.Case``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from byteprophet import schedulers
from byteprophet.bench import Case
from byteprophet.errors import UserError
from byteprophet.network import format_rate
from byteprophet.replay.what_if import Changes

RECORDED = "as recorded"

_OTHER_PARTITION = 4
"""Times as large as the recorded ones; so many times smaller where that is more than a MiB."""
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class ValidationCase:
    """``same_link``: it differs from the recorded job in nothing but its policy, if at all."""

    name: str
    changes: Changes
    case: Case
    same_link: bool = False


def validation_cases(base: Case, policies: Sequence[str]) -> list[ValidationCase]:
    """The recorded job first, then what else is predicted.

    Half and twice its bandwidth, each other of ``policies``, another partition size, one worker
    more, one server more.
    """
    cases = [ValidationCase(RECORDED, Changes(), base, same_link=True)]
    if base.bandwidth_bps is not None:
        cases += [
            ValidationCase(
                format_rate(rate_bps),
                Changes(bandwidth_bps=rate_bps),
                replace(base, bandwidth_bps=rate_bps),
            )
            for rate_bps in (base.bandwidth_bps // 2, base.bandwidth_bps * 2)
        ]
    for policy in policies:
        if policy != base.scheduler:
            other = replace(base, scheduler=policy, settings={}, partition_bytes=None)
            cases.append(ValidationCase(policy, Changes(scheduler=policy), other, same_link=True))
    _, size_bytes = schedulers.resolve(base.scheduler, base.settings, base.partition_bytes)
    larger = size_bytes <= _LARGE_BYTES
    size_bytes = size_bytes * _OTHER_PARTITION if larger else size_bytes // _OTHER_PARTITION
    cases += [
        ValidationCase(
            f"partitions of {size_bytes}",
            Changes(partition_bytes=size_bytes),
            replace(base, partition_bytes=size_bytes),
        ),
        ValidationCase(
            f"{base.workers + 1} workers",
            Changes(workers=base.workers + 1),
            replace(base, workers=base.workers + 1),
        ),
        ValidationCase(
            f"{base.servers + 1} servers",
            Changes(servers=base.servers + 1),
            replace(base, servers=base.servers + 1),
        ),
    ]
    return cases


def select(cases: Sequence[ValidationCase], names: Sequence[str] | None) -> list[ValidationCase]:
    """The recorded job, and those of ``names`` (None: all); UserError where there is none such."""
    known = [case.name for case in cases]
    for name in names or ():
        if name not in known:
            raise UserError(f"--cases: {name!r}: choose of {', '.join(known[1:])}")
    return [case for case in cases if names is None or case.name in (RECORDED, *names)]
