"""What ``dear-planned`` takes a job's timing to be, before it plans."""

from __future__ import annotations

from byteprophet.profile.estimate import Forward
from byteprophet.torch.retuning.planning import Planning
from byteprophet.torch.sync.readiness import Iteration


def _planning(forwards: list[int], firsts: list[int]) -> Planning:
    planning = object.__new__(Planning)
    planning._forwards = [Forward(0, ended_ns, {}, None) for ended_ns in forwards]
    planning._iterations = [Iteration({"p": 0}, 10, first_ns) for first_ns in firsts]
    return planning


def test_backward_begins_where_the_forward_pass_before_it_ends() -> None:
    assert _planning([100, 1100, 2100], [107, 1105, 2106])._lead_ns() == 6
    # A forward pass that was not seen, and one without a backward pass.
    assert _planning([1050, 1100, 2100], [107, 1105, 2106])._lead_ns() == 5


def test_backward_begins_with_the_first_gradient_if_no_forward_pass_was_seen() -> None:
    assert _planning([], [107, 1105])._lead_ns() == 0
