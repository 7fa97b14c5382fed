"""SCAN (Lee et al., ECCV 2018): stacked cross-attention, text to image (t2i) or back (i2t).

t2i: words are the queries q_j and regions the context c_i; i2t: the reverse. All have unit length.

    affinity   s_ij = LeakyReLU(c_i . q_j), then of unit length over the queries j
    attention  a_ij = softmax_i(lambda s_ij)
    attended   m_j  = sum_i a_ij c_i
    relevance  r_j  = cos(q_j, m_j)
    score      log(sum_j exp(l r_j)) / l, or the mean over j

The authors' code has LeakyReLU with slope 0.1 where the paper has ReLU, and we follow the code. It
cuts each caption to its length; here words beyond it are masked, in the norm over the queries,
too. m_j itself is never made for all pairs: q_j . m_j = sum_i a_ij (q_j . c_i) and
|m_j|^2 = a_j G a_j, where G holds the dot products of the context with itself, once per item.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from matching.config import ScanConfig, one_of
from matching.models.projection import l2_normalised
from matching.models.scores import PairScores
from matching.models.system import System

_MASKED = -1e9
_SLOPE = 0.1  # of LeakyReLU, authors' code
_SMALL = 1e-16  # under a square root: the authors' 1e-8 beside the root, but smooth at zero


class Scan(System):
    extra_positions = 0

    def __init__(self, config: ScanConfig) -> None:
        super().__init__(config)
        self.side_width = config.dimension
        one_of("direction", config.direction, ("t2i", "i2t"))
        one_of("aggregate", config.aggregate, ("lse", "mean"))
        # For a contrastive loss; the hinge of the paper leaves it alone.
        self.log_scale = nn.Parameter(torch.tensor(math.log(20.0)))

    def photo_side(self, regions: Tensor, region_mask: Tensor | None = None) -> Tensor:
        """(B, R, C) -> (B, R, D), each region of unit length and by itself: no mask is needed."""
        return l2_normalised(self.regions(regions))

    def caption_side(self, *captions: Tensor) -> tuple[Tensor, Tensor]:
        words, mask = self.encode_words(*captions)
        return l2_normalised(words), mask

    def forward(
        self,
        photos: Tensor,
        captions: Tensor,
        mask: Tensor,
        region_mask: Tensor | None = None,
    ) -> PairScores:
        """See matching.models.system. Only the attention of the direction's queries is there."""
        if self.config.direction == "t2i":
            relevance, attention = self._attend(captions, mask, photos, region_mask)
            return PairScores(self._aggregate(relevance, mask), word_attention=attention)
        relevance, attention = self._attend(photos, region_mask, captions, mask)
        score = self._aggregate(relevance, region_mask).transpose(-1, -2)
        return PairScores(score, region_attention=attention.transpose(-3, -4))

    def _attend(
        self,
        queries: Tensor,
        query_mask: Tensor | None,
        context: Tensor,
        context_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Items B of queries (..., B, T, D) with items A of context (..., A, S, D).

        Masks (..., B, T), (..., A, S) -> relevance (..., A, B, T), attention (..., A, B, T, S).
        """
        products = context.flatten(-3, -2) @ queries.flatten(-3, -2).transpose(-1, -2)
        products = products.unflatten(-1, queries.shape[-3:-1])
        products = products.unflatten(-3, context.shape[-3:-1])  # (..., A, S, B, T)
        affinity = nn.functional.leaky_relu(products, _SLOPE)
        if query_mask is not None:
            affinity = affinity.masked_fill(~query_mask[..., None, None, :, :], 0.0)
        lengths = (affinity.square().sum(-1, keepdim=True) + _SMALL).sqrt()
        logits = (affinity / lengths).movedim(-3, -1) * self.config.attention_temperature
        if context_mask is not None:
            logits = logits.masked_fill(~context_mask[..., :, None, None, :], _MASKED)
        attention = logits.softmax(-1)  # (..., A, B, T, S)
        return _cosines(products.movedim(-3, -1), attention, queries, context), attention

    def _aggregate(self, relevance: Tensor, query_mask: Tensor | None) -> Tensor:
        """(..., A, B, T), mask (..., B, T) -> (..., A, B)."""
        if query_mask is None:
            query_mask = torch.ones_like(relevance[..., 0, :, :], dtype=torch.bool)
        inside = query_mask.unsqueeze(-3)
        if self.config.aggregate == "mean":
            count = inside.sum(-1).clamp(min=1)
            return relevance.masked_fill(~inside, 0.0).sum(-1) / count
        sharpness = self.config.aggregate_temperature
        return (relevance * sharpness).masked_fill(~inside, _MASKED).logsumexp(-1) / sharpness

    def score_plainly(self, photos: Tensor, captions: Tensor) -> Tensor:
        """As the authors, every attended vector formed: (P, R, D), (C, N, D), whole -> (P, C)."""
        by_words = self.config.direction == "t2i"
        queries, context = (captions, photos) if by_words else (photos, captions)
        products = context[:, None] @ queries.transpose(-1, -2)  # (A, B, S, T)
        affinity = nn.functional.leaky_relu(products, _SLOPE)
        lengths = (affinity.square().sum(-1, keepdim=True) + _SMALL).sqrt()
        logits = (affinity / lengths).transpose(-1, -2) * self.config.attention_temperature
        attended = logits.softmax(-1) @ context[:, None]  # (A, B, T, D)
        relevance = (l2_normalised(queries) * l2_normalised(attended)).sum(-1)  # cosines
        scores = self._aggregate(relevance, None)
        return scores if by_words else scores.transpose(-1, -2)


def _cosines(products: Tensor, attention: Tensor, queries: Tensor, context: Tensor) -> Tensor:
    """cos(q, m) from products c . q and attention (..., A, B, T, S) -> (..., A, B, T)."""
    agreement = (attention * products).sum(-1)  # q . m
    gram = context @ context.transpose(-1, -2)  # (..., A, S, S)
    spread = (attention.flatten(-3, -2) @ gram).unflatten(-2, attention.shape[-3:-1])
    # Rounding may leave |m|^2 a little below zero.
    attended = (spread * attention).sum(-1).clamp(min=_SMALL)
    # |q|^2 is not exactly one where sides were stored in half precision.
    own = (queries.square().sum(-1) + _SMALL).unsqueeze(-3)
    return agreement * (attended * own).rsqrt()
