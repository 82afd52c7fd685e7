"""Inferred calls against the formulas of what each strategy communicates."""

from __future__ import annotations

import pytest

from byteprophet.simulate.compile.program import compile_program
from byteprophet.simulate.compile.steps import CollectiveKind
from byteprophet.simulate.explain.collectives import Called, Calls, inferred_calls
from byteprophet.simulate.models.transformer import build

from ..jobs import program, random_job

_MODEL = "gpt:layers=4,hidden=64,heads=4,sequence=32,vocabulary=128,tied=0"
_PARAMETERS = 4 * (12 * 64**2 + 13 * 64) + 2 * 128 * 64 + 32 * 64 + 2 * 64
_HIDDEN_BYTES = 2 * 32 * 64
"""Of the hidden state of one sample."""


def _bytes(calls: Calls, kind: CollectiveKind, *axes: str) -> int:
    return sum(
        call.size_bytes * count
        for call, count in calls.items()
        if call.kind is kind and call.axes == axes
    )


@pytest.mark.parametrize(
    ("line", "gathers", "reduces"),
    [("zero=1", 1, 1), ("zero=1 overlap=0", 1, 1), ("zero=2", 1, 3), ("zero=3", 6, 3)],
)
def test_sharding_gathers_parameters_and_scatters_gradients(
    line: str, gathers: int, reduces: int
) -> None:
    (calls,) = inferred_calls(program(_MODEL, f"dp=4 micro_batches=3 precision=fp16 {line}", 4))
    assert _bytes(calls, CollectiveKind.ALL_GATHER, "dp") == gathers * 2 * _PARAMETERS
    assert _bytes(calls, CollectiveKind.REDUCE_SCATTER, "dp") == reduces * 2 * _PARAMETERS


@pytest.mark.parametrize(
    ("reshard", "gathers"),
    [("always", 2 * 3), ("never", 3), ("default", 2 * 3)],
)
def test_parameters_that_stay_whole_are_gathered_once_per_micro_batch(
    reshard: str, gathers: int
) -> None:
    line = f"dp=4 zero=3 micro_batches=3 precision=fp16 reshard={reshard}"
    (calls,) = inferred_calls(program(_MODEL, line, 4))
    assert _bytes(calls, CollectiveKind.ALL_GATHER, "dp") == gathers * 2 * _PARAMETERS


def test_pipeline_stages_gather_and_scatter_once_per_iteration() -> None:
    ranks = inferred_calls(program(_MODEL, "pp=2 dp=2 zero=3 micro_batches=4 precision=fp16", 4))
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        assert sum(_bytes(calls, kind, "dp") for calls in ranks) == 2 * _PARAMETERS


def test_deepspeed_all_reduces_gradients_and_gathers_parameters() -> None:
    (calls,) = inferred_calls(program(_MODEL, "dp=4 zero=1 all_reduce=1 precision=fp16", 4))
    assert _bytes(calls, CollectiveKind.ALL_REDUCE, "dp") == 2 * _PARAMETERS
    assert _bytes(calls, CollectiveKind.ALL_GATHER, "dp") == 2 * _PARAMETERS
    assert not _bytes(calls, CollectiveKind.REDUCE_SCATTER, "dp")


def test_replicas_all_reduce_once_per_iteration() -> None:
    (calls,) = inferred_calls(program(_MODEL, "dp=4 micro_batches=3 precision=fp16", 4))
    assert calls == {Called(CollectiveKind.ALL_REDUCE, ("dp",), 2 * _PARAMETERS): 1}


@pytest.mark.parametrize(("recompute", "passes"), [("none", 4), ("full", 6)])
def test_tensor_parallel_layers_all_reduce_hidden_states(recompute: str, passes: int) -> None:
    """Megatron-LM: two per layer and pass (Narayanan et al. 2021), and embedding and loss."""
    line = f"tp=4 micro_batches=2 recompute={recompute}"
    (calls,) = inferred_calls(program(_MODEL, line, 4))
    layers = Called(CollectiveKind.ALL_REDUCE, ("tp",), _HIDDEN_BYTES)
    at_the_ends = 2  # after the embedding, and the gradient before the logits
    assert calls[layers] == 2 * (4 * passes + at_the_ends)


@pytest.mark.parametrize("line", ["pp=4 micro_batches=8", "pp=2 micro_batches=4 chunks=2"])
def test_stages_send_each_micro_batch_both_ways(line: str) -> None:
    line += " schedule=interleaved" if "chunks" in line else ""
    job = program(_MODEL, line, 4 if "pp=4" in line else 2)
    sent = sum(_bytes(calls, CollectiveKind.SEND, "pp") for calls in inferred_calls(job))
    assert sent == 2 * (len(job.stages) - 1) * job.strategy.micro_batches * _HIDDEN_BYTES


def test_shared_embeddings_are_summed_by_the_first_and_the_last_stage() -> None:
    tied = program(_MODEL.replace("tied=0", "tied=1"), "pp=4 micro_batches=4 precision=fp16", 4)
    call = Called(CollectiveKind.ALL_REDUCE, ("pp",), 2 * 128 * 64)
    assert [calls[call] for calls in inferred_calls(tied)] == [1, 0, 0, 1]


def test_smaller_buckets_send_the_same_bytes_in_more_parts() -> None:
    model = "gpt:layers=4,hidden=512,heads=8,sequence=64,vocabulary=1024,tied=0"
    few, more = (
        inferred_calls(program(model, f"dp=2 precision=fp16 bucket_mb={size}", 2))[0]
        for size in (25, 1)
    )
    assert sum(more.values()) == 6  # the embedding, four layers and the head
    assert sum(few.values()) < 6
    all_reduce = CollectiveKind.ALL_REDUCE
    assert _bytes(few, all_reduce, "dp") == _bytes(more, all_reduce, "dp")


@pytest.mark.parametrize("seed", range(40))
def test_any_program_has_calls(seed: int) -> None:
    config, strategy = random_job(seed)
    calls = inferred_calls(compile_program(build("random", config, strategy.samples), strategy))
    assert len(calls) == strategy.mesh.pp
    assert all(count > 0 and call.size_bytes > 0 for each in calls for call, count in each.items())
