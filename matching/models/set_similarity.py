"""Similarities of sets of embeddings, as DivE (Kim et al., CVPR 2023) compares them.

All take photos (..., P, K, D) and captions (..., C, M, D) of unit length and give (..., P, C).
matching.similarity has the same for an engine, without torch.
"""

from __future__ import annotations

from torch import Tensor


def member_cosines(photos: Tensor, captions: Tensor) -> Tensor:
    """Every member with every member, in one matrix product: (..., P, K, C, M)."""
    flat = photos.flatten(-3, -2) @ captions.flatten(-3, -2).transpose(-1, -2)
    sizes = photos.shape[-3:-1], captions.shape[-3:-1]
    return flat.unflatten(-1, sizes[1]).unflatten(-3, sizes[0])


def smooth_chamfer(photos: Tensor, captions: Tensor, alpha: float) -> Tensor:
    """Chamfer with a soft maximum: log of the sum, not of the mean, of exp(alpha cos).

    So the score of K times the same member with itself is 1 + log(K) / alpha, while a set of
    members that are far apart scores little more than 1 with itself.
    """
    logits = alpha * member_cosines(photos, captions)
    by_photo = logits.logsumexp(-1).mean(-2)  # of each member of the photo over the caption's
    by_caption = logits.logsumexp(-3).mean(-1)
    return (by_photo + by_caption) / (2 * alpha)


def chamfer(photos: Tensor, captions: Tensor) -> Tensor:
    """Each member with the nearest of the other set; the mean of both directions."""
    cosines = member_cosines(photos, captions)
    return (cosines.amax(-1).mean(-2) + cosines.amax(-3).mean(-1)) / 2


def nearest_members(photos: Tensor, captions: Tensor) -> Tensor:
    """The two nearest members alone: `max`, multiple instance learning (PVSE)."""
    return member_cosines(photos, captions).amax(-1).amax(-2)


def mean_probability(photos: Tensor, captions: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The mean match probability sigmoid(scale cos + shift) of all pairs of members (PCME)."""
    return (scale * member_cosines(photos, captions) + shift).sigmoid().mean(-1).mean(-2)
