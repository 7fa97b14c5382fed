"""The generalized pooling operator of VSE-infinity (Chen et al., CVPR 2021, section 3.2).

Each dimension is sorted over the set in descending order; the sorted values are averaged with
coefficients that a small BiGRU makes from the positions. They depend on the size of the set alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ENCODING = 32
_TEMPERATURE = 0.1  # authors' code; the paper does not mention it


class GeneralizedPooling(nn.Module):
    def __init__(self, largest_set: int) -> None:
        super().__init__()
        self.largest_set = largest_set
        self.forward_gru = nn.GRU(_ENCODING, _ENCODING, batch_first=True)
        self.backward_gru = nn.GRU(_ENCODING, _ENCODING, batch_first=True)
        self.score = nn.Linear(_ENCODING, 1, bias=False)
        self.register_buffer("encoding", _positional_encoding(largest_set), persistent=False)
        # Set by freeze(): the table as a constant, for export.
        self.register_buffer("frozen_table", None, persistent=False)

    def coefficient_table(self) -> Tensor:
        """Row n - 1 holds the coefficients of a set of n: (largest_set, largest_set)."""
        size = self.largest_set
        sizes = torch.arange(1, size + 1)[:, None]  # (S, 1)
        positions = torch.arange(size)[None, :]  # (1, S)
        # The forward GRU reads the same prefix whatever the size of the set.
        rising, _ = self.forward_gru(self.encoding[None])  # (1, S, 32)
        # The backward GRU of a set of n starts at position n - 1: one row per size.
        reversed_positions = (sizes - 1 - positions).clamp(min=0)  # (S, S)
        falling, _ = self.backward_gru(self.encoding[reversed_positions])  # (S, S, 32)
        index = reversed_positions[..., None].expand(-1, -1, _ENCODING)
        states = (rising + falling.gather(1, index)) / 2
        scores = self.score(states).squeeze(-1).masked_fill(positions >= sizes, -1e4)
        return (scores / _TEMPERATURE).softmax(-1)

    def freeze(self) -> None:
        with torch.no_grad():
            self.frozen_table = self.coefficient_table()

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Tensor:
        """features (B, S, D), mask (B, S) bool with at least one member a row -> (B, D).

        Without a mask every set is whole; its graph is then simpler, and TensorRT can read it.
        """
        table = self.coefficient_table() if self.frozen_table is None else self.frozen_table
        size = features.shape[1]
        if mask is None:
            ranked, _ = features.topk(size, dim=1)
            return table[size - 1, :size] @ ranked
        sizes = mask.sum(1)
        # index_select becomes Gather; plain indexing would become the rarer GatherND.
        coefficients = table.index_select(0, sizes - 1)[:, :size]  # (B, S)
        hidden = features.masked_fill(~mask[..., None], -1e4)
        ranked, _ = hidden.topk(size, dim=1)  # descending; members outside the mask come last
        inside = torch.arange(size, device=mask.device) < sizes[:, None]  # (B, S)
        return (ranked * (coefficients * inside)[..., None]).sum(1)


def _positional_encoding(size: int) -> Tensor:
    positions = torch.arange(size, dtype=torch.float32)[:, None]
    rates = 10000 ** (-torch.arange(0, _ENCODING, 2, dtype=torch.float32) / _ENCODING)
    encoding = torch.zeros(size, _ENCODING)
    encoding[:, 0::2] = torch.sin(positions * rates)
    encoding[:, 1::2] = torch.cos(positions * rates)
    return encoding
