"""The models of ``results/gpu-h200/allocator.csv``, written down from what was recorded of them.

The script that measured them is not kept. These give its numbers of parameters, and the sizes and
the order of the allocations in its two recorded histories.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from byteprophet.memory.training import Training

GPT_WORDS, BERT_WORDS, CLASSES = 50_257, 30_522, 1000


class _Block(nn.Module):
    """A transformer block that normalises before each part, or after each sum (``is_post``)."""

    def __init__(self, width: int, heads: int, dropout: float, is_causal: bool, is_post: bool):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )
        self.dropout = nn.Dropout(dropout)
        self.heads, self.is_causal, self.is_post = heads, is_causal, is_post

    def attention(self, values: Tensor) -> Tensor:
        """Attention of the values to each other."""
        count, length, width = values.shape
        parts = self.queries_keys_values(values).view(
            count, length, 3, self.heads, width // self.heads
        )
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = fn.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout.p, is_causal=self.is_causal
        )
        result: Tensor = self.dropout(
            self.projection(found.transpose(1, 2).reshape(count, length, width))
        )
        return result

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor
        if self.is_post:
            values = self.first(values + self.attention(values))
            result = self.second(values + self.body(values))
        else:
            values = values + self.attention(self.first(values))
            result = values + self.body(self.second(values))
        return result


class _Embedding(nn.Module):
    def __init__(self, words: int, length: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return result


class Gpt(nn.Module):
    """GPT-2 small; the output layer is tied to the embedding."""

    def __init__(self, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.embedding = _Embedding(GPT_WORDS, 1024, width)
        self.blocks = nn.ModuleList(
            _Block(width, heads, 0.1, is_causal=True, is_post=False) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, GPT_WORDS, bias=False)
        self.head.weight = self.embedding.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of words, for tokens (batch, length)."""
        values = self.embedding(tokens)
        for block in self.blocks:
            values = block(values)
        result: Tensor = self.head(self.norm(values))
        return result


class Bert(nn.Module):
    """BERT-base without types of tokens; predicts words, by a layer tied to the embedding."""

    def __init__(self, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.embedding = _Embedding(BERT_WORDS, 512, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            _Block(width, heads, 0.1, is_causal=False, is_post=True) for _ in range(layers)
        )
        self.last, self.last_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, BERT_WORDS)
        self.head.weight = self.embedding.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of words, for tokens (batch, length)."""
        values = self.norm(self.embedding(tokens))
        for block in self.blocks:
            values = block(values)
        result: Tensor = self.head(self.last_norm(fn.gelu(self.last(values))))
        return result


class _Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, values: Tensor) -> Tensor:
        before = values
        out = self.conv1(values)
        out = self.norm1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.norm2(out)
        out = self.relu(out)
        out = self.conv3(out)
        out = self.norm3(out)
        if self.shortcut is not None:
            before = self.shortcut(values)
        out = out + before
        result: Tensor = self.relu(out)
        return result


class ResNet50(nn.Module):
    """ResNet-50."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(3, 2, 1)
        inputs, layers = 64, []
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            blocks = []
            for place in range(count):
                blocks.append(_Bottleneck(inputs, width, 1 if place else stride))
                inputs = 4 * width
            layers.append(nn.Sequential(*blocks))
        self.layers = nn.ModuleList(layers)
        self.mean, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of classes, for images (batch, 3, side, side)."""
        values = self.pool(self.relu(self.norm(self.conv(images))))
        for layer in self.layers:
            values = layer(values)
        result: Tensor = self.head(torch.flatten(self.mean(values), 1))
        return result


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(batch[0])
    return fn.cross_entropy(logits.view(-1, logits.shape[-1]), batch[1].view(-1))


_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "sgd-plain": functools.partial(torch.optim.SGD, lr=0.1),
    "adamw": torch.optim.AdamW,
    "adamw-fused": functools.partial(torch.optim.AdamW, fused=True),
}
_MODELS: dict[str, Callable[[], nn.Module]] = {"resnet50": ResNet50, "gpt2": Gpt, "bert": Bert}


@dataclass(frozen=True)
class Configuration:
    """A row of ``allocator.csv``. ``size``: the images' side, or the length of sequences."""

    model: str
    batch: int
    size: int
    optimizer: str
    precision: str

    def training(self) -> Training:
        """The iteration that was measured, without data."""
        with torch.device("meta"):
            model = _MODELS[self.model]()
            inputs, targets = self._batch()
        if self.precision.endswith("channels-last"):
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs = inputs.to(memory_format=torch.channels_last)
        autocast = torch.bfloat16 if self.precision.startswith("bf16") else None
        optimizer = _OPTIMIZERS[self.optimizer]
        return Training(model, [(inputs, targets)], _loss, optimizer, autocast, "cuda")

    def _batch(self) -> tuple[Tensor, Tensor]:
        if self.model == "resnet50":
            images = torch.empty(self.batch, 3, self.size, self.size)
            return images, torch.empty(self.batch, dtype=torch.long)
        tokens = torch.empty(self.batch, self.size, dtype=torch.long)
        return tokens, torch.empty_like(tokens)
