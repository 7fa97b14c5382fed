"""Captions as word ids through an embedding and a GRU: VSE++ (one direction), SCAN, CAMP.

A caption ends at its first 0. The backward direction must start there and not at the padding;
packed sequences would do that but cannot be exported. So the words are reversed inside each
caption's length, read forward, and reversed back: the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RecurrentReader(nn.Module):
    """Word ids (B, N), 0 where there is none, to states of words (B, N, D).

    The authors' `rnn.*_l0` are forward_gru.*_l0 here, their `rnn.*_l0_reverse` backward_gru.*_l0.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_dimension: int,
        dimension: int,
        bidirectional: bool,
    ) -> None:
        super().__init__()
        if vocabulary_size <= 0:
            raise ValueError(
                f"vocabulary_size is {vocabulary_size}: word encoders gru and bigru need the size "
                "of the word vocabulary, with its special words",
            )
        self.embed = nn.Embedding(vocabulary_size, word_dimension)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)  # all authors' code
        self.forward_gru = nn.GRU(word_dimension, dimension, batch_first=True)
        self.backward_gru = None
        if bidirectional:
            self.backward_gru = nn.GRU(word_dimension, dimension, batch_first=True)

    def forward(self, word_ids: Tensor) -> tuple[Tensor, Tensor]:
        """-> words (B, N, D), 0 outside the caption; mask (B, N) bool."""
        mask = word_ids != 0
        words, _ = self.forward_gru(self.embed(word_ids))
        if self.backward_gru is not None:
            backwards = reversed_positions(mask)
            falling, _ = self.backward_gru(self.embed(word_ids.gather(1, backwards)))
            index = backwards[..., None].expand(-1, -1, falling.shape[-1])
            words = (words + falling.gather(1, index)) / 2
        return words * mask[..., None], mask


def reversed_positions(mask: Tensor) -> Tensor:
    """mask (B, N), members first -> (B, N): n - 1 - p at position p of n members, else 0."""
    positions = torch.arange(mask.shape[1], device=mask.device)
    return (mask.sum(1, keepdim=True) - 1 - positions).clamp(min=0)
