"""Losses over squares of scores whose diagonal holds the matching pairs, one a group."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def contrastive(scores: Tensor) -> Tensor:
    """Symmetric InfoNCE: each photo against all captions of its group, and the reverse.

    scores: (..., B, B), photos by captions.
    """
    size = scores.shape[-1]
    target = torch.arange(size).expand(scores.shape[:-2] + (size,)).flatten()
    by_photo = functional.cross_entropy(scores.reshape(-1, size), target)
    by_caption = functional.cross_entropy(scores.transpose(-1, -2).reshape(-1, size), target)
    return (by_photo + by_caption) / 2


def hardest_negative_binary(logits: Tensor) -> Tensor:
    """CAMP eq. 14 with the sign that the author confirmed: the positive and the hardest negatives.

    L = -2 log m_ii - min_j log(1 - m_ij) - min_j log(1 - m_ji), a quarter of it, the mean over i.
    logits: (..., B, B), photos by captions.
    """
    size = logits.shape[-1]
    positive = functional.softplus(-logits.diagonal(dim1=-2, dim2=-1))  # -log m
    negative = logits.masked_fill(torch.eye(size, dtype=torch.bool), -torch.inf)
    by_photo = functional.softplus(negative.amax(-1))  # -log(1 - m) of the hardest caption
    by_caption = functional.softplus(negative.amax(-2))
    return (2 * positive + by_photo + by_caption).mean() / 4


def mean_gate_binary(gates: Tensor) -> Tensor:
    """Mean gates of matching pairs to 1, of mismatched pairs to 0; both weigh the same.

    gates: (..., B, B), the mean gate of each pair. The gate of a single region or word stays free.
    """
    size = gates.shape[-1]
    gates = gates.clamp(1e-6, 1 - 1e-6)
    matching = -gates.diagonal(dim1=-2, dim2=-1).log().mean()
    off_diagonal = ~torch.eye(size, dtype=torch.bool)
    mismatched = -torch.log1p(-gates)[..., off_diagonal].mean()
    return (matching + mismatched) / 2
