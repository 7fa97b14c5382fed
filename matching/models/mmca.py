"""MMCA (Wei et al., CVPR 2020): self-attention inside a modality, cross-attention over both.

    i0 = l2(mean(T_self(R)))       c0 = l2(H_self(E))       of a photo, of a caption
    [R'; E'] = T_cross([R; E])     i1 = l2(mean(R'))        c1 = l2(H_cross(E'))
    S = i0 . c0 + alpha i1 . c1

T is a Transformer layer (16 heads, post-norm, ReLU) and H the 1d-CNN over words: convolutions of
widths 1, 2, 3, ReLU, max over the words, Linear. No code of the authors was found; SAEM
(Wu et al., 2019), which shares the photo and caption branches, is the nearest. What the paper
leaves open is decided here so:

- E is wider than R (768 and 256 in the paper): words are projected to D before anything is done
  with them, so that they can be stacked on the regions and the 1d-CNN of c0 reads them, too.
- R in the stack is the projected regions, not the self-attended ones, as the equations have it.
- Padded words are masked as keys, are zero for the convolutions, and no window that starts outside
  of the caption is in the maximum (in SAEM padding is). A window that begins inside the caption
  and reaches over its end sees zeros, so a caption of one word has all three widths.
- i1 and c1 have unit length like i0 and c0: alpha then weighs two cosines.
- c0 is l2-normalised as the text says; eq. 7 writes LayerNorm.
- The feed-forward part is d x d with ReLU (eq. 4) by default; SAEM has 2048 and GELU.
- Dropout (SAEM: 0.1) on what each half of a Transformer layer adds, and nowhere else.
- c0 and c1 have 1d-CNNs of their own: their inputs, projected words and the output of a LayerNorm
  over mixed words and regions, have little in common. T_self and T_cross are apart, too.
- No embedding of positions or of the modality is added before the stack goes in.

`forward` makes once per photo and once per caption what does not depend on the pair: queries, keys,
values, and the attention of regions to regions and of words to words. A softmax over [R; E] is
that over R and that over E, weighted by their shares of the total:

    softmax([a; b]) [x; y] = k softmax(a) x + s softmax(b) y,   (k, s) = softmax(lse(a), lse(b))

so only region-word logits are made per pair. `score_plainly` runs T_cross on the stack itself.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from matching.config import MmcaConfig
from matching.models.projection import l2_normalised
from matching.models.scores import PairScores
from matching.models.system import System

_MASKED = -1e9
_WIDTHS = (1, 2, 3)  # of the convolutions, in words


class Mmca(System):
    extra_positions = 1  # i0 before the regions, c0 before the words

    def __init__(self, config: MmcaConfig) -> None:
        super().__init__(config)
        self.alpha = config.alpha
        self.embedding_width = self.side_width = config.dimension
        layer = (config.dimension, config.heads, config.feed_forward, config.dropout)
        self.self_attention = AttentionLayer(*layer)
        self.cross_attention = AttentionLayer(*layer)
        self.caption_head = CaptionHead(config.dimension, config.filters)
        self.cross_caption_head = CaptionHead(config.dimension, config.filters)
        # For a contrastive loss; the triplet loss of the paper leaves it alone.
        self.log_scale = nn.Parameter(torch.tensor(math.log(20.0)))

    def embed_photos(self, regions: Tensor, region_mask: Tensor | None = None) -> Tensor:
        return self._photo_embedding(self.regions(regions), region_mask)

    def embed_captions(self, *captions: Tensor) -> Tensor:
        return l2_normalised(self.caption_head(*self.encode_words(*captions)))

    def similarity(self, photos: Tensor, captions: Tensor) -> Tensor:
        return photos @ captions.transpose(-1, -2)

    def photo_side(self, regions: Tensor, region_mask: Tensor | None = None) -> Tensor:
        regions = self.regions(regions)
        embedding = self._photo_embedding(regions, region_mask)
        return torch.cat([embedding[:, None], regions], dim=1)  # (B, 1 + R, D)

    def caption_side(self, *captions: Tensor) -> tuple[Tensor, Tensor]:
        words, mask = self.encode_words(*captions)
        embedding = l2_normalised(self.caption_head(words, mask))
        position_mask = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
        return torch.cat([embedding[:, None], words], dim=1), position_mask  # (B, 1 + N, D)

    def _photo_embedding(self, regions: Tensor, region_mask: Tensor | None) -> Tensor:
        attended, _ = self.self_attention(regions, region_mask)
        return l2_normalised(_mean(attended, region_mask))

    def forward(
        self,
        photos: Tensor,
        captions: Tensor,
        mask: Tensor,
        region_mask: Tensor | None = None,
    ) -> PairScores:
        """See matching.models.system; the logit is S. Attention is that of the cross-attention.

        What belongs to regions is laid out (..., C, P, R), what belongs to words (..., P, C, N).
        """
        region_mask = None if region_mask is None else region_mask[..., 1:]
        word_mask = mask[..., 1:]
        layer = self.cross_attention
        regions = layer.heads_of(photos[..., 1:, :], region_mask)
        words = layer.heads_of(captions[..., 1:, :], word_mask)

        logits = _every_with_every(regions.query, words.key)  # (..., heads, P, R, C, N)
        new_regions, region_attention = layer.across(regions, words, logits.movedim(-2, -4))
        logits = _every_with_every(regions.key, words.query)
        new_words, word_attention = layer.across(words, regions, logits.movedim(-3, -1))

        beside_captions = None if region_mask is None else region_mask.unsqueeze(-3)
        cross_photos = l2_normalised(_mean(new_regions, beside_captions)).transpose(-2, -3)
        cross_captions = self.cross_caption_head(new_words, word_mask[..., None, :, :])
        cross = (cross_photos * l2_normalised(cross_captions)).sum(-1)  # i1 . c1: (..., P, C)
        alone = self.similarity(photos[..., 0, :], captions[..., 0, :])  # i0 . c0
        logit = alone + self.alpha * cross
        return PairScores(logit, word_attention, region_attention.transpose(-3, -4))

    def score_plainly(
        self,
        regions: Tensor,
        photo_embeddings: Tensor,
        words: Tensor,
        caption_embedding: Tensor,
    ) -> PairScores:
        """The equations as they stand, for photos with one whole caption.

        R (P, R, D), i0 (P, D), E (N, D), c0 (D) -> logit (P) and attention (P, ...).
        """
        size = regions.shape[1]
        stack = torch.cat([regions, words.expand(len(regions), -1, -1)], dim=1)  # (P, R + N, D)
        stack, attention = self.cross_attention(stack)
        everywhere = torch.ones_like(stack[:, size:, 0], dtype=torch.bool)
        cross_photos = l2_normalised(stack[:, :size].mean(1))
        cross_captions = l2_normalised(self.cross_caption_head(stack[:, size:], everywhere))
        logit = photo_embeddings @ caption_embedding
        logit = logit + self.alpha * (cross_photos * cross_captions).sum(-1)
        attention = attention.mean(0)  # over the heads: (P, R + N, R + N)
        to_regions, to_words = attention[:, size:, :size], attention[:, :size, size:]
        return PairScores(
            logit,
            to_regions / to_regions.sum(-1, keepdim=True),
            to_words / to_words.sum(-1, keepdim=True),
        )


class Heads(NamedTuple):
    """What a modality brings to attention: features and, heads apart, queries, keys, values."""

    features: Tensor  # (..., B, S, D)
    query: Tensor  # (..., heads, B, S, D / heads), scaled
    key: Tensor
    value: Tensor
    mask: Tensor | None  # (..., B, S) bool


class AttentionLayer(nn.Module):
    """A post-norm Transformer layer, over one sequence or over every pair of two."""

    def __init__(self, dimension: int, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        if dimension % heads:
            raise ValueError(f"dimension is {dimension}: it must be a multiple of heads, {heads}")
        self.heads, self.head_dimension = heads, dimension // heads
        self.query = nn.Linear(dimension, dimension)
        self.key = nn.Linear(dimension, dimension)
        self.value = nn.Linear(dimension, dimension)
        self.output = nn.Linear(dimension, dimension)
        self.attention_norm = nn.LayerNorm(dimension)
        self.widen = nn.Linear(dimension, feed_forward)
        self.narrow = nn.Linear(feed_forward, dimension)
        self.output_norm = nn.LayerNorm(dimension)
        self.dropout = nn.Dropout(dropout)

    def heads_of(self, features: Tensor, mask: Tensor | None) -> Heads:
        def split(x: Tensor) -> Tensor:  # (..., B, S, D) -> (..., heads, B, S, D / heads)
            return x.unflatten(-1, (self.heads, self.head_dimension)).movedim(-2, -4)

        query = self.query(features) / math.sqrt(self.head_dimension)
        parts = (query, self.key(features), self.value(features))
        return Heads(features, *(split(part) for part in parts), mask)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, S, D), mask (B, S) bool -> (B, S, D), attention (heads, B, S, S)."""
        own = self.heads_of(features, mask)
        weights, _ = _softmax_within(own)
        context = (weights @ own.value).movedim(-4, -2)
        return self._finish(features, context), weights

    def across(self, own: Heads, other: Heads, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Each item A of `own`, positions S, beside each item B of `other`, positions T.

        logits (..., heads, B, A, S, T) of own queries and the other's keys -> features
        (..., B, A, S, D), attention to the other's positions alone (..., B, A, S, T).
        """
        within, within_total = _softmax_within(own)
        hidden = None if other.mask is None else ~other.mask[..., None, :, None, None, :]
        across, across_total = _softmax(logits, hidden)
        # A softmax, not sigmoid(difference): runtimes round a small sigmoid coarsely.
        totals = [within_total.unsqueeze(-4).expand_as(across_total), across_total]
        kept, share = torch.cat(totals, dim=-1).softmax(-1).split(1, dim=-1)  # (..., A, S, 1)
        across = share * across
        message = (across.flatten(-3, -2) @ other.value).unflatten(-2, across.shape[-3:-1])
        context = kept * (within @ own.value).unsqueeze(-4) + message
        # The mean over the heads, made to sum to one over the other's positions.
        attention = across.sum(-5) / share.sum(-5).clamp(min=1e-12)
        return self._finish(own.features.unsqueeze(-4), context.movedim(-5, -2)), attention

    def _finish(self, features: Tensor, context: Tensor) -> Tensor:
        """What follows the attention: features (..., S, D), context (..., S, heads, D / heads)."""
        mixed = self.output(context.flatten(-2))
        features = self.attention_norm(features + self.dropout(mixed))
        added = self.narrow(torch.relu(self.widen(features)))
        return self.output_norm(features + self.dropout(added))


class CaptionHead(nn.Module):
    """The 1d-CNN: words (..., N, D), mask (..., N) bool -> (..., D)."""

    def __init__(self, dimension: int, filters: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv1d(dimension, filters, w) for w in _WIDTHS)
        self.linear = nn.Linear(len(_WIDTHS) * filters, dimension)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """The mask may have axes of size one where the words have more."""
        outside = ~mask.expand(words.shape[:-1]).flatten(0, -2)[:, None]  # (B, 1, N)
        channels = words.flatten(0, -3).transpose(1, 2).masked_fill(outside, 0.0)  # (B, D, N)
        found = []
        for width, convolution in zip(_WIDTHS, self.convolutions, strict=True):
            # One window for each word that it starts at, also where the caption is shorter.
            windows = torch.relu(convolution(nn.functional.pad(channels, (0, width - 1))))
            # After ReLU nothing is below zero: zero leaves a window out of the maximum.
            found.append(windows.masked_fill(outside, 0.0).amax(-1))
        return self.linear(torch.cat(found, dim=-1)).unflatten(0, words.shape[:-2])


def _mean(regions: Tensor, mask: Tensor | None) -> Tensor:
    """(..., R, D), mask (..., R) bool -> (..., D), of the regions inside the mask."""
    if mask is None:
        return regions.mean(-2)
    inside = mask[..., None].to(regions.dtype)
    return (regions * inside).sum(-2) / inside.sum(-2).clamp(min=1.0)


def _every_with_every(photos: Tensor, captions: Tensor) -> Tensor:
    """(..., P, R, D), (..., C, N, D) -> dot products (..., P, R, C, N) in one matrix product."""
    products = photos.flatten(-3, -2) @ captions.flatten(-3, -2).transpose(-1, -2)
    return products.unflatten(-1, captions.shape[-3:-1]).unflatten(-3, photos.shape[-3:-1])


def _softmax_within(own: Heads) -> tuple[Tensor, Tensor]:
    """Positions among themselves: weights (..., heads, B, S, S), logarithm of their total."""
    hidden = None if own.mask is None else ~own.mask[..., None, :, None, :]
    return _softmax(own.query @ own.key.transpose(-1, -2), hidden)


def _softmax(logits: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights, and the logarithm of the sum of exponentials (last axis of size one)."""
    if hidden is not None:
        logits = logits.masked_fill(hidden, _MASKED)
    largest = logits.amax(-1, keepdim=True).detach()  # a constant: it cancels out of both results
    exponentials = (logits - largest).exp()
    total = exponentials.sum(-1, keepdim=True)
    return exponentials / total, largest + total.log()
