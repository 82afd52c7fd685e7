"""The profiler as a consumer of a launched job, and the profile that a job starts from.

``BYTEPROPHET_PROFILING=0`` switches profiling off. Without a run directory, there is no profiling.
With ``BYTEPROPHET_PROFILE=FILE``, the policy uses that file's ready times from the first iteration
on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from byteprophet._plugin import Plugin
from byteprophet.errors import warn
from byteprophet.observe.observer import Consumer
from byteprophet.profile.model import Profile, profile_path, read_profile
from byteprophet.profile.profiler import Profiler
from byteprophet.runtime_settings import flag
from byteprophet.session.job import SessionJob
from byteprophet.whole_files import OneWarning

PROFILING = "BYTEPROPHET_PROFILING"
PROFILE = "BYTEPROPHET_PROFILE"


def make_consumer(
    environment: Mapping[str, str], plugin: Plugin, job: SessionJob
) -> Consumer | None:
    """The profiler, or None if it is off. Raises ``UserError`` if the variable is invalid."""
    profiling = flag(environment, PROFILING, "1")
    run_directory = job.run_directory
    if not profiling or run_directory is None:
        return None

    or_else = OneWarning("the profile is not saved; training continues")
    given = given_profile(environment)

    def found(profile: Profile) -> None:
        nonlocal given
        if given is not None:
            warn_of_difference(given, profile)
            given = None
        job.found.profile = profile
        with or_else.instead():
            profile.write(profile_path(run_directory, job.rank))

    scheduler = environment.get("BYTEPS_SCHEDULER", "")
    return Profiler(job, scheduler, plugin.iteration, job.stopwatch, found)


def given_profile(environment: Mapping[str, str]) -> Profile | None:
    """The profile that the job starts from, if any. Raises ``UserError`` if it is unreadable."""
    path = environment.get(PROFILE)
    return read_profile(Path(path)) if path else None


def stage(profile: Profile, plugin: Plugin, names: Mapping[int, str]) -> int:
    """Gives the policy ``profile``'s ready times at the start of the next iteration.

    Returns how many of its tensors are this job's.
    """
    numbers = {name: number for number, name in names.items()}
    times = [
        (numbers[tensor.name], -1 - tensor.forward_order, tensor.ready_ns, tensor.spread_ns)
        for tensor in profile.tensors
        if tensor.name in numbers
    ]
    if times:
        plugin.stage_plan(plugin.iteration() + 1, {}, times)
    return len(times)


def warn_of_difference(given: Profile, learned: Profile) -> None:
    """Says that ``given`` is another job's if a tensor has another size in it.

    Sizes on the wire are only known once the job has learned a profile of its own.
    """
    sizes = {tensor.name: tensor.size_bytes for tensor in learned.tensors}
    for tensor in given.tensors:
        size_bytes = sizes.get(tensor.name, tensor.size_bytes)
        if size_bytes != tensor.size_bytes:
            warn(
                f"{PROFILE}: is not of this job: {tensor.name} has {tensor.size_bytes} bytes in "
                f"it, and {size_bytes} in this job"
            )
            return


def warn_of_strange(profile: Profile) -> None:
    """Says that ``profile`` is another job's."""
    print(
        f"byteprophet: warning: {PROFILE}: none of its {len(profile.tensors)} tensors is this "
        "job's; it has no effect",
        file=sys.stderr,
    )
