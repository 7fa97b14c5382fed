"""Messages of CAMP between every photo and every caption, as weights over the other's positions.

A message is linear in what it is made of, m = sum_j w_j t_j, so the weights are all that a pair
needs: v . m comes from v . t, F m from F t, and both are made once per photo and once per caption.
This holds for the messages of the authors' code as well (self-attention over the messages, then
l2norm): with A the attention and G = (T Q)(T K)^T, the self-attention over messages A T has the
logits A G A^T, and the lengths of messages come from the Gram matrix T T^T.

What belongs to regions is laid out (..., C, P, R) and what belongs to words (..., P, C, N), so that
each product is one large matrix product and nothing is copied to be broadcast.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from matching.config import CampConfig
from matching.models.camp_passing import Passing, fuses, masked_softmax


class Side(NamedTuple):
    """What a photo or a caption brings to every pair it is in; positions are regions or words.

    It travels as one tensor (..., positions, width); None: the setting needs no such part.
    """

    features: Tensor  # (..., S, D): v or t
    queries: Tensor | None = None  # (..., S, K), of the release
    keys: Tensor | None = None  # (..., S, K)
    message_queries: Tensor | None = None  # (..., S, K): Q of the self-attention over messages
    message_keys: Tensor | None = None  # (..., S, K)
    fused: Tensor | None = None  # (..., S, D): the own modality's F applied to features
    fused_message: Tensor | None = None  # (..., S, D): the other modality's F applied to features


class Weights(NamedTuple):
    """Of the messages that one modality A receives from the other, B."""

    mixing: Tensor  # (..., B, A, S, T): m = mixing @ features of B
    attention: Tensor | None  # the same before l2norm: rows sum to 1. None: nothing is attended to


def factors(config: CampConfig) -> bool:
    """Whether the d x d products of fusion leave the pair.

    relu is positively homogeneous, so a gate of one number a position leaves relu(F g (v + m)).
    """
    linear = config.fusion in ("add", "concat")
    return fuses(config) and linear and config.gate in ("scalar", "none")


def side_widths(config: CampConfig) -> dict[str, int]:
    """The parts of a side that a setting needs, and their widths, in the order of the tensor."""
    widths = {"features": config.dimension}
    if config.messages == "refined":
        widths["queries"] = config.key_dimension
    if config.messages in ("cross_attention", "refined"):
        widths["keys"] = config.key_dimension
    if config.messages == "refined":
        widths |= {"message_queries": config.key_dimension, "message_keys": config.key_dimension}
    if factors(config):
        widths |= {"fused": config.dimension, "fused_message": config.dimension}
    return widths


def joined_side(config: CampConfig, features: Tensor, own: Passing, other: Passing) -> Tensor:
    """(..., S, D) -> (..., S, width); `other` receives the messages made of these features."""
    makers = {
        "features": lambda: features,
        "queries": lambda: own.query(features),
        "keys": lambda: own.key(features),
        "message_queries": lambda: other.message_query(features),
        "message_keys": lambda: other.message_key(features),
        "fused": lambda: own.fuse_features(features),
        "fused_message": lambda: other.fuse_messages(features),
    }
    return torch.cat([makers[name]() for name in side_widths(config)], dim=-1)


def split_side(config: CampConfig, joined: Tensor) -> Side:
    widths = side_widths(config)
    parts = joined.split(tuple(widths.values()), dim=-1)
    return Side(**dict(zip(widths, parts, strict=True)))


def every_with_every(photos: Tensor, captions: Tensor) -> Tensor:
    """(..., P, R, D), (..., C, N, D) -> dot products (..., P, R, C, N) in one matrix product."""
    products = photos.flatten(-3, -2) @ captions.flatten(-3, -2).transpose(-1, -2)
    return products.unflatten(-1, captions.shape[-3:-1]).unflatten(-4 + 1, photos.shape[-3:-1])


def by_region(grid: Tensor) -> Tensor:
    """(..., P, R, C, N) -> (..., C, P, R, N)."""
    return grid.movedim(-2, -4)


def by_word(grid: Tensor) -> Tensor:
    """(..., P, R, C, N) -> (..., P, C, N, R)."""
    return grid.movedim(-3, -1)


def mix(mixing: Tensor, features: Tensor) -> Tensor:
    """mixing (..., B, A, S, T), features of B (..., B, T, D) -> (..., B, A, S, D)."""
    mixed = mixing.flatten(-3, -2) @ features
    return mixed.unflatten(-2, mixing.shape[-3:-1])


def message_weights(
    config: CampConfig,
    photos: Side,
    captions: Side,
    agreement: Tensor,
    word_mask: Tensor,
    region_mask: Tensor | None,
) -> tuple[Weights, Weights]:
    """Weights of the messages that regions receive, and of those that words receive.

    agreement (..., P, R, C, N), word_mask (..., C, N), region_mask (..., P, R) or None.
    """
    to_regions, to_words = _affinities(config, photos, captions, agreement)
    words = word_mask[..., :, None, None, :]
    regions = None if region_mask is None else region_mask[..., :, None, None, :]
    region_attention = masked_softmax(by_region(to_regions), words)
    word_attention = masked_softmax(by_word(to_words), regions)
    if config.messages == "refined":
        return (
            _refined(config, region_attention, captions, region_mask),
            _refined(config, word_attention, photos, word_mask),
        )
    if config.messages == "mean":
        return Weights(region_attention, None), Weights(word_attention, None)
    return Weights(region_attention, region_attention), Weights(word_attention, word_attention)


def _affinities(
    config: CampConfig,
    photos: Side,
    captions: Side,
    agreement: Tensor,
) -> tuple[Tensor, Tensor]:
    """Logits of the cross-attention, (..., P, R, C, N): for regions, for words."""
    scale = math.sqrt(config.key_dimension)
    if config.messages == "mean":  # equal logits: the masked mean
        return torch.zeros_like(agreement), torch.zeros_like(agreement)
    if config.messages == "refined":
        to_regions = every_with_every(photos.queries, captions.keys) / scale
        return to_regions, every_with_every(photos.keys, captions.queries) / scale
    affinity = every_with_every(photos.keys, captions.keys) / scale
    return affinity, affinity


def _refined(config: CampConfig, attention: Tensor, other: Side, mask: Tensor | None) -> Weights:
    """Self-attention over the messages, then l2norm, without forming a message.

    attention (..., B, A, S, T) over the positions T of `other`, mask (..., A, S) of the receivers.
    """
    products = other.message_queries @ other.message_keys.transpose(-1, -2)  # G: (..., B, T, T)
    logits = mix(attention, products) @ attention.transpose(-1, -2)  # A G A^T: (..., B, A, S, S)
    keys = None if mask is None else mask[..., None, :, None, :]
    composed = masked_softmax(logits / math.sqrt(config.key_dimension), keys) @ attention
    gram = other.features @ other.features.transpose(-1, -2)  # (..., B, T, T)
    squares = (mix(composed, gram) * composed).sum(-1, keepdim=True)
    # As l2_normalised; rounding may leave the square of a tiny message below zero.
    return Weights(composed / (squares.clamp_min(0) + 1e-12).sqrt(), composed)
