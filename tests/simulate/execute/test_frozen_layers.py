"""Layers of which some are frozen: on pipeline ranks, sharded by FSDP2, and their memory.

What FSDP2 gathers is counted in a real forward and backward pass. Its process group is PyTorch's
fake one: rank 0 of two, without the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.costs.blocks import BlockCosts
from byteprophet.simulate.execute.job_graph import build
from byteprophet.simulate.execute.simulate import simulate_program
from byteprophet.simulate.explain.collectives import inferred_calls
from byteprophet.simulate.models.traced import Make, traced
from byteprophet.simulate.tree.one_line import parse_strategy

_WIDTH, _MICRO_BATCHES = 32, 4


def _layers(count: int, frozen: Collection[int]) -> nn.Sequential:
    layers = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(count)))
    for at in frozen:
        layers[at].requires_grad_(False)
    return layers


def _program(make: Make, line: str, gpus: int) -> Program:
    strategy = parse_strategy(line, gpus)
    return compile_program(traced("own", make)(strategy.samples), strategy)


def _of_layers(count: int, frozen: Collection[int], line: str, gpus: int) -> Program:
    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        return _layers(count, frozen), (torch.zeros(batch, _WIDTH),)

    return _program(make, line, gpus)


@pytest.fixture
def two_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("frozen", [(), (0, 1, 2), (2, 3), (0, 4)])
def test_parameters_are_gathered_as_fsdp2_gathers_them(frozen: Collection[int]) -> None:
    layers, mesh = _layers(5, frozen), init_device_mesh("cpu", (2,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(layers, mesh=mesh)
    with CommDebugMode() as counter:
        layers(torch.ones(2, _WIDTH)).sum().backward()
    theirs = {str(packet): count for packet, count in counter.get_comm_counts().items()}
    program = _of_layers(5, frozen, "dp=2 zero=3", 2)
    (calls,) = inferred_calls(program)
    ours: Counter[CollectiveKind] = Counter()
    for call, count in calls.items():
        ours[call.kind] += count
    assert ours[CollectiveKind.ALL_GATHER] == theirs["c10d._allgather_base_"]
    assert ours[CollectiveKind.REDUCE_SCATTER] == theirs["c10d._reduce_scatter_base_"]
    # The graph has them, too: one operation for the only rank that is simulated.
    job = build(program, BlockCosts(find_cluster("dgx-h100"), program.strategy.mesh))
    (record,) = job.ranks
    gathers = {flow for waits in record.waits.values() for flow, _ in waits}
    assert len(gathers) == theirs["c10d._allgather_base_"]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb1p"])
def test_frozen_stages_get_no_gradients(schedule: str) -> None:
    line = f"pp=4 schedule={schedule} micro_batches={_MICRO_BATCHES}"
    program = _of_layers(12, range(8), line, 4)
    assert [len(stage.blocks) for stage in program.stages] == [3, 3, 3, 3]
    sent: Counter[CollectiveKind] = Counter()
    for calls in inferred_calls(program):
        for call, count in calls.items():
            sent[call.kind] += count
    # Three stages get activations, and only the third one gets gradients of what it sent.
    assert sent == {CollectiveKind.SEND: (3 + 1) * _MICRO_BATCHES}
    result = simulate_program(program, find_cluster("dgx-h100"))
    messages = [
        flow for record in result.job.ranks for waits in record.waits.values() for flow, _ in waits
    ]
    assert len(messages) == (3 + 1) * _MICRO_BATCHES
    assert result.iteration_ns > 0


def test_layers_of_other_sizes_are_no_equal_layers() -> None:
    """Eight equal layers are divided, and not the twelve activations of other sizes."""
    sizes = [_WIDTH * size for size in (1, 8, 4, 2, 6, 3, 1)]

    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        parts: list[nn.Module] = []
        for one, two in pairwise(sizes):
            parts += [nn.Linear(one, two), nn.ReLU(), nn.ReLU()]
        return nn.Sequential(*parts, *_layers(8, ())), (torch.zeros(batch, _WIDTH),)

    program = _program(make, "pp=4 micro_batches=4", 4)
    layers = [sum(int(block.path) >= 18 for block in stage.blocks) for stage in program.stages]
    assert layers == [2, 2, 2, 2]


def test_units_are_gathered_while_the_unit_before_them_computes() -> None:
    """Blocks without parameters are no units: a gather waited until one of these computed."""
    wide = 256 * _WIDTH

    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        parts = (nn.Linear(_WIDTH, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU())
        last = (nn.Flatten(), nn.Linear(wide, _WIDTH), nn.ReLU())
        return nn.Sequential(*parts, *last), (torch.zeros(batch, _WIDTH),)

    result = simulate_program(_program(make, "zero=3 micro_batch=64", 8), find_cluster("dgx-h100"))
    (record,) = result.job.ranks
    units = sorted(record.waits)
    gathers = [flow for unit in units for flow, _ in record.waits[unit]]
    start_ns = result.replayed.start_ns
    assert len(gathers) == len(units) == 6
    assert start_ns[gathers[2]] == start_ns[units[1]]  # forward, the third unit
    forward, _ = record.done
    assert start_ns[gathers[3]] == result.replayed.end_ns[forward.last]
    assert start_ns[gathers[5]] == start_ns[units[4]]


def test_what_a_frozen_encoder_reads_and_writes_is_in_memory() -> None:
    wide = 256 * _WIDTH

    def make(batch: int) -> tuple[nn.Module, tuple[Tensor]]:
        encoder = nn.Sequential(nn.Linear(_WIDTH, wide), nn.GELU(), nn.Linear(wide, _WIDTH))
        encoder.requires_grad_(False)
        return nn.Sequential(encoder, nn.Linear(_WIDTH, 1)), (torch.zeros(batch, _WIDTH),)

    samples = 8
    (stage,) = _program(make, f"micro_batch={samples}", 1).stages
    assert stage.saved_bytes == 2 * samples * _WIDTH  # what the last layer reads
    # While GELU runs, its input and its output are there.
    assert stage.saved_bytes + stage.transient_bytes == 2 * (2 * samples * wide)
