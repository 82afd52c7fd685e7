"""Trains the models of ``one_gpu_cases.py`` on a GPU, and measures iterations and peak memory.

GPT, Llama and BERT are made of the blocks of ``hybrid_models.py``; ResNet-50 and VGG-19 are those
that the simulator traces. Iterations are timed between events of the GPU's stream. Memory is
PyTorch's peak of allocated bytes, which has no CUDA context and no fragments.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from hybrid_models import Embedding, Head, Layer, loss_of
from one_gpu_cases import MODELS, Case
from torch import Tensor, nn
from torch.nn import functional

from byteprophet.simulate.models.catalogue import find_model
from byteprophet.simulate.models.load import VISION
from byteprophet.simulate.models.own_code import import_make
from byteprophet.simulate.models.transformer_config import TransformerConfig

_cuda: Any = torch.cuda  # parts of it have no type annotations
_CLASSES = 1000
_WARM_UP, _LEAST, _MOST = 3, 5, 40
"""Iterations that are not measured, and how many are."""


@dataclass(frozen=True)
class Measured:
    """Iteration times in ms, and the peaks of allocated and of reserved memory in bytes."""

    times_ms: list[float]
    allocated_bytes: int
    reserved_bytes: int


class _Attention(nn.Module):
    """Attention with fewer heads of keys than of queries, causal or not."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self._config = config
        self._queries = config.heads // config.kv_heads
        rows = config.kv_heads * (self._queries + 2) * config.width
        self.qkv = nn.Linear(config.hidden, rows, bias=config.bias)
        self.output = nn.Linear(config.heads * config.width, config.hidden, bias=False)
        self._angles: tuple[Tensor, Tensor] | None = None

    def forward(self, normed: Tensor) -> Tensor:
        config = self._config
        heads = self.qkv(normed).unflatten(-1, (config.kv_heads, -1, config.width))
        parts = heads.split((self._queries, 1, 1), -2)
        query, key, value = (part.flatten(2, 3).transpose(1, 2) for part in parts)
        if config.causal and not config.positions:
            query, key = self._turned(query), self._turned(key)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=config.causal, enable_gqa=self._queries > 1
        )
        attended: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return attended

    def _turned(self, heads: Tensor) -> Tensor:
        """Rotary positions; sines and cosines are kept, as models do."""
        if self._angles is None:
            half = self._config.width // 2
            places = torch.arange(heads.shape[2], device=heads.device, dtype=torch.float32)
            powers = torch.arange(half, device=heads.device) / half
            angles = places[:, None] * 10_000.0**-powers
            sine, cosine = (
                each.repeat(1, 2).to(heads.dtype) for each in (angles.sin(), angles.cos())
            )
            self._angles = sine, cosine
        sine, cosine = self._angles
        left, right = heads.chunk(2, -1)
        return heads * cosine + torch.cat((-right, left), -1) * sine


class _Transformer(nn.Module):
    """The simulator's transformer."""

    def __init__(self, config: TransformerConfig, *, recompute: bool) -> None:
        super().__init__()
        self.embedding, self.head = Embedding(config), Head(config)
        layers = [Layer(config) for _ in range(config.layers)]
        for layer in layers:
            layer.attention = _Attention(config)  # type: ignore[assignment]
            layer.recompute = recompute
        self.layers = nn.Sequential(*layers)
        if config.tied:
            self.head.logits.weight = self.embedding.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits


class _MixedAdam:
    """Adam on fp32 copies of bf16 parameters, with fp32 sums of their gradients."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._copies = [each.detach().float() for each in self._parameters]
        self._sums = [torch.zeros_like(copy) for copy in self._copies]
        for parameter, copy, total in zip(self._parameters, self._copies, self._sums, strict=True):
            copy.grad = total
            parameter.register_post_accumulate_grad_hook(self._adder(total))  # type: ignore[no-untyped-call]
        self._adam = torch.optim.AdamW(self._copies, lr=1e-5, fused=True)

    @staticmethod
    def _adder(total: Tensor) -> Callable[[Any], None]:
        def add(parameter: Any) -> None:
            total.add_(parameter.grad)
            parameter.grad = None

        return add

    @torch.no_grad()
    def step(self) -> None:
        """Update, and clear the sums."""
        self._adam.step()
        torch._foreach_copy_([each.data for each in self._parameters], self._copies)
        torch._foreach_zero_(self._sums)


def measure(case: Case, device: str, seconds: float) -> Measured:
    """Train for about ``seconds`` after a warm-up. Without a GPU, memory is 0."""
    on_gpu = device == "cuda"
    gc.collect()  # what the last case left
    if on_gpu:
        torch.cuda.empty_cache()
    iterate = _job(case, device)
    for _ in range(_WARM_UP):
        iterate()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    times_ms = (_gpu_times_ms if on_gpu else _cpu_times_ms)(iterate, seconds)
    if not on_gpu:
        return Measured(times_ms, 0, 0)
    return Measured(times_ms, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())


def typical_ms(measured: Measured) -> float:
    """The median iteration."""
    return statistics.median(measured.times_ms)


def _gpu_times_ms(iterate: Callable[[], None], seconds: float) -> list[float]:
    """The times of iterations in a row, of which the host is up to two ahead."""
    events = [_cuda.current_stream().record_event(_cuda.Event(enable_timing=True))]
    for _ in _iterations(seconds):
        iterate()
        events.append(_cuda.current_stream().record_event(_cuda.Event(enable_timing=True)))
        events[max(0, len(events) - 3)].synchronize()
    events[-1].synchronize()
    return [float(one.elapsed_time(other)) for one, other in pairwise(events)]


def _cpu_times_ms(iterate: Callable[[], None], seconds: float) -> list[float]:
    times = [time.perf_counter()]
    for _ in _iterations(seconds):
        iterate()
        times.append(time.perf_counter())
    return [(other - one) * 1e3 for one, other in pairwise(times)]


def _iterations(seconds: float) -> Iterator[int]:
    """Goes on for about ``seconds``, within limits."""
    began = time.monotonic()
    for done in range(_MOST):
        if done >= _LEAST and time.monotonic() - began > seconds:
            return
        yield done


def _job(case: Case, device: str) -> Callable[[], None]:
    """A function that trains for an iteration, on data that stay on the device."""
    torch.manual_seed(0)
    with torch.device(device):
        model, (inputs, targets) = model_of(case), data_of(case)
    optimizer = _MixedAdam(model.parameters())

    def iterate() -> None:
        for _ in range(case.micro_batches):
            loss = loss_from(case, model, inputs, targets)
            (loss / case.micro_batches).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return iterate


def model_of(case: Case) -> nn.Module:
    """The model, with bf16 parameters, on the default device."""
    if case.is_vision:
        model = import_make(VISION[case.model])(1)[0].to(torch.bfloat16)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
    config = find_model(MODELS[case.model])[1]
    return _Transformer(config, recompute=case.recompute).to(torch.bfloat16)


def data_of(case: Case) -> tuple[Tensor, Tensor]:
    """The inputs and the targets of a micro-batch, on the default device."""
    if case.is_vision:
        size = case.micro_batch, 3, 224, 224
        images = torch.randn(size, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        return images, torch.randint(_CLASSES, (case.micro_batch,))
    config = find_model(MODELS[case.model])[1]
    size_of_tokens = case.micro_batch, case.sequence or config.sequence
    tokens, targets = (torch.randint(config.vocabulary, size_of_tokens) for _ in range(2))
    return tokens, targets


def loss_from(case: Case, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a micro-batch."""
    outputs = model(inputs)
    if case.is_vision:
        return functional.cross_entropy(outputs, targets)
    return loss_of(outputs, targets)
