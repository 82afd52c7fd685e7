"""A rank of ``gpu.py``: trains small networks on a GPU, in as many ways as scripts do.

    gpu_worker.py FRONT DEVICE CASE[,CASE ...] OUT

FRONT: ``alone`` (one process with both ranks' batches and plain torch), ``ddp:BACKEND`` (torch's
DistributedDataParallel), ``upstream`` (``byteps.torch`` as shipped), ``byteps`` (ours, by servers),
or ``SYNC:BACKEND`` (ours, without servers). Writes ``rank-<rank>.pt`` in OUT: by case the
parameters, and what else must come out the same.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

_cuda: Any = torch.cuda  # some of it has no types

RANKS = 2
ITERATIONS = 8
_BUSY_CYCLES = 20_000_000  # about 10 ms of a GPU
_INIT_S = 120
_BUCKET_MB, _COMPILED_BUCKET_MB = 0.1, 25.0  # of DistributedDataParallel
# One GPU for two ranks, which NCCL refuses unless they seem to be on two hosts.
_ONE_GPU = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}


class Convolutions(nn.Sequential):
    """Convolutions with batch normalisation, and a classifier."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 10),
        )

    def batch(self, generator: torch.Generator) -> Tensor:
        """Images."""
        return torch.randn(8, 3, 16, 16, generator=generator)


class Perceptron(nn.Sequential):
    """A large and a small layer between others."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(64, 2000),
            nn.GELU(),
            nn.Linear(2000, 64),
            nn.LayerNorm(64),
            nn.Linear(64, 10),
        )

    def batch(self, generator: torch.Generator) -> Tensor:
        """Vectors."""
        return torch.randn(16, 64, generator=generator)


class Language(nn.Module):
    """An embedding that is the decoder, too, and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(501, 64)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.decode = nn.Linear(64, 501, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token, by sequence."""
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        logits: Tensor = self.decode(self.norm(x)).mean(1)
        return logits

    def batch(self, generator: torch.Generator) -> Tensor:
        """Tokens."""
        return torch.randint(0, 501, (8, 12), generator=generator)


class Job:
    """What a case has at hand; ``front`` as above."""

    def __init__(self, front: str, device: str) -> None:
        self.front, _, self._backend = front.partition(":")
        self.device = torch.device(device)
        self.case = ""
        self.ranks: Sequence[int] = range(RANKS)
        self._bps: Any = None
        if self.front in ("upstream", "byteps"):
            name = "byteprophet.torch" if self.front == "byteps" else "byteps.torch"
            self._bps = importlib.import_module(name)
            self._bps.init()
            self.ranks = [self._bps.rank()]
        elif self.front != "alone":
            self.ranks = [int(os.environ["RANK"])]
            self._join(self._backend)

    @property
    def rank(self) -> int:
        """The first of those whose batches this process has."""
        return self.ranks[0]

    def _join(self, backend: str) -> None:
        if self.device.type == "cuda":
            if torch.cuda.device_count() < RANKS:
                os.environ.update(_ONE_GPU, NCCL_HOSTID=f"rank-{self.rank}")
            else:
                self.device = torch.device("cuda", self.rank)
                torch.cuda.set_device(self.device)
        distributed.init_process_group(
            None if backend == "default" else backend, timeout=timedelta(seconds=_INIT_S)
        )

    def model(self, make: Callable[[], nn.Module]) -> nn.Module:
        """The same on all ranks."""
        torch.manual_seed(5)
        return make().to(self.device)

    def wrap(self, model: nn.Module, bucket_mb: float = _BUCKET_MB) -> nn.Module:
        """What the script calls in the place of ``model``."""
        if self.front != "ddp":
            return model
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_mb)

    def distribute(self, model: nn.Module, optimizer: Any, passes: int = 1) -> Any:
        """``optimizer`` with averaged gradients."""
        named = [(f"{self.case}.{name}", p) for name, p in model.named_parameters()]
        if self._bps is not None:
            return self._bps.DistributedOptimizer(
                optimizer, named_parameters=named, backward_passes_per_step=passes
            )
        if self.front in ("alone", "ddp"):
            return optimizer
        from byteprophet.torch import DistributedOptimizer

        return DistributedOptimizer(
            optimizer, named, backward_passes_per_step=passes, sync=self.front, fusion=50_000
        )

    def sum(self, sent: Tensor, name: str) -> Tensor:
        """Over all ranks, of which rank r sends r + 1 in every element."""
        if self._bps is None:
            return torch.full_like(sent, sum(range(1, RANKS + 1)))
        total: Tensor = self._bps.push_pull(sent, average=False, name=name)
        return total

    def loss(self, model: nn.Module, source: Any, rank: int, number: int) -> Tensor:
        """Of batch ``number`` of ``rank``, which ``source`` makes."""
        generator = torch.Generator().manual_seed(1000 * rank + number)
        batch = source.batch(generator)
        if batch.is_floating_point():
            batch = batch.to(next(source.parameters()).dtype)
        logits = model(batch.to(self.device))
        labels = (torch.arange(len(logits)) % logits.shape[-1]).to(self.device)
        return functional.cross_entropy(logits.float(), labels)

    def backward(
        self, model: Any, source: nn.Module, numbers: Sequence[int], factor: Any = 1.0
    ) -> None:
        """Gradients of batches ``numbers``, added up; alone, the average of all ranks'."""
        if self.front != "alone":
            for number in numbers:
                last = number == numbers[-1]
                held = nullcontext() if self.front != "ddp" or last else model.no_sync()
                with held:
                    (self.loss(model, source, self.rank, number) * factor).backward()
            return
        parameters = list(source.parameters())
        sums: list[list[Tensor]] = []
        for rank in self.ranks:
            for p in parameters:
                p.grad = None
            for number in numbers:
                (self.loss(model, source, rank, number) * factor).backward()
            sums.append([p.grad for p in parameters if p.grad is not None])
        for p, *gradients in zip(parameters, *sums, strict=True):
            p.grad = sum(gradients[1:], gradients[0]) / len(gradients)

    def clip(self, model: nn.Module, optimizer: Any, norm: float) -> AbstractContextManager[Any]:
        """Clip averages by ``norm``; ``step()`` follows within."""
        if self.front == "upstream":
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), norm)
        skipped: AbstractContextManager[Any] = nullcontext()
        return optimizer.skip_synchronize() if self.front == "upstream" else skipped


Case = Callable[[Job], list[Tensor]]


def _train(
    job: Job,
    make: Callable[[], nn.Module],
    optimize: Callable[[Any], Any],
    *,
    dtype: torch.dtype = torch.float32,
    autocast: torch.dtype | None = None,
    passes: int = 1,
    norm: float = 0.0,
    compiled: bool = False,
    scaler: Any = None,
) -> list[Tensor]:
    source = job.model(make).to(dtype)
    optimizer = job.distribute(source, optimize(source.parameters()), passes)
    # torch.compile refuses buckets smaller than the first one of 1 MiB, and cuts models at buckets.
    model: Any = job.wrap(source, _COMPILED_BUCKET_MB if compiled else _BUCKET_MB)
    if compiled:
        model = torch.compile(model)
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        factor = 1.0
        if scaler is not None:
            scaler.scale(torch.ones((), device=job.device))  # its own start
            factor = scaler.get_scale()
        with torch.autocast(
            job.device.type, autocast, enabled=autocast is not None, cache_enabled=False
        ):
            numbers = range(iteration * passes, (iteration + 1) * passes)
            job.backward(model, source, numbers, factor)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        elif norm:
            with job.clip(source, optimizer, norm):
                optimizer.step()
        else:
            optimizer.step()
    return [p.detach().float().cpu() for p in source.parameters()]


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)


def _adamw(**how: Any) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, **how)


def conv(job: Job) -> list[Tensor]:
    """Convolutions under SGD with momentum."""
    return _train(job, Convolutions, _sgd)


def embedding(job: Job) -> list[Tensor]:
    """An embedding, tied, under Adam."""
    return _train(job, Language, lambda p: torch.optim.Adam(p, lr=1e-2))


def fused(job: Job) -> list[Tensor]:
    """AdamW's one kernel for all."""
    return _train(job, Perceptron, _adamw(fused=True))


def foreach(job: Job) -> list[Tensor]:
    """AdamW's kernels for lists."""
    return _train(job, Perceptron, _adamw(foreach=True))


def half(job: Job) -> list[Tensor]:
    """Parameters and gradients of 16 bits."""
    return _train(job, Perceptron, _sgd, dtype=torch.float16)


def bfloat16(job: Job) -> list[Tensor]:
    """Likewise, of the other kind."""
    return _train(job, Language, _sgd, dtype=torch.bfloat16)


def autocast(job: Job) -> list[Tensor]:
    """Mixed precision."""
    return _train(job, Language, _adamw(), autocast=torch.bfloat16)


def scaler(job: Job) -> list[Tensor]:
    """Mixed precision with scaled gradients, and an optimizer that unscales them itself."""
    scale = torch.amp.GradScaler(job.device.type, init_scale=256.0, growth_interval=3)
    return _train(job, Perceptron, _adamw(fused=True), autocast=torch.float16, scaler=scale)


def clipped(job: Job) -> list[Tensor]:
    """Gradients clipped by their norm."""
    return _train(job, Perceptron, _sgd, norm=0.05)


def accumulated(job: Job) -> list[Tensor]:
    """Two backward passes per step."""
    return _train(job, Convolutions, _sgd, passes=2)


def compiled(job: Job) -> list[Tensor]:
    """``torch.compile``."""
    return _train(job, Perceptron, _adamw(), compiled=True)


def elsewhere(job: Job) -> list[Tensor]:
    """All on another stream than the default one, which is busy."""
    with _on_a_busy_gpu(job.device):
        return _train(job, Perceptron, _sgd)


def other_stream(job: Job) -> list[Tensor]:
    """A model that is looked at on another stream after each step, the default one being busy."""
    source = job.model(Perceptron)
    optimizer = job.distribute(source, _sgd(source.parameters()))
    model = job.wrap(source)
    seen = []
    for iteration in range(ITERATIONS):
        optimizer.zero_grad()
        job.backward(model, source, [iteration])
        optimizer.step()
        if job.device.type == "cuda":
            _cuda._sleep(_BUSY_CYCLES)
            side = _cuda.Stream(job.device)
            side.wait_stream(torch.cuda.current_stream(job.device))
            with torch.cuda.stream(side):
                seen.append(torch.stack([p.detach().norm() for p in source.parameters()]))
            side.synchronize()
        else:
            seen.append(torch.stack([p.detach().norm() for p in source.parameters()]))
    return [p.detach().cpu() for p in [*seen, *source.parameters()]]


def host_tensors(job: Job) -> list[Tensor]:
    """Tensors in host memory that travel and go; others take their places, and go to the GPU."""
    seen = []
    for number in range(60):
        size = 700 * (number % 9 + 1)
        sent = torch.full((size,), job.rank + 1.0)
        seen.append(job.sum(sent, f"host.{size}"))
        del sent
        other = torch.randn(size + 300, generator=torch.Generator().manual_seed(number))
        seen.append(other.to(job.device).cpu() - other)
    return seen


@contextlib.contextmanager
def _on_a_busy_gpu(device: torch.device) -> Iterator[None]:
    """Within it another stream is the current one; the default one has work for a while."""
    if device.type != "cuda":
        yield
        return
    handle = nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: _occupy(device) if isinstance(module, Perceptron) else None
    )
    stream = _cuda.Stream(device)
    stream.wait_stream(torch.cuda.default_stream(device))
    with torch.cuda.stream(stream):
        yield
    handle.remove()
    torch.cuda.synchronize(device)


def _occupy(device: torch.device) -> None:
    with torch.cuda.stream(torch.cuda.default_stream(device)):
        _cuda._sleep(_BUSY_CYCLES)


CASES: dict[str, Case] = {
    each.__name__: each
    for each in (
        conv, embedding, fused, foreach, half, bfloat16, autocast, scaler, clipped, accumulated,
        compiled, elsewhere, other_stream, host_tensors,
    )
}  # fmt: skip


def main() -> None:
    """Train every case, write what came out."""
    front, device, names, out = sys.argv[1:]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    job = Job(front, device)
    results = {}
    for name in names.split(","):
        job.case = name
        results[name] = CASES[name](job)
        print(f"{name} done", flush=True)
    Path(out).mkdir(parents=True, exist_ok=True)
    torch.save(results, Path(out) / f"rank-{job.rank}.pt")
    if front.startswith("ddp"):
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
