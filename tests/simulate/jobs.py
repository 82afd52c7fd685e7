"""Small random jobs, and jobs by name, for the tests of the simulator."""

from __future__ import annotations

import random

from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.models.catalogue import find_model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.models.transformer_config import TransformerConfig
from byteprophet.simulate.tree.one_line import parse_strategy
from byteprophet.simulate.tree.strategy import Strategy


def program(model: str, strategy: str, gpus: int) -> Program:
    """The program of a model and a strategy in one line."""
    parsed = parse_strategy(strategy, gpus)
    return compile_program(build(*find_model(model), parsed.samples), parsed)


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
    zero = pick.choice((0, 1, 2, 3) if pp == 1 else (0, 1, 2))
    text = (
        f"tp={tp} pp={pp} cp={cp} ep={ep} dp={dp} schedule={schedule} chunks={chunks} zero={zero} "
        f"micro_batches={pp * pick.randint(1, 3)} micro_batch={pick.randint(1, 2)} "
        f"sp={pick.choice((0, 1)) if tp > 1 else 0} overlap={pick.choice((0, 1))} "
        f"recompute={pick.choice(('none', 'attention', 'full'))}"
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
        fused_attention=pick.choice((False, True)),
        dropout=pick.choice((False, True)),
    )
    return config, parse_strategy(text, tp * pp * cp * dp)
