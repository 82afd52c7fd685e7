"""Gradients of the hand-made job, alone and in a buffer."""

from __future__ import annotations

from dataclasses import replace

from byteprophet.diagnose.breakdown import breakdown
from byteprophet.diagnose.gates import Gates
from byteprophet.diagnose.gradients import gradients
from byteprophet.diagnose.recorded import Recorded
from byteprophet.job.fused_file import Fused

from .hand_made import CONFIG, MS, ps_job, recorded

BUFFER = "u and 1 more"


def fused_job() -> Recorded:
    """The same job, but the parameter "w" travels in a buffer."""
    run = recorded(ps_job(), CONFIG)
    return replace(
        run,
        tensors=dict.fromkeys(run.tensors, BUFFER),
        fused=Fused({BUFFER: ("u", "w")}, since=2),
    )


def test_a_buffer_is_waited_for_by_its_parameters() -> None:
    (alone,) = gradients(run := recorded(ps_job(), CONFIG), 0, breakdown(run))
    (buffer,) = gradients(fused := fused_job(), 0, breakdown(fused))
    assert (alone.name, buffer.name) == ("w", BUFFER)
    assert alone.exposed_ns == buffer.exposed_ns == 30 * MS
    assert replace(alone, name=BUFFER) == buffer


def test_the_wait_for_a_parameter_ends_with_its_buffer() -> None:
    alone, fused = recorded(ps_job(), CONFIG), fused_job()
    end_ns = int(alone.workers[0].transfers["pulled_ns"][-1])
    assert Gates(fused).of_wait(0, "w", end_ns) == Gates(alone).of_wait(0, "w", end_ns) is not None
