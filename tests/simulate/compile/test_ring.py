"""What ring attention sends, against the source of PyTorch's context parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from byteprophet.simulate.clusters.description import find_cluster
from byteprophet.simulate.compile.steps import Collective, CollectiveKind, Step
from byteprophet.simulate.costs.blocks import Spent
from byteprophet.simulate.execute.simulate import simulate_program

from ..jobs import program

ring = pytest.importorskip(
    "torch.distributed.tensor.experimental._context_parallel._attention",
    reason="this PyTorch has ring attention elsewhere",
)

_RANKS, _HEADS, _TOKENS, _WIDTH = 4, 8, 64, 16
_MODEL = f"llama:layers=1,hidden={_HEADS * _WIDTH},heads={_HEADS},sequence={_TOKENS * _RANKS}"


class _Sent(TorchDispatchMode):
    """Counts what a rank sends to others, in bytes, by the name of the collective."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name.startswith("_c10d_functional::all_"):
            size = args[0].numel() * args[0].element_size()
            others = _RANKS - 1 if "gather" in name else 1
            self.bytes[name.partition("::")[2]] += others * size
        return func(*args, **(kwargs or {}))


def _attend(query: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return query.clone(), query.float().sum(-1)


def _attend_backward(**tensors: Any) -> tuple[torch.Tensor, ...]:
    return tuple(tensors[name].clone() for name in ("query", "key", "value"))


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("fake", rank=1, world_size=_RANKS, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def _sent(steps: Iterable[Step]) -> float:
    """What a rank sends in the ring, in bytes."""
    sizes = [
        step.size_bytes
        for step in steps
        if isinstance(step, Collective) and step.kind is CollectiveKind.SEND
    ]
    return sum(sizes) * (_RANKS - 1) / _RANKS


@pytest.mark.parametrize("kv_heads", [_HEADS, 2])
def test_ranks_send_what_pytorchs_ring_attention_does(
    group: dist.ProcessGroup, kv_heads: int
) -> None:
    """Its own code runs on a process group that sends nothing, with kernels that only copy."""
    shape = (1, _HEADS, _TOKENS, _WIDTH)  # heads of keys are repeated before
    query, key, value, out, gradient = (torch.zeros(shape, dtype=torch.bfloat16) for _ in range(5))
    lse = torch.zeros(shape[:-1])
    with _Sent() as forward:
        ring._templated_ring_attention(group, 2, _attend, query, key, value, is_causal=True)
    with _Sent() as backward:
        ring._templated_ring_attention_backward(
            group, 2, _attend_backward, gradient, "grad_out", query, key, value, out, lse, True
        )
    job = program(f"{_MODEL},kv_heads={kv_heads}", f"cp={_RANKS} ring=1 copies=1", _RANKS)
    (layer,) = (block.compiled for block in job.stages[0].blocks if block.path == "layers.0")
    assert _sent(layer.forward) == pytest.approx(forward.bytes.total(), rel=1e-4)
    assert _sent(layer.backward) == pytest.approx(backward.bytes.total(), rel=1e-4)


def test_compiled_ring_attention_waits_for_all_that_it_sends() -> None:
    """Without compilation it computes meanwhile, and here it takes longer than sending."""
    model = "llama:layers=1,hidden=4096,heads=32,kv_heads=8,sequence=131072"
    cluster = find_cluster("dgx-h100")
    spent = []
    for eager in (0, 1):
        job = program(model, f"cp=4 ring=1 copies=1 eager={eager}", 4)
        record = simulate_program(job, cluster).job.ranks[0]
        spent.append(sum(one.by_use.get(Spent.SEND, 0) for one in record.spent))
    layers = [block.compiled for block in job.stages[0].blocks]
    sent = sum(_sent((*layer.forward, *layer.backward)) for layer in layers)
    bytes_per_ns = cluster.node.gpu_bytes_per_s * cluster.node.efficiency / 1e9
    assert spent[0] == pytest.approx(sent / bytes_per_ns, rel=0.1)  # the rest is latency
    assert spent[1] == 0
