"""GPT and Llama in PyTorch, of the shapes that the simulator's built-in families have.

Linear layers of queries, keys and values are one, ordered by heads. Those of a gate and what it
gates are one, too, in blocks of both in turn. So a tensor-parallel rank has whole heads and gates.
What follows a linear layer whose rows may be partial sums has its bias. Parameters are the same for
a path in every strategy.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from byteprophet.simulate.models.transformer_config import TransformerConfig

Gather = Callable[[Tensor], Tensor]
"""Gathers keys or values of all context-parallel ranks, along the sequence."""
_MOST_RANKS = 4
"""That share an MLP with a gate."""


class Embedding(nn.Module):
    """Tokens, and positions from ``first`` on if the model has learned ones."""

    def __init__(self, config: TransformerConfig) -> None:
        """Make the parameters."""
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.positions = (
            nn.Parameter(torch.randn(config.positions, config.hidden)) if config.positions else None
        )
        self.first = 0

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states, (batch, sequence, hidden), of tokens, (batch, sequence)."""
        hidden: Tensor = self.tokens(tokens)
        if self.positions is None:
            return hidden
        return hidden + self.positions[self.first : self.first + tokens.shape[1]]


class Attention(nn.Module):
    """Causal attention on the heads that this rank has."""

    def __init__(self, config: TransformerConfig) -> None:
        """Make the parameters."""
        super().__init__()
        self._width = config.width
        self._rotary = not config.positions
        self.qkv = nn.Linear(config.hidden, 3 * config.heads * config.width, bias=config.bias)
        self.output = nn.Linear(config.heads * config.width, config.hidden, bias=False)
        self.first = 0
        self.gather: Gather | None = None

    def forward(self, normed: Tensor) -> Tensor:
        """The attended values, (batch, sequence, hidden)."""
        # Gradients are put together as they lie in memory, so that they are copied once.
        heads = self.qkv(normed).unflatten(-1, (-1, 3 * self._width)).split(self._width, -1)
        query, key, value = (each.transpose(1, 2) for each in heads)
        if self._rotary:
            query, key = self._turned(query), self._turned(key)
        mask = None
        if self.gather is not None:
            own = query.shape[2]
            key, value = self.gather(key), self.gather(value)
            mask = _causal(self.first, own, key.shape[2])
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        attended: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return attended

    def _turned(self, heads: Tensor) -> Tensor:
        """Rotary positions."""
        half = self._width // 2
        places = torch.arange(self.first, self.first + heads.shape[2], dtype=heads.dtype)
        angles = places[:, None] * 10_000.0 ** (-torch.arange(half, dtype=heads.dtype) / half)
        sine, cosine = angles.sin().repeat(1, 2), angles.cos().repeat(1, 2)
        left, right = heads[..., :half], heads[..., half:]
        return heads * cosine + torch.cat((-right, left), -1) * sine


def _causal(first: int, own: int, keys: int) -> Tensor:
    """Which keys each of ``own`` queries may see; the first query is at place ``first``."""
    return torch.arange(keys) <= torch.arange(first, first + own)[:, None]


class Mlp(nn.Module):
    """An MLP, with a gate if the configuration has one."""

    def __init__(self, config: TransformerConfig) -> None:
        """Make the parameters."""
        super().__init__()
        self._gated = config.gated
        self._block = config.inner // _MOST_RANKS
        rows = (2 if config.gated else 1) * config.inner
        self.up = nn.Linear(config.hidden, rows, bias=config.bias)
        self.down = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(self, normed: Tensor) -> Tensor:
        """The transformed hidden state."""
        wide = self.up(normed)
        if self._gated:
            gate, gated = wide.unflatten(-1, (-1, 2, self._block)).unbind(-2)
            active = (functional.silu(gate) * gated).flatten(-2)
        else:
            active = functional.gelu(wide)
        out: Tensor = self.down(active)
        return out


def _norm(config: TransformerConfig) -> nn.Module:
    return nn.LayerNorm(config.hidden) if config.bias else nn.RMSNorm(config.hidden)


class Layer(nn.Module):
    """A transformer layer. ``recompute``: the forward pass runs again in the backward pass."""

    def __init__(self, config: TransformerConfig) -> None:
        """Make the parameters."""
        super().__init__()
        self.norm1, self.norm2 = _norm(config), _norm(config)
        self.attention, self.mlp = Attention(config), Mlp(config)
        biases = (
            nn.Parameter(torch.zeros(config.hidden)) if config.bias else None for _ in range(2)
        )
        self.bias1, self.bias2 = biases
        self.recompute = False

    def forward(self, hidden: Tensor) -> Tensor:
        """The hidden state after the layer."""
        if not self.recompute:
            return self._run(hidden)
        # The whole pass runs again, as in Megatron-LM: PyTorch's own default stops earlier.
        made: Tensor = checkpoint(self._run, hidden, use_reentrant=False, early_stop=False)
        return made

    def _run(self, hidden: Tensor) -> Tensor:
        attended = self.attention(self.norm1(hidden))
        hidden = hidden + (attended if self.bias1 is None else attended + self.bias1)
        made: Tensor = self.mlp(self.norm2(hidden))
        return hidden + (made if self.bias2 is None else made + self.bias2)


class Head(nn.Module):
    """The last norm, and logits."""

    def __init__(self, config: TransformerConfig) -> None:
        """Make the parameters."""
        super().__init__()
        self.norm = _norm(config)
        self.logits = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """The logits, (batch, sequence, vocabulary)."""
        logits: Tensor = self.logits(self.norm(hidden))
        return logits


class Stage(nn.Module):
    """The blocks of a model that run on one pipeline stage, by their paths in the simulator."""

    def __init__(self, config: TransformerConfig, paths: Sequence[str]) -> None:
        """Make the blocks, with the parameters that these paths have in every strategy."""
        super().__init__()
        self.blocks = nn.ModuleDict()
        for path in paths:
            torch.manual_seed(zlib.crc32(path.encode()))
            kind = {"embedding": Embedding, "head": Head}.get(path, Layer)
            self.blocks[path.replace(".", "_")] = kind(config)

    def forward(self, given: Tensor) -> Tensor:
        """What the last block makes of tokens, or of the previous stage's hidden state."""
        for block in self.blocks.values():
            given = block(given)
        return given


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy of a micro-batch on this rank."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
