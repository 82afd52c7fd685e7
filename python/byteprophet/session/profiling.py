"""The profiler as a consumer of a launched job, and the profile that a job starts from.

``BYTEPROPHET_PROFILING=0`` switches profiling off. Without a run directory and without a
controller, nobody reads profiles, and there is no profiling. With ``BYTEPROPHET_PROFILE=FILE``, the
policy uses that file's ready times from the first iteration on.
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
from byteprophet.session.controller_address import controller_of
from byteprophet.session.job import SessionJob
from byteprophet.whole_files import OneWarning

PROFILING = "BYTEPROPHET_PROFILING"
PROFILE = "BYTEPROPHET_PROFILE"
_LAST_GIVEN = 3  # iterations


def make_consumer(
    environment: Mapping[str, str], plugin: Plugin, job: SessionJob
) -> Consumer | None:
    """The profiler, or None if it is off. Raises ``UserError`` if the variable is invalid."""
    profiling = flag(environment, PROFILING, "1")
    run_directory = job.run_directory
    if not profiling or (run_directory is None and not controller_of(environment)):
        return None

    or_else = OneWarning("the profile is not saved; training continues")
    given = given_profile(environment)

    def found(profile: Profile) -> None:
        nonlocal given
        if given is not None:
            _warn_of_difference(given, profile)
            given = None
        job.found.profile = profile
        if run_directory is not None:
            with or_else.instead():
                profile.write(profile_path(run_directory, job.rank))

    scheduler = environment.get("BYTEPS_SCHEDULER", "")
    return Profiler(job, scheduler, plugin.iteration, job.stopwatch, found)


def given_profile(environment: Mapping[str, str]) -> Profile | None:
    """The profile that the job starts from, if any. Raises ``UserError`` if it is unreadable."""
    path = environment.get(PROFILE)
    return read_profile(Path(path)) if path else None


class StartingProfile:
    """Gives the policy the profile that a job starts from, until all of it is known or a plan came.

    A controller sends its last plan to a job that it knows already, maybe before the first
    iteration. Such a plan is newer than the profile.
    """

    def __init__(self, profile: Profile, plugin: Plugin) -> None:
        self._profile = profile
        self._plugin = plugin
        self._plans = plugin.plans()
        self._iterations = 0

    def give(self, names: Mapping[int, str]) -> bool:
        """Stages the ready times of the tensors in ``names`` for the iteration that comes next.

        Returns whether that is to be repeated before the one after it.
        """
        numbers = {name: number for number, name in names.items()}
        tensors = self._profile.tensors
        times = [
            (numbers[tensor.name], -1 - tensor.forward_order, tensor.ready_ns, tensor.spread_ns)
            for tensor in tensors
            if tensor.name in numbers
        ]
        if times and not self._plugin.stage_ready_times(times, self._plans):
            return False
        self._iterations += 1
        # Buffers of several gradients have their names from the second iteration on.
        if len(times) < len(tensors) and self._iterations < _LAST_GIVEN:
            return True
        if not times:
            _warn_of_strange(self._profile)
        return False


def _warn_of_difference(given: Profile, learned: Profile) -> None:
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


def _warn_of_strange(profile: Profile) -> None:
    """Says that ``profile`` is another job's."""
    print(
        f"byteprophet: warning: {PROFILE}: none of its {len(profile.tensors)} tensors is this "
        "job's; it has no effect",
        file=sys.stderr,
    )
