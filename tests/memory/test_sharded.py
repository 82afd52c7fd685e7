"""Ranks whose models FSDP2 shards: predicted without them, and one real job over gloo."""

from __future__ import annotations

import functools
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import malloc_peak
import pytest
import torch
from malloc_peak import compiled
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.testing._internal.distributed.fake_pg import FakeStore

from byteprophet.errors import UserError
from byteprophet.launcher import JobSpec, run_job
from byteprophet.memory.gloo import buffers_bytes
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.peak import PeakMemory, predict_peak
from byteprophet.memory.sharded import predict_sharded_peak
from byteprophet.memory.training import Training

from ..thorough import by_default
from .sharded_models import ROUNDS, linear_training, shard_blocks

KERNELS = KernelMemory()
_HERE = Path(__file__).parent
_COUNTER = torch.empty(()).nbytes  # Adam's, one per parameter


def sharded(made: Training, ranks: int, rank: int = 0, **options: Any) -> PeakMemory:
    shard = functools.partial(shard_blocks, **options)
    return predict_sharded_peak(made, shard, ranks, rank, (), KERNELS)


@pytest.mark.parametrize("seed", by_default(range(6), range(2)))
def test_ranks_keep_padded_shards_and_their_state(seed: int) -> None:
    """Shards are rows. All have as many as the first, and state is that of a rank's own ones."""
    lot = random.Random(seed)
    widths = [lot.randrange(1, 60) for _ in range(4)]
    made, ranks = linear_training(widths), lot.randrange(1, 6)
    parameters = list(made.model.parameters())
    peaks = [sharded(made, ranks, rank) for rank in range(ranks)]
    rows = [(-(-len(each) // ranks), each.nbytes // len(each)) for each in parameters]
    for peak in peaks:
        assert peak.parameters_bytes == sum(count * row_bytes for count, row_bytes in rows)
        assert peak.unmeasured == ()
    counters = ranks * _COUNTER * len(parameters)
    state = sum(peak.optimizer_state_bytes for peak in peaks)
    assert state - counters == 2 * sum(each.nbytes for each in parameters)
    assert peaks[0].total_bytes == max(peak.total_bytes for peak in peaks)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, functools.partial(torch.optim.SGD, lr=1)])
def test_the_peak_is_what_is_added_up(optimizer: Any) -> None:
    """By hand, for equal units and next to no activations.

    Before the second unit's backward pass, the first one is all-gathered ahead. The unit behind the
    second one has been reduced, but its buffer is kept until the second one needs one.
    """
    units, width, ranks = 6, 300, 3
    made = replace(linear_training([width] * (units + 1), batch=1), optimizer=optimizer)
    unit = 4 * (width + 1) * width
    peak = sharded(made, ranks)
    shards = units * unit // ranks
    reduced = (units - 2) * unit // ranks
    gathered = unit + 2 * unit  # the second one's parameters; the first one's buffer, twice in gloo
    expected = shards + peak.optimizer_state_bytes + reduced + gathered + unit
    assert peak.parameters_bytes == shards
    assert peak.optimizer_state_bytes >= 2 * shards * (optimizer is torch.optim.Adam)
    assert peak.total_bytes - peak.objects_bytes == pytest.approx(expected, rel=0.02)


def test_units_that_keep_their_parameters_take_more_and_half_precision_takes_less() -> None:
    made = linear_training([200] * 6, batch=1)
    plain, kept = sharded(made, 2), sharded(made, 2, reshard_after_forward=False)
    half = sharded(made, 2, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    assert half.total_bytes < plain.total_bytes < kept.total_bytes
    assert sharded(made, 4).total_bytes < plain.total_bytes < predict_peak(made).total_bytes
    assert plain.parameters_bytes == kept.parameters_bytes == half.parameters_bytes


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    distributed.destroy_process_group()


def test_what_cannot_be_is_refused() -> None:
    def reducing_loss(model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = model(batch).sum()
        distributed.all_reduce(loss.detach())
        return loss

    def nothing(_model: nn.Module, _mesh: DeviceMesh) -> None:
        """A script that forgot."""

    made = linear_training([4, 4])
    with pytest.raises(UserError, match="no rank 2 of 2"):
        sharded(made, 2, 2)
    with pytest.raises(UserError, match="on cuda"):
        sharded(replace(made, device="cuda"), 2)
    with pytest.raises(UserError, match="collective 'allreduce_' takes over gloo is not known"):
        sharded(replace(made, loss_of=reducing_loss), 2)
    with pytest.raises(UserError, match="call fully_shard"):
        predict_sharded_peak(made, nothing, 2)
    assert not distributed.is_initialized()


@pytest.mark.usefixtures("process_group")
def test_a_rank_is_refused_and_left_alone() -> None:
    with pytest.raises(UserError, match="has a process group"):
        sharded(linear_training([4, 4]), 2)
    assert distributed.get_world_size() == 2


@pytest.mark.parametrize(
    ("given_bytes", "ranks", "scratch_bytes"),
    [(400_000, 2, 200_000), (400_000, 4, 100_000), (4_000_000, 4, 1_000_000),
     (40_000_000, 2, 2_000_000), (40_000_000, 4, 2_000_000)],
)  # fmt: skip
def test_gloo_takes_what_malloc_counted(given_bytes: int, ranks: int, scratch_bytes: int) -> None:
    """The figures are those of gloo's all-reduce of torch 2.13 under ``malloc_peak.c``."""
    given = torch.empty(given_bytes // 4)
    reduced = torch.empty(len(given) // ranks)
    reduce_scatter = torch.ops.c10d._reduce_scatter_base_.default
    assert buffers_bytes(reduce_scatter, (reduced, given)) == given_bytes + scratch_bytes
    gather = torch.ops.c10d._allgather_base_.default
    assert buffers_bytes(gather, (given, reduced)) == given_bytes
    assert buffers_bytes(torch.ops.aten.add.Tensor, (given, given)) == 0


@pytest.mark.job
def test_a_real_job_takes_what_was_predicted(tmp_path: Path) -> None:
    """Two ranks over gloo, counted by malloc. What a busy machine adds is above the least peak."""
    spec = JobSpec(
        command=(sys.executable, str(_HERE / "sharded_worker.py")),
        run_directory=tmp_path / "run",
        workers=2,
        servers=0,
        environment={
            "LD_PRELOAD": str(compiled(tmp_path)),
            "PYTHONPATH": str(Path(malloc_peak.__file__).parent),
            "BYTEPROPHET_FORK_SERVER": "0",
        },
        timeout_s=120,
    )
    run_job(spec, None).check()
    for rank in range(2):
        peaks = json.loads((tmp_path / "run" / f"rank-{rank}.json").read_text(encoding="utf-8"))
        assert len(peaks) == ROUNDS
        predicted = sharded(linear_training(), 2, rank)
        assert min(peaks) == pytest.approx(predicted.total_bytes, rel=0.005)
