"""Regions of a job in which small gradients share buffers: a buffer follows its members."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from byteprophet.errors import UserError
from byteprophet.job import Cluster, Host, Job, Model, Parameter, Policy, Strategy, Times
from byteprophet.job.fused_file import Fused, write_fused
from byteprophet.job.region_costs import ModeCost, RegionCost, RegionCosts
from byteprophet.job.strategy import COMPILED, EAGER, Region
from byteprophet.measure.run import Run
from byteprophet.optimize.by_parameter import ByParameter
from byteprophet.optimize.computing import Computing

from .test_regions import MODEL, NAMES, TIMES, costs

BUFFER = "b.weight and 1 more"
MEMBERS = (("a.weight",), ("b.weight", "b.bias"), ("c.weight",))


def shared() -> ByParameter:
    """b's weight and bias share a buffer; their transfer began 5 after the last was ready."""
    recorded = Times(
        forward_ns=np.array([[[10, 20, 30]]]),
        ready_ns=np.array([[[95, 75, 45]]]),
        backward_ns=np.array([[100]]),
        update_ns=np.array([[[1, 5, 4]]]),
    )
    job = Job(
        Model((Parameter("a.weight", 400), Parameter(BUFFER, 800), Parameter("c.weight", 400))),
        recorded,
        Cluster((Host(1, 1),), (Host(1, 1),)),
        Strategy(partition_bytes=65536),
        Policy("fifo", {}),
    )
    return ByParameter.sharing(job, MEMBERS, MODEL, TIMES)


def test_without_regions_the_recorded_times_stay() -> None:
    known = shared()
    assert known.shares
    assert known.buffers_bytes == 800
    times = known.times_with(Strategy(), RegionCosts((), {}))
    for name in ("forward_ns", "ready_ns", "backward_ns", "update_ns"):
        assert np.array_equal(getattr(times, name), getattr(known.job.times, name)), name


def test_a_buffer_is_ready_when_its_last_member_is() -> None:
    """b alone: two thirds of its 30; its bias waits for its weight, which the buffer did before."""
    region = Region(("b",), compiled=True)
    found = costs(region.modules, NAMES[1:3], ModeCost(50, 67, (67, 67), 9))
    times = shared().times_with(Strategy(regions=(region,)), found)
    assert times.ready_ns.tolist() == [[[85, 65, 45]]]
    assert times.forward_ns.tolist() == [[[10, 10, 30]]]
    assert times.backward_ns.tolist() == [[90]]


def test_a_region_moves_its_members_times() -> None:
    """b and c together take what they took; c's gradient comes 30 later, with those of b."""
    region = Region(("b", "c"), compiled=True)
    found = costs(region.modules, NAMES[1:], ModeCost(100, 100, (100, 100, 100), 9))
    times = shared().times_with(Strategy(regions=(region,)), found)
    assert times.ready_ns.tolist() == [[[95, 75, 75]]]
    assert times.forward_ns.tolist() == [[[10, 0, 50]]]
    assert times.backward_ns.tolist() == [[100]]


def test_a_compiled_region_needs_the_last_buffer_of_its_parameters() -> None:
    """a's bias is in the buffer behind its weight, and no layer of a runs before it is there."""
    names = ("a.weight", "a.bias", "b.weight")
    model = Model(tuple(Parameter(name, 400) for name in names))
    zeros = np.zeros((1, 1, 3), np.int64)
    times = Times(np.array([[[0, 10, 20]]]), np.array([[[60, 60, 30]]]), np.array([[60]]), zeros)
    recorded = Times(
        np.array([[[10, 20]]]), np.array([[[60, 60]]]), times.backward_ns, zeros[..., :2]
    )
    served = shared().job
    job = Job(
        Model((Parameter("a.weight", 400), Parameter("a.bias and 1 more", 800))),
        recorded,
        served.cluster,
        served.strategy,
        served.policy,
    )
    known = ByParameter.sharing(job, (names[:1], names[1:]), model, times)
    region = Region(("a",), compiled=True)
    found = costs(region.modules, names[:2], ModeCost(50, 100, (100, 100), 9))
    after = known.times_with(Strategy(regions=(region,)), found)
    assert after.forward_ns.tolist() == [[[0, 25]]]


@pytest.mark.parametrize(
    ("registered", "kept"),
    [
        (("b.weight", "b.bias"), True),
        (("b.bias", "b.weight"), False),  # called first, registered last
    ],
)
def test_a_region_that_would_change_buffers_is_refused(
    registered: tuple[str, ...], kept: bool
) -> None:
    region = Region(("b",), compiled=True)
    found = costs(region.modules, registered, ModeCost(50, 67, (67, 67), 9))
    known = shared()
    assert known.keeps_buffers([region], found) == kept
    assert known.keeps_buffers([Region(("b",), recomputed=True)], found)  # its calls are seen
    assert not known.keeps_buffers([Region(("b", "c"), recomputed=True)], found)
    assert ByParameter.alone(known.job).keeps_buffers([region], found)
    computing = Computing()
    computing.learn(known.job, found, known)
    changed = computing.with_regions(known.job, [region])
    assert (changed is not None) == kept
    if changed is not None:
        assert changed.model is known.job.model  # the same tensors, so the same keys


def test_medians_are_of_parameters() -> None:
    known = shared()
    eager = ModeCost(100, 100, (100, 100))
    found = RegionCosts((), {("b",): RegionCost(NAMES[1:3], {EAGER: eager, COMPILED: eager}, {})})
    computing = Computing()
    computing.learn(known.job, found, known)
    times = computing.medians(known.job, Strategy(regions=(Region(("b",), compiled=True),)))
    assert times.ready_ns.tolist() == [[[90, 70, 70, 40]]]


def test_several_local_ranks_share_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'workers = 1\nservers = 1\nlocal_ranks = 2\nscheduler = "fifo"\npartition_bytes = 65536\n'
    )
    write_fused(tmp_path, Fused({BUFFER: ("b.weight", "b.bias")}, 2))
    with pytest.raises(UserError, match="BYTEPROPHET_FUSION_BYTES=0"):
        ByParameter.measured(Run(tmp_path), shared().job)
