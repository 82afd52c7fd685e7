"""Copies around collectives, and sums of gradients, if the strategy counts them."""

from __future__ import annotations

import pytest

from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.steps import Collective, CollectiveKind
from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.simulate import simulate_program

from ..jobs import program

_CLUSTER = find_cluster("dgx-a100")
_MODEL = "gpt:layers=3,hidden=512,heads=8,tied=0"
_GPU = _CLUSTER.gpu
_BYTES_PER_NS = _GPU.memory_bytes_per_s * _GPU.memory_efficiency / 1e9


def _spent(line: str, gpus: int, use: Spent) -> int:
    """What the first rank spends on ``use``."""
    result = simulate_program(program(_MODEL, line, gpus), _CLUSTER)
    return sum(one.by_use.get(use, 0) for one in result.job.ranks[0].spent)


def _elements(pp: int = 1) -> int:
    """The parameters of the first of ``pp`` stages."""
    blocks = program(_MODEL, f"pp={pp}", pp).stages[0].blocks
    return sum(one.elements for block in blocks for one in block.compiled.parameters)


def test_without_the_setting_nothing_is_copied() -> None:
    assert not _spent("dp=2 zero=3", 2, Spent.COPIES)


def test_fsdp2_copies_units_out_of_a_buffer_and_gradients_into_one() -> None:
    """Two gathers of 16 bits, each with a half copied in; one reduction of 32 bits."""
    copied = _elements() * (2 * (1 + 1 / 2) * 2 + 4)
    found = _spent("dp=2 zero=3 copies=1", 2, Spent.COPIES)
    assert found == pytest.approx(2 * copied / _BYTES_PER_NS, rel=1e-3)


def test_tensors_that_are_gathered_along_the_sequence_are_copied() -> None:
    job = program(_MODEL, "tp=2 sp=1", 2)
    blocks = (block.compiled for block in job.stages[0].blocks)
    steps = [step for one in blocks for step in (*one.forward, *one.backward)]
    steps += job.stages[0].last
    kinds = CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    moved = sum(
        step.size_bytes for step in steps if isinstance(step, Collective) and step.kind in kinds
    )
    assert moved
    found = _spent("tp=2 sp=1 copies=1", 2, Spent.COPIES)
    assert found == pytest.approx(2 * moved / _BYTES_PER_NS, rel=1e-3)


@pytest.mark.parametrize(
    ("zero", "pp", "sums"),
    [(0, 1, True), (1, 2, True), (2, 1, False), (2, 2, False), (3, 1, False), (3, 2, True)],
)
def test_gradients_of_micro_batches_are_added_up(zero: int, pp: int, sums: bool) -> None:
    """All but the first are: two read, and one written, unless each one is sent."""
    line = f"dp=2 pp={pp} zero={zero} micro_batches=4"
    found = [_spent(f"{line}{more}", 2 * pp, Spent.BACKWARD) for more in (" copies=1", "")]
    more = found[0] - found[1]
    expected = 3 * 3 * 2 * _elements(pp) / _BYTES_PER_NS if sums else 0
    assert more == pytest.approx(expected, rel=1e-3)
