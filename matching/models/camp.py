"""CAMP (Wang et al., ICCV 2019), form `fast`: cross-modal adaptive message passing.

For regions v_i and words t_j (sections 3.1 to 3.4 of the paper; the gate is one number a region or
word, as in the authors' code):

    message    m_i = sum_j softmax_j(Kv v_i . Kt t_j / sqrt(k)) t_j
    gate       g_i = sigmoid(a v_i . m_i + b)
    fusion     f_i = relu(F g_i (v_i + m_i)) + v_i
    aggregate  v*  = sum_i softmax_i(q . f_i / sqrt(d)) f_i
    score      MLP(v* + t*), the logit

and the same for words with the roles exchanged. relu is positively homogeneous and g > 0, so
relu(F g (v + m)) = g relu(F v + sum_j a_ij F t_j): every d x d product is made once per photo and
once per caption, not once per pair. `forward` scores that way, `score_plainly` by the
equations as they stand.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from matching.config import CampConfig
from matching.models.projection import Projection, l2_normalised
from matching.models.text_backbone import WIDTH, UpperTextBackbone
from matching.models.vse_infinity import REGION_TAPS

_MASKED = -1e9


class Side(NamedTuple):
    """What a photo or a caption brings to every pair it is in; positions are regions or words."""

    features: Tensor  # (..., P, D): v or t
    keys: Tensor  # (..., P, K): K v or K t
    fused: Tensor  # (..., P, D): the own modality's F applied to features
    fused_message: Tensor  # (..., P, D): the other modality's F applied to features


class PairScores(NamedTuple):
    """Leading axes: photos, captions."""

    logit: Tensor  # (P, C)
    word_attention: Tensor  # (P, C, N, R): of each word over the regions
    region_attention: Tensor  # (P, C, R, N): of each region over the words
    word_gates: Tensor  # (P, C, N), 0 outside the caption
    region_gates: Tensor  # (P, C, R)


def _every_with_every(photos: Tensor, captions: Tensor) -> Tensor:
    """(..., P, R, D), (..., C, N, D) -> dot products (..., P, R, C, N) in one matrix product."""
    products = photos.flatten(-3, -2) @ captions.flatten(-3, -2).transpose(-1, -2)
    return products.unflatten(-1, captions.shape[-3:-1]).unflatten(-4 + 1, photos.shape[-3:-1])


def _by_region(grid: Tensor) -> Tensor:
    """(..., P, R, C, N) -> (..., C, P, R, N)."""
    return grid.movedim(-2, -4)


def _by_word(grid: Tensor) -> Tensor:
    """(..., P, R, C, N) -> (..., P, C, N, R)."""
    return grid.movedim(-3, -1)


def _messages(attention: Tensor, features: Tensor) -> Tensor:
    """attention (..., B, A, S, T), features of B (..., B, T, D) -> (..., B, A, S, D)."""
    mixed = attention.flatten(-3, -2) @ features
    return mixed.unflatten(-2, attention.shape[-3:-1])


class Passing(nn.Module):
    """What one modality has of its own: keys, gate, fusion, aggregation."""

    def __init__(self, dimension: int, key_dimension: int) -> None:
        super().__init__()
        self.key = nn.Linear(dimension, key_dimension, bias=False)
        self.fusion = nn.Linear(dimension, dimension, bias=False)
        self.aggregation = nn.Parameter(torch.randn(dimension) / math.sqrt(dimension))
        # v and t have length sqrt(d), so v.m / d lies in -1..1: the gate needs a scale of its own.
        self.gate_scale = nn.Parameter(torch.tensor(10.0))
        self.gate_bias = nn.Parameter(torch.tensor(-2.0))

    def gate_logits(self, agreement: Tensor) -> Tensor:
        """agreement: v . m of each position."""
        return self.gate_scale * agreement / self.aggregation.shape[0] + self.gate_bias


class Camp(nn.Module):
    def __init__(self, config: CampConfig) -> None:
        super().__init__()
        dimension, dropout = config.dimension, config.dropout
        self.dimension, self.key_dimension = dimension, config.key_dimension
        self.regions = Projection(REGION_TAPS, config.hidden, dimension, dropout)
        self.text = UpperTextBackbone()
        self.words = Projection((WIDTH,), config.hidden, dimension, dropout)
        self.photo = Passing(dimension, config.key_dimension)
        self.caption = Passing(dimension, config.key_dimension)
        self.score = nn.Sequential(
            nn.Linear(dimension, dimension),
            nn.ReLU(),
            nn.Linear(dimension, 1),
        )

    def region_features(self, regions: Tensor) -> Tensor:
        """(..., R, C) -> v (..., R, D), each of length sqrt(D)."""
        return l2_normalised(self.regions(regions)) * math.sqrt(self.dimension)

    def word_features(self, hidden: Tensor, piece_mask: Tensor, word_pieces: Tensor) -> Tensor:
        """hidden (B, L, W), piece_mask (B, L), word_pieces (B, N, L) -> t (B, N, D)."""
        words = self.words(self.text(hidden, piece_mask, word_pieces))
        return l2_normalised(words) * math.sqrt(self.dimension)

    def photo_side(self, v: Tensor) -> Side:
        return Side(v, self.photo.key(v), self.photo.fusion(v), self.caption.fusion(v))

    def caption_side(self, t: Tensor) -> Side:
        return Side(t, self.caption.key(t), self.caption.fusion(t), self.photo.fusion(t))

    def forward(self, photos: Side, captions: Side, word_mask: Tensor) -> PairScores:
        """Scores every photo with every caption: (..., P, R, .), (..., C, N, .) -> (..., P, C).

        word_mask (..., C, N) bool. Leading axes are groups that are scored apart. What belongs to
        regions is laid out (..., C, P, R) and what belongs to words (..., P, C, N), so that each
        product is one large matrix product and nothing is copied to be broadcast.
        """
        # Logits of the cross-attention, and agreement v . t, of every region with every word.
        affinity = _every_with_every(photos.keys, captions.keys) / math.sqrt(self.key_dimension)
        agreement = _every_with_every(photos.features, captions.features)  # (..., P, R, C, N)
        hidden_words = ~word_mask[..., :, None, None, :]
        region_attention = _by_region(affinity).masked_fill(hidden_words, _MASKED).softmax(-1)
        word_attention = _by_word(affinity).softmax(-1)

        region_agreement = (region_attention * _by_region(agreement)).sum(
            -1
        )  # v . m: (..., C, P, R)
        word_agreement = (word_attention * _by_word(agreement)).sum(-1)  # t . m: (..., P, C, N)
        region_gates = self.photo.gate_logits(region_agreement).sigmoid()
        word_gates = self.caption.gate_logits(word_agreement).sigmoid() * word_mask[..., None, :, :]

        messages = _messages(region_attention, captions.fused_message)  # F m: (..., C, P, R, D)
        region_fused = torch.relu(photos.fused[..., None, :, :, :] + messages)
        messages = _messages(word_attention, photos.fused_message)  # F m: (..., P, C, N, D)
        word_fused = torch.relu(captions.fused[..., None, :, :, :] + messages)

        everywhere = torch.ones_like(region_gates, dtype=torch.bool)
        v = self._aggregate(self.photo, region_fused, region_gates, photos.features, everywhere)
        in_caption = word_mask[..., None, :, :]
        t = self._aggregate(self.caption, word_fused, word_gates, captions.features, in_caption)
        logit = self.score(v.transpose(-2, -3) + t).squeeze(-1)  # (..., P, C)
        return PairScores(
            logit,
            word_attention,
            region_attention.transpose(-3, -4),
            word_gates,
            region_gates.transpose(-2, -3),
        )

    def _aggregate(
        self,
        passing: Passing,
        fused: Tensor,
        gates: Tensor,
        features: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Attention over g relu(.) + v, without ever forming that sum.

        fused (..., B, A, S, D), gates (..., B, A, S), features (..., A, S, D) -> (..., B, A, D),
        where A has positions S (photos and regions, say) and B is the other modality.
        """
        own = (features @ passing.aggregation)[..., None, :, :]
        logits = (gates * (fused @ passing.aggregation) + own) / math.sqrt(self.dimension)
        weights = logits.masked_fill(~mask, _MASKED).softmax(-1)
        gated = ((weights * gates)[..., None, :] @ fused).squeeze(-2)
        plain = weights.transpose(-2, -3) @ features  # (..., A, B, D)
        return gated + plain.transpose(-2, -3)

    def score_plainly(self, v: Tensor, t: Tensor) -> PairScores:
        """The equations as they stand: photos v (P, R, D) with one caption t (N, D) -> (P, ...)."""
        affinity = self.photo.key(v) @ self.caption.key(t).T / math.sqrt(self.key_dimension)

        def side(passing: Passing, own: Tensor, other: Tensor, attention: Tensor) -> tuple:
            messages = attention @ other
            gates = passing.gate_logits((own * messages).sum(-1)).sigmoid()
            fused = torch.relu(passing.fusion(gates[..., None] * (own + messages))) + own
            weights = (fused @ passing.aggregation / math.sqrt(self.dimension)).softmax(-1)
            return (weights[..., None] * fused).sum(-2), gates

        region_attention = affinity.softmax(-1)
        word_attention = affinity.transpose(-1, -2).softmax(-1)
        v_star, region_gates = side(self.photo, v, t, region_attention)
        t_star, word_gates = side(self.caption, t, v, word_attention)
        logit = self.score(v_star + t_star).squeeze(-1)
        return PairScores(logit, word_attention, region_attention, word_gates, region_gates)
