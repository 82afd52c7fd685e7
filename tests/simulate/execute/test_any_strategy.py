"""Any model under any strategy on any cluster ends in a result, or in a refusal that says where.

The refusal names the node of the model, or else the setting or the cluster. Nothing else may be
raised. What is drawn has few sizes, so that about a fifth of it can be simulated.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from byteprophet.errors import UserError
from byteprophet.simulate.execute.conditions import Conditions
from byteprophet.simulate.execute.result import Simulated
from byteprophet.simulate.execute.simulate import simulate
from byteprophet.simulate.models.dlrm import dlrm
from byteprophet.simulate.models.module import Model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.models.transformer_config import TransformerConfig
from byteprophet.simulate.operation.mesh import AXES, Mesh
from byteprophet.simulate.tree.node import Tree
from byteprophet.simulate.tree.strategy import RESHARD, SCHEDULES, Strategy

from ...thorough import by_default
from ..jobs import random_cluster

_TOGETHER = 50
_NODES = (
    "",
    "layers.*",
    "layers.1",
    "layers.*.mlp",
    "layers.*.mlp.up",
    "layers.*.attention",
    "layers.*.attention.core",
    "embedding",
    "head",
    "layers.9",
    "nothing",
)
_DIMS = ("batch", "sequence", "hidden", "heads", "inner", "vocabulary", "experts", "keys", "width")
_PRECISIONS = ("bf16", "fp16", "bf16_unfused", "deepspeed_bf16", "fsdp2", "fp8", "fsdp2_fp8")
_PLAIN = [schedule for schedule in SCHEDULES if schedule != "interleaved"]
_NAMED = re.compile(
    r"strategy: [a-z0-9_.*]+: "
    r"|strategy: (schedule|chunks|root|max_ongoing|\d+ pipeline stages)\b"
    r"|(cluster \S+|model|straggler \d+): "
)


def random_model(pick: random.Random, samples: int) -> Model:
    """A small transformer, or now and then a DLRM."""
    if pick.random() < 0.1:
        return dlrm(samples)
    experts = pick.choice((0, 0, 0, 0, 4, 8, 3))
    config = TransformerConfig(
        layers=pick.choice((1, 2, 4, 5, 8)),
        hidden=pick.choice((64, 128, 96)),
        heads=pick.choice((8, 8, 4, 2)),
        kv_heads=pick.choice((2, 2, 1)),
        inner=pick.choice((256, 256, 192, 100)),
        vocabulary=pick.choice((512, 512, 500, 7)),
        sequence=pick.choice((64, 64, 128, 30)),
        positions=pick.choice((0, 128)),
        gated=pick.random() < 0.5,
        bias=pick.random() < 0.5,
        tied=pick.random() < 0.5,
        causal=pick.random() < 0.7,
        experts=experts,
        active_experts=min(2, experts),
        fused_attention=pick.random() < 0.7,
        dropout=pick.random() < 0.3,
    )
    return build("small", config, samples)


def random_strategy(pick: random.Random) -> Strategy:
    """A mesh, a few rules, a schedule, and what is sharded."""
    degrees = {axis: pick.choice((1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 4, 8, 3)) for axis in AXES}
    tree = Tree(Mesh(**degrees))
    if pick.random() < 0.95:
        tree.split("batch", "dp").split(("experts", "batch"), "ep").split("sequence", "cp")
        tree.split(("heads", "inner", "vocabulary"), "tp")
    for _ in range(pick.choice((0, 0, 0, 0, 1, 3))):
        node = tree[pick.choice(_NODES)]
        act = pick.randrange(5)
        if act == 4:
            node.schedule(
                pick.choice((1, 2, 4)),
                max_ongoing=pick.choice((0, 0, 1)),
                along=pick.choice(("batch", "sequence")),
            )
        elif act == 0:
            node.split(pick.sample(_DIMS, pick.randint(1, 3)), pick.choice(AXES))
        elif act == 1:
            node.map(pick.randrange(4))
        else:
            node.recompute()
    schedule = pick.choice(SCHEDULES if degrees["pp"] > 1 or pick.random() < 0.1 else _PLAIN)
    limited = schedule == "1f1b" and degrees["pp"] > 1
    tree.schedule(
        pick.choice((1, 2, 4, 8, 12)),
        schedule,
        micro_batch=pick.choice((1, 2, 3)),
        chunks=2 if schedule == "interleaved" else 1,
        max_ongoing=pick.choice((0, 0, 0, 1, 2)) if limited else 0,
    )
    zero = pick.randrange(4)
    tree.shard(
        zero,
        overlap=zero > 1 or pick.random() < 0.5,
        precision=pick.choice(_PRECISIONS),
    )
    reshard = pick.choice(RESHARD) if zero == 3 else "default"
    ring = degrees["cp"] > 1 and pick.random() < 0.2
    return replace(tree.strategy(), reshard=reshard, ring=ring)


def random_conditions(pick: random.Random) -> Conditions:
    """Ranks that are alike, or not; a straggler may be one that the job does not have."""
    return Conditions(
        stragglers={pick.randrange(40): 1.5} if pick.random() < 0.2 else {},
        jitter=pick.choice((0.0, 0.0, 0.0, 0.05)),
        seed=pick.randrange(100),
    )


def _simulated(seed: int) -> Simulated:
    pick = random.Random(seed)
    strategy = random_strategy(pick)
    model = random_model(pick, strategy.samples)
    return simulate(model, strategy, random_cluster(seed), random_conditions(pick))


@pytest.mark.parametrize("first", by_default(range(0, 1000, _TOGETHER), range(0, 200, _TOGETHER)))
def test_any_job_ends_in_a_result_or_a_refusal(first: int) -> None:
    simulated = 0
    for seed in range(first, first + _TOGETHER):
        try:
            result = _simulated(seed)
        except UserError as error:
            text = str(error)
            assert _NAMED.match(text), f"seed {seed}: {text}"
            assert "\n" not in text
            continue
        simulated += 1
        assert result.iteration_ns > 0, f"seed {seed}"
        assert sum(result.by_use.values()) == result.iteration_ns, f"seed {seed}"
        assert 0 < result.mfu < 1, f"seed {seed}"
        assert all(memory.total > 0 for memory in result.memory), f"seed {seed}"
    assert simulated >= 0.1 * _TOGETHER
