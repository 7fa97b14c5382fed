"""From region features to a system's own space: one of four ways, as the papers have them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from matching.config import EncoderConfig, one_of
from matching.models.projection import Projection

REGION_TAPS = (1280, 120)  # channels of matching.models.image_backbone, by tap


class TapRegions(Projection):
    """Ours: each tap of the backbone normalised, a linear layer plus an MLP beside it."""

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(_of_width(features, sum(self.taps)))


class LinearRegions(nn.Module):
    """CAMP, SCAN, and VSE-infinity on grids: one linear layer."""

    def __init__(self, channels: int, dimension: int) -> None:
        super().__init__()
        self.linear = _xavier_linear(channels, dimension)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(_of_width(features, self.linear.in_features))


class Perceptron(nn.Module):
    """Linear, BatchNorm, ReLU, linear; the norm sees every region of every photo as one row.

    As in the authors' code, regions that a mask hides take part in the statistics of training.
    """

    def __init__(self, channels: int, hidden: int, dimension: int) -> None:
        super().__init__()
        self.widen = nn.Linear(channels, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.narrow = nn.Linear(hidden, dimension)

    def forward(self, features: Tensor) -> Tensor:
        """(..., channels) -> (..., dimension)."""
        rows = self.widen(features).flatten(0, -2)  # (all regions, hidden)
        normed = self.norm(rows).unflatten(0, features.shape[:-1])
        return self.narrow(torch.relu(normed))


class LinearMlpRegions(nn.Module):
    """VSE-infinity on regions: a linear layer plus an MLP beside it, both of the features."""

    def __init__(self, channels: int, hidden: int, dimension: int) -> None:
        super().__init__()
        self.linear = _xavier_linear(channels, dimension)
        self.mlp = Perceptron(channels, hidden, dimension)

    def forward(self, features: Tensor) -> Tensor:
        features = _of_width(features, self.linear.in_features)
        return self.linear(features) + self.mlp(features)


class ResidualMlpRegions(nn.Module):
    """DivE: a linear layer, then an MLP of its output beside it."""

    def __init__(self, channels: int, hidden: int, dimension: int, dropout: float) -> None:
        super().__init__()
        self.linear = _xavier_linear(channels, dimension)
        self.mlp = Perceptron(dimension, hidden, dimension)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        projected = self.linear(_of_width(features, self.linear.in_features))
        return self.dropout(self.mlp(projected) + projected)


def make_region_encoder(config: EncoderConfig) -> nn.Module:
    """(..., region_channels) -> (..., dimension)."""
    kinds = ("taps", "linear", "linear_mlp", "residual_mlp")
    kind = one_of("region_encoder", config.region_encoder, kinds)
    channels, hidden, dimension = config.region_channels, config.hidden, config.dimension
    if kind == "taps":
        if channels != sum(REGION_TAPS):
            raise ValueError(
                f"region_channels is {channels}: region_encoder taps reads {sum(REGION_TAPS)} "
                "channels; set region_encoder to linear, linear_mlp or residual_mlp for others",
            )
        return TapRegions(REGION_TAPS, hidden, dimension, config.dropout)
    if kind == "linear":
        return LinearRegions(channels, dimension)
    if kind == "linear_mlp":
        return LinearMlpRegions(channels, hidden, dimension)
    return ResidualMlpRegions(channels, hidden, dimension, config.dropout)


def _xavier_linear(channels: int, dimension: int) -> nn.Linear:
    """Initialised as the projection of regions is in VSE++ and everything after it."""
    linear = nn.Linear(channels, dimension)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def _of_width(features: Tensor, expected: int) -> Tensor:
    if features.shape[-1] != expected:
        raise ValueError(
            f"region features have width {features.shape[-1]}, the model expects {expected}: "
            "use the features that it was trained on, or set region_channels and train anew",
        )
    return features
