"""The set prediction module of DivE (Kim et al., CVPR 2023): slots compete for inputs.

Learnable slots gather the inputs in several iterations that share their weights. In each, every
input is divided among the slots (softmax over the slots), and a slot moves by the mean of its
share: a residual where slot attention has a GRU. A global feature is added at the end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from matching.config import DiveConfig
from matching.models.projection import l2_normalised

_LEAST_SHARE = 1e-7  # authors' code: keeps the mean over no inputs finite
_MASKED = -1e9


class PredictedSet(NamedTuple):
    """K embeddings of each photo or caption."""

    embeddings: Tensor  # (B, K, D), unit length
    slots: Tensor  # (B, K, D), unit length: before the global feature was added
    attention: Tensor  # (B, iterations, heads, K, N): weights of the inputs, sum 1 in each slot


class SetPrediction(nn.Module):
    """Sets of inputs, N of them, to sets of K embeddings."""

    def __init__(self, config: DiveConfig, context_width: int, positions: bool) -> None:
        """positions: whether the order of the inputs counts (words), or not (regions)."""
        super().__init__()
        self.iterations, self.compat = config.iterations, config.compat
        self.slots = nn.Parameter(torch.randn(config.slots, config.dimension))
        self.slot_norm = nn.LayerNorm(config.dimension)
        self.context_norm = nn.LayerNorm(context_width)
        self.positions = SinePositions(context_width, config.compat) if positions else None
        self.attention = SlotAttention(config, context_width)
        self.feed_forward_norm = nn.LayerNorm(config.dimension)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.dimension, config.feed_forward),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feed_forward, config.dimension),
        )
        self.output_norm = nn.LayerNorm(config.dimension)
        self.global_norm = nn.LayerNorm(config.dimension)

    def forward(
        self,
        context: Tensor,
        global_feature: Tensor,
        mask: Tensor | None = None,
    ) -> PredictedSet:
        """context (B, N, C), global_feature (B, D), mask (B, N) bool, true ones first."""
        context = self.context_norm(context)
        keyed = context if self.positions is None else context + self.positions(context, mask)
        # The same in every iteration, as the weights are shared.
        keys, values = self.attention.keys_and_values(keyed, context)
        slots = self.slots.expand(context.shape[0], -1, -1)
        maps = []
        for _ in range(self.iterations):
            moved, weights = self.attention(self.slot_norm(slots), keys, values, mask)
            slots = slots + moved
            slots = slots + self.feed_forward(self.feed_forward_norm(slots))
            maps.append(weights)
        slots = self.output_norm(slots)
        embeddings = l2_normalised(self.global_norm(global_feature)[:, None] + slots)
        return PredictedSet(embeddings, l2_normalised(slots), torch.stack(maps, dim=1))


class SlotAttention(nn.Module):
    """Multi-head attention whose softmax is over the slots: inputs choose slots."""

    def __init__(self, config: DiveConfig, context_width: int) -> None:
        super().__init__()
        self.heads, self.head_dimension = config.heads, config.head_dimension
        self.compat = config.compat
        inner = config.heads * config.head_dimension
        self.query = nn.Linear(config.dimension, inner, bias=False)
        self.key = nn.Linear(context_width, inner, bias=False)
        self.value = nn.Linear(context_width, inner, bias=False)
        self.output = nn.Linear(inner, config.dimension)
        self.dropout = nn.Dropout(config.dropout)

    def keys_and_values(self, keyed: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """The context with and without positions (B, N, C) -> twice (B, heads, N, head)."""
        return self._split(self.key(keyed)), self._split(self.value(context))

    def forward(
        self,
        slots: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """slots (B, K, D) -> what moves them (B, K, D), weights (B, heads, K, N)."""
        query = self._split(self.query(slots))
        logits = query @ keys.transpose(-1, -2) * self.head_dimension**-0.5  # (B, heads, K, N)
        if mask is not None and self.compat:
            # The authors' way hides nothing: all slots get the same, 1/K, of a padded input.
            logits = logits.masked_fill(~mask[:, None, None, :], _MASKED)
        share = logits.softmax(dim=-2)
        if mask is not None and not self.compat:
            share = share * mask[:, None, None, :]
        weights = share / (share.sum(-1, keepdim=True) + _LEAST_SHARE)
        gathered = (weights @ values).transpose(1, 2).flatten(2)  # (B, K, inner)
        return self.dropout(self.output(gathered)), weights

    def _split(self, x: Tensor) -> Tensor:
        """(B, S, inner) -> (B, heads, S, head)."""
        return x.unflatten(-1, (self.heads, self.head_dimension)).transpose(1, 2)


class SinePositions(nn.Module):
    """Sine and cosine of the place in the caption, from 0 to 2 pi whatever its length.

    The length is that of the caption; in `compat` it is that of the padded batch.
    """

    def __init__(self, width: int, compat: bool) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sine positions need an even width, got {width}: change dimension")
        self.compat = compat
        rates = 10000.0 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, context: Tensor, mask: Tensor | None) -> Tensor:
        """context (B, N, C), mask (B, N) -> (B, N, C), or (1, N, C) without a mask."""
        size = context.shape[1]
        places = torch.arange(1, size + 1, device=context.device).to(context.dtype)[None]  # (1, N)
        if mask is None or self.compat:
            lengths = places[:, -1:]
        else:
            lengths = mask.sum(1, keepdim=True).to(context.dtype)  # (B, 1)
        angles = 2 * math.pi * places / (lengths + 1e-6)  # the authors' constant
        angles = angles[..., None] * self.rates  # (B, N, C / 2)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(2)
