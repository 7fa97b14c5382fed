"""From region features to a system's own space: one of four ways, as the papers have them."""

from __future__ import annotations

from torch import nn

from matching.config import EncoderConfig, one_of
from matching.models.projection import Projection

REGION_TAPS = (1280, 120)  # channels of matching.models.image_backbone, by tap


def make_region_encoder(config: EncoderConfig) -> nn.Module:
    """(..., region_channels) -> (..., dimension)."""
    kind = one_of("region_encoder", config.region_encoder, ("taps",))
    assert kind == "taps"
    return Projection(REGION_TAPS, config.hidden, config.dimension, config.dropout)
