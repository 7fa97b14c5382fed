"""What all systems share: encoders of regions and words, chosen by the same settings.

A system is an embedder, a pair scorer, or both.

An embedder (stage 1) has `embedding_width` and

    embed_photos(regions (B, R, C), region_mask (B, R) | None) -> (B, E)
    embed_captions(*captions) -> (B, E)
    similarity(photos (..., P, E), captions (..., C, E)) -> (..., P, C)

A pair scorer (stage 2) has `side_width`, `extra_positions` and

    photo_side(regions, region_mask=None) -> (B, X + R, S)
    caption_side(*captions) -> (B, X + N, S), position mask (B, X + N) bool
    forward(photos (..., P, X + R, S), captions (..., C, X + N, S), mask (..., C, X + N),
            region_mask (..., P, X + R) | None) -> PairScores

where a side is everything that a photo or caption brings to every pair it is in, X =
`extra_positions` leading positions hold what belongs to the photo or caption as a whole, and
leading axes are groups that are scored apart. `captions` is what the word encoder takes: for
`minilm` hidden (B, L, W), piece_mask (B, L), word_pieces (B, N, L); for `bigru` and `gru` word_ids
(B, N), 0 where there is none; for `bert` piece_ids (B, L), likewise. No region mask means that
every photo has all its regions.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from matching.config import EncoderConfig
from matching.models.region_encoders import make_region_encoder
from matching.models.word_encoders import make_word_encoder


class System(nn.Module):
    """The base of every system: regions and words in its own space."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.regions = make_region_encoder(config)
        # `text` reads the caption (and is tuned gently if it is pretrained), `words` projects.
        self.text, self.words = make_word_encoder(config)

    def similarity_settings(self) -> dict[str, Any]:
        """What matching.similarity.Similarity is made of, where the system is an embedder."""
        return {"kind": "cosine", "slots": 1}

    def encode_words(self, *captions: Tensor) -> tuple[Tensor, Tensor]:
        """Captions as the word encoder takes them -> words (B, N, D), word_mask (B, N) bool."""
        words, mask = self.text(*captions)
        return self.words(words), mask
