"""From features of a backbone to a model's own space, and norms that padding cannot upset."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Projection(nn.Module):
    """Linear plus a two-layer MLP beside it (VSE-infinity, supplement A.1), each tap normalised.

    The backbone's taps have different scales: each gets a LayerNorm of its own.
    """

    def __init__(self, taps: tuple[int, ...], hidden: int, dimension: int, dropout: float):
        super().__init__()
        self.taps = taps
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in taps)
        self.linear = nn.Linear(sum(taps), dimension)
        self.widen = nn.Linear(sum(taps), hidden)
        self.narrow = nn.Linear(hidden, dimension)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """(..., sum of taps) -> (..., dimension)."""
        parts = zip(self.norms, features.split(self.taps, dim=-1), strict=True)
        normed = torch.cat([norm(part) for norm, part in parts], dim=-1)
        beside = self.narrow(self.dropout(torch.relu(self.widen(normed))))
        return self.linear(normed) + beside


def l2_normalised(x: Tensor) -> Tensor:
    """Unit length along the last axis; a zero vector stays zero."""
    return x / (x.square().sum(-1, keepdim=True) + 1e-12).sqrt()
