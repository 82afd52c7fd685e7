"""What a pass is: it offers moves, each of which changes a job.

A pass is a plug-in: a class without arguments for its constructor, under the entry point group
``byteprophet.passes``. It knows one way to change a job, says what that does to results, and offers
the moves that are legal for a job. The search decides which ones to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Protocol, runtime_checkable

from byteprophet.job import Job
from byteprophet.job.region_costs import RegionCosts
from byteprophet.optimize.by_parameter import ByParameter
from byteprophet.optimize.serial_link import SerialLink
from byteprophet.optimize.view import View


class Effect(Enum):
    """What a pass does to the parameters that training ends with."""

    EXACT = "the same bits"
    ROUNDING = "other rounding"
    LOSSY = "information is lost"


@dataclass(frozen=True)
class Hints:
    """Where an iteration of a job spends its time, and how closely a search looks.

    ``bucket_ns``: how long each bucket, by its place in the strategy, is on the critical path.
    ``link``: for Theorem 2, where buckets use the link one after the other; else None.
    ``view``: where decisions are made now. ``symmetric``: whether moves are to be offered for all
    equal parts of the model at once, too. ``tensor_ns``: how long each gradient, by its place in
    the model, is on the critical path on its way to servers and back.
    """

    bucket_ns: Mapping[int, int] = field(default_factory=dict)
    link: SerialLink | None = None
    view: View = View.PARAMETERS
    symmetric: bool = False
    tensor_ns: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Move:
    """A change of the job for which it was offered.

    ``what`` says what changes. ``result``: the changed job, or a function that makes it, which is
    called only if the search wants to see it. ``theorem``: the theorem that expects the move to pay
    (``theorems.py``); "": none does.
    """

    what: str
    result: Job | Callable[[], Job]
    theorem: str = ""

    @cached_property
    def job(self) -> Job:
        """The changed job."""
        return self.result() if callable(self.result) else self.result


class Pass(Protocol):
    """One way to change a job.

    ``name`` is what users call it: ``--pass NAME``. ``effect`` is that of all its moves, but in the
    jobs of which ``EffectDepends`` says otherwise. A pass may also have ``why``, a sentence that
    tells users what its moves weigh against each other.
    """

    name: str
    effect: Effect

    def starts(self, job: Job) -> Iterable[Move]:
        """Moves from which a search may start: few, and far from each other."""

    def moves(self, job: Job, hints: Hints) -> Iterable[Move]:
        """Small moves, the most promising first. ``hints`` are those of ``job``."""


@runtime_checkable
class EffectDepends(Protocol):
    """A pass whose moves do to some jobs what its ``effect`` does not say."""

    def effect_in(self, job: Job) -> Effect:
        """What its moves do to the parameters that the recorded ``job`` ends with."""


def effect_in(each: Pass, job: Job) -> Effect:
    """What the moves of a pass do to the parameters that the recorded ``job`` ends with."""
    return each.effect_in(job) if isinstance(each, EffectDepends) else each.effect


@runtime_checkable
class OnlyWithLimit(Protocol):
    """A pass whose moves cost time and save memory, so that they only pay within a limit."""

    saves_memory: bool


@runtime_checkable
class ChangesSteps(Protocol):
    """A pass that changes which of a script's steps exchange gradients or update.

    Only ``DistributedOptimizer`` carries that out, and not in a bench, which counts its own steps.
    """

    changes_steps: bool


@runtime_checkable
class NeedsRegionCosts(Protocol):
    """A pass that must know what regions of the model cost (``region_costs.py``).

    ``words``: of the names of modes in which it uses regions, such as "compiled".
    """

    words: frozenset[str]

    def learn(self, job: Job, costs: RegionCosts, parameters: ByParameter | None = None) -> None:
        """Take the recorded ``job``, and what its regions cost, before anything else.

        ``parameters``: those of the job, if some of their gradients shared buffers.
        """
