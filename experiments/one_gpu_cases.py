"""The jobs of ``one_gpu.py``: models and one-GPU strategies, as the simulator takes both.

The order is that of measuring. If time runs out, the last ones are left out, so models take turns.
All train by PyTorch without compilation, as the simulator's precision ``bf16_unfused`` says: bf16
parameters and activations, bf16 gradients that an operator adds to fp32 ones, and Adam with its
moments and parameters in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass

from byteprophet.simulate.compile.program import Program, compile_program
from byteprophet.simulate.models.load import VISION, load_model
from byteprophet.simulate.tree.one_line import parse_strategy

MODELS = {
    "gpt2": "gpt2",
    "gpt2-medium": "gpt:layers=24,hidden=1024,heads=16,vocabulary=50257,sequence=1024",
    "gpt3-1.3b": "gpt3-1.3b",
    "llama-1b": "llama:layers=16,hidden=2048,heads=32,kv_heads=8,inner=8192,vocabulary=128256,"
    "sequence=2048,tied=1",
    "bert-large": "bert-large",
    "resnet50": "resnet50",
    "vgg19": "vgg19",
    "gpt-8": "gpt:layers=8,hidden=1024,heads=16,vocabulary=50257,sequence=1024",
    "small": "gpt:layers=2,hidden=32,heads=4,vocabulary=64,sequence=16",
    "small-llama": "llama:layers=2,hidden=32,heads=4,kv_heads=2,inner=48,vocabulary=64,sequence=16",
}
"""llama-1b has the shape of Llama 3.2 1B. Names that begin with "small" are for tests, and gpt-8 is
for ``gpu_traces.py``."""
_SOFTWARE = "precision=bf16_unfused eager=1"


@dataclass(frozen=True)
class Case:
    """A job on one GPU: a model, a strategy in one line, and tokens per sample.

    Attributes:
        model: a name in ``MODELS``.
        micro_batch: samples of a micro-batch.
        micro_batches: micro-batches per iteration.
        sequence: tokens per sample; 0: the model's own number, or images.
        recompute: whether layers run their forward pass again.
    """

    model: str
    micro_batch: int
    micro_batches: int = 1
    sequence: int = 0
    recompute: bool = False

    @property
    def line(self) -> str:
        """The strategy in one line."""
        more = " recompute=full" if self.recompute else ""
        return f"micro_batch={self.micro_batch} micro_batches={self.micro_batches}{more}"

    @property
    def name(self) -> str:
        """Its name in files and tables."""
        tokens = f" sequence={self.sequence}" if self.sequence else ""
        return f"{self.model} {self.line}{tokens}"

    @property
    def is_vision(self) -> bool:
        """Whether its samples are images."""
        return self.model in VISION

    @property
    def program(self) -> Program:
        """The job as the simulator takes it."""
        strategy = parse_strategy(f"{self.line} {_SOFTWARE}", 1)
        model = load_model(MODELS[self.model], strategy.samples, self.sequence or None)
        return compile_program(model, strategy)


CASES = tuple(
    Case(*one)
    for one in (
        ("gpt2", 8),
        ("llama-1b", 2),
        ("bert-large", 16),
        ("resnet50", 128),
        ("gpt2-medium", 8),
        ("gpt3-1.3b", 2),
        ("vgg19", 64),
        ("gpt2", 16),
        ("llama-1b", 4),
        ("gpt2", 16, 1, 0, True),
        ("llama-1b", 1, 1, 8192),
        ("bert-large", 32),
        ("resnet50", 256),
        ("gpt2-medium", 4, 4),
        ("gpt3-1.3b", 4),
        ("llama-1b", 2, 4),
        ("gpt2", 4),
        ("gpt2-medium", 16, 1, 0, True),
        ("bert-large", 32, 1, 128),
        ("vgg19", 128),
        ("llama-1b", 4, 1, 0, True),
        ("gpt2", 32),
        ("gpt2", 8, 4),
        ("gpt3-1.3b", 4, 1, 0, True),
        ("resnet50", 64),
        ("llama-1b", 1, 1, 4096),
        ("gpt2-medium", 16),
        ("gpt2", 16, 1, 512),
        ("gpt3-1.3b", 1, 4),
        ("bert-large", 8),
        ("llama-1b", 8, 1, 512),
        ("vgg19", 32),
        ("bert-large", 16, 2),
        ("gpt2-medium", 4),
    )
)
