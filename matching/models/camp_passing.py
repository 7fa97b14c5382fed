"""What one modality has of its own in CAMP: keys, gate, fusion and aggregation (3.1 to 3.3)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from matching.config import CampConfig, one_of
from matching.models.projection import l2_normalised

MASKED = -3e4  # as good as minus infinity, and fp16 can hold it
_HEADS = 4  # of the release's aggregation

_SETTINGS = {
    "messages": ("cross_attention", "refined", "mean", "none"),
    "gate": ("scalar", "elementwise", "none"),
    "fusion": ("add", "concat", "product", "none"),
    "aggregation": ("attention", "mlp", "mean"),
    "score": ("mlp_sum", "mlp_agreement", "mlp_concat", "cosine"),
}


def check_settings(config: CampConfig) -> None:
    """Every setting is a known word. What comes after a missing stage has no effect."""
    for name, words in _SETTINGS.items():
        one_of(f"CAMP's {name}", getattr(config, name), words)
    if config.score == "mlp_agreement" and not (fuses(config) and config.gate == "scalar"):
        raise ValueError(
            "CAMP's score is 'mlp_agreement', which adds up the logits of scalar gates: it needs "
            f"messages, fusion and gate 'scalar', found {config.messages!r}, {config.fusion!r} and "
            f"{config.gate!r}",
        )


def fuses(config: CampConfig) -> bool:
    """Whether messages are fused with features; else either of them is aggregated alone."""
    return config.messages != "none" and config.fusion != "none"


def masked_softmax(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Over the last axis; mask broadcasts, None: everything takes part."""
    return (logits if mask is None else logits.masked_fill(~mask, MASKED)).softmax(-1)


class Passed(NamedTuple):
    """What is left of a modality A after messages from B."""

    aggregate: Tensor  # (..., B, A, D)
    gates: Tensor | None = None  # (..., B, A, S)
    agreement: Tensor | None = None  # (..., B, A), for the score `mlp_agreement`

    def with_other_first(self) -> Passed:
        """(..., A, B, ...)."""
        logits = self.agreement
        return Passed(
            self.aggregate.transpose(-2, -3),
            None if self.gates is None else self.gates.transpose(-2, -3),
            None if logits is None else logits.transpose(-1, -2),
        )


class Passing(nn.Module):
    """Regions that receive messages from words, or words that receive messages from regions."""

    def __init__(self, config: CampConfig) -> None:
        super().__init__()
        self.config = config
        dimension, key_dimension = config.dimension, config.key_dimension
        if config.messages in ("cross_attention", "refined"):
            self.key = nn.Linear(dimension, key_dimension, bias=False)
        if config.messages == "refined":
            self.query = nn.Linear(dimension, key_dimension, bias=False)
            # Of the self-attention over the messages that this modality receives.
            self.message_query = nn.Linear(dimension, key_dimension, bias=False)
            self.message_key = nn.Linear(dimension, key_dimension, bias=False)
        if fuses(config):
            inputs = 2 * dimension if config.fusion == "concat" else dimension
            self.fusion = nn.Linear(inputs, dimension, bias=False)
        if config.aggregation == "attention":
            self.aggregation = nn.Parameter(torch.randn(dimension) / math.sqrt(dimension))
        elif config.aggregation == "mlp":
            self.aggregation = nn.Sequential(
                nn.Linear(dimension, dimension),
                nn.ReLU(),
                nn.Linear(dimension, _HEADS),
            )
        # Where v and t have length sqrt(d), v.m / d lies in -1..1: the gate needs a scale of its
        # own. Features of free length (release) find it themselves, and messages of length 1 leave
        # v.m within sqrt(d): there the gate is sigmoid(v.m) as it stands.
        self.learned_gate = (
            fuses(config)
            and config.gate == "scalar"
            and config.normalise_features
            and config.messages != "refined"
        )
        if self.learned_gate:
            self.gate_scale = nn.Parameter(torch.tensor(10.0))
            self.gate_bias = nn.Parameter(torch.tensor(-2.0))
        if config.score == "mlp_agreement":
            # In a new model gates mean nothing yet, so they do not count: its score is the MLP's.
            # matching.starting lets them count where they join a trained model.
            self.agreement_scale = nn.Parameter(torch.tensor(0.0))

    def gate_logits(self, agreement: Tensor) -> Tensor:
        """agreement: v . m of each position, the scalar gate."""
        if not self.learned_gate:
            return agreement
        return self.gate_scale * agreement / self.config.dimension + self.gate_bias

    def fuse_features(self, features: Tensor) -> Tensor:
        """The part of F(v + m) or W[v; m] that comes from v."""
        if self.config.fusion == "add":
            return self.fusion(features)
        return functional.linear(features, self.fusion.weight[:, : self.config.dimension])

    def fuse_messages(self, messages: Tensor) -> Tensor:
        """The part of F(v + m) or W[v; m] that comes from m."""
        if self.config.fusion == "add":
            return self.fusion(messages)
        return functional.linear(messages, self.fusion.weight[:, self.config.dimension :])

    def fuse(self, features: Tensor, messages: Tensor, gates: Tensor | None) -> Tensor:
        """relu(F (g (v + m))), or [v; m], or v m; g broadcasts over the last axis, None: 1."""
        v, m = features, messages
        if self.config.fusion == "concat":
            parts = (v.expand_as(m), m)
            combined = torch.cat(parts if gates is None else [gates * x for x in parts], dim=-1)
        else:
            combined = v + m if self.config.fusion == "add" else v * m
            combined = combined if gates is None else gates * combined
        return torch.relu(self.fusion(combined))

    def aggregate(
        self,
        fused: Tensor,
        gates: Tensor | None,
        residual: Tensor | None,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """One vector of all positions g fused + residual, and what each position weighs in it.

        fused (..., B, A, S, D), gates (..., B, A, S) or None for 1, residual (..., A, S, D) or
        None, mask (..., A, S) or None -> (..., B, A, D) and (..., B, A, S), where A has positions
        S (photos and regions, say) and B is the other modality.
        """
        weights = self._position_weights(fused, gates, residual, mask)
        gated = weights if gates is None else weights * gates
        total = (gated[..., None, :] @ fused).squeeze(-2)
        if residual is not None:
            plain = weights.transpose(-2, -3) @ residual  # (..., A, B, D)
            total = total + plain.transpose(-2, -3)
        # The release normalises what its MLP has aggregated.
        return l2_normalised(total) if self.config.aggregation == "mlp" else total, weights

    def _position_weights(
        self,
        fused: Tensor,
        gates: Tensor | None,
        residual: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        """Attention over the positions: (..., B, A, S)."""
        mask = None if mask is None else mask[..., None, :, :]
        if self.config.aggregation == "mean":
            return masked_softmax(torch.zeros_like(fused[..., 0]), mask)
        if self.config.aggregation == "mlp":
            positions = fused if gates is None else gates[..., None] * fused
            if residual is not None:
                positions = positions + residual[..., None, :, :, :]
            logits = self.aggregation(positions).movedim(-1, 0)  # (heads, ..., B, A, S)
            return masked_softmax(logits, mask).mean(0)
        # Linear in the position: the sum g fused + residual is never formed.
        logits = fused @ self.aggregation
        logits = logits if gates is None else gates * logits
        if residual is not None:
            logits = logits + (residual @ self.aggregation)[..., None, :, :]
        return masked_softmax(logits / math.sqrt(self.config.dimension), mask)
