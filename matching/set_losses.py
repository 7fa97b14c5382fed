"""The two terms that DivE adds to its ranking loss, each with weight 0.01 in the authors' code."""

from __future__ import annotations

import torch
from torch import Tensor

from matching.models.projection import l2_normalised

_KERNEL_RATE = 0.5  # of MMD, authors' code
_DIVERSITY_RATE = 2.0


def mmd(photos: Tensor, captions: Tensor) -> Tensor:
    """Maximum mean discrepancy of the members of all photos and all captions.

    The authors' kernel is exp(-||x - y|| / 2), of the distance, not of its square. Their sets are
    flattened: every member is a sample.

    photos (..., K, D), captions (..., K, D) -> a number.
    """
    photos, captions = photos.flatten(0, -2), captions.flatten(0, -2)
    across = _mean_kernel(photos, captions)
    return _mean_kernel(photos, photos) - 2 * across + _mean_kernel(captions, captions)


def diversity(slots: Tensor) -> Tensor:
    """Mean of exp(-2 ||zi - zj||^2) over the pairs i < j of a set: 1 if all are the same.

    slots (..., K, D), before the global feature is added -> a number; 0 for sets of one.
    """
    size = slots.shape[-2]
    if size == 1:
        return slots.new_zeros(())
    unit = l2_normalised(slots)
    first, second = torch.triu_indices(size, size, offset=1, device=slots.device)
    distances = 2 - 2 * (unit[..., first, :] * unit[..., second, :]).sum(-1)  # squared
    return torch.exp(-_DIVERSITY_RATE * distances).mean()


def _mean_kernel(first: Tensor, second: Tensor) -> Tensor:
    return torch.exp(-_KERNEL_RATE * torch.cdist(first, second)).mean()
