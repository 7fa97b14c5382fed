"""BERT (Devlin et al., 2019) as a reader of captions, as in VSE-infinity and DivE."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from matching.models.text_backbone import LAYER_NAMES, TransformerLayer

WIDTH = 768  # BERT-base


class Bert(nn.Module):
    """Piece ids (B, L), 0 where there is none, to features of pieces (B, L, width).

    Every piece counts as a word, [CLS] and [SEP] too, as in the authors' code.
    """

    def __init__(
        self,
        width: int = WIDTH,
        layers: int = 12,
        heads: int = 12,
        vocabulary_size: int = 30522,
        largest_caption: int = 512,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(largest_caption, width)
        self.types = nn.Embedding(2, width)
        for table in (self.words, self.positions, self.types):
            nn.init.normal_(table.weight, std=0.02)  # Devlin et al.'s code
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(TransformerLayer(width, heads, dropout) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)

    def forward(self, piece_ids: Tensor) -> tuple[Tensor, Tensor]:
        """-> pieces (B, L, width), mask (B, L) bool."""
        length, largest = piece_ids.shape[1], self.positions.num_embeddings
        if isinstance(length, int) and length > largest:  # while tracing it is a symbol
            raise ValueError(f"a caption has {length} pieces, BERT reads at most {largest}: cut it")
        mask = piece_ids != 0
        positions = self.positions(torch.arange(length, device=piece_ids.device))
        # A caption is one sentence: all its pieces are of type 0.
        hidden = self.norm(self.words(piece_ids) + positions + self.types.weight[0])
        hidden = self.dropout(hidden)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden, mask

    def load_published(self, weights: Mapping[str, Tensor], prefix: str = "") -> None:
        """Takes weights by the names of the published BERT-base, each after `prefix`.

        The pooler and whatever else belongs to the pre-training tasks is left aside.
        """
        own = self.state_dict()
        for name in own:
            published = prefix + published_name(name)
            if published not in weights:
                raise ValueError(f"BERT weights lack {published!r}: expected those of BERT-base")
            found, expected = tuple(weights[published].shape), tuple(own[name].shape)
            if found != expected:
                raise ValueError(
                    f"BERT weight {published!r} has shape {found}, expected {expected}",
                )
            own[name] = weights[published]
        self.load_state_dict(own)


def published_name(name: str) -> str:
    """Our name of a weight of Bert -> its name in the published files."""
    first, *rest = name.split(".")
    if first == "layers":
        index, part, kind = rest
        return f"encoder.layer.{index}.{LAYER_NAMES[part]}.{kind}"
    tables = {
        "words": "word_embeddings",
        "positions": "position_embeddings",
        "types": "token_type_embeddings",
        "norm": "LayerNorm",
    }
    return f"embeddings.{tables[first]}.{rest[0]}"
