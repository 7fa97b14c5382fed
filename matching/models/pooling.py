"""From a set of regions or words to one vector: GPO, or the plain poolings of VSE++ and others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from matching.config import VseInfinityConfig, one_of
from matching.models.gpo import (
    GeneralizedPooling,
    InterpolatedPooling,
    MlpPooling,
    TransformerPooling,
)

_GENERATORS = {
    "bigru": GeneralizedPooling,
    "mlp": MlpPooling,
    "transformer": TransformerPooling,
    "interpolation": InterpolatedPooling,
}


class PlainPooling(nn.Module):
    """A pooling that learns nothing: features (B, S, D), mask (B, S) bool or None -> (B, D)."""

    def freeze(self) -> None:
        """There is nothing to freeze."""


class MeanPooling(PlainPooling):
    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return features.mean(1)
        inside = features.masked_fill(~mask[..., None], 0.0)
        return inside.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


class MaxPooling(PlainPooling):
    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            features = features.masked_fill(~mask[..., None], -1e9)
        return features.amax(1)


class FirstPooling(PlainPooling):
    """The first member: [CLS] of BERT, or the first region that is left."""

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return features[:, 0]
        before = mask.cumsum(1) - mask.to(torch.int64)  # members before each position
        return _picked(features, mask & (before == 0))


class LastPooling(PlainPooling):
    """The last member: of a GRU its last state, as in VSE++."""

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return features[:, -1]
        counted = mask.cumsum(1)
        return _picked(features, mask & (counted == mask.sum(1, keepdim=True)))


def make_pooling(kind: str, config: VseInfinityConfig, largest_set: int) -> nn.Module:
    """Features (B, S, D), mask (B, S) bool or None -> (B, D); it has `freeze()` for export."""
    plain = {"mean": MeanPooling, "max": MaxPooling, "first": FirstPooling, "last": LastPooling}
    one_of("pooling", kind, ("gpo", *plain))
    if kind in plain:
        return plain[kind]()
    generator = one_of("pooling_generator", config.pooling_generator, tuple(_GENERATORS))
    return _GENERATORS[generator](
        largest_set,
        config.pooling_positions,
        config.dimension if config.pooling_per_dimension else 0,
        config.dimension if config.pooling_features else 0,
    )


def _picked(features: Tensor, chosen: Tensor) -> Tensor:
    """The one chosen member of each set; chosen (B, S) bool."""
    return features.masked_fill(~chosen[..., None], 0.0).sum(1)
