"""A BERT-like encoder: post-norm blocks, and a head that shares the embedding's weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 6144
CONTEXT = 64
WIDTH = 256
HEADS = 4
DEPTH = 6
HIDDEN_SHARE = 0.15
"""The share of tokens that are hidden, and to be found."""
_IGNORED = -100  # the class that cross_entropy leaves out


class BERT(nn.Module):
    """Finds hidden tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True
            )
            for _ in range(DEPTH)
        )
        self.transform = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of shape (batch, tokens) to logits."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.positions(places))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.transform(x))
        return logits


def make() -> nn.Module:
    """The model."""
    return BERT()


def draw(size: int, lot: torch.Generator) -> tuple[Tensor, ...]:
    """A random batch: tokens of which some are hidden, and what those are."""
    text = torch.randint(1, VOCABULARY, (size, CONTEXT), generator=lot)
    hidden = torch.rand(size, CONTEXT, generator=lot) < HIDDEN_SHARE
    return text.masked_fill(hidden, 0), text.masked_fill(~hidden, _IGNORED)
