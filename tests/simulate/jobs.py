"""Small random jobs, and jobs by name, for the tests of the simulator."""

from __future__ import annotations

import random
from dataclasses import replace

from byteprophet.simulate.clusters.description import Cluster, find_cluster
from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.models.catalogue import find_model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.models.transformer_config import TransformerConfig
from byteprophet.simulate.tree.one_line import parse_strategy
from byteprophet.simulate.tree.strategy import RESHARD, Strategy


def program(model: str, strategy: str, gpus: int) -> Program:
    """The program of a model and a strategy in one line."""
    parsed = parse_strategy(strategy, gpus)
    return compile_program(build(*find_model(model), parsed.samples), parsed)


def random_cluster(seed: int) -> Cluster:
    """A cluster with leaf switches or without, on which kernels and collectives slow each other."""
    pick = random.Random(seed)
    cluster = find_cluster(pick.choice(("dgx-a100", "dgx-1v", "a100-4xhdr", "dgx-h100")))
    network = replace(
        cluster.network,
        adapters=pick.choice((1, 2, 4, 8)),
        nodes_per_leaf=pick.choice((0, 1, 2, 4)),
        uplink_share=pick.choice((1.0, 0.5, 0.3)),
        rails=pick.choice((False, True)),
    )
    gpu = replace(
        cluster.gpu,
        overlap_slowdown=pick.choice((0.0, 0.2)),
        collective_slowdown=pick.choice((0.0, 0.1)),
    )
    gpus = cluster.node.gpus if cluster.node.links else pick.choice((2, 4, 8))
    return replace(cluster, gpu=gpu, network=network, node=replace(cluster.node, gpus=gpus))


def random_job(seed: int) -> tuple[TransformerConfig, Strategy]:
    """A small model, and a strategy that fits it, of up to 64 ranks."""
    pick = random.Random(seed)
    tp, pp, cp = pick.choice((1, 2, 4)), pick.choice((1, 2, 4)), pick.choice((1, 1, 2))
    experts = pick.choice((0, 0, 4))
    ep = pick.choice((1, 2)) if experts else 1
    dp = ep * pick.choice((1, 2))
    schedule = pick.choice(("gpipe", "1f1b", "interleaved", "zb1p"))
    if pp == 1 and schedule == "interleaved":
        schedule = "1f1b"
    chunks = 2 if schedule == "interleaved" else 1
    zero, fused = pick.choice((0, 1, 2, 3)), pick.choice((False, True))
    reshard = pick.choice(RESHARD) if zero == 3 else "default"
    text = (
        f"tp={tp} pp={pp} cp={cp} ep={ep} dp={dp} schedule={schedule} chunks={chunks} zero={zero} "
        f"micro_batches={pp * pick.randint(1, 3)} micro_batch={pick.randint(1, 2)} "
        f"max_ongoing={pick.randint(0, 3) if schedule == '1f1b' and pp > 1 else 0} "
        f"sp={pick.choice((0, 1)) if tp > 1 else 0} "
        f"overlap={pick.choice((0, 1)) if zero < 2 else 1} "
        f"recompute={pick.choice(('none', 'attention', 'full'))} "
        f"reshard={reshard} ring={pick.choice((0, 1)) if fused and cp > 1 else 0} "
        f"all_reduce={seed % 2 if zero == 1 else 0}"
    )
    config = TransformerConfig(
        layers=8 * pick.choice((1, 2)),
        hidden=256 * pick.choice((1, 2)),
        heads=8,
        kv_heads=pick.choice((4, 8)),
        inner=1024,
        vocabulary=4096,
        sequence=256,
        positions=pick.choice((0, 256)),
        gated=pick.choice((False, True)),
        bias=pick.choice((False, True)),
        tied=pick.choice((False, True)),
        experts=experts,
        active_experts=2 if experts else 0,
        fused_attention=fused,
        dropout=pick.choice((False, True)),
    )
    return config, parse_strategy(text, tp * pp * cp * dp)
