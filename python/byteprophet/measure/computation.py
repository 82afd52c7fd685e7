"""Measures what one worker computed, parameter by parameter, from its spans.

forward   from the end of the previous layer to the end of this one, without waits; the script's own
          work between two layers counts as part of the second one. A layer's time belongs to the
          last of its parameters, because the layer runs once all of them are there. What happens
          between the first backward pass and the last belongs to the last parameter (``Times``)
ready     from the end of the forward pass to the end of the parameter's BACKWARD
backward  from the end of the forward pass to the start of the next iteration, without waits
update    the parameter's UPDATE, by the updater's thread

With clocks of processor time (``processors.py``), all of these are processor time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from byteprophet.errors import UserError
from byteprophet.job.times import Int64Array, Times
from byteprophet.measure.processors import Clock, Clocks
from byteprophet.measure.tensors import by_iteration
from byteprophet.measure.waits import Waits, training_waits, waits_for_all
from byteprophet.timeline.events import Events
from byteprophet.timeline.tables import Kind, Rows

_LATEST_NS = np.iinfo(np.int64).max


class Computation:
    """Times of ``iterations``, consecutive numbers. I iterations, P ``parameters``.

    ``forward_ns``, ``ready_ns``, ``update_ns`` (I, P); ``backward_ns``, ``between_ns`` (I,).
    ``start_ns`` (I + 1,): the starts of iterations, and the end of the last one, on the recorded
    clock. ``waits_for_all``: as in ``Times``, of this rank.
    """

    def __init__(
        self,
        spans: Events,
        parameters: Sequence[str],
        iterations: Sequence[int],
        clocks: Clocks | None = None,
    ) -> None:
        """``clocks``: of processor time; None: times are those of the wall clock."""
        shape = (len(iterations), len(parameters))
        self.forward_ns = np.zeros(shape, np.int64)
        self.ready_ns = np.zeros(shape, np.int64)
        self.update_ns = np.zeros(shape, np.int64)
        self.backward_ns = np.zeros(len(iterations), np.int64)
        self.between_ns = np.zeros(len(iterations), np.int64)
        self.start_ns = np.zeros(len(iterations) + 1, np.int64)
        places = {name: place for place, name in enumerate(parameters)}
        last_of_layer = last_places(parameters)
        self.waits_for_all = waits_for_all(spans, iterations)
        self._rank = spans.origin.rank
        self._place = {number: places.get(name, -1) for number, name in spans.names.items()}
        self._layer = {number: last_of_layer.get(name, -1) for number, name in spans.names.items()}
        rows = np.sort(spans.rows, order="end_ns")
        self._training: Waits | Clock = Waits(training_waits(rows))
        self._updating: Clock | None = None
        if clocks is not None:
            self._training = clocks.training[self._rank]
            self._updating = clocks.updating[self._rank]
        self._own_lanes = np.unique(rows["lane"][rows["kind"] == Kind.FORWARD])
        own = by_iteration(rows)
        for at, number in enumerate(iterations):
            self._take(at, number, own[number])

    def _take(self, at: int, number: int, spans: Rows) -> None:
        (whole,) = spans[spans["kind"] == Kind.ITERATION][["begin_ns", "end_ns"]].tolist()
        self.start_ns[at : at + 2] = whole
        since_ns, end_ns = whole
        forward = spans[spans["kind"] == Kind.FORWARD]
        times_ns = [since_ns, *forward["end_ns"].tolist(), end_ns]
        *forward_ns, self.backward_ns[at] = self._training.worked_ns(times_ns)
        since_ns = times_ns[-2]
        places = [max(0, self._layer[name]) for name in forward["name"].tolist()]
        is_later = forward["end_ns"] > first_gradient_ns(spans)
        self.between_ns[at] = add_forward(self.forward_ns[at], places, forward_ns, is_later)
        self._take_gradients(at, spans, since_ns)
        updates = spans[spans["kind"] == Kind.UPDATE]
        took_ns = self._took_ns(updates)
        for name, each_ns in zip(updates["name"].tolist(), took_ns.tolist(), strict=True):
            place = self._place[name]
            if place >= 0:
                self.update_ns[at, place] += each_ns
            else:  # of all parameters together
                self.update_ns[at] += each_ns // self.update_ns.shape[1]

    def _took_ns(self, updates: Rows) -> Int64Array:
        """How long updates took, in the training thread or in the updater's."""
        took_ns: Int64Array = updates["end_ns"] - updates["begin_ns"]
        if self._updating is None or isinstance(self._training, Waits):
            return took_ns
        here_ns, there_ns = (
            clock.at(updates["end_ns"]) - clock.at(updates["begin_ns"])
            for clock in (self._training, self._updating)
        )
        chosen: Int64Array = np.where(np.isin(updates["lane"], self._own_lanes), here_ns, there_ns)
        return chosen

    def _passed_ns(self, since_ns: int, times_ns: npt.ArrayLike) -> Int64Array:
        """From ``since_ns`` until each of ``times_ns``; 0 if that is earlier."""
        if isinstance(self._training, Waits):
            passed_ns: Int64Array = np.asarray(times_ns, np.int64) - since_ns
        else:
            passed_ns = self._training.at(times_ns) - self._training.at(since_ns)
        positive_ns: Int64Array = np.maximum(0, passed_ns)
        return positive_ns

    def _take_gradients(self, at: int, spans: Rows, since_ns: int) -> None:
        """Take the times at which gradients are ready.

        A BACKWARD without bytes hands nothing over: its gradients come with the next one that does.
        A parameter without a BACKWARD counts as ready when all of them are.
        """
        backward = spans[spans["kind"] == Kind.BACKWARD]
        if not len(backward):
            raise UserError(f"rank {self._rank} recorded no BACKWARD spans")
        passed_ns = self._passed_ns(since_ns, backward["end_ns"])
        self.ready_ns[at] = passed_ns.max()
        together: list[int] = []
        names, sizes = backward["name"].tolist(), backward["size_bytes"].tolist()
        for name, size_bytes, ready_ns in zip(names, sizes, passed_ns.tolist(), strict=True):
            place = self._place[name]
            together.append(place if place >= 0 else max(0, self._layer[name]))
            if size_bytes:
                self.ready_ns[at, together] = ready_ns
                together.clear()


def add_forward(
    forward_ns: Int64Array,
    places: Sequence[int],
    layers_ns: Sequence[int],
    is_later: npt.NDArray[np.bool_],
) -> int:
    """Add what layers took to ``forward_ns`` (P,), each at its place.

    What ``is_later`` than the first backward pass belongs to the last parameter. Returns how much
    that is (``Times.between_ns``).
    """
    took_ns = np.array(layers_ns, np.int64)
    np.add.at(forward_ns, np.where(is_later, -1, np.array(places, np.int64)), took_ns)
    return int(took_ns[is_later].sum())


def first_gradient_ns(spans: Rows) -> int:
    """When the first gradient of an iteration was there. What runs later needs no update."""
    ends_ns = spans["end_ns"][spans["kind"] == Kind.BACKWARD]
    return int(ends_ns.min(initial=_LATEST_NS))


def last_places(parameters: Sequence[str]) -> Mapping[str, int]:
    """The index of the last parameter, by the name of its layer or of the parameter itself."""
    places: dict[str, int] = {}
    for place, name in enumerate(parameters):
        places[name] = place
        layer = name
        while "." in layer:
            layer = layer.rpartition(".")[0]
            places[layer] = place
    return places


def stacked(computations: Sequence[Computation], name: str) -> Int64Array:
    """The arrays called ``name`` of all workers, stacked, workers first."""
    return np.stack([getattr(computation, name) for computation in computations])


def times_of(computations: Sequence[Computation], passes: int = 1) -> Times:
    """The times of a job whose workers computed so, with ``passes`` passes in an iteration."""
    return Times(
        forward_ns=stacked(computations, "forward_ns"),
        ready_ns=stacked(computations, "ready_ns"),
        backward_ns=stacked(computations, "backward_ns"),
        update_ns=stacked(computations, "update_ns"),
        passes=passes,
        between_ns=between_passes(stacked(computations, "between_ns")),
        waits_for_all=all(each.waits_for_all for each in computations),
    )


def between_passes(between_ns: Int64Array) -> Int64Array | None:
    """``Times.between_ns``; None if no iteration has several passes."""
    return between_ns if between_ns.any() else None
