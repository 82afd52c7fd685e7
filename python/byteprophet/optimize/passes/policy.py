"""Which policy orders the pushes of a job with servers, and with which settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from byteprophet import schedulers
from byteprophet.job import Job
from byteprophet.optimize.keys import keeps_compressed
from byteprophet.optimize.moves import Effect, Hints, Move
from byteprophet.replay.ps import change
from byteprophet.replay.what_if import Changes
from byteprophet.tune.space import SPACES


class Policy:
    """Offers every policy as a start, then its settings, one step at a time."""

    name = "policy"
    effect = Effect.EXACT
    why = "The policy decides which gradients have the links first."

    def starts(self, job: Job) -> Iterator[Move]:
        """All policies but the one in use. ``stock`` waits in ``step()``; it is not offered."""
        if job.policy is None or job.policy.name == schedulers.STOCK:
            return
        for name in schedulers.names:
            if name not in (schedulers.STOCK, job.policy.name):
                changed = change(job, Changes(scheduler=name))
                if keeps_compressed(job, changed):
                    yield Move(f"policy {name}", changed)

    def moves(self, job: Job, hints: Hints) -> Iterator[Move]:
        """The next larger and smaller value of each setting that is tuned, but partitions."""
        policy = job.policy
        if policy is None or policy.name not in SPACES:
            return
        space = SPACES[policy.name]
        for name, values in space.values.items():
            if name == schedulers.PARTITION:
                continue
            now = policy.settings[name]
            smaller = [value for value in values if value < now][-1:]
            larger = [value for value in values if value > now][:1]
            for value in smaller + larger:
                settings = {**policy.settings, name: value}
                if space.allows(settings):
                    changed = replace(job, policy=replace(policy, settings=settings))
                    yield Move(f"{name} {value}", changed)
