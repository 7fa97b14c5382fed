"""CAMP by its equations as they stand, photo by photo with one caption: slow, and easy to check.

Nothing here is factored or masked; every product with a matrix is made anew for each pair.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from matching.models.camp_passing import Passed, Passing
from matching.models.projection import l2_normalised
from matching.models.scores import PairScores

if TYPE_CHECKING:
    from matching.models.camp import Camp


def score_plainly(camp: Camp, v: Tensor, t: Tensor) -> PairScores:
    """Photos v (P, R, D), one caption t (N, D) -> scores with the leading axis P."""
    t = t.expand(len(v), -1, -1)
    regions, words = camp.photo, camp.caption
    region_messages, region_attention = _messages(regions, words, v, t)
    word_messages, word_attention = _messages(words, regions, t, v)
    photo, caption = _aggregate(regions, v, region_messages), _aggregate(words, t, word_messages)
    logit = camp.logit_of(photo, caption)
    return PairScores(logit, word_attention, region_attention, caption.gates, photo.gates)


def _messages(
    receiver: Passing,
    sender: Passing,
    own: Tensor,
    other: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """own (P, S, D), other (P, T, D) -> messages (P, S, D), attention (P, S, T)."""
    kind, scale = receiver.config.messages, math.sqrt(receiver.config.key_dimension)
    if kind == "none":
        return None, None
    if kind == "mean":
        return other.mean(-2, keepdim=True).expand_as(own), None
    queries = receiver.query(own) if kind == "refined" else receiver.key(own)
    attention = (queries @ sender.key(other).transpose(-1, -2) / scale).softmax(-1)
    messages = attention @ other
    if kind == "cross_attention":
        return messages, attention
    queries, keys = receiver.message_query(messages), receiver.message_key(messages)
    refining = (queries @ keys.transpose(-1, -2) / scale).softmax(-1)  # (P, S, S)
    return l2_normalised(refining @ messages), refining @ attention


def _gate_logits(passing: Passing, own: Tensor, messages: Tensor) -> Tensor | None:
    """(P, S, D) for the elementwise gate, (P, S, 1) for the scalar one."""
    if passing.config.gate == "none":
        return None
    if passing.config.gate == "elementwise":
        return own * messages
    return passing.gate_logits((own * messages).sum(-1, keepdim=True))


def _aggregate(passing: Passing, own: Tensor, messages: Tensor | None) -> Passed:
    """own, messages (P, S, D) -> one vector a photo, reported gates (P, S), agreement (P,)."""
    logits = None
    if messages is None:
        positions = own
    elif passing.config.fusion == "none":
        positions = messages
    else:
        logits = _gate_logits(passing, own, messages)
        gates = None if logits is None else logits.sigmoid()
        positions = passing.fuse(own, messages, gates)
        positions = positions + own if passing.config.residual else positions
    vector, shares = _one_vector(passing, positions)
    if logits is None:
        return Passed(vector)
    return Passed(vector, logits.sigmoid().mean(-1), (shares * logits.mean(-1)).sum(-1))


def _one_vector(passing: Passing, positions: Tensor) -> tuple[Tensor, Tensor]:
    """positions (P, S, D) -> (P, D), and what each position weighs in it (P, S)."""
    if passing.config.aggregation == "mean":
        return positions.mean(-2), torch.ones_like(positions[..., 0]) / positions.shape[-2]
    if passing.config.aggregation == "mlp":
        weights = passing.aggregation(positions).softmax(-2)  # (P, S, heads)
        heads = torch.einsum("psh,psd->phd", weights, positions)
        return l2_normalised(heads.mean(-2)), weights.mean(-1)
    logits = positions @ passing.aggregation / math.sqrt(passing.config.dimension)
    weights = logits.softmax(-1)
    return (weights[..., None] * positions).sum(-2), weights
