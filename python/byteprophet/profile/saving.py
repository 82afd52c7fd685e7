"""The profiler as a consumer of a launched job, and the profile that a job starts from.

``BYTEPROPHET_PROFILING=0`` switches profiling off; without a run directory there is none.
``BYTEPROPHET_PROFILE=FILE``: the policy has these ready times from the first iteration.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from byteprophet._plugin import Plugin
from byteprophet.observe.observer import Consumer, Job
from byteprophet.profile.model import Profile, profile_path, read_profile
from byteprophet.profile.profiler import Profiler
from byteprophet.runtime_settings import flag

PROFILING = "BYTEPROPHET_PROFILING"
PROFILE = "BYTEPROPHET_PROFILE"


def wanted(environment: Mapping[str, str], plugin: Plugin, job: Job) -> Consumer | None:
    """The profiler, unless switched off; ``UserError`` for a wrong value."""
    profiling = flag(environment, PROFILING, "1")
    run_directory = job.run_directory
    if not profiling or run_directory is None:
        return None

    def found(profile: Profile) -> None:
        job.found.profile = profile
        profile.write(profile_path(run_directory, job.rank))

    scheduler = environment.get("BYTEPS_SCHEDULER", "")
    return Profiler(job, scheduler, plugin.iteration, job.stopwatch, found)


def given_profile(environment: Mapping[str, str]) -> Profile | None:
    """The profile that the job is to start from, if any; ``UserError`` if it cannot be read."""
    path = environment.get(PROFILE)
    return read_profile(Path(path)) if path else None


def stage(profile: Profile, plugin: Plugin, names: Mapping[int, str]) -> None:
    """Give the policy ``profile``'s ready times with the first iteration."""
    numbers = {name: number for number, name in names.items()}
    times = [
        (numbers[tensor.name], -1 - tensor.forward_order, tensor.ready_ns, tensor.spread_ns)
        for tensor in profile.tensors
        if tensor.name in numbers
    ]
    if not times:
        print(
            f"byteprophet: warning: {PROFILE}: none of its {len(profile.tensors)} tensors is this "
            "job's; it has no effect",
            file=sys.stderr,
        )
        return
    plugin.stage_plan(plugin.iteration() + 1, {}, times)
