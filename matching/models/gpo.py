"""The generalized pooling operator of VSE-infinity (Chen et al., CVPR 2021, section 3.2).

Each dimension is sorted over the set in descending order; the sorted values are averaged with
coefficients that a small BiGRU makes from the positions. They depend on the size of the set alone.

The other designs are those of the supplement: a Transformer in place of the BiGRU (table 3), the
rank as a learned vector, an MLP or an interpolated vector (table 6), coefficients for each
dimension (table 7), and a generator that also reads the features (table 8).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from matching.config import one_of
from matching.models.text_backbone import TransformerLayer

_ENCODING = 32
_TEMPERATURE = 0.1  # authors' code; the paper does not mention it
_PIECES = 20  # of the interpolated vector; the supplement does not give its length


class GeneralizedPooling(nn.Module):
    """The design of the paper, cos/sin and BiGRU; the base of the others."""

    def __init__(
        self,
        largest_set: int,
        positions: str = "cos_sin",
        own_dimensions: int = 0,
        fed_dimensions: int = 0,
    ) -> None:
        """own_dimensions: D for coefficients a dimension; fed_dimensions: D to read features."""
        super().__init__()
        self.largest_set = largest_set
        self.own_dimensions, self.fed_dimensions = own_dimensions, fed_dimensions
        self._add_generator(max(own_dimensions, 1))
        if one_of("pooling_positions", positions, ("cos_sin", "index")) == "index":
            # "Transforms the position index into embeddings with a learnable matrix."
            self.index = nn.Embedding(largest_set, _ENCODING)
        else:
            self.index = None
            self.register_buffer("encoding", _positional_encoding(largest_set), persistent=False)
        # The supplement does not say how features enter: beside the position, then mixed.
        self.mix = nn.Linear(_ENCODING + fed_dimensions, _ENCODING) if fed_dimensions else None
        # Set by freeze(): the table as a constant, for export.
        self.register_buffer("frozen_table", None, persistent=False)

    def _add_generator(self, outputs: int) -> None:
        self.forward_gru = nn.GRU(_ENCODING, _ENCODING, batch_first=True)
        self.backward_gru = nn.GRU(_ENCODING, _ENCODING, batch_first=True)
        self.score = nn.Linear(_ENCODING, outputs, bias=False)

    def _scores(self, inputs: Tensor, sizes: Tensor) -> Tensor:
        """inputs (B or 1, S, 32), sizes (B, 1) -> (B or 1, S, outputs)."""
        # The forward GRU reads the same prefix whatever the size of the set.
        rising, _ = self.forward_gru(inputs)
        # The backward GRU of a set of n starts at position n - 1.
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        backwards = (sizes - 1 - positions).clamp(min=0)  # (B, S)
        index = backwards[..., None].expand(-1, -1, _ENCODING)
        shared = inputs.expand(sizes.shape[0], -1, -1)
        falling, _ = self.backward_gru(shared.gather(1, index))
        return self.score((rising + falling.gather(1, index)) / 2)

    def _normalised(self, scores: Tensor, outside: Tensor) -> Tensor:
        """scores (B or 1, S, outputs), outside (B, S, 1) -> coefficients (B, S, outputs)."""
        return (scores.masked_fill(outside, -1e4) / _TEMPERATURE).softmax(1)

    def coefficients(self, sizes: Tensor, length: int, ranked: Tensor | None = None) -> Tensor:
        """sizes (B,), sorted features (B, length, D) if they are read -> (B, length, 1 or D)."""
        encoding = self.encoding if self.index is None else self.index.weight
        inputs = encoding[None, :length]
        sizes = sizes[:, None]
        outside = torch.arange(length, device=sizes.device) >= sizes  # (B, length)
        if self.mix is not None:
            ranked = ranked.masked_fill(outside[..., None], 0.0)
            inputs = inputs.expand(ranked.shape[0], -1, -1)
            inputs = self.mix(torch.cat([inputs, ranked], dim=-1))
        return self._normalised(self._scores(inputs, sizes), outside[..., None])

    def coefficient_table(self, largest: int | None = None) -> Tensor:
        """Row n - 1 holds the coefficients of a set of n: (S, S), or (S, S, D) a dimension."""
        largest = largest or self.largest_set
        sizes = torch.arange(1, largest + 1, device=next(self.parameters()).device)
        table = self.coefficients(sizes, largest)
        return table if self.own_dimensions else table.squeeze(-1)

    def freeze(self) -> None:
        """Makes the coefficients constants, unless they depend on the features."""
        if not self.fed_dimensions:
            with torch.no_grad():
                self.frozen_table = self.coefficient_table()

    def _table(self, size: int) -> Tensor:
        if self.frozen_table is not None:
            return self.frozen_table
        # While tracing, a size is a symbol and the table has all rows.
        return self.coefficient_table(size if isinstance(size, int) else None)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """features (B, S, D), mask (B, S) bool with at least one member a row -> (B, D).

        Without a mask every set is whole; its graph is then simpler, and TensorRT can read it.
        """
        size = features.shape[1]
        if isinstance(size, int) and size > self.largest_set:
            raise ValueError(
                f"a set of {size} members is to be pooled, the largest this model pools is "
                f"{self.largest_set}: give fewer regions or words",
            )
        if mask is None:
            ranked, _ = features.topk(size, dim=1)
            if not self.fed_dimensions:
                row = self._table(size)[size - 1, :size]
                return (row * ranked).sum(1) if self.own_dimensions else row @ ranked
            sizes = torch.full_like(features[:, 0, 0], size, dtype=torch.int64)
            return (self.coefficients(sizes, size, ranked) * ranked).sum(1)
        sizes = mask.sum(1)
        hidden = features.masked_fill(~mask[..., None], -1e4)
        ranked, _ = hidden.topk(size, dim=1)  # descending; members outside the mask come last
        inside = torch.arange(size, device=mask.device) < sizes[:, None]  # (B, S)
        if self.fed_dimensions:
            coefficients = self.coefficients(sizes, size, ranked)
        else:
            # index_select becomes Gather; plain indexing would become the rarer GatherND.
            coefficients = self._table(size).index_select(0, sizes - 1)[:, :size]  # (B, S[, D])
            coefficients = coefficients if self.own_dimensions else coefficients[..., None]
        return (ranked * (coefficients * inside[..., None])).sum(1)


class MlpPooling(GeneralizedPooling):
    """The coefficient of a rank from the rank alone, without a softmax.

    "Unaware of the global length" (supplement 2.3): a softmax would make it aware, and 1/n of
    average pooling exact, where table 6 reports an error.
    """

    def _add_generator(self, outputs: int) -> None:
        self.hidden = nn.Linear(_ENCODING, _ENCODING)
        self.score = nn.Linear(_ENCODING, outputs)

    def _scores(self, inputs: Tensor, sizes: Tensor) -> Tensor:
        return self.score(torch.relu(self.hidden(inputs)))

    def _normalised(self, scores: Tensor, outside: Tensor) -> Tensor:
        return scores.masked_fill(outside, 0.0)


class TransformerPooling(GeneralizedPooling):
    """One encoder layer of four heads; the supplement does not give its size."""

    def _add_generator(self, outputs: int) -> None:
        self.layer = TransformerLayer(_ENCODING, 4)
        self.score = nn.Linear(_ENCODING, outputs, bias=False)

    def _scores(self, inputs: Tensor, sizes: Tensor) -> Tensor:
        inside = torch.arange(inputs.shape[1], device=inputs.device) < sizes  # (B, S)
        shared = inputs.expand(sizes.shape[0], -1, -1)
        return self.score(self.layer(shared, inside))


class InterpolatedPooling(GeneralizedPooling):
    """A learned vector of fixed length stretched to the size of the set (as in FSPool).

    The stretched coefficients are divided by their sum, else average pooling could not be exact for
    every size as table 6 has it.
    """

    def _add_generator(self, outputs: int) -> None:
        if self.fed_dimensions:
            raise ValueError("pooling_generator interpolation cannot read features: choose another")
        self.knots = nn.Parameter(torch.zeros(_PIECES + 1, outputs))

    def _scores(self, inputs: Tensor, sizes: Tensor) -> Tensor:
        positions = torch.arange(inputs.shape[1], device=inputs.device, dtype=inputs.dtype)
        places = positions / (sizes - 1).clamp(min=1) * _PIECES  # (B, S), 0 to the last knot
        distances = places[..., None] - torch.arange(_PIECES + 1, device=inputs.device)
        return (1 - distances.abs()).clamp(min=0) @ self.knots.softmax(0)

    def _normalised(self, scores: Tensor, outside: Tensor) -> Tensor:
        inside = scores.masked_fill(outside, 0.0)
        return inside / inside.sum(1, keepdim=True)


def _positional_encoding(size: int) -> Tensor:
    positions = torch.arange(size, dtype=torch.float32)[:, None]
    rates = 10000 ** (-torch.arange(0, _ENCODING, 2, dtype=torch.float32) / _ENCODING)
    encoding = torch.zeros(size, _ENCODING)
    encoding[:, 0::2] = torch.sin(positions * rates)
    encoding[:, 1::2] = torch.cos(positions * rates)
    return encoding
