"""Ranks that train under an order of halves, nanosecond by nanosecond: slow, and obviously so.

Several iterations in a row, with one link and one processor that remember nothing of a plan but
positions. Knows of ``byteprophet.allreduce`` the plain data only.
"""

from __future__ import annotations

import math
from fractions import Fraction

from byteprophet.allreduce.groups import Groups
from byteprophet.allreduce.model import Order
from byteprophet.allreduce.timing import Timing


class Ticks:
    """``started``: the times at which backward starts, one more than iterations."""

    def __init__(self, timing: Timing, groups: Groups, order: Order, iterations: int) -> None:
        self.timing, self.groups, self.order = timing, groups, order
        self.layers = len(timing.parameters)
        self.group_of = {place: g for g, group in enumerate(groups) for place in group}
        self.now = 0
        self.started = [0]
        self._begin()
        while len(self.started) <= iterations:
            self._tick()

    def _begin(self) -> None:
        self.reduce_left = [self._cost(group) for group in self.groups]
        self.gather_left = list(self.reduce_left)
        self.layer, self.layer_left = 0, self.timing.parameters[0].forward_ns

    def _cost(self, group: tuple[int, ...]) -> int:
        link = self.timing.link
        size = sum(self.timing.parameters[place].size_bytes for place in group)
        share = Fraction(link.ranks - 1, link.ranks)
        return link.message_cost_ns + math.ceil(
            share * size * 8 * Fraction(10**9, link.bandwidth_bps)
        )

    def _since(self) -> int:
        return self.now - self.started[-1]

    def _is_ready(self, place: int) -> bool:
        ready_ns = self.timing.parameters[place].ready_ns
        return self._since() >= (self.timing.backward_ns if ready_ns is None else ready_ns)

    def _tick(self) -> None:
        self._pass_layers()
        computes = self._since() >= self.timing.backward_ns and self._may_run()
        offers = []
        for number, group in enumerate(self.groups):
            if self.reduce_left[number]:
                if all(map(self._is_ready, group)):
                    offers.append((self.order.reduce[number], self.reduce_left, number))
            elif self.gather_left[number]:
                held = self.order.after_step[number] and self._since() < self.timing.backward_ns
                if not held:
                    offers.append((self.order.gather[number], self.gather_left, number))
        if offers:
            _, left, number = min(offers, key=lambda offer: offer[0])
            left[number] -= 1
        if computes:
            self.layer_left -= 1
        self.now += 1

    def _may_run(self) -> bool:
        return self.gather_left[self.group_of[self.layer]] == 0

    def _pass_layers(self) -> None:
        """Go on to the next layer where one is over, to the next iteration after the last."""
        if self._since() < self.timing.backward_ns:
            return
        while self._may_run() and self.layer_left == 0:
            self.layer += 1
            if self.layer == self.layers:
                self.started.append(self.now)
                self._begin()
                return
            self.layer_left = self.timing.parameters[self.layer].forward_ns
