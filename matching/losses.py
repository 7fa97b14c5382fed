"""Losses over the scores of all photos with all captions of a group; groups are averaged.

A square (..., B, B) holds the matching pairs on its diagonal. Where a photo has k captions, scores
are (..., B, B k) and the captions of photo i are the columns i k to i k + k - 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from matching.config import one_of

_REDUCTIONS = ("sum", "mean")


def contrastive(scores: Tensor) -> Tensor:
    """Symmetric InfoNCE: each photo against all captions of its group, and the reverse.

    scores: (..., B, B), photos by captions.
    """
    size = scores.shape[-1]
    target = torch.arange(size).expand(scores.shape[:-2] + (size,)).flatten()
    by_photo = functional.cross_entropy(scores.reshape(-1, size), target)
    by_caption = functional.cross_entropy(scores.transpose(-1, -2).reshape(-1, size), target)
    return (by_photo + by_caption) / 2


def ranking(
    scores: Tensor,
    margin: float,
    hardest: bool = True,
    reduction: str = "sum",
    captions_a_photo: int = 1,
) -> Tensor:
    """Hinge in both directions (VSE++ eq. 5 and 6): max(0, margin - positive + negative).

    scores: (..., B, B k), photos by captions, k = captions_a_photo. Every matching pair is an
    anchor twice: its photo against the captions of other photos, its caption against other photos.
    Of an anchor's negatives the hardest counts, else their sum (`sum`) or mean (`mean`). Over the
    anchors of a direction it is the sum (VSE++, SCAN, VSE-infinity) or the mean (DivE).
    """
    one_of("reduction of the ranking loss", reduction, _REDUCTIONS)
    photos, captions = scores.shape[-2:]
    if captions != photos * captions_a_photo:
        raise ValueError(
            f"scores are {photos} photos by {captions} captions: with captions_a_photo "
            f"{captions_a_photo} there must be {photos * captions_a_photo} captions",
        )
    owner = torch.arange(captions) // captions_a_photo
    negative = torch.arange(photos)[:, None] != owner  # (B, B k)
    positive = scores[..., owner, torch.arange(captions)]  # (..., B k)
    against_captions = scores[..., owner, :]  # (..., B k, B k): row of each pair's photo
    against_photos = scores.transpose(-1, -2)  # (..., B k, B)
    total = scores.new_zeros(())
    for others, others_mask in ((against_captions, negative[owner]), (against_photos, negative.T)):
        hinge = functional.relu(margin + others - positive[..., None]) * others_mask
        if hardest:
            per_anchor = hinge.amax(-1)
        else:
            per_anchor = hinge.sum(-1)
            if reduction == "mean":
                per_anchor = per_anchor / others_mask.sum(-1).clamp_min(1)
        per_group = per_anchor.sum(-1) if reduction == "sum" else per_anchor.mean(-1)
        total = total + per_group.mean()
    return total


def hinge_has_collapsed(value: float, margin: float, size: int, reduction: str) -> bool:
    """Whether the hinge with the hardest negative sits where all scores are the same.

    Then each of the `size` matching pairs of a group costs the margin twice: 2 size margin for
    `sum` (the 51.2 of 128 pairs that users of VSE++ report), 2 margin for `mean`, within 0.5 %.
    """
    one_of("reduction of the ranking loss", reduction, _REDUCTIONS)
    stuck = 2 * margin * (size if reduction == "sum" else 1)
    return abs(value - stuck) <= 0.005 * stuck


def binary(logits: Tensor, hardest: bool = True, reduction: str = "mean") -> Tensor:
    """CAMP eq. 14 with the sign that the author confirmed; m is the sigmoid of the logit.

    L_i = -2 log m_ii - log(1 - m_ij) - log(1 - m_ji) with the hardest negatives j, or without them
    the mean over all negatives of each direction: positives and negatives weigh the same.
    `sum`: over i, as the authors train. `mean`: over all four terms of all i.
    logits: (..., B, B), photos by captions. Nothing is clamped, so every pair has a gradient.
    """
    one_of("reduction of the binary loss", reduction, _REDUCTIONS)
    size = logits.shape[-1]
    positive = functional.softplus(-logits.diagonal(dim1=-2, dim2=-1))  # -log m
    matching = torch.eye(size, dtype=torch.bool)
    if hardest:
        negative = logits.masked_fill(matching, -torch.inf)
        by_photo = functional.softplus(negative.amax(-1))  # -log(1 - m) of the hardest caption
        by_caption = functional.softplus(negative.amax(-2))
    else:
        negative = functional.softplus(logits) * ~matching
        by_photo, by_caption = (negative.sum(axis) / max(size - 1, 1) for axis in (-1, -2))
    per_pair = 2 * positive + by_photo + by_caption  # (..., B)
    return per_pair.sum(-1).mean() if reduction == "sum" else per_pair.mean() / 4


def mean_gate_binary(
    gates: Tensor,
    positive: float = 1.0,
    easy: Tensor | None = None,
    hard: float = 1.0,
) -> Tensor:
    """Mean gates of matching pairs to 1, of mismatched pairs to 0, in the ratio positive : 1.

    gates: (..., B, B), the mean gate of each pair. The gate of a single region or word stays free.
    easy (n,): of mismatched pairs from different groups; those of the same group then count by
    `hard`, these by the rest.
    """
    size = gates.shape[-1]
    gates = gates.clamp(1e-6, 1 - 1e-6)
    matching = -gates.diagonal(dim1=-2, dim2=-1).log().mean()
    off_diagonal = ~torch.eye(size, dtype=torch.bool)
    mismatched = -torch.log1p(-gates)[..., off_diagonal].mean()
    if easy is not None:
        rest = -torch.log1p(-easy.clamp(max=1 - 1e-6)).mean()
        mismatched = hard * mismatched + (1 - hard) * rest
    return (positive * matching + mismatched) / (positive + 1)


def swapped(true: Tensor, wrong: Tensor, wrong_gates: Tensor | None) -> Tensor:
    """A caption above its version with one wrong word, that one a mismatch, its gate closed.

    true, wrong: logits (n,); wrong_gates (n,): of the wrong word. None: the system has no gates.
    """
    loss = functional.softplus(wrong - true).mean() + 0.5 * functional.softplus(wrong).mean()
    if wrong_gates is not None:
        loss = loss - 0.5 * torch.log1p(-wrong_gates.clamp(max=1 - 1e-6)).mean()
    return loss


def agreement(scores: Tensor, log_probabilities: Tensor) -> Tensor:
    """Scores as sure of each class as a classifier is, in both directions.

    By photo: which of the classes it shows. By class: which of the photos show it, p(photo | class)
    being p(class | photo) shared out among the photos; a class that no photo shows counts little.
    scores: (..., photos, classes), on the scale of logits; log_probabilities, of the same shape:
    of each class in a photo.
    """
    by_photo = (log_probabilities.softmax(-1) * -scores.log_softmax(-1)).sum(-1)
    by_class = (log_probabilities.softmax(-2) * -scores.log_softmax(-2)).sum(-2)
    shown = log_probabilities.exp().sum(-2).clamp(max=1)
    return (by_photo.mean() + (shown * by_class).sum() / shown.sum().clamp_min(1e-6)) / 2
