"""A Llama-like decoder: RMS norms, rotary positions, grouped queries, gated networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 4096
CONTEXT = 64
WIDTH = 256
HEADS = 8
KEY_HEADS = 2
HIDDEN = 704
DEPTH = 6
_HEAD = WIDTH // HEADS


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Pairs of ``x``, of shape (batch, heads, tokens, head), turned by ``angles`` of each token."""
    even, odd = x[..., 0::2], x[..., 1::2]
    cosine, sine = angles.cos(), angles.sin()
    turned = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1)
    return turned.flatten(-2)


class Attention(nn.Module):
    """Causal self-attention in which several queries share a key and a value."""

    angles: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, KEY_HEADS * _HEAD, bias=False)
        self.value = nn.Linear(WIDTH, KEY_HEADS * _HEAD, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        frequencies = 1e4 ** (-torch.arange(0, _HEAD, 2) / _HEAD)
        angles = torch.outer(torch.arange(CONTEXT), frequencies)
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (batch, tokens, width), as is the result."""
        batch, tokens, _ = x.shape
        query, key, value = (
            layer(x).view(batch, tokens, -1, _HEAD).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        angles = self.angles[:tokens]
        y = functional.scaled_dot_product_attention(
            rotated(query, angles), rotated(key, angles), value, is_causal=True, enable_gqa=True
        )
        result: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return result


class Gated(nn.Module):
    """A network whose hidden layer is multiplied by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (batch, tokens, width), as is the result."""
        result: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """Attention, then the gated network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.RMSNorm(WIDTH)
        self.mlp = Gated()

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (batch, tokens, width), as is the result."""
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class Llama(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of shape (batch, tokens) to logits."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def make() -> nn.Module:
    """The model."""
    return Llama()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: tokens, and the ones that follow them."""
    text = torch.randint(VOCABULARY, (size, CONTEXT + 1), generator=lot)
    return text[:, :-1], text[:, 1:]
