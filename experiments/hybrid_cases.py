"""The jobs of ``hybrid.py``: models, strategies, and which of them constants may be fitted on.

The split was fixed before anything was measured: constants come from ``TUNED`` alone, whose model
has another shape than those of ``REPORTED``. A strategy is a line of ``byteprophet simulate``,
but for tensor parallelism: the jobs split layers, not the vocabulary. `runtime=dear-planned` is
data parallelism by our own runtime in place of PyTorch's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.models.catalogue import find_model
from byteprophet.simulate.models.transformer import build
from byteprophet.simulate.models.transformer_config import TransformerConfig
from byteprophet.simulate.tree.one_line import parse_strategy
from byteprophet.simulate.tree.strategy import PRECISIONS, Precision, Rule, Strategy

MODELS = {
    "gpt": "gpt:layers=4,hidden=256,heads=4,vocabulary=2048,sequence=256,tied=0",
    "llama": "llama:layers=6,hidden=256,heads=8,inner=512,vocabulary=2048,sequence=128",
    "tuning": "gpt:layers=3,hidden=320,heads=4,vocabulary=2048,sequence=256,tied=0",
    "small": "gpt:layers=2,hidden=32,heads=4,vocabulary=64,sequence=16,tied=0",
    "small-llama": "llama:layers=2,hidden=32,heads=4,inner=48,vocabulary=64,sequence=16",
}
"""Those whose names begin with "small" are for tests."""
ELEMENT_BYTES = 4
"""The jobs compute and send fp32."""
SIMULATED_BYTES = 2
"""The simulator counts two bytes per element of activations. In these jobs, also of all else."""
_PRECISION = "fp32 in halves"
PRECISIONS[_PRECISION] = Precision(2, 2, 2, 2, 2)
"""The state is such that a step moves 14 bytes per parameter: AdamW's reads and writes 28."""
_RUNTIME = "runtime="
_BUCKET_MB = 1
"""In the simulator's bytes; that is twice as much of fp32."""


@dataclass(frozen=True)
class Case:
    """A job: a model by its name in ``MODELS``, and a strategy in one line."""

    model: str
    line: str

    @property
    def name(self) -> str:
        """Its name in files and tables."""
        return f"{self.model} {self.line}"

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        ranks = 1
        for item in self.line.split():
            key, _, value = item.partition("=")
            ranks *= int(value) if key in ("tp", "pp", "dp", "cp") else 1
        return ranks

    @property
    def runtime(self) -> str:
        """Our own runtime that exchanges gradients; empty: PyTorch does."""
        found = [item for item in self.line.split() if item.startswith(_RUNTIME)]
        return found[0].removeprefix(_RUNTIME) if found else ""

    @property
    def config(self) -> TransformerConfig:
        """The shape of its model."""
        return find_model(MODELS[self.model])[1]

    @property
    def strategy(self) -> Strategy:
        """What the job does, as the simulator takes it."""
        items = (item for item in self.line.split() if not item.startswith(_RUNTIME))
        strategy = parse_strategy(" ".join(items), self.ranks)
        sequence_parallel = "sp=1" in self.line.split()
        dims = ("heads", "inner", "sequence") if sequence_parallel else ("heads", "inner")
        kept = tuple(axis for axis in strategy.rules[0].splits if axis[0] != "tp")
        rules = (
            Rule("", splits=kept),
            Rule("layers.*", splits=(("tp", dims),)),
            *strategy.rules[1:],
        )
        pipelined = strategy.mesh.pp > 1
        by_unit = strategy.zero == 3 or (strategy.zero > 0 and pipelined)  # FSDP2 has no buckets
        return replace(
            strategy,
            rules=rules if strategy.mesh.tp > 1 else strategy.rules,
            precision=_PRECISION,
            bucket_mb=strategy.bucket_mb if by_unit else _BUCKET_MB,
            overlap_p2p=not pipelined or strategy.schedule not in ("gpipe", "1f1b"),
            posted_receives=strategy.schedule in ("interleaved", "zb1p"),
            reduce_in_backward=pipelined and not strategy.zero and self.ranks > strategy.mesh.pp,
            copies=not self.runtime,
            eager=True,
        )

    @property
    def program(self) -> Program:
        """What the simulator makes of it.

        In a pipeline, FSDP2 keeps gradients whole until the last micro-batch. So with ``zero`` 1
        and 2, all that it can do is not to shard parameters again after the forward pass.
        """
        strategy = self.strategy
        if strategy.zero and strategy.mesh.pp > 1:
            reshard = "always" if strategy.zero == 3 else "never"
            strategy = replace(strategy, zero=3, reshard=reshard)
        return compile_program(build(self.name, self.config, strategy.samples), strategy)


def _cases(model: str, samples: int, lines: str) -> tuple[Case, ...]:
    """Cases of a model whose iteration has ``samples`` samples in all."""
    found = []
    for line in filter(None, (each.strip() for each in lines.splitlines())):
        numbers = dict(item.split("=") for item in line.split())
        parts = int(numbers.get("dp", 1)) * int(numbers.get("micro_batches", 1))
        found.append(Case(model, f"{line} micro_batch={samples // parts}"))
    return tuple(found)


TUNED = _cases(
    "tuning",
    8,
    """
    dp=1
    dp=2
    dp=2 zero=3
    tp=2
    pp=2 micro_batches=4
    tp=2 dp=2
    """,
)
TUNED_OWN = _cases("tuning", 24, "dp=2 runtime=dear-planned")
"""Says what our own exchange takes from operators beside it, where jobs compute: this one computes
for longer than its link is busy."""
REPORTED = (
    *_cases(
        "gpt",
        12,
        """
        dp=2
        dp=2 micro_batches=2
        dp=2 zero=2
        dp=2 zero=3
        dp=2 zero=3 recompute=full
        dp=2 runtime=dear-planned
        tp=2
        tp=2 sp=1
        tp=2 recompute=full
        cp=2
        pp=2 micro_batches=4 schedule=gpipe
        pp=2 micro_batches=4 schedule=1f1b
        pp=2 micro_batches=4 schedule=interleaved chunks=2
        pp=2 micro_batches=4 schedule=zb1p
        dp=3
        dp=3 runtime=dear-planned
        pp=3 micro_batches=6
        dp=4
        dp=4 runtime=dear-planned
        dp=4 zero=3
        tp=4
        tp=4 sp=1
        pp=4 micro_batches=12
        pp=4 micro_batches=4 schedule=zb1p
        tp=2 dp=2
        tp=2 dp=2 zero=3
        tp=2 pp=2 micro_batches=3
        pp=2 dp=2 micro_batches=3
        """,
    ),
    *_cases(
        "llama",
        16,
        """
        dp=2
        dp=2 runtime=dear-planned
        dp=2 zero=1 micro_batches=2
        dp=2 zero=3
        tp=2
        pp=2 micro_batches=4
        dp=4
        dp=4 zero=3
        tp=4
        tp=2 sp=1 dp=2
        pp=2 dp=2 zero=1 micro_batches=4
        pp=2 tp=2 micro_batches=4
        cp=2 dp=2
        """,
    ),
)
CHECKED = (
    *_cases("small", 8, "dp=4\ntp=2 sp=1 dp=2\ntp=2 pp=2 micro_batches=2"),
    *_cases("small-llama", 8, "dp=4 zero=3\ncp=2 dp=2"),
)
"""Small ones, for the test of lists of collectives."""
