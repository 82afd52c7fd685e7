"""Eight small models of different kinds, each with named blocks, for ``memory.py``.

Each has the structure of its namesake, with fewer and narrower layers, so that an iteration on one
core takes a fraction of a second and a peak of 50 to 400 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn


@dataclass(frozen=True)
class Subject:
    """A model, one batch, the loss of both, and the names of the model's blocks."""

    model: nn.Module
    batch: Any
    loss_of: Callable[[nn.Module, Any], Tensor]
    blocks: tuple[str, ...]


def _blocks(model: nn.Module) -> tuple[str, ...]:
    return tuple(f"blocks.{place}" for place in range(len(model.get_submodule("blocks")._modules)))


class _Chain(nn.Module):
    """A stem, blocks, and a head."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.ModuleList(blocks), head

    def forward(self, values: Tensor) -> Tensor:
        values = self.stem(values)
        for block in self.blocks:
            values = block(values)
        out: Tensor = self.head(values)
        return out


def _class_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return fn.cross_entropy(model(batch[0]), batch[1])


def _token_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return fn.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def _images(count: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, size, size), torch.randint(100, (count,))


def _tokens(count: int, length: int, words: int) -> tuple[Tensor, Tensor]:
    return torch.randint(words, (count, length)), torch.randint(words, (count, length))


def _conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _conv(inputs, width, 1)
        self.second = _conv(width, width, 3, stride)
        self.third = _conv(width, 4 * width, 1)
        same = stride == 1 and inputs == 4 * width
        self.aside = nn.Identity() if same else _conv(inputs, 4 * width, 1, stride)

    def forward(self, values: Tensor) -> Tensor:
        out = fn.relu(self.first(values), inplace=True)
        out = fn.relu(self.second(out), inplace=True)
        out = self.third(out)
        out += self.aside(values)
        return fn.relu(out, inplace=True)


def resnet(batch: int) -> Subject:
    """Ten bottleneck blocks in four stages."""
    blocks: list[nn.Module] = []
    inputs = 32
    for stage, count in enumerate((2, 3, 3, 2)):
        for place in range(count):
            width = 24 << stage
            blocks.append(_Bottleneck(inputs, width, 2 if stage and not place else 1))
            inputs = 4 * width
    stem = nn.Sequential(_conv(3, 32, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 100))
    model = _Chain(stem, blocks, head)
    return Subject(model, _images(batch, 96), _class_loss, _blocks(model))


class _Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        middle = 6 * inputs
        self.body = nn.Sequential(
            _conv(inputs, middle, 1),
            nn.ReLU6(inplace=True),
            _conv(middle, middle, 3, stride, middle),
            nn.ReLU6(inplace=True),
            _conv(middle, outputs, 1),
        )
        self.skips = stride == 1 and inputs == outputs

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.body(values)
        return values + out if self.skips else out


def mobilenet(batch: int) -> Subject:
    """Eight inverted residual blocks."""
    shapes = ((16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1),
              (64, 96, 1), (96, 96, 1))  # fmt: skip
    blocks: list[nn.Module] = [_Inverted(*shape) for shape in shapes]
    stem = nn.Sequential(_conv(3, 16, 3, 2), nn.ReLU6(inplace=True))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(96, 100))
    model = _Chain(stem, blocks, head)
    return Subject(model, _images(batch, 96), _class_loss, _blocks(model))


def vgg(batch: int) -> Subject:
    """Five groups of convolutions, of which the first is the stem, and linear layers."""
    blocks: list[nn.Module] = []
    inputs = 3
    for width, count in ((32, 1), (64, 1), (128, 2), (256, 2), (256, 2)):
        layers: list[nn.Module] = []
        for _ in range(count):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU(inplace=True)]
            inputs = width
        blocks.append(nn.Sequential(*layers, nn.MaxPool2d(2)))
    head = nn.Sequential(
        nn.Flatten(), nn.Linear(256 * 9, 256), nn.ReLU(True), nn.Dropout(), nn.Linear(256, 100)
    )
    model = _Chain(blocks[0], blocks[1:], head)
    return Subject(model, _images(batch, 96), _class_loss, _blocks(model))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, groups: int, rotary: bool) -> None:
        super().__init__()
        self.heads, self.groups, self.causal, self.rotary = heads, groups, causal, rotary
        size = width // heads
        self.query = nn.Linear(width, width, bias=not rotary)
        self.key = nn.Linear(width, size * groups, bias=not rotary)
        self.value = nn.Linear(width, size * groups, bias=not rotary)
        self.out = nn.Linear(width, width, bias=not rotary)

    def forward(self, values: Tensor) -> Tensor:
        query, key, value = (
            layer(values).unflatten(-1, (count, -1)).transpose(1, 2)
            for layer, count in ((self.query, self.heads), (self.key, self.groups),
                                 (self.value, self.groups))
        )  # fmt: skip
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        if self.groups != self.heads:
            key, value = (
                each.repeat_interleave(self.heads // self.groups, 1) for each in (key, value)
            )
        out = fn.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        result: Tensor = self.out(out.transpose(1, 2).flatten(2))
        return result


def _rotated(values: Tensor) -> Tensor:
    length, size = values.shape[-2:]
    turns = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
    cosine, sine = turns.cos().to(values.dtype), turns.sin().to(values.dtype)
    left, right = values.chunk(2, -1)
    turned: Tensor = torch.cat((left * cosine - right * sine, left * sine + right * cosine), -1)
    return turned


class _Block(nn.Module):
    """A transformer block; ``post`` normalises after the sum, as BERT does."""

    def __init__(self, width: int, heads: int, causal: bool, post: bool, dropout: float) -> None:
        super().__init__()
        self.attention = _Attention(width, heads, causal, heads, False)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)
        self.post = post

    def forward(self, values: Tensor) -> Tensor:
        if self.post:
            values = self.first(values + self.dropout(self.attention(values)))
            result: Tensor = self.second(values + self.dropout(self.body(values)))
            return result
        values = values + self.dropout(self.attention(self.first(values)))
        out: Tensor = values + self.dropout(self.body(self.second(values)))
        return out


class _Llama(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = _Attention(width, heads, True, heads // 2, True)
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        values = values + self.attention(self.first(values))
        inside = self.second(values)
        result: Tensor = values + self.down(fn.silu(self.gate(inside)) * self.up(inside))
        return result


class _Embedding(nn.Module):
    def __init__(self, words: int, length: int, width: int, dropout: float) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.dropout(
            self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        )
        return result


def gpt(batch: int) -> Subject:
    """Eight blocks; the output layer is tied to the embedding."""
    embedding = _Embedding(4000, 128, 256, 0.1)
    last = nn.Linear(256, 4000, bias=False)
    last.weight = embedding.words.weight
    blocks: list[nn.Module] = [_Block(256, 4, True, False, 0.1) for _ in range(8)]
    model = _Chain(embedding, blocks, nn.Sequential(nn.LayerNorm(256), last))
    return Subject(model, _tokens(batch, 128, 4000), _token_loss, _blocks(model))


def llama(batch: int) -> Subject:
    """Eight blocks with grouped queries, rotary embeddings and gated layers."""
    blocks: list[nn.Module] = [_Llama(256, 4) for _ in range(8)]
    head = nn.Sequential(nn.RMSNorm(256), nn.Linear(256, 4000, bias=False))
    model = _Chain(nn.Embedding(4000, 256), blocks, head)
    return Subject(model, _tokens(batch, 128, 4000), _token_loss, _blocks(model))


def bert(batch: int) -> Subject:
    """Six blocks that normalise after each sum."""
    blocks: list[nn.Module] = [_Block(256, 4, False, True, 0.1) for _ in range(6)]
    head = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 6000))
    model = _Chain(_Embedding(6000, 128, 256, 0.1), blocks, head)
    return Subject(model, _tokens(batch, 128, 6000), _token_loss, _blocks(model))


class _Patches(nn.Module):
    def __init__(self, width: int, size: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        token = self.token.expand(len(images), -1, -1)
        result: Tensor = torch.cat((token, patches), 1) + self.places
        return result


class _First(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        first: Tensor = values[:, 0]
        return first


def vit(batch: int) -> Subject:
    """Eight blocks over patches of images."""
    blocks: list[nn.Module] = [_Block(192, 3, False, False, 0.0) for _ in range(8)]
    head = nn.Sequential(nn.LayerNorm(192), _First(), nn.Linear(192, 100))
    model = _Chain(_Patches(192, 96, 8), blocks, head)
    return Subject(model, _images(batch, 96), _class_loss, _blocks(model))


class _Dlrm(nn.Module):
    """Dense features and embedding tables that interact."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)
        )
        pairs = (tables + 1) * tables // 2 + width
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(inputs, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                nn.Linear(512, 512), nn.ReLU(),
            )
            for inputs in (pairs, 512, 512, 512)
        )  # fmt: skip
        self.last = nn.Linear(512, 1)

    def forward(self, features: tuple[Tensor, Tensor]) -> Tensor:
        dense, rows = features
        dense = self.bottom(dense)
        found = [table(rows[:, place]) for place, table in enumerate(self.tables)]
        stacked = torch.stack((dense, *found), 1)
        products = stacked @ stacked.transpose(1, 2)
        left, right = torch.tril_indices(products.shape[1], products.shape[1], -1)
        values = torch.cat((dense, products[:, left, right]), 1)
        for block in self.blocks:
            values = block(values)
        result: Tensor = self.last(values).squeeze(1)
        return result


def _click_loss(model: nn.Module, batch: tuple[tuple[Tensor, Tensor], Tensor]) -> Tensor:
    return fn.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


def dlrm(batch: int) -> Subject:
    """Eight tables, and four blocks of three linear layers."""
    model = _Dlrm(8, 3000, 32)
    count = 512 * batch
    features = torch.randn(count, 13), torch.randint(3000, (count, 8))
    return Subject(model, (features, torch.rand(count)), _click_loss, _blocks(model))


MODELS: dict[str, Callable[[int], Subject]] = {
    "resnet": resnet,
    "mobilenet": mobilenet,
    "vgg": vgg,
    "gpt": gpt,
    "llama": llama,
    "bert": bert,
    "vit": vit,
    "dlrm": dlrm,
}
"""By name; each takes the number of samples in a batch."""
