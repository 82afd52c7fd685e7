"""What runtimes add to the memory of a rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from byteprophet.errors import UserError
from byteprophet.job import Bucket, Strategy
from byteprophet.memory.kernels import KernelMemory
from byteprophet.memory.peak import predict_peak
from byteprophet.memory.runtimes import predict_rank_peak

from .small_models import training

MADE = training("attention")
_TOKENS = torch.zeros(1, 8, dtype=torch.int64)
MADE = replace(MADE, micro_batches=[(_TOKENS, _TOKENS)])  # so that parameters make the peak
KERNELS = KernelMemory()
NAMES = tuple(name for name, _ in MADE.model.named_parameters())
PARAMETERS = sum(each.nbytes for each in MADE.model.parameters())
COUNTERS = 4 * len(NAMES)


def strategy(runtime: str, sharded: bool = False) -> Strategy:
    half = len(NAMES) // 2
    return Strategy(
        runtime, (Bucket(NAMES[:half], 1, 3, sharded), Bucket(NAMES[half:], 0, 2, sharded))
    )


def test_one_rank_keeps_and_needs_everything() -> None:
    alone = predict_peak(MADE, (), KERNELS)
    peak = predict_rank_peak(MADE, strategy("dear", True), 1, 0, (), KERNELS)
    assert peak.least_bytes == alone.total_bytes
    assert peak.optimizer_state_bytes == alone.optimizer_state_bytes
    assert peak.received_bytes == 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_the_state_of_sharded_buckets(ranks: int) -> None:
    peaks = [
        predict_rank_peak(MADE, strategy("dear", True), ranks, rank, (), KERNELS)
        for rank in range(ranks)
    ]
    states = [peak.optimizer_state_bytes - COUNTERS for peak in peaks]
    assert sum(states) == 2 * PARAMETERS
    assert max(states) - min(states) <= 2 * 4 * len(NAMES)  # an element of each state, each tensor
    whole = predict_rank_peak(MADE, strategy("allreduce"), ranks, 0, (), KERNELS)
    assert whole.optimizer_state_bytes - COUNTERS == 2 * PARAMETERS
    assert whole.least_bytes - peaks[0].least_bytes == 2 * PARAMETERS - states[0]


def test_owners_keep_their_share_of_the_state() -> None:
    shares = (1, 1, 4)
    uneven = replace(strategy("dear", True), owners=shares)
    peaks = [predict_rank_peak(MADE, uneven, 3, rank, (), KERNELS) for rank in range(3)]
    states = [peak.optimizer_state_bytes - COUNTERS for peak in peaks]
    assert sum(states) == 2 * PARAMETERS
    for state, share in zip(states, shares, strict=True):
        assert state == pytest.approx(2 * PARAMETERS * share / 6, rel=0.01)
    # The owner of most is sent that of each of the two others, and sends back all but the rest.
    received = PARAMETERS * (2 * 4 / 6 + 2 / 6)
    assert peaks[2].received_bytes == pytest.approx(received, rel=0.01)
    with pytest.raises(UserError, match="3 weights for 2 ranks"):
        predict_rank_peak(MADE, uneven, 2, 0, (), KERNELS)


def test_distributed_data_parallel_keeps_its_buckets() -> None:
    """And gloo has scratch memory for two of its all-reduces."""
    alone = predict_peak(MADE, (), KERNELS)
    for ranks in (1, 2):
        peak = predict_rank_peak(MADE, strategy("ddp"), ranks, 0, (), KERNELS)
        assert peak.least_bytes == alone.total_bytes
        scratch = peak.most_bytes - peak.least_bytes - PARAMETERS
        assert scratch == pytest.approx(PARAMETERS / 2 if ranks == 2 else 0, abs=16)


def test_other_ranks_parts_are_received() -> None:
    two = predict_rank_peak(MADE, strategy("allreduce"), 2, 0, (), KERNELS)
    four = predict_rank_peak(MADE, strategy("allreduce"), 4, 0, (), KERNELS)
    servers = predict_rank_peak(MADE, Strategy("byteps"), 2, 0, (), KERNELS)
    assert two.received_bytes == pytest.approx(PARAMETERS / 2, rel=0.001)
    assert four.received_bytes == pytest.approx(2 * PARAMETERS * 3 / 4, rel=0.001)
    assert servers.received_bytes == PARAMETERS
    for peak in (two, four):  # another rank may be ahead at any time
        assert peak.most_bytes >= peak.least_bytes + peak.received_bytes
    for peak in (two, four, servers):
        assert peak.least_bytes < peak.most_bytes
        assert peak.most_bytes <= peak.least_bytes + peak.received_bytes + 4 * PARAMETERS


@pytest.mark.parametrize(
    ("wanted", "ranks", "rank", "said"),
    [
        (strategy("allreduce"), 2, 2, "no rank 2 of 2"),
        (strategy("wfbp"), 2, 0, "runtime 'wfbp'"),
        (strategy("fsdp2"), 2, 0, "use predict_sharded_peak"),
        (Strategy("dear", (Bucket(NAMES[1:], 0, 1),)), 2, 0, "another model"),
        (Strategy("dear", (Bucket((*NAMES, NAMES[0]), 0, 1),)), 2, 0, "another model"),
        (Strategy("dear", (Bucket((*NAMES[1:], "other"), 0, 1),)), 2, 0, "another model"),
    ],
)
def test_what_cannot_be_is_refused(wanted: Strategy, ranks: int, rank: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        predict_rank_peak(MADE, wanted, ranks, rank, (), KERNELS)
