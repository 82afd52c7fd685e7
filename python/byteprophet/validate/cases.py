"""A validation's cases: the job that is recorded, and jobs that each differ from it in one way.

Each case has two forms: the changes to predict from the record (``Changes``), and the job to run
(``bench.Case``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from byteprophet import schedulers
from byteprophet.bench import Case
from byteprophet.bench.runtimes import BYTEPS
from byteprophet.errors import UserError
from byteprophet.job.strategy import OURS, TORCH_ALL_REDUCE
from byteprophet.network import format_rate
from byteprophet.replay.what_if import Changes

RECORDED = "as recorded"

_OTHER_PARTITION = 4
"""Times as large as the recorded ones; so many times smaller where that is more than a MiB."""
_LARGE_BYTES = 1 << 20
_BUCKET_BYTES = 6 << 20
_BUCKET_SETTINGS = {"ddp": ("bucket_cap_mb", 1 << 20), "fsdp2": ("unit_bytes", 1)}
"""What the size of buckets is called in a runtime's settings, and its unit."""


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
    more, one server more. Of a job without servers: half and twice its bandwidth, each other
    runtime with the same transport, another bucket size, one worker more.
    """
    cases = [ValidationCase(RECORDED, Changes(), base, same_link=True), *_links(base)]
    if base.runtime != BYTEPS:
        return [*cases, *_runtimes(base), *_buckets(base), _one_worker_more(base)]
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
        _one_worker_more(base),
        ValidationCase(
            f"{base.servers + 1} servers",
            Changes(servers=base.servers + 1),
            replace(base, servers=base.servers + 1),
        ),
    ]
    return cases


def _links(base: Case) -> list[ValidationCase]:
    if base.bandwidth_bps is None:
        return []
    return [
        ValidationCase(
            format_rate(rate_bps),
            Changes(bandwidth_bps=rate_bps),
            replace(base, bandwidth_bps=rate_bps),
        )
        for rate_bps in (base.bandwidth_bps // 2, base.bandwidth_bps * 2)
    ]


def _one_worker_more(base: Case) -> ValidationCase:
    return ValidationCase(
        f"{base.workers + 1} workers",
        Changes(workers=base.workers + 1),
        replace(base, workers=base.workers + 1),
    )


def _runtimes(base: Case) -> list[ValidationCase]:
    """Those that a record of ``base`` can tell of, with their own default settings."""
    alike = next((each for each in (OURS, TORCH_ALL_REDUCE) if base.runtime in each), ())
    return [
        ValidationCase(
            runtime,
            Changes(runtime=runtime),
            replace(base, runtime=runtime, settings={}),
            same_link=True,
        )
        for runtime in alike
        if runtime != base.runtime
    ]


def _buckets(base: Case) -> list[ValidationCase]:
    setting, unit_bytes = _BUCKET_SETTINGS.get(base.runtime, ("bucket_bytes", 1))
    return [
        ValidationCase(
            f"buckets of {_BUCKET_BYTES}",
            Changes(bucket_bytes=_BUCKET_BYTES),
            replace(base, settings={**base.settings, setting: _BUCKET_BYTES // unit_bytes}),
        )
    ]


def select(cases: Sequence[ValidationCase], names: Sequence[str] | None) -> list[ValidationCase]:
    """The recorded job, and those of ``names`` (None: all); UserError where there is none such."""
    others = [case.name for case in cases if case.name != RECORDED]
    for name in names or ():
        if name not in others:
            raise UserError(f"--cases: {name!r}: choose of {', '.join(others)}")
    return [case for case in cases if names is None or case.name in (RECORDED, *names)]
