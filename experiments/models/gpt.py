"""A GPT-like decoder: pre-norm blocks with causal attention, learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 4096
CONTEXT = 64
WIDTH = 256
HEADS = 4
DEPTH = 6


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (batch, tokens, width), as is the result."""
        batch, tokens, _ = x.shape
        query, key, value = (
            part.view(batch, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return result


class Block(nn.Module):
    """Attention, then a network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Of shape (batch, tokens, width), as is the result."""
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class GPT(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of shape (batch, tokens) to logits."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def make() -> nn.Module:
    """The model."""
    return GPT()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: tokens, and the ones that follow them."""
    text = torch.randint(VOCABULARY, (size, CONTEXT + 1), generator=lot)
    return text[:, :-1], text[:, 1:]
